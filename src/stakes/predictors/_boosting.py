"""What boosted trees of classes and of numbers share: trained by scikit-learn, stored as checked arrays.

A row walks down each tree (`_tree_arrays`), and the values of the leaves it ends in add up to raw scores.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.errors import StakesError
from stakes.features import Features
from stakes.predictors import _tree_arrays
from stakes.predictors._rows import as_arrays, damaged
from stakes.predictors._tree_arrays import LEVELS, native_columns
from stakes.seeds import derive
from stakes.training.examples import TensorExamples

LARGEST_SCORE = 1e6  # of a leaf or a baseline: sums of larger ones may overflow

VECTORS = {
    "feature": torch.int64,
    "threshold": torch.float64,
    "missing_left": torch.bool,  # whether a missing value goes left
    "left": torch.int64,  # the child's position among all nodes; not read in a leaf
    "right": torch.int64,
    "leaf": torch.bool,
    "value": torch.float64,  # what a leaf adds to the score
    "start": torch.int64,  # (T,) the root of each tree
    "score": torch.int64,  # (T,) the score it adds to
    "baseline": torch.float64,  # (K,) the scores before the first tree
}


class Boosting:
    """Rows for scikit-learn's boosting: gaps are missing values and one-hot blocks categories, if ``features`` say so.

    Without, all columns are numbers, NaN a missing one.
    """

    def __init__(
        self, train: TensorExamples, held_out: TensorExamples | None, features: Features | None, model_name: str
    ) -> None:
        self.x, self.labels, self.weights = as_arrays(train, model_name)
        _check_columns(features, self.x.shape[1])
        self.features = features
        self.native = native_columns(self.x, features)
        self.held_out = None if held_out is None else as_arrays(held_out, model_name)

    def fit(self, kind: Any, settings: Mapping[str, Any], iterations: tuple[int, int], seed: int) -> Any:
        """Train a ``kind`` of model, stopped early on the rows held out; ``iterations`` at most, and without such."""
        categories = len(self.features.levels) if self.features else 0
        model = kind(
            **settings,
            random_state=derive(seed, "boosting") % 2**32,
            early_stopping=self.held_out is not None,
            max_iter=iterations[self.held_out is None],
            categorical_features=np.arange(len(self.native)) < categories if categories else None,
        )
        scored: dict[str, Any] = {}
        if self.held_out is not None:
            x, labels, weights = self.held_out
            scored = {"X_val": native_columns(x, self.features).T, "y_val": labels, "sample_weight_val": weights}
        return model.fit(self.native.T, self.labels, self.weights, **scored)

    def arrays(self, trees: Sequence[tuple[Any, int]], baseline: NDArray[Any]) -> dict[str, Tensor]:
        """Trees, each with the number of the score that it adds to."""
        sizes = np.array([len(tree.nodes) for tree, _ in trees])
        starts = np.cumsum(sizes) - sizes
        nodes = np.concatenate([tree.nodes for tree, _ in trees])
        offset = np.repeat(starts, sizes)
        arrays = {
            "feature": nodes["feature_idx"],
            "threshold": _tree_arrays.finite(np.where(nodes["is_categorical"] == 1, 0, nodes["num_threshold"])),
            "missing_left": nodes["missing_go_to_left"],
            "left": offset + nodes["left"],
            "right": offset + nodes["right"],
            "leaf": nodes["is_leaf"],
            "value": nodes["value"],
            "start": starts,
            "score": np.array([score for _, score in trees]),
            "baseline": baseline.ravel(),
        }
        if self.features and self.features.levels:
            codes = self.native[: len(self.features.levels)]
            present = [np.unique(each[~np.isnan(each)]).astype(np.int64) for each in codes]
            bitsets = [tree.raw_left_cat_bitsets for tree, _ in trees]
            first = np.repeat(np.cumsum([0, *map(len, bitsets[:-1])]), sizes)
            index, levels = first + nodes["bitset_idx"], self.features.levels
            arrays |= _level_arrays(nodes, index, np.concatenate(bitsets), present, levels)
        return {name: torch.from_numpy(np.array(array)).to((VECTORS | LEVELS)[name]) for name, array in arrays.items()}


def raw_scores(arrays: Mapping[str, Tensor], x: NDArray[Any], columns: Features | None) -> NDArray[np.float64]:
    """``(K, B)`` of rows ``(B, features)``; NaN is a missing value."""
    baseline, of_tree, value = (arrays[name].numpy() for name in ("baseline", "score", "value"))
    scores = np.repeat(baseline[:, None], len(x), axis=1)
    levels = columns.levels if columns else ()
    reached = _tree_arrays.leaves(arrays, native_columns(x, columns), levels)
    for score, leaf in zip(of_tree.tolist(), reached, strict=True):
        scores[score] += value.take(leaf)
    return scores


def spec(features: int, columns: Features | None) -> dict[str, Any]:
    return {"features": features} | ({} if columns is None else {"columns": columns.to_dict()})


def check(
    arrays: Mapping[str, Tensor], others: Mapping[str, torch.dtype], features: int, columns: Features | None
) -> None:
    """Refuse arrays that are not boosted trees, with ``others`` beside them."""
    expected = {**VECTORS, **others, **(LEVELS if columns and columns.levels else {})}
    _tree_arrays.check_vectors(arrays, {name: (dtype, 1) for name, dtype in expected.items()})
    if len(arrays["value"]) != len(arrays["leaf"]) or len(arrays["score"]) != len(arrays["start"]):
        raise damaged("trees", "one entry for each node and each tree", "vectors of other lengths")
    scores = len(arrays["baseline"])
    if (arrays["score"] < 0).any() or (arrays["score"] >= scores).any():
        raise damaged("trees", f"trees for scores 0 to {scores - 1}", "others")
    if not all(arrays[name].isfinite().all() for name in ("value", "baseline")):
        raise damaged("trees", "finite values of leaves and baselines", "some that are not")
    _tree_arrays.check_trees(arrays, features, columns)
    if (torch.cat([arrays["value"][arrays["leaf"]], arrays["baseline"]]).abs() > LARGEST_SCORE).any():
        raise damaged("trees", f"leaves and baselines within ±{LARGEST_SCORE:g}", "larger ones")


def _check_columns(features: Features | None, width: int) -> None:
    if features is None:
        return
    if features.width != width:
        raise StakesError(f"expected features of {width} columns, but these have {features.width}: use the encoder's")
    if max(features.levels, default=0) > _tree_arrays.MOST_LEVELS:
        raise StakesError(
            f"expected categories of at most {_tree_arrays.MOST_LEVELS} levels, but one has {max(features.levels)}: "
            "put rare levels together"
        )


def _level_arrays(
    nodes: NDArray[Any],
    bitset: NDArray[np.int64],
    bitsets: NDArray[np.uint32],
    present: Sequence[NDArray[np.int64]],
    levels: Sequence[int],
) -> dict[str, NDArray[Any]]:
    """`level_row` and `level_left`: scikit-learn numbers the levels it saw, and takes all others for missing."""
    bits = np.unpackbits(bitsets.astype("<u4").view(np.uint8), axis=1, bitorder="little")
    level_row, tables, end = np.full(len(nodes), -1), [np.zeros(0, bool)], 0
    for feature, (count, seen) in enumerate(zip(levels, present, strict=True)):
        here = np.flatnonzero((nodes["is_leaf"] == 0) & (nodes["feature_idx"] == feature))
        table = np.repeat(nodes["missing_go_to_left"][here, None] == 1, count + 1, axis=1)
        table[:, seen] = bits[bitset[here], : len(seen)]
        level_row[here] = end + (count + 1) * np.arange(len(here))
        tables.append(table.ravel())
        end += table.size
    return {"level_row": level_row, "level_left": np.concatenate(tables)}
