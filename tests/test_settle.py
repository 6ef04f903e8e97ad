"""``decide(..., settle=)``: only as many draws as a decision needs."""

import numpy as np
import pytest
import torch
from torch import nn

from stakes import (
    Decisions,
    Ensemble,
    MCDropout,
    MeanField,
    SampledPosterior,
    StakesError,
    TableUtility,
    Utility,
    decide,
)
from stakes.outcomes import Predictor

COSTS = {"treat": {"ill": 0, "well": 40}, "send home": {"ill": 120, "well": 0}, "test": {"ill": 25, "well": 20}}


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(3, 30), nn.ReLU(), nn.Dropout(0.2), nn.Linear(30, 2))
    with torch.no_grad():
        layers[3].weight *= 3
    return layers


def draws(samples: int = 100, seed: int = 0) -> Predictor:
    return MCDropout(network()).draw(samples, seed)


def equal(first: Decisions, second: Decisions) -> bool:
    fields = ("choice", "utilities", "probs", "margin_error", "taken")
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in fields)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(400, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def utility() -> TableUtility:
    return Utility.from_costs(COSTS)


def test_at_confidence_one_it_is_decide(x: torch.Tensor, utility: TableUtility) -> None:
    assert equal(decide(draws()(x), utility, settle=1.0), decide(draws()(x), utility))


def test_an_input_leaves_after_a_look_with_what_its_draws_said(x: torch.Tensor, utility: TableUtility) -> None:
    settled = decide(draws()(x), utility, settle=0.99)
    assert set(settled.taken.tolist()) == {10, 20, 50}
    for samples in (10, 20, 50):
        rows = settled.taken == samples
        alone = decide(draws(samples)(x[rows]), utility)
        assert torch.equal(settled.choice[rows], alone.choice)
        torch.testing.assert_close(settled.utilities[rows], alone.utilities, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(settled.margin_error[rows], alone.margin_error, rtol=1e-3, atol=1e-5)
    # The less clear a decision is, the more draws it took.
    margins = [float(settled.margin[settled.taken == samples].mean()) for samples in (10, 20, 50)]
    assert margins == sorted(margins, reverse=True)


def test_an_answer_does_not_depend_on_the_other_inputs(x: torch.Tensor, utility: TableUtility) -> None:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    whole = decide(draws()(x), utility, settle=0.99)
    shuffled = decide(draws()(x[order]), utility, settle=0.99)
    assert torch.equal(whole.choice[order], shuffled.choice)
    assert torch.equal(whole.taken[order], shuffled.taken)
    in_blocks = decide(draws()(x, memory=20_000), utility, settle=0.99)
    assert torch.equal(whole.choice, in_blocks.choice)
    assert torch.equal(whole.taken, in_blocks.taken)


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_early_decisions_are_as_often_right_as_promised(confidence: float, utility: TableUtility) -> None:
    """The truth is what 10,000 draws say; inputs are taken from where decisions are close."""
    candidates = torch.randn(3000, 3, generator=torch.Generator().manual_seed(2))
    close = decide(draws(100, seed=7)(candidates), utility)
    x = candidates[close.margin.argsort()[:600]]
    truth = decide(draws(10_000, seed=9)(x).mean_probs(), utility).choice
    wrong = early = 0
    for seed in range(5):
        settled = decide(draws(100, seed)(x), utility, settle=confidence)
        left = settled.taken < 100
        early += int(left.sum())
        wrong += int((settled.choice != truth)[left].sum())
    assert early > 300
    assert wrong / early <= 1 - confidence


def test_tables_for_each_example_pixels_and_other_families(x: torch.Tensor) -> None:
    generator = np.random.default_rng(0)
    tables = Utility.from_matrix(generator.normal(size=(len(x), 3, 2)), list("abc"), list("xy"))
    settled, whole = (decide(draws()(x), tables, settle=confidence) for confidence in (0.999, 1.0))
    assert float((settled.choice == whole.choice).double().mean()) > 0.99
    torch.manual_seed(0)
    images = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.1), nn.Conv2d(8, 2, 1))
    pixels = decide(MCDropout(images).draw(60, 0)(torch.randn(6, 1, 4, 4)), Utility.diagonal("xy"), settle=0.9)
    assert pixels.choice.shape == (6, 4, 4)
    assert pixels.taken.shape == (6,)
    pairs = decide(MeanField(network()).draw(30, 0)(x), Utility.diagonal("xy"), settle=0.99)
    assert int(pairs.taken.min()) == 10
    members = Ensemble.of(lambda: nn.Linear(3, 2), 30, seed=0)  # that do not agree
    assert decide(members.draw(30, 0)(x), Utility.diagonal("xy"), settle=0.99).taken.tolist() == [30] * len(x)


@pytest.mark.parametrize("confidence", [0.0, -1.0, 1.5, float("nan")])
def test_what_is_no_confidence_is_refused(confidence: float, utility: TableUtility) -> None:
    with pytest.raises(StakesError, match="settle= to be a confidence"):
        decide(draws()(torch.randn(2, 3)), utility, settle=confidence)


def test_it_needs_draws_and_the_optimal_rule(utility: TableUtility) -> None:
    with pytest.raises(StakesError, match="for draws"):
        decide([[0.5, 0.5]], utility, settle=0.9)
    with pytest.raises(StakesError, match="the rule 'argmax'"):
        decide(draws()(torch.randn(2, 3)), utility, "argmax", settle=0.9)


RARE = Utility.from_costs({"a": {"x": 0, "y": 500}, "b": {"x": 5, "y": 0}})


class Thresholds(nn.Module):
    """Sure of x, unless ``units`` units are dropped together: then sure of y."""

    def __init__(self, units: int, rate: float) -> None:
        super().__init__()
        self.scale, self.drop, self.units = nn.Parameter(torch.ones(())), nn.Dropout(rate), units

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logit = 40 * self.drop(x.new_ones(len(x), self.units)).sum(1).clamp(max=1) - 20
        return torch.stack([self.scale * logit, 0 * logit], 1)


@pytest.mark.parametrize(("units", "rate", "samples"), [(1, 0.02, 1000), (2, 0.2, 200)])
def test_an_input_does_not_settle_before_a_rare_event_could_be_seen(units: int, rate: float, samples: int) -> None:
    """`a` is right in nearly all draws, and costs more on average."""
    posterior, x = MCDropout(Thresholds(units, rate)), torch.zeros(1, 1)
    assert rate**units * 500 > 1.5 * 5
    found = [decide(posterior.draw(samples, seed)(x), RARE, settle=0.99) for seed in range(20)]
    assert sum(each.chosen_names[0] == "b" for each in found) >= 19


def test_small_rates_take_more_draws_before_the_first_look(x: torch.Tensor, utility: TableUtility) -> None:
    """A group of 20 does not show a drop with the probability 0.6; 0.6 ** 14 is below the doubt of a look, 0.001."""
    layers = network()
    layers[2].p = 0.02
    settled = decide(MCDropout(layers).draw(1000, 0)(x), utility, settle=0.99)
    assert int(settled.taken.min()) == 400
    small = decide(SampledPosterior(MCDropout(layers), 100, 0)(x), utility, settle=0.99)
    assert small.taken.tolist() == [100] * len(x)


def test_equal_draws_settle_where_nothing_unseen_could_turn_the_decision() -> None:
    draws = MCDropout(Thresholds(2, 0.1)).draw(100, 0)
    symmetric = decide(draws(torch.zeros(1, 1)), Utility.diagonal("xy"), settle=0.99)
    assert symmetric.taken.tolist() == [10]
