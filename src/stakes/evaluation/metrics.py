"""What decisions turned out to be worth: confusion counts and all that follows from them, calibration, intervals."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stakes import seeds
from stakes.errors import StakesError
from stakes.mixtures import LEVELS
from stakes.outcomes import Outcomes
from stakes.utility.table import Counts, TableUtility

RESAMPLES = 2000
TAIL = (1 - 0.95) / 2  # of the resampled means on each side of an interval
FEW_EXAMPLES = 200  # whose resamples are counts of different values, however many of these there are
AT_ONCE = 2**20  # counts that are drawn at once


# From counts ---------------------------------------------------------------------------------------


def confusion_counts(
    choice: Tensor | ArrayLike,
    labels: Tensor | ArrayLike,
    utility: TableUtility,
    *,
    ignore_index: int | None = None,
) -> Counts:
    """(D, C) how often each decision met each outcome. Counts add up: stream them over batches.

    Labels of ``ignore_index`` are not counted. With a table for each label, (L, D, C): counts of each label.
    """
    chosen, true = _integers(choice), _integers(labels)
    decisions, outcomes = len(utility.decisions), len(utility.outcomes)
    if chosen.shape != true.shape:
        raise StakesError(f"expected a label for each decision, {chosen.shape}, but got {true.shape}")
    shape: tuple[int, ...] = (decisions, outcomes)
    cells = chosen * outcomes + true
    if utility.per_label:
        utility.require_axes(chosen.shape)
        shape = utility.values.shape
        cells = cells + np.arange(shape[0]).reshape(-1, *[1] * (chosen.ndim - 2)) * decisions * outcomes
    if ignore_index is not None:
        counted = true != ignore_index
        chosen, true, cells = chosen[counted], true[counted], cells[counted]
    for name, values, count in (("decisions", chosen, decisions), ("labels", true, outcomes)):
        if values.size and not (values.min() >= 0 and values.max() < count):
            raise StakesError(
                f"expected {name} from 0 to {count - 1}, but got {values.min()} to {values.max()}: pass ignore_index= "
                "for labels that do not count"
            )
    return np.bincount(cells.ravel(), minlength=math.prod(shape)).reshape(shape)


def accuracy(counts: Counts, utility: TableUtility) -> float:
    """The share of decisions that were the right one for the outcome (`Utility.best_response`)."""
    return float(overlaps(counts, utility)[0].sum() / counts.sum())


def iou(counts: Counts, utility: TableUtility) -> NDArray[np.float64]:
    """(C,) intersection over union of each outcome and its right decision, over all that was counted."""
    part, whole = overlaps(counts, utility)
    ratio: NDArray[np.float64] = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
    return ratio


def overlaps(counts: Counts, utility: TableUtility) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``(..., D, C) -> (..., C)`` twice: the intersection and the union of each outcome and its right decision."""
    best = np.broadcast_to(utility.best_response, (*counts.shape[:-2], counts.shape[-1]))
    both = np.take_along_axis(counts, best[..., None, :], -2).squeeze(-2)
    return both, counts.sum(-2) + np.take_along_axis(counts.sum(-1), best, -1) - both


# From probabilities --------------------------------------------------------------------------------


# Labels have the shape of the predictions, (B, ...); those of ``ignore_index`` do not count.


def nll(probs: ArrayLike, labels: ArrayLike, *, ignore_index: int | None = None) -> float:
    """Mean negative log-likelihood of the labels, in nats."""
    from sklearn.metrics import log_loss

    table, true = _flat(probs, labels, ignore_index)
    return float(log_loss(true, table, labels=np.arange(table.shape[1])))


def brier(probs: ArrayLike, labels: ArrayLike, *, ignore_index: int | None = None) -> float:
    """Mean squared distance between the probabilities and the outcome, summed over the classes (0 to 2)."""
    from sklearn.metrics import brier_score_loss

    table, true = _flat(probs, labels, ignore_index)
    return float(brier_score_loss(true, table, labels=np.arange(table.shape[1]), scale_by_half=False))


@dataclass(frozen=True)
class Reliability:
    """Confidence against accuracy, in equal bins of confidence; empty bins are left out."""

    confidence: NDArray[np.float64]  # mean in each bin
    accuracy: NDArray[np.float64]
    share: NDArray[np.float64]  # of all predictions

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean distance between confidence and accuracy."""
        return float((self.share * np.abs(self.confidence - self.accuracy)).sum())


def reliability(probs: ArrayLike, labels: ArrayLike, bins: int = 15, *, ignore_index: int | None = None) -> Reliability:
    """The confidence of the most probable outcome, against how often it was right."""
    table, true = _flat(probs, labels, ignore_index)
    confidence, right = table.max(1), table.argmax(1) == true
    index = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(index, minlength=bins)
    used = counts > 0
    totals = [np.bincount(index, weights=values, minlength=bins)[used] for values in (confidence, right)]
    return Reliability(totals[0] / counts[used], totals[1] / counts[used], counts[used] / len(true))


# From quantiles ------------------------------------------------------------------------------------


def pinball(
    values: Tensor | ArrayLike, labels: Tensor | ArrayLike, levels: Tensor | ArrayLike = LEVELS
) -> NDArray[np.float64]:
    """``(n, L)`` the pinball loss of quantiles ``(n, L)`` at ``levels``, for the numbers ``(n,)`` that came."""
    quantiles, numbers, shares = (np.asarray(each, dtype=np.float64) for each in (values, labels, levels))
    if quantiles.ndim != 2 or numbers.shape != quantiles.shape[:1] or shares.shape != quantiles.shape[1:]:
        raise StakesError(
            f"expected quantiles (n, {shares.size}), one for each level, and n numbers, but got {quantiles.shape} and "
            f"{numbers.shape}"
        )
    short = numbers[:, None] - quantiles
    return np.maximum(shares * short, (shares - 1) * short)


def crps(values: Tensor | ArrayLike, labels: Tensor | ArrayLike) -> NDArray[np.float64]:
    """``(n,)`` the continuous ranked probability score: twice the mean pinball loss over the `LEVELS`."""
    losses: NDArray[np.float64] = pinball(values, labels).mean(1)
    return 2 * losses


# Intervals -----------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A mean and its percentile bootstrap interval."""

    mean: float
    low: float
    high: float

    def negated(self) -> "Interval":
        return Interval(-self.mean, -self.high, -self.low)


def bootstrap(
    values: ArrayLike,
    *,
    seed: int,
    resamples: int = RESAMPLES,
    groups: ArrayLike | None = None,
    times: NDArray[np.float64] | None = None,
) -> Interval:
    """The 95 % interval of a mean over examples ``(N,)``, or over runs and examples ``(R, N)``.

    With several runs (seeds) on the same test examples, both are resampled: the interval covers another
    test set and another seed. For two models on the same examples give the difference of their values:
    a *paired* interval, which is far narrower than the two apart. ``groups``, (N,), has equal numbers for examples that
    belong together, such as those of a patient: then groups are resampled, for their examples tell the same.

    Examples in time are not independent of their neighbours: with ``times`` ``(N,)``, `block_length` consecutive
    times, with all their examples, are resampled together (a circular block bootstrap).
    """
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all():
        raise StakesError(f"expected finite values of shape (N,) or (runs, N), but got the shape {np.shape(values)}")
    runs, examples = table.shape
    generator = seeds.numpy_generator(seed, "bootstrap")
    if groups is not None:
        return _percentiles(float(table.mean()), _resampled_groups(table, np.asarray(groups), generator, resamples))
    if times is not None:
        return _percentiles(float(table.mean()), _block_means(table, times, generator, resamples))
    # Utilities take few values, so that many examples are copies: counting them keeps this quick for any number.
    columns, counts = np.unique(table, axis=1, return_counts=True)  # (R, K), (K,)
    shares = counts / examples
    few_values = len(counts) < examples / 10
    means = np.empty(resamples)
    if runs == 1 and (few_values or examples <= FEW_EXAMPLES):
        size = max(1, AT_ONCE // len(counts))
        for first in range(0, resamples, size):
            weights = generator.multinomial(examples, shares, size=min(size, resamples - first))  # (T, K)
            means[first : first + size] = weights @ columns[0] / examples
        return _percentiles(float(table.mean()), means)
    for resample in range(resamples):
        if few_values:
            weights = generator.multinomial(examples, shares)
        else:
            weights = np.bincount(generator.choice(len(counts), examples, p=shares), minlength=len(counts))
        by_run = columns @ weights / examples  # (R,)
        means[resample] = by_run[generator.integers(runs, size=runs)].mean()
    return _percentiles(float(table.mean()), means)


def block_length(times: NDArray[np.float64]) -> int:
    """How many consecutive times are resampled together: 2 T^(1/3) of T, the rate that is best for a mean."""
    count = len(np.unique(times))
    return int(min(count, math.ceil(2 * count ** (1 / 3))))


def _block_means(
    table: NDArray[np.float64], times: NDArray[np.float64], generator: np.random.Generator, resamples: int
) -> NDArray[np.float64]:
    """(resamples,): means of circular blocks of times, over resampled runs."""
    if np.shape(times) != table.shape[1:]:
        raise StakesError(f"expected a time for each of {table.shape[1]} examples, but got {np.shape(times)}")
    runs = len(table)
    distinct, time_index = np.unique(times, return_inverse=True)
    totals = np.stack([np.bincount(time_index, row) for row in table])  # (R, T)
    counts = np.bincount(time_index)
    length = block_length(times)
    starts = generator.integers(len(distinct), size=(resamples, -(-len(distinct) // length)))
    blocks = (starts[..., None] + np.arange(length)).reshape(resamples, -1)[:, : len(distinct)] % len(distinct)
    by_run = totals[:, blocks].sum(-1) / counts[blocks].sum(-1)  # (R, resamples)
    chosen = generator.integers(runs, size=(resamples, runs))
    return np.asarray(np.take_along_axis(by_run.T, chosen, 1).mean(1))


def bootstrap_ratios(parts: ArrayLike, wholes: ArrayLike, *, seed: int) -> tuple[list[Interval], Interval]:
    """``(R, N, C)`` twice: the intervals of C ratios of sums over examples, averaged over runs; and of their mean.

    An IOU over a whole set is such a ratio: the sum of intersections over the sum of unions. Examples and
    runs are resampled as in `bootstrap`. A ratio whose whole is empty counts as 0.
    """
    tables = [np.asarray(values, dtype=np.float64) for values in (parts, wholes)]
    if tables[0].shape != tables[1].shape or tables[0].ndim != 3 or tables[0].size == 0:
        raise StakesError(f"expected two tables of (runs, N, C), but got {tables[0].shape} and {tables[1].shape}")
    runs, examples, _ = tables[0].shape
    generator = seeds.numpy_generator(seed, "bootstrap")
    weights = generator.multinomial(examples, np.full(examples, 1 / examples), size=RESAMPLES)  # (T, N)
    chosen = generator.integers(runs, size=(RESAMPLES, runs))
    part, whole = (np.einsum("tn,rnc->trc", weights, table) for table in tables)
    ratios = np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
    resampled = np.take_along_axis(ratios, chosen[:, :, None], axis=1).mean(1)  # (T, C)
    totals = [table.sum(1) for table in tables]  # (R, C)
    means = np.divide(totals[0], totals[1], out=np.zeros_like(totals[0]), where=totals[1] > 0).mean(0)
    every = [_percentiles(float(mean), values) for mean, values in zip(means, resampled.T, strict=True)]
    return every, _percentiles(float(means.mean()), resampled.mean(1))


def paired_difference(
    ours: ArrayLike,
    theirs: ArrayLike,
    *,
    seed: int,
    groups: ArrayLike | None = None,
    times: NDArray[np.float64] | None = None,
) -> Interval:
    """The interval of the mean difference between two models on the same examples (and the same seeds)."""
    first, second = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if first.shape != second.shape:
        raise StakesError(f"expected values for the same examples, but got the shapes {first.shape} and {second.shape}")
    return bootstrap(first - second, seed=seed, groups=groups, times=times)


def independent_difference(ours: Interval, theirs: Interval) -> Interval:
    """The interval of the difference of two means over different examples, from the intervals of both.

    Each end is as far from the difference as the two ends that belong to it are from their means, together: the root of
    the sum of squares (Zou and Donner 2008).
    """
    difference = ours.mean - theirs.mean
    below = math.hypot(ours.mean - ours.low, theirs.high - theirs.mean)
    above = math.hypot(ours.high - ours.mean, theirs.mean - theirs.low)
    return Interval(difference, difference - below, difference + above)


def standard_error(
    values: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    times: NDArray[np.float64] | None = None,
) -> float:
    """Of a mean over examples ``(N,)``, which belong together by ``groups`` or ``times`` as in `bootstrap`; infinite
    where all belong together.
    """
    numbers = np.asarray(values, dtype=np.float64)
    shares = np.ones(len(numbers)) if weights is None else np.asarray(weights, dtype=np.float64)
    if groups is not None:
        cluster = np.unique(np.asarray(groups), return_inverse=True)[1]
    elif times is not None:
        cluster = np.unique(times, return_inverse=True)[1] // block_length(times)
    else:
        cluster = np.arange(len(numbers))
    strays = np.bincount(cluster, shares * (numbers - np.average(numbers, weights=shares)))
    if len(strays) < 2:
        return math.inf
    return float(np.sqrt(len(strays) / (len(strays) - 1) * (strays**2).sum()) / shares.sum())


# Within --------------------------------------------------------------------------------------------


def _resampled_groups(
    table: NDArray[np.float64], groups: NDArray[Any], generator: np.random.Generator, resamples: int
) -> NDArray[np.float64]:
    """(T,) means over runs and examples, of groups and runs drawn with replacement."""
    codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    sums = np.stack([np.bincount(codes, weights=row) for row in table])  # (R, G)
    means = np.empty(resamples)
    at_once = max(1, AT_ONCE // len(sizes))
    for first in range(0, resamples, at_once):
        count = min(at_once, resamples - first)
        weights = generator.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=count)  # (T, G)
        by_run = weights @ sums.T / (weights @ sizes)[:, None]  # (T, R)
        runs: NDArray[np.int64] = generator.integers(len(table), size=by_run.shape)  # type: ignore[assignment]
        means[first : first + count] = np.take_along_axis(by_run, runs, 1).mean(1)
    return means


def _percentiles(mean: float, resampled: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(resampled, [TAIL, 1 - TAIL])
    return Interval(mean, float(low), float(high))


def _integers(values: Tensor | ArrayLike) -> NDArray[np.int64]:
    array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind not in "iub":
        raise StakesError(f"expected integers, but got {array.dtype}")
    return array.astype(np.int64, copy=False)


def _flat(
    probs: ArrayLike, labels: ArrayLike, ignore_index: int | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(N, C) rows that sum to 1 in float64, and (N,) labels, middle axes folded into N, for labels that count."""
    table = np.asarray(Outcomes.from_probs(torch.as_tensor(probs)).weights.cpu(), dtype=np.float64)
    true = _integers(torch.as_tensor(labels))
    if table.shape[:-1] != true.shape:
        raise StakesError(f"expected labels of the shape {table.shape[:-1]}, but got {true.shape}")
    table, true = table.reshape(-1, table.shape[-1]), true.ravel()
    if ignore_index is not None:
        table, true = table[true != ignore_index], true[true != ignore_index]
    if not len(true):
        raise StakesError("expected at least one label that counts, but got none")
    return table / table.sum(1, keepdims=True), true
