"""Decisions of training take no more draws than can matter, and are those of all draws."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stakes import LossCalibrated, MCDropout, TableUtility, Utility
from stakes.decisions.certain import CertainDecisions
from stakes.inputs import Inputs
from stakes.outcomes import Outcomes
from stakes.posteriors import dropout
from tests.token_networks import CLASSES, Encoder, sentences

ROWS = 40
TABLES = torch.rand(ROWS, 4, CLASSES, generator=torch.Generator().manual_seed(0)).numpy()
UTILITIES = {
    "one table": TableUtility(TABLES[0], ("a", "b", "c", "d"), ("x", "y", "z")),
    "a table for each example": TableUtility(TABLES, ("a", "b", "c", "d"), ("x", "y", "z")),
    "right or wrong": Utility.diagonal(["x", "y", "z"]),
    "nothing to decide": TableUtility(TABLES[0, :1], ("a",), ("x", "y", "z")),
}


class AlwaysLooks(CertainDecisions):
    def look(self) -> float:
        return 0.6


class Counted:
    """A posterior whose fresh draws are counted: one for each draw of each row."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, confidence: float) -> None:
        torch.manual_seed(0)
        network = Encoder()
        with torch.no_grad():
            network.classifier.weight *= confidence
        self.posterior, self.taken = MCDropout(network).train(), 0
        monkeypatch.setattr(dropout, "WORTH_DIVIDING", 0)
        make = self.posterior.fresh_draws

        def fresh_draws(x: Inputs, samples: int) -> object:
            draws = make(x, samples)
            assert draws.divisible

            def outputs(x: Inputs, first: int, last: int) -> Tensor:
                out = draws.outputs(x, first, last)
                self.taken += out.shape[0] * out.shape[1]
                return out

            return draws._replace(outputs=outputs)

        monkeypatch.setattr(self.posterior, "fresh_draws", fresh_draws)

    def mixture(self, utility: Utility | None, samples: int) -> Tensor:
        """The mixture for the same sentences, with the same random numbers; and what comes after them."""
        torch.manual_seed(1)
        x, _ = sentences(ROWS)
        enough = None if utility is None else AlwaysLooks(utility, Outcomes(torch.empty(0)))
        self.taken = 0
        weights = self.posterior.mixture(x, samples, enough).weights
        self.next_number = torch.rand(())
        return weights


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 7, 10, 25])
@pytest.mark.parametrize("name", UTILITIES)
def test_decisions_are_those_of_all_draws(name: str, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    utility, counted = UTILITIES[name], Counted(monkeypatch, confidence=20)
    expected = counted.mixture(None, samples)
    next_number = counted.next_number
    assert counted.taken == samples * ROWS
    some = counted.mixture(utility, samples)
    assert torch.equal(utility.best_choice(Outcomes(some)), utility.best_choice(Outcomes(expected)))
    assert torch.equal(counted.next_number, next_number)  # what training draws next is the same
    stayed = counted.taken == samples * ROWS
    assert stayed == (samples <= 2)
    if samples == 10:
        assert counted.taken >= 6 * ROWS
    if name == "nothing to decide" and samples == 10:
        assert counted.taken == 6 * ROWS


def test_unclear_examples_take_all_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch, confidence=0.01)
    expected = counted.mixture(None, 10)
    torch.testing.assert_close(counted.mixture(UTILITIES["right or wrong"], 10), expected)
    assert counted.taken == 10 * ROWS


@pytest.mark.parametrize("refresh", ["step", "epoch"])
def test_a_training_step_has_the_same_loss(refresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch, confidence=20)
    (x, labels), losses, taken = sentences(ROWS), [], []
    for name in ("fewer", "all"):
        if name == "all":
            monkeypatch.setattr(
                TableUtility, "is_certain", lambda self, said, share: torch.zeros(len(said.weights)).bool()
            )
        utility = UTILITIES["a table for each example"]
        objective = LossCalibrated(utility, refresh=refresh, weight=2.0, start="network")  # type: ignore[arg-type]
        torch.manual_seed(1)
        counted.taken, index = 0, torch.arange(ROWS)
        objective.start_epoch(counted.posterior, [(index, x)])
        losses.append(objective(counted.posterior, x, labels, index=index))
        taken.append(counted.taken)
    torch.testing.assert_close(*losses)
    assert (taken[0] < taken[1]) == (refresh == "step")
    assert taken[1] == 10 * ROWS


def test_it_is_worth_a_look_where_the_training_pass_is_clear() -> None:
    utility = Utility.diagonal(["x", "y"])
    clear, leading, unclear = torch.tensor([[0.99, 0.01], [0.7, 0.3], [0.55, 0.45]])
    for passes, look in (
        ([clear, clear, unclear], 0.6),
        ([clear, unclear, unclear], 0.6),  # saves 4 draws of 10 for a third of the batch
        ([clear, *[unclear] * 9], None),
        ([leading] * 3, 0.8),  # 0.8 * 0.4 is more than 0.2, and 0.6 * 0.4 less than 0.4
    ):
        assert CertainDecisions(utility, Outcomes(torch.stack(passes).unsqueeze(0))).look() == look


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 36, 3))


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (convolutions, torch.rand(400, 1, 8, 8)),  # what is computed once would be computed several times
        (Encoder, sentences(4)[0]),  # so little is computed that each look would take as long
    ],
)
def test_draws_are_not_divided_where_that_saves_nothing(make: Callable[[], nn.Module], x: Inputs) -> None:
    assert not MCDropout(make()).fresh_draws(x, 10).divisible


def test_large_work_that_differs_from_draw_to_draw_is_divided() -> None:
    assert MCDropout(Encoder()).fresh_draws(sentences(2_000)[0], 10).divisible
