"""Setting rows aside: at random, without letting copies or groups stand on both sides; or by time."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from stakes.errors import StakesError
from stakes.seeds import numpy_generator
from stakes.tables.values import factorize

IntArray = npt.NDArray[np.int64]


class Fold(NamedTuple):
    """The rows that a model is trained on, and those it is stopped and judged by; both sorted."""

    train: IntArray
    held: IntArray


def duplicate_groups(frame: pd.DataFrame) -> IntArray:
    """A group id for every row, (N,): the same for rows equal in all columns, where NaN equals NaN.

    Groups are numbered in the order of their first rows.
    """
    count = len(frame)
    groups = np.zeros(count, dtype=np.int64)
    for name in frame.columns:
        codes, uniques = factorize(frame[name].astype(object), use_na_sentinel=False)
        groups = pd.factorize(groups * len(uniques) + codes)[0].astype(np.int64)
        if groups.max(initial=-1) == count - 1:  # all different already
            break
    return groups


def merge_groups(first: npt.NDArray[np.integer], second: npt.NDArray[np.integer]) -> IntArray:
    """A group id for every row: the same for rows that are together in ``first`` or in ``second``, or by a chain."""
    ids = [pd.factorize(np.asarray(groups))[0] for groups in (first, second)]
    count = int(ids[0].max(initial=-1)) + 1
    size = count + int(ids[1].max(initial=-1)) + 1
    edges = coo_array((np.ones(len(ids[0])), (ids[0], count + ids[1])), shape=(size, size))
    return connected_components(edges, directed=False)[1][ids[0]].astype(np.int64)  # type: ignore[no-any-return]


def folds(labels: npt.NDArray[np.integer], groups: npt.NDArray[np.integer], count: int, seed: int) -> tuple[Fold, ...]:
    """``count`` folds, or as many as there are groups, of about as many rows of each class.

    Groups stay whole and belong to the class of their first row. A class of one group is always trained on, for
    nothing could be learnt of it where it is held out.
    """
    if count < 2:
        raise StakesError(f"expected at least 2 folds, but got {count}")
    if len(labels) != len(groups):
        raise StakesError(f"expected a group for each of {len(labels)} labels, but got {len(groups)} groups")
    group_of, uniques = pd.factorize(np.asarray(groups))
    sizes = np.bincount(group_of, minlength=len(uniques))
    classes = np.asarray(labels)[np.unique(group_of, return_index=True)[1]]
    order = numpy_generator(seed, "folds").permutation(len(uniques))
    fold_of = np.full(len(uniques), -1)
    total = np.zeros(min(count, len(uniques)), dtype=np.int64)
    for label in np.unique(classes):
        candidates = order[classes[order] == label]
        if len(candidates) < 2:
            continue
        of_class = np.zeros_like(total)
        for group in candidates:  # to the fold with the fewest rows of the class, and of those the smallest
            fold = np.lexsort((total, of_class))[0]
            fold_of[group] = fold
            of_class[fold] += sizes[group]
            total[fold] += sizes[group]
    rows = fold_of[group_of]
    made = [Fold(np.flatnonzero(rows != fold), np.flatnonzero(rows == fold)) for fold in range(len(total))]
    made = [fold for fold in made if len(fold.held)]
    if len(made) < 2:
        raise StakesError(
            f"expected enough rows for two folds, but the {len(labels)} given have no class with two different rows; "
            "add rows"
        )
    return tuple(made)


def split_latest(times: npt.NDArray[np.float64], share: float) -> tuple[IntArray, IntArray]:
    """The earlier rows, and about ``share`` of the rows, the latest; rows of one time stay together, with the later."""
    if not 0 < share < 1:
        raise StakesError(f"expected the share to hold out to lie between 0 and 1, but got {share}")
    start = np.sort(times)[min(len(times) - 1, round(len(times) * (1 - share)))]
    early, late = np.flatnonzero(times < start), np.flatnonzero(times >= start)
    if not len(early):
        raise StakesError("expected rows of several times to test on the latest, but nearly all have the earliest")
    return early, late


def forward_folds(times: npt.NDArray[np.float64], count: int, start: float) -> tuple[Fold, ...]:
    """Each fold holds out the rows of one span of time, and trains on all before it.

    The first share of the rows, ``start``, is never held out.
    """
    distinct = np.unique(times)
    if len(distinct) < 3:
        raise StakesError(f"expected rows of at least three times for folds in time, but got {len(distinct)}")
    shares = np.linspace(start, 1, count + 1)[:-1]
    edges = np.unique(np.quantile(times, shares, method="higher"))
    edges = edges[edges > distinct[0]]
    if len(edges) < 2:  # most rows are of one time: by the times, whatever rows they have
        edges = np.unique(np.quantile(distinct[1:], np.linspace(0, 1, count), method="nearest"))
    spans = np.searchsorted(edges, times, side="right")  # (N,) from 0
    return tuple(
        Fold(np.flatnonzero(spans < number), np.flatnonzero(spans == number)) for number in range(1, len(edges) + 1)
    )


def split(
    labels: npt.NDArray[np.integer], groups: npt.NDArray[np.integer], share: float, seed: int
) -> tuple[IntArray, IntArray]:
    """The rows to keep and the rows to hold out, both sorted; ``share`` of each class is held out.

    Groups stay whole and belong to the class of their first row. A class of two groups or more is
    on both sides, a class of one group is kept.
    """
    if not 0 < share < 1:
        raise StakesError(f"expected the share to hold out to lie between 0 and 1, but got {share}")
    if len(labels) != len(groups):
        raise StakesError(f"expected a group for each of {len(labels)} labels, but got {len(groups)} groups")
    group_of, uniques = pd.factorize(np.asarray(groups))
    sizes = np.bincount(group_of, minlength=len(uniques))
    first_rows = np.unique(group_of, return_index=True)[1]
    classes = np.asarray(labels)[first_rows]
    order = numpy_generator(seed, "split").permutation(len(uniques))
    held = np.zeros(len(uniques), dtype=bool)
    for label in np.unique(classes):
        candidates = order[classes[order] == label]
        held[candidates[_choose(sizes[candidates], share)]] = True
    if not held.any():
        raise StakesError(
            f"expected enough rows to hold some out, but the {len(labels)} given have no class with two "
            "different rows; add rows"
        )
    return np.flatnonzero(~held[group_of]), np.flatnonzero(held[group_of])


def _choose(sizes: IntArray, share: float) -> IntArray:
    """Which groups of one class to hold out: in order, each one that brings their total nearer to the share.

    At least one is held out and one is kept: the smallest, where that is not so by itself.
    """
    if len(sizes) < 2:
        return np.array([], dtype=np.int64)
    remaining = share * float(sizes.sum())
    chosen: list[int] = []
    for i, size in enumerate(sizes.tolist()):
        if size < 2 * remaining:
            chosen.append(i)
            remaining -= size
    if not chosen:
        chosen = [int(sizes.argmin())]
    elif len(chosen) == len(sizes):
        chosen.remove(int(sizes.argmin()))
    return np.array(chosen, dtype=np.int64)
