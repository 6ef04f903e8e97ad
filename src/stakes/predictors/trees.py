"""Gradient boosted trees: scikit-learn trains them, checked arrays hold them, and NumPy alone predicts with them.

A row walks down each tree (`_tree_arrays`), and the values of the leaves it ends in add up to raw scores:

    two classes:  p(second) = 1 / (1 + exp(-score))        more: p = softmax(scores)
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stakes.errors import StakesError
from stakes.features import Features
from stakes.predictors import _tree_arrays
from stakes.predictors._rows import RowPredictor, as_arrays, damaged, known_classes, scorable, softmax, spread
from stakes.predictors._tree_arrays import LEVELS, native_columns
from stakes.seeds import derive
from stakes.training.examples import TensorExamples

# Of scikit-learn's model: slow and small trees, found on training rows of the example tables. Leaves of 5 rows find
# sharp thresholds that those of 20, the default, do not; half of the features at each split keeps trees different.
SETTINGS = {
    "learning_rate": 0.05,
    "max_leaf_nodes": 15,
    "min_samples_leaf": 5,
    "max_features": 0.5,
    "l2_regularization": 1.0,
    "n_iter_no_change": 20,
}
ITERATIONS, BLIND_ITERATIONS = 1000, 200  # at most, stopped early on validation rows; without any
LARGEST_SCORE = 1e6  # of a leaf or a baseline: sums of larger ones may overflow

_VECTORS = {
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
    "known": torch.bool,  # (C,) the classes that occurred in training; the others have probability 0
}


class BoostedTrees(RowPredictor):
    """Trees as arrays, for inputs of so many ``features``, which ``columns`` may tell apart.

    Every index is checked: arrays may come from a stranger.
    """

    taker = "boosted trees"

    def __init__(self, arrays: Mapping[str, Tensor], features: int, columns: Features | None = None) -> None:
        _check(arrays, features, columns)
        self.arrays, self.features, self.columns = dict(arrays), features, columns
        self.classes = len(arrays["known"])

    @classmethod
    def fit(
        cls,
        train: TensorExamples,
        validation: TensorExamples | None,
        classes: int,
        seed: int,
        features: Features | None = None,
    ) -> Self:
        """Train scikit-learn's HistGradientBoostingClassifier, stopped early on the validation rows.

        With ``features``, which say what the columns of a table are, gaps are missing values and one-hot blocks are
        categories; without, all columns are numbers, NaN a missing one.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier

        known = known_classes(train.labels, classes, cls.taker)
        held_out = scorable(validation, known)
        x, labels, weights = as_arrays(train, cls.taker)
        _check_columns(features, x.shape[1])
        native = native_columns(x, features)
        categories = len(features.levels) if features else 0
        model = HistGradientBoostingClassifier(
            **SETTINGS,
            random_state=derive(seed, "boosting") % 2**32,
            early_stopping=held_out is not None,
            max_iter=ITERATIONS if held_out is not None else BLIND_ITERATIONS,
            categorical_features=np.arange(len(native)) < categories if categories else None,
        )
        scored: dict[str, Any] = {}
        if held_out is not None:
            held_x, held_labels, held_weights = as_arrays(held_out, cls.taker)
            scored = {"X_val": native_columns(held_x, features).T, "y_val": held_labels}
            scored |= {"sample_weight_val": held_weights}
        model.fit(native.T, labels, weights, **scored)
        present = [np.unique(codes[~np.isnan(codes)]).astype(np.int64) for codes in native[:categories]]
        trees = cls(_arrays(model, known, present, features), x.shape[1], features)
        trees.require_equal(x, model.predict_proba(native.T), known)
        return trees

    def probs(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """``(B, C)`` the probabilities of rows ``(B, features)``; NaN is a missing value."""
        self.require_width(x)
        arrays = {name: self.arrays[name].numpy() for name in ("baseline", "score", "value")}
        scores = np.repeat(arrays["baseline"][:, None], len(x), axis=1)
        levels = self.columns.levels if self.columns else ()
        reached = _tree_arrays.leaves(self.arrays, native_columns(x, self.columns), levels)
        for score, leaf in zip(arrays["score"].tolist(), reached, strict=True):
            scores[score] += arrays["value"].take(leaf)
        if len(scores) == 1:
            with np.errstate(over="ignore"):  # exp(large) = inf, and the probability is 0
                second = 1 / (1 + np.exp(-scores[0]))
            return spread(np.stack([1 - second, second], 1), self.arrays["known"])
        return spread(softmax(scores).T, self.arrays["known"])

    def spec(self) -> dict[str, Any]:
        columns = {} if self.columns is None else {"columns": self.columns.to_dict()}
        return {"features": self.features, **columns}

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.arrays)

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        return cls(tensors, spec["features"], _tree_arrays.read_features(spec))


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


def _arrays(
    model: Any, known: Tensor, present: Sequence[NDArray[np.int64]], features: Features | None
) -> dict[str, Tensor]:
    """The trees of a fitted HistGradientBoostingClassifier; ``present`` are the levels it saw of each category."""
    trees = [(tree, score) for trees in model._predictors for score, tree in enumerate(trees)]
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
        "baseline": model._baseline_prediction.ravel(),
        "known": known.numpy(),
    }
    if features and features.levels:
        bitsets = [tree.raw_left_cat_bitsets for tree, _ in trees]
        first = np.repeat(np.cumsum([0, *map(len, bitsets[:-1])]), sizes)
        arrays |= _level_arrays(nodes, first + nodes["bitset_idx"], np.concatenate(bitsets), present, features.levels)
    return {name: torch.from_numpy(np.array(array)).to((_VECTORS | LEVELS)[name]) for name, array in arrays.items()}


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


def _check(arrays: Mapping[str, Tensor], features: int, columns: Features | None) -> None:
    """Refuse arrays that are not boosted trees."""
    expected = _VECTORS | (LEVELS if columns and columns.levels else {})
    _tree_arrays.check_vectors(arrays, {name: (dtype, 1) for name, dtype in expected.items()})
    if len(arrays["value"]) != len(arrays["leaf"]) or len(arrays["score"]) != len(arrays["start"]):
        raise damaged("trees", "one entry for each node and each tree", "vectors of other lengths")
    known, scores = int(arrays["known"].sum()), len(arrays["baseline"])
    if known < 2 or scores != (1 if known == 2 else known):
        raise damaged("trees", "a score for each class, or one for two classes", f"{scores} for {known} classes")
    if (arrays["score"] < 0).any() or (arrays["score"] >= scores).any():
        raise damaged("trees", f"trees for scores 0 to {scores - 1}", "others")
    if not all(arrays[name].isfinite().all() for name in ("value", "baseline")):
        raise damaged("trees", "finite values of leaves and baselines", "some that are not")
    _tree_arrays.check_trees(arrays, features, columns)
    if (torch.cat([arrays["value"][arrays["leaf"]], arrays["baseline"]]).abs() > LARGEST_SCORE).any():
        raise damaged("trees", f"leaves and baselines within ±{LARGEST_SCORE:g}", "larger ones")
