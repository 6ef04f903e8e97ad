"""What would be answered wrongly without a word is refused, or said."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stakes import (
    MLP,
    Gaussian,
    LossCalibrated,
    MCDropout,
    MeanField,
    Newsvendor,
    Range,
    Standard,
    Training,
    Utility,
    decide,
    fit,
)
from stakes.errors import StakesError, StakesWarning

UTILITY = Utility.from_costs([[0, 10], [1, 0]], decisions=["a", "b"], outcomes=["x", "y"])
QUICK = Training(epochs=1, batch_size=8)


@pytest.mark.parametrize("settle", [None, 0.9])
def test_an_input_that_is_nan_has_no_decision(settle: float | None) -> None:
    x = torch.randn(5, 3)
    x[2, 1] = torch.nan
    draws = MCDropout(MLP(3, 2, (8,), 0.5)).draw(40, seed=0)
    with pytest.raises(StakesError, match=r"1 of 5 inputs, the first at index 2, are NaN"):
        decide(draws(x), UTILITY, settle=settle)


def test_an_amount_that_is_nan_has_no_decision() -> None:
    posterior = MCDropout(MLP(3, 1, (8,), 0.5), Gaussian.for_labels(torch.arange(9.0)))
    x = torch.full((2, 3), torch.nan)
    with pytest.raises(StakesError, match="2 of 2 inputs, the first at index 0, are NaN"):
        decide(posterior.draw(10, seed=0)(x), Newsvendor(3, 1))


class ReadsWeights(nn.Module):
    """A network that reads the weights of a layer, and does not call it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.first(x).relu(), self.second.weight, self.second.bias)


def test_mean_field_refuses_layers_that_are_read_and_not_called() -> None:
    with pytest.raises(StakesError, match=r"does not call 'second': if it reads their weights instead"):
        fit(MeanField(ReadsWeights()), Standard(), (torch.randn(20, 3), torch.randint(2, (20,))), config=QUICK)


def test_a_likelihood_made_for_other_labels_is_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    x, labels = torch.randn(40, 3), torch.randn(40)
    likelihood = Gaussian.for_labels(1e6 + 1e3 * labels)
    fit(MCDropout(MLP(3, 1, (8,), 0.1), likelihood), Standard(), (x, 1e6 + 900 * labels), config=QUICK)
    assert not recwarn.list
    with pytest.warns(StakesWarning, match="was made for labels around"):
        fit(MCDropout(MLP(3, 1, (8,), 0.1), likelihood), Standard(), (x, labels), config=QUICK)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_labels_center_keeps_its_precision(dtype: torch.dtype) -> None:
    likelihood = Gaussian.for_labels(torch.linspace(99_990, 100_010, 21, dtype=torch.float64))
    draws = MCDropout(MLP(3, 1, (8,), 0.1), likelihood).draw(5, seed=0)
    x = torch.zeros(1, 3)
    exact, moved = (float(each(x).mixture().mean()) for each in (draws, draws.to(dtype)))
    assert moved == pytest.approx(exact, abs=0.1)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ([[0], [1], [1]], r"shape \(3, 1\)"),
        ([-1, 0, 0], "from -1 to 0"),
        ([0, 2, 0], "from 0 to 2"),
        ([True, False, True], "bool"),
        ([0.0, 1.0, 1.0], "float"),
    ],
)
def test_decisions_are_numbers_of_the_table_for_each_outcome(choice: Any, message: str) -> None:
    with pytest.raises(StakesError, match=message):
        UTILITY.realised(np.array(choice), [0, 1, 1])
    assert UTILITY.realised([0, 1, 0], [0, 0, 1]).tolist() == [0, -1, -10]


@pytest.mark.parametrize("tables", [39, 41])
def test_there_is_a_table_for_each_training_example(tables: int) -> None:
    costs = np.random.default_rng(0).random((tables, 2, 2))
    utility = Utility.from_costs(costs, decisions=["a", "b"], outcomes=["x", "y"])
    with pytest.raises(StakesError, match=f"expected {tables} examples, one for each table of the utility, but got 40"):
        fit(
            MCDropout(MLP(3, 2, (8,), 0.1)),
            LossCalibrated(utility),
            (torch.randn(40, 3), torch.randint(2, (40,))),
            config=QUICK,
        )


def test_inputs_in_double_precision_are_trained_on() -> None:
    x, labels = torch.randn(40, 3, dtype=torch.float64), torch.randint(2, (40,))
    losses = []
    for each in (x, x.float()):
        torch.manual_seed(0)
        posterior = MCDropout(MLP(3, 2, (8,), 0.1))
        losses.append(fit(posterior, Standard(), (each, labels), config=QUICK).epochs[-1].loss)
    assert losses[0] == losses[1]


def test_an_optimizer_is_a_function_that_makes_one() -> None:
    posterior = MCDropout(MLP(3, 2, (8,), 0.1))
    ready: Any = torch.optim.Adam(posterior.parameters())
    with pytest.raises(StakesError, match=r"optimizer= to be a function that makes one, .* but got Adam"):
        fit(posterior, Standard(), (torch.randn(9, 3), torch.randint(2, (9,))), config=QUICK, optimizer=ready)


def test_a_function_of_costs_decides_the_same_for_any_number_of_rows() -> None:
    utility = Utility.from_function(lambda choice, outcome: (choice - outcome).abs() ** 1.5, Range(-5, 5))
    posterior = MCDropout(MLP(3, 1, (8,), 0.5), Gaussian.for_labels(torch.randn(50)))
    draws, x = posterior.draw(40, seed=0), torch.randn(150, 3)
    together, alone = decide(draws(x), utility), decide(draws(x[77:78]), utility)
    assert float(together.choice[77]) == pytest.approx(float(alone.choice[0]), abs=1e-6)


class CentersTheBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = MLP(3, 2, (8,), 0.2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x - x.mean(0))
        return out


@pytest.mark.parametrize(
    "network",
    [
        CentersTheBatch(),
        nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.Dropout(0.2), nn.Linear(3, 2)),
    ],
    ids=["a mean over the batch", "batch norm"],
)
def test_an_answer_that_depends_on_the_other_inputs_is_refused(network: nn.Module) -> None:
    with pytest.raises(StakesError, match="not to depend on the other inputs of its batch"):
        MCDropout(network).draw(10, seed=0)(torch.randn(5, 3)).mean_probs()
    MCDropout(network).draw(10, seed=0)(torch.randn(1, 3))
