"""Every likelihood x every utility of numbers: expectations, decisions and gains by quadrature and a million samples.

What is asked of the library is held against sums over numbers that it had no part in: points of a fine quadrature,
weighted by SciPy's densities, and samples of NumPy. Only the cost of one decision under one outcome is its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from stakes import Gaussian, Linex, LogNormal, Newsvendor, Outcomes, Range, Squared, StakesError, StudentT, Utility
from stakes.likelihoods import Likelihood
from stakes.mixtures import LEVELS, GaussianMixture, Quantiles
from stakes.utility import NumberUtility

FloatArray = NDArray[np.float64]
SAMPLES = 1_000_000
STANDARD_ERRORS = 4.5
LABELS = torch.tensor([0.4, 0.9, 1.3, 1.1, 2.3, 1.7])
OUTPUTS = torch.tensor([[-0.6, -0.4], [0.5, -0.9], [0.1, 0.2]]).unsqueeze(1)  # (S, B, 2): three draws for one input


@dataclass(frozen=True)
class Points:
    """Numbers and their weights: a quadrature, or samples."""

    values: FloatArray
    weights: FloatArray

    def mean(self, of: FloatArray) -> float:
        return float(self.weights @ of)


@dataclass(frozen=True)
class Case:
    """Outcomes of one input, and where their numbers come from."""

    outcomes: Outcomes
    draw: Callable[[np.random.Generator], FloatArray]  # a million samples
    quadrature: Callable[[int], Points]  # of about so many points
    within: float = 1e-4  # share by which expectations may be off


# The outcomes ------------------------------------------------------------------------------------------


def of_likelihood(likelihood: Likelihood, df: int | None = None) -> Case:
    """Three draws of a network, mixed."""
    outputs = OUTPUTS if likelihood.scale == "input" else OUTPUTS[..., :1]
    with torch.no_grad():
        mixture = likelihood.outcomes(outputs).mixture()
    location, scale = mixture.location[0].numpy(), mixture.scale[0].numpy()
    amount = np.exp if isinstance(likelihood, LogNormal) else np.asarray
    standard = stats.norm if df is None else stats.t(df)

    def draw(generator: np.random.Generator) -> FloatArray:
        which = generator.integers(3, size=SAMPLES)
        z = generator.standard_normal(SAMPLES) if df is None else generator.standard_t(df, SAMPLES)
        return amount(location[which] + scale[which] * z)

    def quadrature(points: int) -> Points:
        each = points // 3
        reach = 3.0 if df is None else 8.0
        v = (np.arange(each) + 0.5) / each * 2 * reach - reach  # the midpoint rule, with z = sinh(v)
        weights = standard.pdf(np.sinh(v)) * np.cosh(v) * 2 * reach / each
        values = [amount(m + s * np.sinh(v)) for m, s in zip(location, scale, strict=True)]
        return Points(np.concatenate(values), np.tile(weights / 3, 3))

    return Case(mixture, draw, quadrature)


def of_quantiles() -> Case:
    """Uniform between two levels, exponential beyond the outermost."""
    quantiles = stats.gamma(3, scale=0.5).ppf(LEVELS.numpy()) - 0.2

    def inverse(share: FloatArray) -> FloatArray:
        lower, upper = (quantiles[4] - quantiles[0]) / np.log(5), (quantiles[98] - quantiles[94]) / np.log(5)
        inside = np.interp(share, LEVELS.numpy(), quantiles)
        below = lower * np.log(np.minimum(share, 0.01) / 0.01)
        return inside + below - upper * np.log(np.minimum(1 - share, 0.01) / 0.01)

    def quadrature(points: int) -> Points:
        shares = (np.arange(points) + 0.5) / points
        return Points(inverse(shares), np.full(points, 1 / points))

    outcomes = Quantiles(torch.from_numpy(quantiles).unsqueeze(0))
    # As atoms, quantiles stand for the outcomes around them.
    return Case(outcomes, lambda generator: inverse(generator.uniform(size=SAMPLES)), quadrature, within=2e-3)


def of_atoms() -> Case:
    values, weights = np.array([-0.3, 0.2, 0.9, 1.5, 3.2]), np.array([0.1, 0.3, 0.25, 0.2, 0.15])
    outcomes = Outcomes(torch.from_numpy(weights).unsqueeze(0), values=torch.from_numpy(values))
    points = Points(values, weights)
    return Case(outcomes, lambda generator: generator.choice(values, SAMPLES, p=weights), lambda _: points)


OUTCOMES: dict[str, Callable[[], Case]] = {
    "gaussian, one scale": lambda: of_likelihood(Gaussian.for_labels(LABELS)),
    "gaussian, by input": lambda: of_likelihood(Gaussian.for_labels(LABELS, scale="input")),
    "log-normal, one scale": lambda: of_likelihood(LogNormal.for_labels(LABELS)),
    "log-normal, by input": lambda: of_likelihood(LogNormal.for_labels(LABELS, scale="input")),
    "student, one scale": lambda: of_likelihood(StudentT.for_labels(LABELS, df=6), 6),
    "student, by input": lambda: of_likelihood(StudentT.for_labels(LABELS, scale="input", df=5), 5),
    "quantiles": of_quantiles,
    "atoms": of_atoms,
}


@cache
def case(name: str) -> Case:
    return OUTCOMES[name]()


@cache
def quadrature(name: str) -> Points:
    return case(name).quadrature(300_000)


@cache
def samples(name: str) -> Points:
    return Points(case(name).draw(np.random.default_rng(0)), np.full(SAMPLES, 1 / SAMPLES))


# The utilities -----------------------------------------------------------------------------------------


def smooth(h: Tensor, y: Tensor) -> Tensor:
    return (1 + (y - h).square()).sqrt() + 0.2 * h


def kinked(h: Tensor, y: Tensor) -> Tensor:
    return 3 * (y - h).clamp_min(0) + (h - y).clamp_min(0) + 0.3 * h.abs()


def menu(name: str, y: Tensor) -> Tensor:
    return 0.2 * y.square() if name == "a" else (3 * y).abs() if name == "b" else torch.full_like(y, 1.2)


CURVES = {
    "service now": 400,
    "at the next stop": [(0.5, 2000), (0.5, 300), (1.5, 250)],
    "run on": [(0, 2000), (1, 900), (2, 0)],
    "jumps": [(0.3, 0), (0.3, 900), (1.2, 900), (1.2, 200)],
}
UTILITIES: dict[str, NumberUtility] = {
    "newsvendor": Newsvendor(15, 5),
    "newsvendor in steps": Newsvendor(1, 9, at_least=-0.5, at_most=2, step=0.4),
    "squared": Squared(2.0),
    "squared in steps": Squared(step=0.5),
    "linex": Linex(0.75),
    "negative linex": Linex(-0.5, 2.0, at_least=0.1),
    "function": Utility.from_function(smooth, Range(-1, 6)),
    "function with a kink": Utility.from_function(kinked, Range(-1, 6)),
    "function in steps": Utility.from_function(smooth, Range(-1, 3, 0.25)),
    "function in small steps": Utility.from_function(smooth, Range(-1, 3, 0.005)),
    "menu": Utility.from_function(menu, ["a", "b", "c"]),
    "curves": Utility.from_curves(CURVES),
}
LIMITS = {kind: 300.0 if kind == "curves" else 4.0 for kind in UTILITIES}
# A quadrature that does not know where a cost bends, or a gain, is right to this share.
BENT = 5e-3
COARSE = {
    "function": 0.01,
    "function with a kink": 0.15,
    "menu": 0.01,
}  # what is unavoidable is the least of 41 decisions
ALWAYS_RIGHT = {"newsvendor", "squared", "linex", "curves"}  # some decision, or an exact curve, meets each outcome
BENDING_COSTS = {"function with a kink", "menu"}
BENDING_GAINS = {"newsvendor", "newsvendor in steps", "curves"} | BENDING_COSTS


def infinite(outcomes: str, kind: str) -> bool:
    """Whether the loss has no expectation."""
    return ("student" in outcomes and "linex" in kind) or ("log-normal" in outcomes and kind == "linex")


def allowed(outcomes: str, bends: bool) -> float:
    """The share by which an expectation may be off."""
    return max(case(outcomes).within, BENT if bends else 0.0)


def bent(outcomes: str, kind: str) -> bool:
    return kind in BENDING_COSTS or (outcomes == "quantiles" and kind == "linex")  # whose tail has a large share in it


def some_decisions(utility: NumberUtility) -> list[float]:
    return [*range(len(utility.decisions))] or [0.4, 1.7]


def costs(utility: NumberUtility, decision: float, values: FloatArray) -> FloatArray:
    return utility.cost(torch.tensor(decision), torch.from_numpy(values)).double().numpy()


def unavoidable(utility: NumberUtility, values: FloatArray) -> FloatArray:
    """What the best of many decisions costs under each outcome."""
    if utility.decisions:
        candidates: FloatArray = np.arange(len(utility.decisions))
    elif utility.range == Range():
        return np.zeros_like(values)  # each outcome can be decided for
    else:
        low, high = max(utility.at_least, -30.0), min(utility.range.top, 120.0)
        candidates = np.arange(low, high + 1e-9, utility.step or (high - low) / 400)
        if utility.step is None:
            candidates = np.concatenate([candidates, np.clip(np.linspace(-3, 6, 451), low, high)])
    least = np.full_like(values, np.inf)
    for decision in candidates.tolist():
        np.minimum(least, costs(utility, decision, values), out=least)
    return least


class Mean(NamedTuple):
    value: float
    error: float  # Monte-Carlo standard error


@cache
def means(outcomes: str, kind: str) -> dict[tuple[float, str], tuple[Mean, Mean]]:
    """By decision, of the cost, the regret, and the exponential gain of the regret: by quadrature, and by samples."""
    utility, numbers = UTILITIES[kind], (quadrature(outcomes), samples(outcomes))
    found = {}
    for decision in some_decisions(utility):
        losses = [costs(utility, decision, points.values) for points in numbers]
        regrets = [loss - unavoidable(utility, points.values) for loss, points in zip(losses, numbers, strict=True)]
        gains = [np.exp(-each / LIMITS[kind]) for each in regrets]
        for name, values in (("cost", losses), ("regret", regrets), ("gain", gains)):
            error = float(values[1].std() / np.sqrt(SAMPLES))
            exact, drawn = (points.mean(of) for points, of in zip(numbers, values, strict=True))
            found[decision, name] = Mean(exact, 0.0), Mean(drawn, error)
    return found


def agree(ours: float, theirs: tuple[Mean, Mean], within: float, away: float = 0.0) -> None:
    for mean in theirs:
        assert ours == pytest.approx(mean.value, abs=STANDARD_ERRORS * mean.error + within * abs(mean.value) + away)


def all_outcomes_and_utilities(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.parametrize("kind", UTILITIES)(pytest.mark.parametrize("outcomes", OUTCOMES)(test))


# The contract ------------------------------------------------------------------------------------------


@all_outcomes_and_utilities
def test_expected_costs(outcomes: str, kind: str) -> None:
    utility, given = UTILITIES[kind], case(outcomes).outcomes
    for decision in some_decisions(utility):
        choice = torch.tensor([decision])
        if infinite(outcomes, kind):
            with pytest.raises(StakesError, match=r"E exp\(c y\) is infinite under a .*: use a Gaussian"):
                utility.expected_of(given, choice)
            continue
        ours = utility.cost_of(utility.expected_of(given, choice)).item()
        agree(ours, means(outcomes, kind)[decision, "cost"], allowed(outcomes, bent(outcomes, kind)))


@all_outcomes_and_utilities
def test_the_best_decision_is_as_good_as_the_best_of_all(outcomes: str, kind: str) -> None:
    utility, given = UTILITIES[kind], case(outcomes).outcomes
    if infinite(outcomes, kind):
        with pytest.raises(StakesError, match="is infinite"):
            utility.best_choice(given)
        return
    points = case(outcomes).quadrature(30_000)

    def cost(decision: float) -> float:
        return points.mean(costs(utility, decision, points.values))

    choice = utility.best_choice(given).item()
    if utility.decisions:
        candidates: FloatArray = np.arange(len(utility.decisions))
    elif utility.step is None:
        candidates = utility.range.inside(torch.linspace(-1, 6, 141).double()).unique().numpy()
    else:
        candidates = np.arange(max(utility.at_least, -4.0), min(utility.range.top, 8.0) + 1e-9, utility.step)
        assert np.abs(candidates - choice).min() < 1e-9, "it is one of the steps"
        candidates = candidates[:: len(candidates) // 100 + 1]
    least = min(cost(decision) for decision in candidates.tolist())
    assert cost(choice) <= least * (1 + 2 * allowed(outcomes, kind in BENDING_COSTS)), choice


@all_outcomes_and_utilities
@pytest.mark.parametrize("form", ["linear", "exponential"])
def test_log_gains(outcomes: str, kind: str, form: str) -> None:
    utility, given = UTILITIES[kind].with_limit(LIMITS[kind], form=form).bounded(1e-3), case(outcomes).outcomes
    for decision in some_decisions(utility):
        choice = torch.tensor([decision])
        if form == "exponential":  # which is bounded, whatever the loss
            off = allowed(outcomes, kind in BENDING_GAINS or kind not in ALWAYS_RIGHT)
            agree(
                utility.log_gain(given, choice).exp().item(),
                means(outcomes, kind)[decision, "gain"],
                off,
                COARSE.get(kind, 0) / LIMITS[kind],
            )
        elif infinite(outcomes, kind):
            with pytest.raises(StakesError, match="is infinite"):
                utility.log_gain(given, choice)
        else:  # the logarithm of limit - loss is about log(limit) - loss / limit
            ours = -LIMITS[kind] * utility.log_gain(given, choice).item()
            agree(
                ours,
                means(outcomes, kind)[decision, "regret"],
                allowed(outcomes, bent(outcomes, kind)) + (0 if kind in ALWAYS_RIGHT else 0.01),  # by atoms
                COARSE.get(kind, 0),
            )


@pytest.mark.parametrize("outcomes", OUTCOMES)
def test_curves_without_a_limit_gain_what_they_are_worth_above_the_worst(outcomes: str) -> None:
    utility = UTILITIES["curves"].bounded(0.005)
    for decision in range(len(CURVES)):
        regret, _ = means(outcomes, "curves")[decision, "regret"]
        ours = utility.log_gain(case(outcomes).outcomes, torch.tensor([decision])).exp().item()
        assert ours == pytest.approx(2010 - regret.value, rel=case(outcomes).within)


# Jumps, and decisions without bounds ---------------------------------------------------------------------


@pytest.mark.parametrize("outcomes", [name for name in OUTCOMES if name != "atoms"])
def test_the_exponential_gain_of_a_jump_is_exact_wherever_the_atoms_are(outcomes: str) -> None:
    points, given = quadrature(outcomes), case(outcomes).outcomes
    for place in np.linspace(0.2, 2.2, 9).round(3).tolist():
        utility = Utility.from_curves({"run on": [(place, 50), (place, 1)]}).with_limit(10.0, form="exponential")
        gain = points.mean(np.exp(-np.where(points.values > place, 1, 50) / 10))
        ours = utility.log_gain(given, torch.tensor([0])).exp().item()
        assert ours == pytest.approx(gain, rel=1e-3), place


@pytest.mark.parametrize("kind", [Gaussian, LogNormal, StudentT])
def test_the_exponential_gain_of_a_jump_has_the_gradient_of_finite_differences(kind: type[Likelihood]) -> None:
    likelihood = kind.for_labels(LABELS, scale="input").double()
    utility = Utility.from_curves({"now": 5, "run on": [(1.0, 50), (1.0, 1)]}).with_limit(10.0, form="exponential")
    outputs = OUTPUTS.double().clone().requires_grad_()

    def gain(raw: Tensor) -> Tensor:
        return utility.log_gain(likelihood.outcomes(raw), torch.tensor([1]))

    (slope,) = torch.autograd.grad(gain(outputs).sum(), outputs)
    assert bool((slope.abs() > 1e-3).all())
    step = torch.zeros_like(outputs)
    step[..., 0] = 0.25  # wide, for by atoms alone it would go in steps
    with torch.no_grad():
        finite = (gain(outputs + step) - gain(outputs - step)) / 0.5
    torch.testing.assert_close(slope[..., 0], finite, rtol=0.1, atol=0.02)


def test_extreme_gains_of_jumps_are_finite() -> None:
    given = GaussianMixture(torch.tensor([[[0.0]], [[9.0]]]), torch.tensor([[[1e-3]], [[0.1]]]))
    curve = [(5.0, 1e5), (5.0, 1.0)]
    utility = Utility.from_curves({"run on": curve, "other": 3}).with_limit(1.0, form="exponential")
    gains = utility.log_gain(given, torch.tensor([0])).flatten()
    assert bool(gains.isfinite().all())
    assert gains[1].item() == pytest.approx(-1)
    assert utility.log_gain(given, torch.tensor([1])).flatten().tolist() == pytest.approx([-3, -3])


@pytest.mark.parametrize("outcomes", [name for name in OUTCOMES if name not in ("quantiles", "atoms")])
def test_a_decision_without_a_bound_is_refused(outcomes: str) -> None:
    given = case(outcomes).outcomes
    for under, over, end in ((3, 0, 2.0), (0, 3, -1.0)):
        bounded = Newsvendor(under, over, at_least=-1, at_most=2)
        if "log-normal" in outcomes and not under:
            assert bounded.best_choice(given).item() == 0, "there is nothing below"
            continue
        assert bounded.best_choice(given).item() == end
        for step in (None, 1.0):
            with pytest.raises(StakesError, match="bound decisions with at_least and at_most"):
                Newsvendor(under, over, step=step).best_choice(given)
