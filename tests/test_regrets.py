"""Training sees regrets: neither what is unavoidable nor a decision that is never taken makes a difference."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog
from torch import Tensor, nn

from stakes import (
    Ensemble,
    Gaussian,
    Likelihood,
    Linex,
    LossCalibrated,
    Newsvendor,
    Range,
    Squared,
    TableUtility,
    Utility,
)
from stakes.mixtures import GaussianMixture
from stakes.paper.diagnosis.experiment import paper_utility as diagnosis_utility
from stakes.paper.digits.experiment import paper_utility as digits_utility
from stakes.paper.roads.experiment import road_utility
from stakes.utility.checks import ever_best

shapes = st.tuples(st.integers(1, 5), st.integers(2, 4))
tables = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.integers(-40, 40).map(float)))


def table(values: np.ndarray) -> TableUtility:
    rows, columns = values.shape[-2:]
    return TableUtility(values, tuple(f"d{i}" for i in range(rows)), tuple(f"c{i}" for i in range(columns)))


def loss_and_gradients(
    utility: Utility, outputs: int, likelihood: Likelihood | None = None, labels: Tensor | None = None
) -> list[Tensor]:
    """Of one batch in the first epoch, whose decisions are those of the labels, and in the second, by fresh draws."""
    torch.manual_seed(0)
    networks = [nn.Linear(3, outputs).double() for _ in range(3)]
    posterior = Ensemble(networks, **({} if likelihood is None else {"likelihood": likelihood}))
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(1)).double()
    labels = torch.arange(12) % outputs if labels is None else labels
    index = torch.arange(12)
    objective, loss = LossCalibrated(utility), torch.zeros(())
    for _ in range(2):
        objective.start_epoch(posterior, [])
        loss = loss + objective(posterior, x, labels, index=index)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in posterior.parameters() if parameter.grad is not None)]


def assert_same(first: list[Tensor], second: list[Tensor]) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@given(tables, st.lists(st.integers(-3000, 3000), min_size=4, max_size=4))
def test_what_is_unavoidable_changes_neither_loss_nor_gradient(values: np.ndarray, amounts: list[int]) -> None:
    columns = values.shape[1]
    added = table(values + np.array(amounts[:columns], dtype=float))
    assert_same(loss_and_gradients(table(values), columns), loss_and_gradients(added, columns))


@given(tables, st.integers(0, 4), st.floats(0, 1), st.integers(1, 1000), st.booleans())
def test_a_row_that_is_never_taken_changes_nothing(
    values: np.ndarray, row: int, share: float, worse: int, again: bool
) -> None:
    """A copy, a row that another one dominates, or one that a mixture of two does."""
    one, other = values[row % len(values)], values[(row + 1) % len(values)]
    extra = one if again else share * one + (1 - share) * other - worse
    alone = loss_and_gradients(table(values), values.shape[1])
    for both in ([values, extra], *([] if again else [[extra, values]])):  # of equal rows the first is taken
        assert_same(alone, loss_and_gradients(table(np.vstack(both)), values.shape[1]))


def test_a_row_that_is_only_ever_as_good_as_another_changes_nothing() -> None:
    values = np.array([[1.0, 0.0], [-20.0, 5.0]])
    as_good = np.vstack([[1.0, -7.0], values])  # under the first outcome
    assert_same(loss_and_gradients(table(values), 2), loss_and_gradients(table(as_good), 2))


@pytest.mark.parametrize("amount", [1e4, 1e7, 1e9])
def test_however_large_the_unavoidable_amount_is(amount: float) -> None:
    values = np.array([[10.0, 0, 0], [0, 10, 0], [5.1, 5.1, -50]])  # the third leads by little, and has the worst cell
    first, second = (loss_and_gradients(table(values + np.array([0, 0, a])), 3) for a in (0.0, amount))
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@given(st.integers(1, 4), st.integers(2, 4), st.integers(0, 2**31))
def test_rows_with_tables_of_their_own_have_neither(rows: int, columns: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(12, rows, columns))
    unavoidable = generator.normal(scale=1000, size=(12, 1, columns))
    dominated = values[:, :1] - generator.exponential(100, size=(12, 1, columns))
    changed = np.concatenate([values, dominated], 1) + unavoidable
    assert_same(loss_and_gradients(table(values), columns), loss_and_gradients(table(changed), columns))


@given(tables)
def test_the_decisions_that_are_ever_best_are_those_of_many_beliefs(values: np.ndarray) -> None:
    """By the linear programme of each row alone, against random probabilities and another programme."""
    found = ever_best(values, exact=True)
    beliefs = np.random.default_rng(0).dirichlet(np.full(values.shape[1], 0.5), size=2000)
    assert set((beliefs @ values.T).argmax(1)) <= set(np.flatnonzero(found))
    kept = values[found]
    for row in values[~found]:  # a mixture of those that were kept is at least as good under every outcome
        mixture = linprog(
            np.zeros(len(kept)), A_ub=-kept.T, b_ub=-row + 1e-6, A_eq=np.ones((1, len(kept))), b_eq=[1], bounds=(0, 1)
        )
        assert mixture.success


@pytest.mark.parametrize("utility", [diagnosis_utility(), digits_utility(), road_utility()])
@pytest.mark.parametrize("margin", [1e-3, 5e-6])
def test_nothing_changes_for_the_tables_of_the_paper(utility: TableUtility, margin: float) -> None:
    """To the last digit: their best cells are alike in all columns, and each decision is the best one somewhere."""
    values = utility.values
    before = values + (margin * float(np.ptp(values)) - float(values.min()))
    assert np.array_equal(utility.bounded(margin).values, before)


def test_wishing_a_dear_outcome_away_does_not_pay() -> None:
    """The README's problem, with 2,000 more for "ill" whatever is decided: P(ill) stays what the labels say."""
    costs = np.array([[0.0, 40.0], [500.0, 0.0], [60.0, 15.0]])
    names = ("treat", "send home", "test more"), ("ill", "well")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 2, generator=generator)
    y = (x[:, 0] + 0.5 * torch.randn(600, generator=generator) > 0).long()
    means = []
    for unavoidable in (0.0, 2000.0):
        utility = Utility.from_costs(costs + np.array([unavoidable, 0.0]), *names)
        torch.manual_seed(0)
        posterior = Ensemble([nn.Linear(2, 2), nn.Linear(2, 2)])
        objective, optimizer = LossCalibrated(utility), torch.optim.Adam(posterior.parameters(), 0.05)
        for _ in range(200):
            optimizer.zero_grad()
            objective(posterior, x, y).backward()
            optimizer.step()
        means.append(float(posterior.draw(2, seed=0)(x).mean_probs()[:, 0].mean()))
    assert means[0] == pytest.approx(means[1], abs=1e-4)


# Outcomes that are numbers -------------------------------------------------------------------------

LABELS = torch.linspace(-1, 4, 12, dtype=torch.float64)


def of_numbers(utility: Utility) -> list[Tensor]:
    return loss_and_gradients(utility, 1, Gaussian.for_labels(LABELS), LABELS)


@pytest.mark.parametrize("form", ["linear", "exponential"])
@pytest.mark.parametrize("decisions", [Range(0, 3, 0.5), Range(0, 3)])
def test_what_is_unavoidable_of_a_function_changes_nothing(form: str, decisions: Range) -> None:
    def plain(decision: Tensor, outcome: Tensor) -> Tensor:
        return (decision - outcome).abs() + 0.1 * decision

    def dearer(decision: Tensor, outcome: Tensor) -> Tensor:
        return plain(decision, outcome) + 3 * outcome.square()

    first, second = (Utility.from_function(each, decisions).with_limit(2.0, form=form) for each in (plain, dearer))
    assert_same(of_numbers(first), of_numbers(second))


@pytest.mark.parametrize("form", ["linear", "exponential"])
@pytest.mark.parametrize("cost", [Newsvendor(3, 1), Squared(2.0), Linex(1.5)])
def test_what_lies_beyond_the_highest_decision_is_unavoidable(form: str, cost: Newsvendor | Squared | Linex) -> None:
    """Cost and unavoidable cost by numerical integration of the normal distribution, point by point."""
    from dataclasses import replace

    utility = replace(cost, at_least=0.0, at_most=2.0).with_limit(4.0, form=form)
    mean, sd, choice = 1.5, 0.8, 1.25
    outcomes = GaussianMixture(torch.tensor([[[mean]]]).double(), torch.tensor([[[sd]]]).double())
    points = np.linspace(mean - 10 * sd, mean + 10 * sd, 200_001)
    density = np.exp(-(((points - mean) / sd) ** 2) / 2) / (sd * np.sqrt(2 * np.pi))
    at = {
        h: np.asarray(cost.cost(torch.tensor(h), torch.from_numpy(points))) for h in (choice, *np.linspace(0, 2, 2001))
    }
    least = np.min(list(at.values()), 0)
    regret = at[choice] - least
    step = points[1] - points[0]
    expected = np.log((np.exp(-regret / 4) * density).sum() * step)
    if form == "linear":
        expected = -(regret * density).sum() * step / 4
    found = utility.log_gain(outcomes, torch.tensor([choice], dtype=torch.float64))
    assert found.item() == pytest.approx(expected, rel=0.02)


CURVES = {"service now": 400.0, "run on": [(0, 2000), (30, 2000), (30, 0)], "wait": [(0, 900), (60, 100)]}


def shifted(curves: dict, added: Callable[[float], float], points: list[float]) -> dict:
    """The same curves with a piecewise linear cost added to all of them."""
    utility = Utility.from_curves(curves)
    places, costs = utility.at_points()
    every = sorted({*places, *points})
    moved = {}
    for name, row in zip(utility.decisions, costs, strict=True):
        jumps = {x for x, repeats in zip(*np.unique(places, return_counts=True), strict=True) if repeats == 2}
        moved[name] = []
        for x in every:
            values = row[places == x] if x in places else [np.interp(x, places, row)]
            moved[name] += [(x, value + added(x)) for value in (values if x in jumps else values[:1])]
    return moved


@pytest.mark.parametrize("limit", [None, "linear", "exponential"])
def test_what_is_unavoidable_of_curves_changes_nothing(limit: str | None) -> None:
    labels = torch.linspace(-5, 80, 12, dtype=torch.float64)
    added = shifted(CURVES, lambda x: float(np.interp(x, [10, 50], [0, 5000])), [10.0, 50.0])
    dominated = {**CURVES, "never": [(0, 2500), (30, 2500), (60, 90_000)]}
    as_good = {"worse": [(0, 2000), (30, 2000), (30, 0), (60, 0), (70, 90_000)], **CURVES}
    losses = []
    for curves in (CURVES, added, dominated, as_good):
        utility = Utility.from_curves(curves)
        if limit:
            utility = utility.with_limit(500.0, form=limit)
        losses.append(loss_and_gradients(utility, 1, Gaussian.for_labels(labels), labels))
    for other in losses[1:]:
        for one, two in zip(losses[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("form", ["linear", "exponential"])
def test_a_function_trains_as_the_same_costs_in_closed_form(form: str) -> None:
    """Over a range in which 41 numbers are far apart."""
    function = Utility.from_function(lambda h, y: (h - y).abs(), Range(0, 1000)).with_limit(5.0, form=form)
    closed = Newsvendor(1, 1, at_least=0, at_most=1000).with_limit(5.0, form=form)
    gains, gradients = [], []
    for utility in (function, closed):
        mean = torch.tensor([[[112.5]]], dtype=torch.float64, requires_grad=True)
        outcomes = GaussianMixture(mean, torch.ones(1, 1, 1, dtype=torch.float64))
        gain = utility.log_gain(outcomes, torch.tensor([113.0], dtype=torch.float64))
        gain.sum().backward()
        gains.append(gain.item())
        gradients.append(mean.grad.item())
    assert gains[0] == pytest.approx(gains[1], rel=0.02)
    assert gradients[0] == pytest.approx(gradients[1], abs=0.03)  # by atoms, between which there is a kink


@pytest.mark.parametrize("form", ["linear", "exponential"])
@pytest.mark.parametrize("bounds", [{"at_least": 0.0}, {"step": 1.0}])
def test_costs_by_row_with_bounds(form: str, bounds: dict[str, float]) -> None:
    """Each row's gain is what it is alone, with as many draws as rows and with others."""
    under = np.array([1.0, 100.0, 3.0])
    for draws in (2, 3):
        location = torch.linspace(-3, 4, 3 * draws, dtype=torch.float64).reshape(draws, 3, 1)
        outcomes, choice = GaussianMixture(location, torch.ones_like(location)), torch.tensor([0.0, 1.0, 2.0]).double()
        together = Newsvendor(under, 2.0, **bounds).with_limit(20.0, form=form).log_gain(outcomes, choice)
        for row, each in enumerate(under):
            alone = Newsvendor(float(each), 2.0, **bounds).with_limit(20.0, form=form)
            own = alone.log_gain(outcomes.rows(torch.tensor([row]), 1), choice[row : row + 1])
            torch.testing.assert_close(together[:, row : row + 1], own)


def test_the_curves_of_training_are_those_above_the_lowest() -> None:
    utility = Utility.from_curves(CURVES)
    bounded = utility.bounded(1e-3)
    at = torch.linspace(-10, 100, 1101, dtype=torch.float64)
    costs = utility.costs(at)
    torch.testing.assert_close(bounded.costs(at), costs - costs.amin(-1, keepdim=True), atol=1e-9, rtol=0)
    assert bounded.best == pytest.approx(1.001 * 1600)
