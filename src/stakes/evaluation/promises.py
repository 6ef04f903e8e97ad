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

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stakes.errors import StakesError

LARGEST_BET = 0.5  # c: the share of the capital that one cost can lose
PRECISION = 1e-6  # of the bound, as a share of the limit


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
