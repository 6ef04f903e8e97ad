"""What decisions are expected to come to, and how far from that chance alone would bring them.

A bootstrap of what happened cannot tell: it does not see rare, dear mistakes that did not happen, and where more of
them happened than was expected, it takes their number for chance.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stakes.evaluation.metrics import TAIL, Interval, standard_error
from stakes.utility import TableUtility

NORMAL = 1e-4  # a skewness below this is none


def claimed_range(
    utility: TableUtility,
    choice: Tensor,
    probs: Tensor,
    labels: Tensor,
    *,
    groups: NDArray[np.int64] | None = None,
    times: NDArray[np.float64] | None = None,
) -> Interval:
    """The mean utility that probabilities ``(N, C)`` promise of decisions ``(N,)``, and the range that it comes to in
    95 % of the cases if they are right.

    The range is by the mean, the variance and the skewness of the sum over rows (a Pearson III distribution, which is
    a shifted gamma). Where rows belong together, by ``groups`` or ``times`` as in `metrics.bootstrap`, it is as much
    wider as ``labels`` show that they stray together.
    """
    worth, chances = utility.worth_under(choice), np.asarray(probs, dtype=np.float64)  # (N, C)
    expected = (chances * worth).sum(1, keepdims=True)
    variance, third = (float((chances * (worth - expected) ** power).sum()) for power in (2, 3))
    mean = float(expected.mean())
    if variance == 0:
        return Interval(mean, mean, mean)
    deviation = np.sqrt(variance) / len(worth)
    if groups is not None or times is not None:
        strays = utility.realised(choice, labels) - expected[:, 0]
        together, alone = standard_error(strays, groups=groups, times=times), standard_error(strays)
        deviation *= max(1.0, together / alone) if alone > 0 else 1.0
    low, high = deviation * _skewed_quantiles(third / variance**1.5)
    worst, best = float(worth.min(1).mean()), float(worth.max(1).mean())
    return Interval(mean, max(worst, mean + float(low)), min(best, mean + float(high)))


def _skewed_quantiles(skewness: float) -> NDArray[np.float64]:
    """(2,) the ends of 95 % of a Pearson III distribution with a mean of 0 and a variance of 1."""
    from scipy.special import gammaincinv, ndtri

    if abs(skewness) < NORMAL:
        return np.asarray(ndtri([TAIL, 1 - TAIL]))
    shape = 4 / skewness**2
    ends = (gammaincinv(shape, [TAIL, 1 - TAIL]) - shape) / np.sqrt(shape)
    return np.asarray(ends if skewness > 0 else -ends[::-1])
