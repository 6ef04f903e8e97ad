"""Numbers given by their quantiles: against closed forms, scipy, and mixtures whose quantiles are known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn.metrics import mean_pinball_loss

from stakes import Newsvendor, StakesError, decide
from stakes.calibration import Shift
from stakes.evaluation.metrics import crps, pinball
from stakes.mixtures import (
    LEVELS,
    Atoms,
    GaussianMixture,
    LogNormalMixture,
    Mixture,
    Quantiles,
    StudentMixture,
    numbers,
)
from stakes.outcomes import Outcomes


def normal(mean: float, scale: float, rows: int = 2) -> Quantiles:
    values = stats.norm(mean, scale).ppf(LEVELS.numpy())
    return Quantiles(torch.from_numpy(values).expand(rows, -1))


def mixtures() -> list[Mixture]:
    generator = torch.Generator().manual_seed(0)
    location, scale = torch.randn(50, 7, generator=generator), torch.rand(50, 7, generator=generator) + 0.2
    return [
        GaussianMixture(location, scale),
        LogNormalMixture(location, scale, 3.0),
        StudentMixture(location, scale, 4),
    ]


# Of any outcomes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mixture", mixtures(), ids=lambda mixture: type(mixture).__name__)
def test_quantiles_of_a_mixture_are_its_own(mixture: Mixture) -> None:
    values = Quantiles.of(mixture).at_levels
    assert values.shape == (50, 99)
    shares = torch.stack([mixture.cdf(column) for column in values.unbind(-1)], -1)
    torch.testing.assert_close(shares, LEVELS.expand(50, -1), atol=1e-4, rtol=0)
    torch.testing.assert_close(values[:, 74], mixture.quantile(0.75), atol=1e-3, rtol=1e-3)


def test_quantiles_of_components_far_narrower_than_they_are_apart() -> None:
    mixture = GaussianMixture(torch.tensor([[-50.0, 0.0, 3.0]]), torch.tensor([[0.01, 1e-4, 2.0]]))
    values = Quantiles.of(mixture).at_levels[0]
    shares = torch.stack([mixture.cdf(value.unsqueeze(0)) for value in values]).flatten()
    torch.testing.assert_close(shares, LEVELS, atol=1e-6, rtol=0)


def test_middle_axes_stay() -> None:
    mixture = GaussianMixture(torch.randn(3, 4, 2), torch.ones(3, 4, 2))
    values = Quantiles.of(mixture).at_levels
    assert values.shape == (3, 4, 99)
    torch.testing.assert_close(values[1, 2], Quantiles.of(mixture.rows(torch.tensor([1]))).at_levels[0, 2])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_quantiles_of_atoms_are_those_of_numpy(amounts: list[int]) -> None:
    values = torch.tensor([amounts], dtype=torch.float64)
    weights = torch.full_like(values, 1 / len(amounts))
    ours = Quantiles.of(Outcomes(weights, values=values)).at_levels[0]
    theirs = np.quantile(amounts, LEVELS.numpy() - 1e-9, method="inverted_cdf")
    np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(StakesError, match="named classes"):
        Quantiles.of(Outcomes(weights))


# As a distribution ---------------------------------------------------------------------------------


def test_answers_as_the_normal_distribution_that_they_are_of() -> None:
    given_by, exact = normal(100, 20), stats.norm(100, 20)
    for share in (0.02, 0.255, 0.75, 0.983):
        assert given_by.quantile(share)[0] == pytest.approx(exact.ppf(share), abs=0.4)  # interpolated: 2 % of the scale
        h = torch.full((2,), exact.ppf(share))
        assert given_by.cdf(h)[0] == pytest.approx(share, abs=1e-3)
    assert given_by.mean()[0] == pytest.approx(100)
    assert given_by.variance()[0] == pytest.approx(400, rel=0.015)
    h = torch.tensor([90.0, 110.0])
    short = [stats.norm.expect(lambda y, h=h: max(y - h, 0), loc=100, scale=20) for h in h.tolist()]
    torch.testing.assert_close(given_by.shortfall(h), torch.tensor(short).double(), atol=0.05, rtol=0)
    assert numbers(given_by) is given_by


def test_levels_are_met_exactly() -> None:
    even = Quantiles(torch.arange(1.0, 100.0))
    torch.testing.assert_close(torch.stack([even.quantile(level) for level in LEVELS]), even.at_levels, rtol=0, atol=0)
    assert float(even.quantile(0.255)) == 25.5
    shares = torch.tensor([0.3, 0.755])
    torch.testing.assert_close(even.repeat(2).quantile(shares), 100 * shares.double())
    torch.testing.assert_close(even.quantiles(shares), 100 * shares.double())


@given(st.lists(st.integers(0, 8), min_size=99, max_size=99), st.floats(0.0002, 0.9998))
def test_cdf_and_quantile_invert_each_other(amounts: list[int], share: float) -> None:
    given_by = Quantiles(torch.tensor(amounts, dtype=torch.float64))
    h = given_by.quantile(share)
    assert float(given_by.cdf(h)) >= share - 1e-6
    assert float(given_by.cdf(h - 1e-3)) <= share + 1e-6


# Beyond the outermost --------------------------------------------------------------------------------

SHARES = (0.5, 0.75, 0.9, 0.95)
# Of each distribution, by how much a share of the expected cost and of the standard deviation may be off.
TRUTHS = {
    "normal": (stats.norm(100, 20), 0.012, 0.01),
    "exponential": (stats.expon(), 0.005, 0.005),
    "gamma": (stats.gamma(4), 0.01, 0.01),
    "narrow log-normal": (stats.lognorm(0.5), 0.005, 0.005),
    "wide log-normal": (stats.lognorm(1.0), 0.05, 0.09),
    "student 5": (stats.t(5), 0.015, 0.02),
    "student 3": (stats.t(3), 0.055, 0.11),
}


def cost(truth: stats.rv_continuous, h: float, share: float) -> float:
    """What deciding h costs in expectation, by the integral of the survival function."""
    short = integrate.quad(truth.sf, h, np.inf)[0]
    return share * short + (1 - share) * (h - truth.mean() + short)


def cost_of_atoms(quantiles: np.ndarray, h: float, share: float) -> float:
    """As if nothing were beyond the outermost."""
    errors = quantiles - h
    weights = np.array([0.015, *[0.01] * 97, 0.015])
    return float(weights @ np.where(errors > 0, share * errors, (share - 1) * errors))


@pytest.mark.parametrize("kind", TRUTHS)
def test_expected_costs_of_known_distributions(kind: str) -> None:
    truth, within, spread = TRUTHS[kind]
    quantiles = truth.ppf(LEVELS.numpy())
    given_by = Quantiles(torch.from_numpy(quantiles).unsqueeze(0))
    for share in SHARES:
        decisions = decide(given_by, Newsvendor(share, 1 - share))
        h = decisions.choice.item()
        assert h == pytest.approx(truth.ppf(share))
        exact = cost(truth, h, share)
        ours = -decisions.expected_utility.item()
        assert ours == pytest.approx(exact, rel=within)
        assert abs(ours - exact) < abs(cost_of_atoms(quantiles, h, share) - exact) / 2
    assert given_by.mean().item() == pytest.approx(truth.mean(), rel=0.01, abs=1e-9)
    cut = np.array([0.015, *[0.01] * 97, 0.015]) @ quantiles
    assert abs(given_by.mean().item() - truth.mean()) <= abs(cut - truth.mean()) / 2 + 1e-9
    assert given_by.variance().sqrt().item() == pytest.approx(truth.std(), rel=spread)
    beyond = truth.ppf(0.998)
    assert 1 - given_by.cdf(torch.tensor([beyond])).item() == pytest.approx(0.002, rel=0.7)
    assert given_by.quantile(0.998).item() == pytest.approx(beyond, rel=0.2)


def test_the_tails_are_exponential_and_every_answer_is_of_the_same_ones() -> None:
    truth, levels = stats.expon(), LEVELS.numpy()
    for sign in (1, -1):
        given_by = Quantiles(torch.from_numpy(sign * truth.ppf(levels)).unsqueeze(0))  # put in order
        far = truth.ppf([0.992, 0.999])
        for h, share in zip(sign * far, (0.992, 0.999), strict=True):
            at = torch.tensor([h])
            assert given_by.cdf(at).item() == pytest.approx(share if sign > 0 else 1 - share)
            assert given_by.quantile(share if sign > 0 else 1 - share).item() == pytest.approx(h)
            short = given_by.shortfall(at) if sign > 0 else at - given_by.mean() + given_by.shortfall(at)
            assert short.item() == pytest.approx(1 - share), "of a memoryless distribution"
    assert given_by.quantile(0.0).item() == given_by.quantile(1e-10).item() == pytest.approx(math.log(1e-9))


def test_costs_in_an_extreme_ratio_are_decided_by_the_same_tails() -> None:
    """Of an exponential distribution with a mean of 10: the optimum, and its cost, is 10 log((under + over) / over)."""
    given_by = Quantiles((10 * -torch.log(1 - LEVELS)).unsqueeze(0))
    for under in (9_999, 99_999, 999_999):
        decisions = decide(given_by, Newsvendor(under, 1))
        assert decisions.choice.item() == pytest.approx(10 * math.log(under + 1), rel=1e-6)
        assert -decisions.expected_utility.item() == pytest.approx(decisions.choice.item(), rel=0.01)


def test_the_atoms_have_the_mean_and_the_spread_of_all_and_the_cost_of_every_decision_inside() -> None:
    for given_by in (normal(100, 20), Quantiles(torch.from_numpy(stats.lognorm(1).ppf(LEVELS.numpy())).expand(2, -1))):
        atoms = Atoms(given_by)
        assert given_by.shape == given_by.weights.shape == given_by.values.shape == (2, 103)
        torch.testing.assert_close(given_by.log_weights.exp(), given_by.weights)
        torch.testing.assert_close(given_by.weights.sum(-1), torch.ones(2).double())
        assert bool((given_by.values.diff(dim=-1) >= 0).all())
        torch.testing.assert_close(atoms.mean(), given_by.mean())
        torch.testing.assert_close(atoms.variance(), given_by.variance())
        for level in (0, 30, 98):
            h = given_by.at_levels[:, level]
            torch.testing.assert_close(atoms.shortfall(h), given_by.shortfall(h))


def test_nothing_is_beyond_quantiles_that_are_equal() -> None:
    nothing = Quantiles(torch.cat([torch.zeros(30), torch.arange(1.0, 60.0), torch.full((10,), 60.0)]).unsqueeze(0))
    assert [nothing.quantile(share).item() for share in (0.0, 0.001, 0.999, 1.0)] == [0.0, 0.0, 60.0, 60.0]
    at = [nothing.cdf(torch.tensor([h])).item() for h in (-1e-9, 60.0)]
    assert at == [0.0, 1.0]
    assert nothing.shortfall(torch.tensor([60.0])).item() == 0
    assert nothing.values.min().item() == 0
    constant = Quantiles(torch.full((1, 99), 7.0))
    assert (constant.mean().item(), constant.variance().item()) == (pytest.approx(7), pytest.approx(0))


def test_quantiles_that_cross_are_put_in_order_which_no_pinball_loss_suffers_from() -> None:
    generator = np.random.default_rng(0)
    crossing = stats.norm.ppf(LEVELS.numpy()) + generator.normal(size=(200, 99)) * 0.3
    ordered = Quantiles(torch.from_numpy(crossing)).at_levels
    assert bool((ordered.diff(dim=-1) >= 0).all())
    labels = generator.normal(size=200)
    assert (crps(ordered, labels) <= crps(crossing, labels) + 1e-12).all()
    with pytest.raises(StakesError, match="99"):
        Quantiles(torch.zeros(3, 98))


def test_stays_what_it_is_where_that_is_exact() -> None:
    one, other = normal(0, 1, 3), normal(5, 1, 3)
    for same in (one.repeat(4).mixture(), one.repeat(1).mixture(), one.rows(torch.tensor([0, 1, 2]))):
        assert isinstance(same, Quantiles)
        torch.testing.assert_close(same.at_levels, one.at_levels)
    assert isinstance(Outcomes.cat([one, other]), Quantiles)
    assert Outcomes.cat([one, other]).shape == (6, 103)
    draws = Outcomes.cat([one.repeat(1), other.repeat(1)])
    assert isinstance(draws, Quantiles)
    pooled = draws.mixture()  # not the quantiles of the mixture: its atoms
    assert not isinstance(pooled, Quantiles)
    assert pooled.shape == (3, 206)
    assert numbers(pooled).mean()[0] == pytest.approx(2.5)
    assert not isinstance(Outcomes.cat([one, Outcomes(one.weights, values=one.values)]), Quantiles)


def test_decides_and_shifts() -> None:
    demand = normal(100, 20)
    decisions = decide(demand, Newsvendor(15, 5))
    assert decisions.choice[0] == pytest.approx(113.49, abs=0.01)
    assert decisions.interval(0.9)[0][0] == pytest.approx(100 - 1.645 * 20, abs=0.1)
    exact = 20 * 20 * stats.norm.pdf(stats.norm.ppf(0.75))
    assert -decisions.expected_utility[0] == pytest.approx(exact, rel=0.005)
    shifted = Shift(3.0)(demand)
    assert isinstance(shifted, Quantiles)
    torch.testing.assert_close(shifted.at_levels, demand.at_levels + 3)
    assert decide(demand, Newsvendor(15, 5, step=10)).choice.tolist() == [110.0, 110.0]


# Scores --------------------------------------------------------------------------------------------


def test_pinball_is_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    values, labels = np.sort(generator.normal(size=(60, 99)), axis=1), generator.normal(size=60)
    ours = pinball(torch.from_numpy(values), torch.from_numpy(labels)).mean(0)
    theirs = [mean_pinball_loss(labels, values[:, k], alpha=float(level)) for k, level in enumerate(LEVELS)]
    np.testing.assert_allclose(ours, theirs)
    np.testing.assert_allclose(pinball(values[:, :2], labels, [0.01, 0.02]), pinball(values, labels)[:, :2])
    for wrong in ((values, labels[:-1]), (values[:, 1:], labels)):
        with pytest.raises(StakesError, match="one for each level"):
            pinball(*wrong)


def test_crps_of_a_normal_distribution_is_its_closed_form() -> None:
    labels = np.linspace(-2.5, 2.5, 11)
    ours = crps(stats.norm.ppf(LEVELS.numpy()) * np.ones((11, 1)), labels)
    density, share = stats.norm.pdf(labels), stats.norm.cdf(labels)
    exact = labels * (2 * share - 1) + 2 * density - 1 / math.sqrt(math.pi)
    np.testing.assert_allclose(ours, exact, rtol=0.02)
