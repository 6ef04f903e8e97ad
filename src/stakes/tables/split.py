"""Setting rows aside without letting copies of a row stand on both sides."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from stakes.errors import StakesError
from stakes.seeds import numpy_generator
from stakes.tables.values import factorize

IntArray = npt.NDArray[np.int64]


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
