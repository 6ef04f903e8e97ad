"""What decisions are expected to come to by chance, against outcomes drawn from the probabilities."""

import numpy as np
import pytest
import torch

from stakes import Utility, decide
from stakes.evaluation.claims import claimed_range
from stakes.utility import TableUtility


def drawn(probs: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy((generator.random((len(probs), 1)) > probs.numpy().cumsum(1)[:, :-1]).sum(1))


def problem(rows: int, share: float, seed: int = 0) -> tuple[TableUtility, torch.Tensor]:
    """Dear mistakes about a rare outcome: the rarer, the more skewed is what they cost."""
    utility = Utility.from_costs({"pay": {"honest": 0, "fraud": 500}, "block": {"honest": 20, "fraud": 0}})
    fraud = torch.from_numpy(np.random.default_rng(seed).beta(0.5, 0.5 / share, rows))
    assert isinstance(utility, TableUtility)
    return utility, torch.stack([1 - fraud, fraud], 1)


@pytest.mark.parametrize(("rows", "share"), [(2_000, 0.1), (300, 0.02), (1_000, 0.4)])
def test_outcomes_of_the_probabilities_are_within_it_in_95_percent_of_cases(rows: int, share: float) -> None:
    utility, probs = problem(rows, share)
    choice = decide(probs, utility).choice
    generator = np.random.default_rng(1)
    means = [utility.realised(choice, drawn(probs, generator)).mean() for _ in range(4_000)]
    claimed = claimed_range(utility, choice, probs, drawn(probs, generator))
    assert claimed.mean == pytest.approx(np.mean(means), abs=4 * np.std(means) / np.sqrt(4_000))
    assert np.mean(np.array(means) < claimed.low) == pytest.approx(0.025, abs=0.012)
    assert np.mean(np.array(means) > claimed.high) == pytest.approx(0.025, abs=0.012)


def test_rows_that_belong_together_stray_together() -> None:
    utility, probs = problem(50, 0.3)
    generator, outside = np.random.default_rng(2), {"apart": 0, "together": 0}
    many, groups = probs.repeat_interleave(8, 0), np.repeat(np.arange(50), 8)
    choice = decide(many, utility).choice
    for _ in range(300):
        labels = drawn(probs, generator).repeat_interleave(8)
        came = utility.realised(choice, labels).mean()
        for name, known in {"apart": None, "together": groups}.items():
            claimed = claimed_range(utility, choice, many, labels, groups=known)
            outside[name] += not claimed.low <= came <= claimed.high
    assert outside["together"] <= 0.1 * 300
    assert outside["apart"] > 0.3 * 300


def test_certain_decisions_have_no_range_and_none_is_beyond_the_best_and_the_worst() -> None:
    utility = Utility.from_costs([[0, 10], [5, 0]])
    assert isinstance(utility, TableUtility)
    sure = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert claimed_range(utility, torch.tensor([0, 1]), sure, torch.tensor([0, 1])) == (0, 0, 0)
    unsure = torch.full((4, 2), 0.5)
    claimed = claimed_range(utility, torch.tensor([0] * 4), unsure, torch.tensor([0, 1, 1, 0]), groups=np.zeros(4, int))
    assert claimed == (-5, -10, 0)
