"""Losses over numbers: published closed forms, steps and bounds, curves, limits, as data, and refusals.

Every one of them under every likelihood: test_number_contract.py.
"""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from stakes import Linex, Newsvendor, Outcomes, Range, Squared, StakesError, Utility
from stakes.mixtures import GaussianMixture, LogNormalMixture, Mixture, StudentMixture

LOCATION, SCALE = torch.tensor([[0.3, 1.1, 0.8]]).double(), torch.tensor([[0.4, 0.3, 0.5]]).double()
MIXTURES: dict[str, Mixture] = {
    "normal": GaussianMixture(LOCATION, SCALE),
    "log-normal": LogNormalMixture(LOCATION, SCALE),
    "student": StudentMixture(LOCATION, SCALE, 5),
}
CURVES = {
    "service now": 400,
    "at the next stop": [(0.5, 2000), (0.5, 300), (1.5, 250)],
    "run on": [(0, 2000), (1, 900), (2, 0)],
}
UTILITIES: dict[str, Utility] = {
    "newsvendor": Newsvendor(15, 5),
    "squared": Squared(2.0),
    "linex": Linex(0.75),
    "negative linex": Linex(-0.5),
    "curves": Utility.from_curves(CURVES),
    "function": Utility.from_function(lambda h, y: (1 + (y - h).square()).sqrt() + 0.2 * h, Range(-1, 6)),
    "menu": Utility.from_function(lambda name, y: y.square() if name == "a" else (3 * y).abs(), ["a", "b"]),
}
mixtures = pytest.mark.parametrize("likelihood", MIXTURES)


@pytest.mark.parametrize("m_s_c", [(1.0, 0.8, 0.75), (-2.0, 0.3, -1.5)])
def test_the_sign_of_linex(m_s_c: tuple[float, float, float]) -> None:
    m, s, c = m_s_c
    outcomes = GaussianMixture(torch.tensor([[m]]), torch.tensor([[s]]))
    best = Linex(c).best_choice(outcomes)
    assert best.item() == pytest.approx(m + c * s**2 / 2, abs=1e-6)
    risk = -Linex(c).expected_of(outcomes, best).item()
    assert risk == pytest.approx((c * s) ** 2 / 2, abs=1e-6)
    if c == 0.75:
        assert (best.item(), risk) == (pytest.approx(1.24, abs=1e-6), pytest.approx(0.18, abs=1e-6))
        wrong = -Linex(c).expected_of(outcomes, torch.tensor([0.76])).item()
        assert wrong == pytest.approx(0.254, abs=1e-3)


def test_the_newsvendor_under_a_normal_distribution() -> None:
    outcomes = GaussianMixture(torch.tensor([[100.0]]), torch.tensor([[20.0]]))
    utility = Newsvendor(15, 5, unit="€")
    z = stats.norm.ppf(0.75)
    best = utility.best_choice(outcomes)
    assert best.item() == pytest.approx(100 + 20 * z)
    assert -utility.expected_of(outcomes, best).item() == pytest.approx(20 * 20 * stats.norm.pdf(z))
    assert utility.cost_of(utility.realised([110.0, 90.0], [100.0, 100.0])).tolist() == [50.0, 150.0]


@mixtures
@pytest.mark.parametrize("loss", ["newsvendor", "squared"])
def test_the_search_finds_the_closed_form(likelihood: str, loss: str) -> None:
    exact, mixture = UTILITIES[loss], MIXTURES[likelihood]
    search = Utility.from_function(lambda h, y: exact.cost(h, y), Range(-2, 8))
    # Of the same atoms, so that the two differ by the search alone.
    atoms = Outcomes(mixture.weights, values=mixture.values)
    torch.testing.assert_close(search.best_choice(atoms), exact.best_choice(atoms), atol=1e-4, rtol=0)
    torch.testing.assert_close(search.best_choice(mixture), exact.best_choice(mixture), atol=0.1, rtol=0)


def several(count: int = 40) -> GaussianMixture:
    generator = torch.Generator().manual_seed(0)
    return GaussianMixture(
        10 * torch.randn(count, 5, generator=generator), 4 * torch.rand(count, 5, generator=generator) + 0.2
    )


@pytest.mark.parametrize("loss", [Newsvendor(9, 1), Squared(), Linex(0.1)])
@pytest.mark.parametrize("limits", [Range(-6, 9, 2.5), Range(step=3.0), Range(at_least=0.5, step=0.7), Range(-2, 2)])
def test_steps_and_bounds_against_all_decisions(loss: Utility, limits: Range) -> None:
    from dataclasses import asdict, replace

    utility, outcomes = replace(loss, **asdict(limits)), several()
    choice = utility.best_choice(outcomes)
    if limits.step is None:
        torch.testing.assert_close(choice, loss.best_choice(outcomes).clamp(-2, 2))
        assert utility.runner_up(outcomes, choice) is None
        return
    low = limits.origin if np.isfinite(limits.at_least) else -60.0
    steps = torch.arange(low, min(limits.top, 80.0) + 1e-6, limits.step).double()
    worth = torch.stack([utility.expected_of(outcomes, step.expand(len(choice))) for step in steps], -1)
    torch.testing.assert_close(choice, steps[worth.argmax(-1)])
    second = worth.scatter(-1, worth.argmax(-1, keepdim=True), -torch.inf)
    torch.testing.assert_close(utility.runner_up(outcomes, choice), steps[second.argmax(-1)])


def test_a_function_in_steps_tries_all_of_them() -> None:
    def two_valleys(h: Tensor, y: Tensor) -> Tensor:
        return ((h - y - 20) * (h - y + 20)).square() + 4000 * h  # the lower valley is better

    few, many = (Utility.from_function(two_valleys, Range(-60, 60, step)) for step in (1.0, 0.01))
    outcomes = several(8)
    assert (few.best_choice(outcomes) < outcomes.mean()).all()
    torch.testing.assert_close(few.best_choice(outcomes), many.best_choice(outcomes), atol=0.51, rtol=0)


def test_costs_for_each_example() -> None:
    outcomes, under = several(6), np.array([1.0, 2, 3, 9, 20, 5])
    utility = Newsvendor(under, 4.0)
    assert utility.per_example
    best = utility.best_choice(outcomes)
    ones = [Newsvendor(cost, 4.0).best_choice(outcomes.rows(torch.tensor([i]))) for i, cost in enumerate(under)]
    torch.testing.assert_close(best, torch.cat(ones))
    torch.testing.assert_close(utility.rows(torch.tensor([3, 1])).share, under[[3, 1]] / (under[[3, 1]] + 4))
    worth = utility.realised(best, best + 1)
    np.testing.assert_allclose(worth, -under)
    draws = several(12).rows(torch.arange(12))._like(lambda tensor: tensor.reshape(2, 6, 5))
    assert utility.expected_of(draws, best).shape == (2, 6)
    assert utility.with_limit(10.0, form="exponential").log_gain(draws, best).shape == (2, 6)
    with pytest.raises(StakesError, match="expected 6 examples"):
        utility.best_choice(several(5))


# Cost curves -------------------------------------------------------------------------------------------


def test_a_curve_goes_through_its_points_and_is_constant_beyond() -> None:
    utility = Utility.from_curves(CURVES, unit="€")
    y = torch.tensor([-5.0, 0.5, 0.500001, 1.0, 1.5, 9.0])
    costs = utility.costs(y.double())
    np.testing.assert_allclose(costs[:, 0], [400] * 6)
    np.testing.assert_allclose(costs[:, 1], [2000, 2000, 300, 275, 250, 250], atol=0.01)
    np.testing.assert_allclose(costs[:, 2], np.interp(y, [0, 1, 2], [2000, 900, 0]))
    assert utility.realised([0, 1, 2], [1.0, 1.0, 1.0]).tolist() == [-400.0, -275.0, -900.0]


@mixtures
def test_the_expectation_of_a_curve_is_the_integral_over_its_pieces(likelihood: str) -> None:
    utility, mixture = UTILITIES["curves"], MIXTURES[likelihood]
    ends = [-40.0, 0.0, 0.5, 1.0, 1.5, 2.0, 60.0]

    def integrand(y: float, row: int) -> float:
        at = torch.tensor([y], dtype=torch.float64)
        return (utility.costs(at)[0, row] * mixture.log_prob(at).exp()).item()

    for row in range(3):
        pieces = [integrate.quad(integrand, *piece, args=(row,), limit=200)[0] for piece in pairwise(ends)]
        assert utility.expected_costs(mixture)[0, row].item() == pytest.approx(sum(pieces), rel=1e-4)


def test_curves_are_bounded_as_tables_are() -> None:
    utility, mixture = UTILITIES["curves"], MIXTURES["normal"]
    assert utility.span == 2000
    positive = utility.bounded(1e-3)
    y = torch.linspace(-40, 60, 1_000_001, dtype=torch.float64)
    costs = utility.costs(y)
    regret = ((costs[:, 2] - costs.amin(-1)) * mixture.log_prob(y).exp()).sum() * (y[1] - y[0])
    gain = positive.log_gain(mixture, torch.tensor([2])).exp()
    assert gain.item() == pytest.approx(
        float((costs.amax(-1) - costs.amin(-1)).max()) * 1.001 - regret.item(), rel=1e-3
    )


# Bounded forms for training ------------------------------------------------------------------------------


def test_the_exponential_gain_of_one_normal_distribution_is_the_published_formula() -> None:
    m, s, h, g, t = 0.4, 1.3, 1.1, 0.6, 0.75
    outcomes, choice = GaussianMixture(torch.tensor([[[m]]]), torch.tensor([[[s]]])), torch.tensor([h]).double()
    squared = (1 + 2 * g * s**2) ** -0.5 * np.exp(-g * (m - h) ** 2 / (1 + 2 * g * s**2))
    actual = Squared().with_limit(1 / g, form="exponential").log_gain(outcomes, choice)
    assert actual.exp().item() == pytest.approx(squared, rel=1e-6)
    z, a, b = (h - m) / s, g * t, g * (1 - t)
    first = np.exp(a * (h - m) + a**2 * s**2 / 2) * stats.norm.cdf(-z - a * s)
    second = np.exp(b * (m - h) + b**2 * s**2 / 2) * stats.norm.cdf(z - b * s)
    actual = Newsvendor(t, 1 - t).with_limit(1 / g, form="exponential").log_gain(outcomes, choice)
    assert actual.exp().item() == pytest.approx(first + second, rel=1e-6)


def test_extreme_exponential_gains_are_finite() -> None:
    outcomes = GaussianMixture(torch.tensor([[[1e4]]]), torch.tensor([[[1e-3]]]))
    utility = Newsvendor(1, 1).with_limit(1.0, form="exponential")
    for choice in (0.0, 2e4, 1e4):
        gain = utility.log_gain(outcomes, torch.tensor([choice]).double()).item()
        assert gain == pytest.approx(-abs(choice - 1e4), rel=1e-6, abs=1e-2)


def test_a_limit_is_a_quantile_of_losses_or_a_number() -> None:
    utility = Newsvendor(3, 1)
    assert utility.with_limit(7.5).limit.limit == 7.5
    assert utility.with_limit(np.arange(101.0), quantile=0.7).limit.limit == pytest.approx(70)
    limited = utility.with_limit(8.0)
    outcomes, choice = several(3), torch.zeros(3).double()
    torch.testing.assert_close(limited.log_gain(outcomes, choice), utility.expected_of(outcomes, choice) / 8)
    assert limited.span == 8.0
    assert limited.bounded(0.1) is limited


# As data, and refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "utility",
    [
        Newsvendor(15, 5, unit="€", at_least=0, at_most=80, step=1),
        Newsvendor([1.0, 2.0], 3.0).with_limit(4.0, form="exponential"),
        Squared(2.0, at_most=3),
        Linex(-0.5, unit="kW"),
        Utility.from_curves(CURVES, unit="€"),
    ],
)
def test_json_brings_it_back(utility: Utility) -> None:
    fields = utility.to_dict()
    again = Utility.from_dict(json.loads(json.dumps(fields)))
    assert again == utility
    assert hash(again) == hash(utility)
    assert again.unit == utility.unit


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Newsvendor(-1, 5), "cost of 0 or more"),
        (lambda: Newsvendor(0, 0), "above 0"),
        (lambda: Newsvendor([1, 2], [1, 2, 3]), "as many costs"),
        (lambda: Newsvendor(1, 1, step=0), "a step above 0"),
        (lambda: Newsvendor(1, 1, at_least=3, at_most=2), "lowest decision below the highest"),
        (lambda: Squared(0), "weight above 0"),
        (lambda: Linex(0), "other than 0"),
        (lambda: Newsvendor(1, 1).span, "with_limit"),
        (lambda: Newsvendor(1, 1).with_limit([0.0, 0.0]), "above 0"),
        (lambda: Newsvendor(1, 1).with_limit(1.0, form="cubic"), "'linear' or 'exponential'"),
        (lambda: Newsvendor(1, 1).expected(several(2)), "there is no list"),
        (lambda: Newsvendor(1, 1).realised([1.0], [1.0, 2.0]), "a decision for each outcome"),
        (lambda: UTILITIES["curves"].realised([0, 5], [1.0, 2.0]), "a decision from 0 to 2 for each outcome"),
        (lambda: UTILITIES["curves"].realised([0.0, 1.0], [1.0, 2.0]), "but got float32 of the shape"),
        (lambda: Newsvendor(1, 1).best_choice(Outcomes(torch.tensor([[0.5, 0.5]]))), "named classes"),
        (lambda: Utility.from_function(lambda h, y: h, Range(0)), "expected bounds"),
        (lambda: Utility.from_function(lambda h, y: h, []), "names of the decisions"),
        (lambda: UTILITIES["function"].to_dict(), "cannot be saved"),
        (lambda: UTILITIES["menu"].to_dict(), "cannot be saved"),
        (lambda: Utility.from_function(lambda n, y: y * torch.nan, ["a"]).expected(several(2)), "NaN"),
        (lambda: Utility.from_function(lambda n, y: y[..., :2], ["a"]).expected(several(2)), "for each outcome"),
        (lambda: Utility.from_curves({"a": [(1, 2), (0, 3)]}), "in the order"),
        (lambda: Utility.from_curves({"a": [(1, 2, 3)]}), "points"),
        (lambda: Utility.from_curves({"a": "cheap"}), "points"),
        (lambda: Utility.from_curves({}), "names of the decisions"),
    ],
)
def test_nonsense_is_refused(make, message: str) -> None:
    with pytest.raises(StakesError, match=message):
        make()
