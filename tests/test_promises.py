"""The bound on a mean cost: it holds as often as it says, is close, and refuses what it cannot rest on."""

import math

import numpy as np
import pytest

from stakes import Newsvendor, StakesError
from stakes.evaluation.promises import mean_cost_bound

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
