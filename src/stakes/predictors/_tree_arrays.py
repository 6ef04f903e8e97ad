"""Decision trees as arrays, whoever grew them: checked, for they may come from a stranger, and walked by NumPy.

A row goes left at a node where ``x[feature] <= threshold``; or, if the feature is a category, where the node's row in a
table of levels says so. The nodes of a tree stand together, the root first, children after their parent.

    feature, threshold, missing_left, left, right, leaf     (N,) one entry for each node
    start                                                   (T,) the root of each tree
    level_row                                               (N,) where in `level_left` the row of a node begins, or -1
    level_left                                              whether each level goes left; last of a row, a missing one
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.errors import StakesError
from stakes.features import Features
from stakes.predictors._rows import damaged

NODES = ("feature", "threshold", "missing_left", "left", "right", "leaf")
LEVELS = {"level_row": torch.int64, "level_left": torch.bool}
MOST_LEVELS = 255  # that scikit-learn's splits tell apart
WIDEST = 2**31  # features
FEW_ROWS = 1024
PAIRS = 2**16  # of rows and trees that are walked at once, so that they stay in the processor's cache


def native_columns(x: NDArray[Any], features: Features | None) -> NDArray[Any]:
    """``(B, F) -> (J, B)``: a column for each category, the number of its level, then one for each number.

    A gap and a level that was never seen are NaN. Without ``features`` all columns are numbers.
    """
    if features is None:
        return x.T
    columns = np.empty((len(features.levels) + features.numbers, len(x)))
    end = features.numbers + len(features.missing)
    for row, levels in enumerate(features.levels):
        block, end = x[:, end : end + levels], end + levels
        columns[row] = np.where(block.any(1), block.argmax(1), np.nan)
    numbers = columns[len(features.levels) :]
    numbers[:] = x[:, : features.numbers].T
    for indicator, number in enumerate(features.missing, features.numbers):
        numbers[number, x[:, indicator] != 0] = np.nan
    return columns


def finite(numbers: NDArray[Any], dtype: Any = np.float64) -> NDArray[Any]:
    """The largest numbers stand for infinity, in inputs as in thresholds.

    A threshold is infinite where all that is not missing goes left, or only minus infinity does.
    """
    largest = np.finfo(dtype).max
    return np.ascontiguousarray(np.clip(numbers, -largest, largest), dtype)


def leaves(
    arrays: Mapping[str, Tensor], columns: NDArray[Any], levels: Sequence[int] = ()
) -> Iterator[NDArray[np.intp]]:
    """``(B,)`` the leaf that each row ends in, for one tree after the other; ``columns`` are the native ones."""
    trees = {name: tensor.numpy() for name, tensor in arrays.items()}
    columns = finite(columns, trees["threshold"].dtype)
    for column, missing in zip(columns, levels, strict=False):
        column[np.isnan(column)] = missing  # the last of a row of levels
    walk = _level_by_level if columns.shape[1] <= FEW_ROWS else _node_by_node
    return walk(trees, columns, len(levels))


def _node_by_node(
    trees: Mapping[str, NDArray[Any]], columns: NDArray[Any], categories: int
) -> Iterator[NDArray[np.intp]]:
    """At each node the rows that reach it are split in two: little work for a row, and a fixed cost for a node."""
    rows = np.arange(columns.shape[1])
    codes, gaps = columns[:categories].astype(np.intp), np.isnan(columns).any(1).tolist()
    vectors = [trees[name] for name in (*NODES, *(["level_row"] if categories else []))]
    starts = trees["start"].tolist()
    for start, end in zip(starts, [*starts[1:], len(vectors[0])], strict=True):
        nodes = list(zip(*(vector[start:end].tolist() for vector in vectors), strict=True))
        leaf_of = np.empty(len(rows), np.intp)
        reached = [(start, rows)]
        while reached:
            node, here = reached.pop()
            feature, threshold, missing_left, left, right, leaf, *level_row = nodes[node - start]
            if leaf:
                leaf_of[here] = node
                continue
            if feature < categories:
                goes_left = trees["level_left"][level_row[0] + codes[feature].take(here)]
            else:
                values = columns[feature].take(here)
                goes_left = values <= threshold
                if missing_left and gaps[feature]:
                    goes_left |= np.isnan(values)
            for child, part in ((left, here[goes_left]), (right, here[~goes_left])):
                if len(part):
                    reached.append((child, part))
        yield leaf_of


def _level_by_level(
    trees: Mapping[str, NDArray[Any]], columns: NDArray[Any], categories: int
) -> Iterator[NDArray[np.intp]]:
    """All rows go down many trees at once, a level at a time: for few rows, up to 70 times as fast."""
    rows, values_of = columns.shape[1], columns.ravel()
    children = np.stack([trees["right"], trees["left"]], 1).ravel()
    for starts in np.array_split(trees["start"], -(-len(trees["start"]) * rows // PAIRS)):
        node_of = np.repeat(starts, rows)  # (trees * rows,) where each row is in each tree
        inside = np.arange(len(node_of))
        while len(inside := inside[~trees["leaf"].take(node_of.take(inside))]):
            node = node_of.take(inside)
            feature = trees["feature"].take(node).astype(np.intp)
            values = values_of.take(feature * rows + inside % rows)
            goes_left = values <= trees["threshold"].take(node)
            goes_left |= np.isnan(values) & trees["missing_left"].take(node)
            if categories:
                split = np.flatnonzero(feature < categories)
                level = trees["level_row"].take(node.take(split)) + values.take(split).astype(np.intp)
                goes_left[split] = trees["level_left"].take(level)
            node_of[inside] = children.take(2 * node + goes_left)
        yield from node_of.reshape(-1, rows)


def check_vectors(arrays: Mapping[str, Tensor], expected: Mapping[str, tuple[torch.dtype, int]]) -> None:
    """Refuse other arrays, types and numbers of axes than these."""
    if {name: (tensor.dtype, tensor.ndim) for name, tensor in arrays.items()} != dict(expected):
        raise _damaged(f"the arrays {', '.join(expected)}", "others")


def check_trees(arrays: Mapping[str, Tensor], features: int, columns: Features | None) -> None:
    """Refuse arrays that are not trees of so many features: a walk down them must end, in a leaf of its own tree."""
    if type(features) is not int or not 1 <= features < WIDEST or (columns and columns.width != features):
        raise _damaged("a number of features, and columns that sum to it", f"{features} and {columns}")
    count, trees, start = len(arrays["leaf"]), len(arrays["start"]), arrays["start"]
    names = [*NODES, *(["level_row"] if columns and columns.levels else [])]
    if any(len(arrays[name]) != count for name in names) or not 1 <= trees <= count:
        raise _damaged("one entry for each node and each tree", "vectors of other lengths")
    if start[0] != 0 or (start.diff() < 1).any() or start[-1] >= count:
        raise _damaged("trees that follow each other", "starts that are out of order")
    if not arrays["threshold"].isfinite().all():
        raise _damaged("finite thresholds", "some that are not")
    inner = ~arrays["leaf"]
    feature, left, right = (arrays[name][inner].long() for name in ("feature", "left", "right"))
    native = features if columns is None else columns.numbers + len(columns.levels)
    if (feature < 0).any() or (feature >= native).any():
        raise _damaged(f"features below {native}", "others")
    node = torch.arange(count)
    end = torch.cat([start[1:], torch.tensor([count])])[torch.searchsorted(start, node, right=True) - 1]
    children = torch.cat([left, right])
    after = (children > node[inner].repeat(2)).all() and (children < end[inner].repeat(2)).all()
    roots = torch.zeros(count, dtype=torch.bool)
    roots[start] = True
    if not after or not torch.equal(children.sort().values, node[~roots]):
        raise _damaged("children that come after their parent, in its tree, once each", "others")
    if columns and columns.levels:
        _check_levels(arrays, feature, inner, columns.levels)


def _check_levels(arrays: Mapping[str, Tensor], feature: Tensor, inner: Tensor, levels: Sequence[int]) -> None:
    rows = arrays["level_row"][inner][feature < len(levels)]
    counts = torch.tensor(levels)[feature[feature < len(levels)]]
    if (rows < 0).any() or (rows >= len(arrays["level_left"]) - counts).any():
        raise _damaged("a row of levels for each split of a category", "some that are out of range")


def read_features(spec: Mapping[str, Any]) -> Features | None:
    """What the columns are, of a saved predictor of trees; None in those that were saved before categories were."""
    content = spec.get("columns")
    try:
        return None if content is None else Features.from_dict(content)
    except (TypeError, StakesError):
        raise _damaged("numbers, gaps and levels as columns", f"{content!r:.80}") from None


def _damaged(expected: str, got: str) -> StakesError:
    return damaged("trees", expected, got)
