"""A bound that can be promised: "with 95 % confidence, decisions like these cost at most so much on average".

The bound bets against every mean that is too high to be true (Waudby-Smith and Ramdas 2024, "Estimating means of
bounded random variables by betting"). For costs x_1, ..., x_n between 0 and 1, and a mean m,

    K_t(m) = prod_{i <= t} (1 + l_i (m - x_i)),   0 <= l_i <= c / (1 - m),   l_i from the costs before x_i,

is a capital that cannot be expected to grow if the true mean is m or more: with probability 1 - a it never reaches 1/a.
The bound is the lowest mean above which all are ruled out. It needs no other assumption than these: the costs are those
of rows that neither the model nor the choice of it has seen, each independent of those before it, and none can be
above the limit that is given.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stakes.errors import StakesError
from stakes.evaluation.metrics import block_length
from stakes.utility import Utility

LARGEST_BET = 0.5  # c: the share of the capital that one cost can lose
PRECISION = 1e-6  # of the bound, as a share of the limit
CONFIDENCE = 0.95

Limits = tuple[float, float]


@dataclass(frozen=True)
class Promise:
    """A mean cost that decisions like these do not exceed, with 95 % confidence; or why none can be promised."""

    bound: float | None
    mean: float  # the cost of these decisions
    limits: Limits | None  # that no cost lies outside
    stated: bool = False  # whether the limit was stated by a user, and does not follow from the costs
    block: int | None = None  # rows that follow in time, whose costs were averaged first
    reason: str = ""  # why there is no bound

    def to_dict(self) -> Mapping[str, Any]:
        """In costs."""
        return {
            "confidence": CONFIDENCE,
            "mean_cost_at_most": self.bound,
            "limits": self.limits,
            "block": self.block,
            "because": self.reason or None,
        }


def promise(
    costs: ArrayLike,
    utility: Utility,
    *,
    worst: float | None = None,
    times: NDArray[np.float64] | None = None,
    withheld: str = "",
) -> Promise:
    """The promise that rests on the costs ``(n,)`` of decisions about rows that the model has not seen.

    Costs lie within those of the ``utility``; where these have no limit, between 0 and ``worst``, the most that one
    decision can cost. Rows with ``times`` (n,) are not independent of their neighbours: the costs of as many of them as
    intervals resample together are averaged first. ``withheld`` is a reason to promise nothing.
    """
    values, limits = np.asarray(costs, dtype=np.float64), _limits(utility, worst)
    mean, stated = float(values.mean()), worst is not None
    if not withheld and limits is None:
        withheld = "one decision may cost any amount; give `stakes report` or `stakes evaluate` a limit with --worst"
    if withheld or limits is None:
        return Promise(None, mean, limits, stated, reason=withheld)
    low, high = limits
    _check_within(values, low, high)
    block = None if times is None else _rows_together(times)
    averaged = values if times is None or block is None else _block_means(values, times, block)
    # Of a cost that is always the same nothing is to be learnt, and rounding must not take a cost beyond its limits.
    bound = low + mean_cost_bound((averaged - low).clip(0, high - low), high - low) if high > low else high
    return Promise(bound, mean, limits, stated, block)


def _limits(utility: Utility, worst: float | None) -> Limits | None:
    if worst is None:
        return utility.cost_limits
    if utility.given != "cost":
        raise StakesError("--worst is the most that a decision can cost, but here utilities were given; leave it out")
    if utility.cost_limits is not None:
        raise StakesError(
            f"--worst is for costs without a limit, but of these none is above {utility.cost_limits[1]:g}; leave it out"
        )
    if not 0 < worst < math.inf:
        raise StakesError(f"--worst: expected a cost above 0, the most that one decision can cost, but got {worst:g}")
    return 0.0, worst


def _check_within(values: NDArray[np.float64], low: float, high: float) -> None:
    """Only costs whose limit a user states can lie beyond it."""
    slack = 1e-9 * max(abs(low), abs(high))
    if values.max() > high + slack:
        raise StakesError(
            f"--worst: expected the most that one decision can cost, but got {high:g}, and one did cost "
            f"{values.max():g}; give more, or leave it out"
        )
    if values.min() < low - slack:
        raise StakesError(f"--worst: expected costs of 0 or more, but one decision cost {values.min():g}; leave it out")


def _rows_together(times: NDArray[np.float64]) -> int:
    """How many rows the times hold that intervals resample together."""
    return math.ceil(block_length(times) * len(times) / len(np.unique(times)))


def _block_means(values: NDArray[np.float64], times: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """Block means in time order; the first rows, which fill no block, are dropped."""
    ordered = values[np.argsort(times, kind="stable")]
    return np.asarray(ordered[len(ordered) % block :].reshape(-1, block).mean(1))


def mean_cost_bound(costs: ArrayLike, at_most: float, *, confidence: float = 0.95, candidates: int = 1) -> float:
    """The mean cost that decisions like these do not exceed, with this ``confidence``.

    >>> round(mean_cost_bound([0.0, 10.0] * 200, at_most=100.0), 1)
    6.5

    ``costs`` (n,) are those of decisions about n rows that were held out. ``at_most`` is a cost that no decision can
    exceed: the promise rests on it, so it has to follow from the matter, a capacity, say, and not from these costs.
    A loss without a bound, such as the squared error of any number, has none, and no promise. If one of several models
    is chosen by these same rows, ``candidates`` is how many there were: the doubt is shared among them (learn then
    test, with Bonferroni's correction).
    """
    values = np.asarray(costs, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise StakesError(f"expected the finite costs of some decisions, (n,), but got the shape {values.shape}")
    if not 0 < at_most < math.inf:
        raise StakesError(
            f"expected at_most as a cost above 0 that no decision can exceed, but got {at_most}: a loss without a "
            "bound has no mean cost that can be promised"
        )
    if values.min() < 0 or values.max() > at_most:
        raise StakesError(
            f"expected costs from 0 to {at_most:g}, but got {values.min():g} to {values.max():g}: give at_most= as the "
            "most that a decision can cost, and costs that are not below 0"
        )
    if not 0 < confidence < 1 or type(candidates) is not int or candidates < 1:
        raise StakesError(
            f"expected a confidence above 0 and below 1, and at least 1 candidate, but got {confidence} and "
            f"{candidates}"
        )
    doubt = (1 - confidence) / candidates
    scaled = values / at_most
    bets = _bets(scaled, doubt)
    low, high = 0.0, 1.0  # no mean above 1 is possible
    while high - low > PRECISION:
        middle = (low + high) / 2
        # The capital grows with the mean: what rules out one rules out all above it.
        if _most_capital(scaled, bets, middle) >= -math.log(doubt):
            high = middle
        else:
            low = middle
    return at_most * high


def _bets(values: NDArray[np.float64], doubt: float) -> NDArray[np.float64]:
    """(n,) each from the variance of the values before it, begun as if there had been one value, half, of 1/4."""
    count = np.arange(1, len(values) + 1)
    means = (0.5 + values.cumsum()) / (count + 1)
    variances = (0.25 + ((values - means) ** 2).cumsum()) / (count + 1)
    before = np.concatenate([[0.25], variances[:-1]])
    return np.sqrt(2 * math.log(1 / doubt) / (len(values) * before))


def _most_capital(values: NDArray[np.float64], bets: NDArray[np.float64], mean: float) -> float:
    """The logarithm of the most that the capital came to, betting against a mean of so much or more."""
    bounded = np.minimum(bets, LARGEST_BET / (1 - mean))
    return float(np.log1p(bounded * (mean - values)).cumsum().max())
