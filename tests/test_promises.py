"""The bound on a mean cost: it holds as often as it says, is close, and refuses what it cannot rest on."""

import math

import numpy as np
import pytest

from stakes import Newsvendor, StakesError, Utility
from stakes.evaluation.metrics import block_length
from stakes.evaluation.promises import mean_cost_bound, promise

TRIALS = 600


def draw(kind: str, generator: np.random.Generator, shape: tuple[int, int]) -> tuple[np.ndarray, float]:
    """Costs from 0 to 1, and their true mean."""
    if kind == "rare":
        return (generator.random(shape) < 0.03).astype(float), 0.03
    if kind == "half":
        return (generator.random(shape) < 0.5).astype(float), 0.5
    if kind == "beta":
        return generator.beta(2, 8, shape), 0.2
    assert kind == "clipped"
    return np.minimum(generator.exponential(0.2, shape), 1), 0.2 * (1 - math.exp(-5))


@pytest.mark.parametrize("kind", ["rare", "half", "beta", "clipped"])
@pytest.mark.parametrize("rows", [20, 200])
def test_holds_as_often_as_it_says(kind: str, rows: int) -> None:
    costs, mean = draw(kind, np.random.default_rng(0), (TRIALS, rows))
    for confidence in (0.8, 0.95):
        broken = np.mean([mean_cost_bound(row, 1.0, confidence=confidence) < mean for row in costs])
        doubt = 1 - confidence
        assert broken <= doubt + 3 * math.sqrt(doubt * (1 - doubt) / TRIALS)


def test_is_closer_than_hoeffdings_where_costs_vary_little_and_comes_down_to_the_mean() -> None:
    generator = np.random.default_rng(1)
    gaps = []
    for rows in (100, 1000, 10_000):
        costs, mean = draw("beta", generator, (1, rows))
        bound = mean_cost_bound(costs[0], 1.0)
        hoeffding = costs[0].mean() + math.sqrt(math.log(20) / (2 * rows))
        assert bound < hoeffding
        gaps.append(bound - mean)
    assert gaps[2] < 0.01
    normal = 1.645 * costs[0].std() / math.sqrt(10_000)
    assert bound - costs[0].mean() < 2 * normal


def test_scales_with_the_unit_and_widens_with_confidence_and_candidates() -> None:
    costs = draw("beta", np.random.default_rng(2), (1, 300))[0][0]
    bound = mean_cost_bound(costs, 1.0)
    assert mean_cost_bound(100 * costs, 100.0) == pytest.approx(100 * bound)
    assert bound < mean_cost_bound(costs, 1.0, confidence=0.99)
    assert mean_cost_bound(costs, 1.0, candidates=5) == pytest.approx(mean_cost_bound(costs, 1.0, confidence=0.99))
    assert mean_cost_bound(np.ones(50), 1.0) == pytest.approx(1)
    assert costs.mean() < bound <= 1


def test_a_newsvendor_with_a_capacity_has_a_bound() -> None:
    generator = np.random.default_rng(3)
    utility = Newsvendor(under=15, over=5)
    demand = generator.integers(0, 81, 400).astype(float)
    costs = -utility.realised(np.full(400, 60.0), demand)
    bound = mean_cost_bound(costs, at_most=15 * 80)
    assert costs.mean() < bound < 1.6 * costs.mean()


def test_what_it_cannot_rest_on_is_refused() -> None:
    for costs, limit, words in (
        ([1.0, 2.0], math.inf, "without a bound"),
        ([1.0, 2.0], 0.0, "without a bound"),
        ([1.0, 2.0], 1.5, "most that a decision can cost"),
        ([-1.0, 2.0], 3.0, "not below 0"),
        ([], 1.0, "finite costs"),
        ([float("nan")], 1.0, "finite costs"),
    ):
        with pytest.raises(StakesError, match=words):
            mean_cost_bound(costs, limit)
    for settings in ({"confidence": 1.0}, {"candidates": 0}):
        with pytest.raises(StakesError, match="confidence above 0"):
            mean_cost_bound([0.5], 1.0, **settings)


# With the limits of a utility, and rows in time --------------------------------------------------------

TABLE = Utility.from_costs({"bet": {"won": -20, "lost": 100}, "pass": {"won": 5, "lost": 0}})


def test_the_promise_of_a_table_holds_as_often_as_it_says() -> None:
    """Costs from -20 to 100, the limits of the table: a promise counts from the lowest."""
    generator = np.random.default_rng(4)
    shares = {-20.0: 0.6, 100.0: 0.05, 5.0: 0.2, 0.0: 0.15}
    mean = sum(cost * share for cost, share in shares.items())
    costs = generator.choice(list(shares), (TRIALS, 150), p=list(shares.values()))
    found = [promise(row, TABLE) for row in costs]
    assert {each.limits for each in found} == {(-20.0, 100.0)}
    bounds = np.array([each.bound for each in found])
    assert np.mean(bounds < mean) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / TRIALS)
    assert np.median(bounds) < mean + 20
    by_hand = mean_cost_bound(costs[0] + 20, 120.0) - 20
    assert bounds[0] == pytest.approx(by_hand)


def in_time(generator: np.random.Generator, days: int, persistence: float) -> np.ndarray:
    """Costs from 0 to 1 of neighbouring days that are alike; each by itself is even between them."""
    level = generator.normal()
    noise = math.sqrt(1 - persistence**2)
    levels = np.empty(days)
    for day in range(days):
        level = persistence * level + noise * generator.normal()
        levels[day] = level
    return np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in levels])


def test_where_neighbouring_days_are_alike_the_promise_still_holds() -> None:
    """As if days were independent, it would be broken several times as often as it says."""
    generator, utility, trials, days = np.random.default_rng(5), Newsvendor(1, 1), 150, 400
    costs = [in_time(generator, days, 0.8) for _ in range(trials)]
    alone = np.mean([promise(each, utility, worst=1.0).bound < 0.5 for each in costs])
    together = np.mean([promise(each, utility, worst=1.0, times=np.arange(days)).bound < 0.5 for each in costs])
    assert alone > 0.1
    assert together <= 0.05


def test_rows_in_time_are_averaged_in_stretches_of_as_many_as_intervals_resample() -> None:
    generator = np.random.default_rng(6)
    times = np.repeat(np.arange(50.0), 2)  # two shops
    costs = generator.random(100)
    order = generator.permutation(100)
    found = promise(costs[order], Newsvendor(1, 1), worst=1.0, times=times[order])
    size = 2 * block_length(times)
    assert found.block == size == 16
    sums = [costs[first : first + size] for first in range(100 % size, 100, size)]
    # Rows of one time may come in any order, so that only their sums are the same.
    assert found.bound == pytest.approx(mean_cost_bound([each.mean() for each in sums], 1.0), abs=0.02)
    assert found.mean == pytest.approx(costs.mean())


def test_limits_follow_from_the_costs_or_are_stated() -> None:
    curves = Utility.from_curves({"now": 400, "run on": [(0, 2000), (30, 2000), (30, -10)]})
    outcomes = np.linspace(-50, 90, 1401)
    all_costs = [curves.cost_of(curves.realised(np.full(1401, action), outcomes)) for action in (0, 1)]
    assert curves.cost_limits == (np.min(all_costs), np.max(all_costs)) == (-10, 2000)
    assert TABLE.cost_limits == (-20, 100)
    by_row = Utility.from_costs({"a": {"x": "=fee", "y": 1}, "b": {"x": 0, "y": 2}}).for_rows({"fee": [3, 4]})
    for unlimited in (by_row, Newsvendor(15, 5, at_least=0, at_most=80)):
        found = promise([1.0, 2.0], unlimited)
        assert found.bound is None
        assert found.reason.startswith("one decision may cost any amount; give `stakes report` or")
        assert promise([1.0, 2.0], unlimited, worst=10.0).bound <= 10
    always = Utility.from_curves({"a": 3})
    assert promise([3.0, 3.0], always).bound == 3


def test_limits_that_do_not_hold_are_refused() -> None:
    for costs, utility, worst, words in (
        ([1.0, 12.0], Newsvendor(1, 1), 10.0, "but got 10, and one did cost 12; give more"),
        ([1.0], Newsvendor(1, 1), 0.0, "--worst: expected a cost above 0"),
        ([1.0], Newsvendor(1, 1), math.inf, "--worst: expected a cost above 0"),
        ([1.0], TABLE, 10.0, "of these none is above 100; leave it out"),
        ([1.0], Utility.diagonal(["a", "b"]), 10.0, "here utilities were given"),
    ):
        with pytest.raises(StakesError, match=words):
            promise(costs, utility, worst=worst)
