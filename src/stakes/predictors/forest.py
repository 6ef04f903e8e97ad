"""Forests of randomised trees: scikit-learn grows them, checked arrays hold them, and NumPy alone predicts with them.

A row walks down each tree (`_tree_arrays`); its probabilities are the mean of the class shares in its leaves.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stakes.predictors import _tree_arrays
from stakes.predictors._rows import ClassPredictor, as_arrays, damaged, known_classes, spread
from stakes.seeds import derive
from stakes.training.examples import TensorExamples

TREES = 100  # of one part; five folds have five times as many
SMALLEST_LEAF = 3  # rows: with fewer, probabilities of small tables are too sure
MOST_LEAVES = 256  # of a tree, so that a forest takes a few megabytes

VECTORS = {
    "feature": torch.int32,
    "threshold": torch.float32,
    "missing_left": torch.bool,
    "left": torch.int32,
    "right": torch.int32,
    "leaf": torch.bool,
    "start": torch.int64,
}
_OTHERS = {
    "known": (torch.bool, 1),  # (C,) the classes that occurred in training; the others have probability 0
    "value": (torch.float32, 2),
}


class Forest(ClassPredictor):
    """Trees as arrays, for inputs of so many ``features``. Every index is checked: arrays may come from a stranger."""

    model_name = "a forest"

    def __init__(self, arrays: Mapping[str, Tensor], features: int) -> None:
        _check(arrays, features)
        self.arrays, self.features, self.classes = dict(arrays), features, len(arrays["known"])

    @classmethod
    def fit(cls, train: TensorExamples, classes: int, seed: int, trees: int = TREES) -> Self:
        """Train scikit-learn's RandomForestClassifier; it needs no validation rows."""
        from sklearn.ensemble import RandomForestClassifier

        known = known_classes(train.labels, classes, cls.model_name)
        x, labels, weights = as_arrays(train, cls.model_name)
        model = RandomForestClassifier(
            trees,
            min_samples_leaf=SMALLEST_LEAF,
            max_leaf_nodes=MOST_LEAVES,
            random_state=derive(seed, "forest") % 2**32,
        )
        model.fit(x, labels, weights)
        forest = cls(_arrays([each.tree_ for each in model.estimators_], known), x.shape[1])
        forest.require_equal(x, model.predict_proba(x), known)
        return forest

    def probs(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """``(B, C)`` the probabilities of rows ``(B, features)``; NaN is a missing value."""
        self.require_width(x)
        row_of = self.arrays["leaf"].cumsum(0).sub(1).numpy()  # of a leaf in `value`
        value = self.arrays["value"].numpy()
        total = np.zeros((len(x), value.shape[1]))
        for leaf in _tree_arrays.leaves(self.arrays, x.T):
            total += value.take(row_of.take(leaf), axis=0)
        return spread(total / total.sum(1, keepdims=True), self.arrays["known"])

    def spec(self) -> dict[str, Any]:
        return {"features": self.features}

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.arrays)

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        return cls(tensors, spec["features"])


def _arrays(trees: list[Any], known: Tensor) -> dict[str, Tensor]:
    """The trees of a fitted forest of classes."""
    value = np.concatenate([tree.value[tree.children_left < 0, 0] for tree in trees])
    return {**node_arrays(trees), "known": known, "value": torch.from_numpy(value).float()}


def node_arrays(trees: list[Any]) -> dict[str, Tensor]:
    """The nodes of a fitted forest."""
    sizes = np.array([tree.node_count for tree in trees])
    starts = np.cumsum(sizes) - sizes
    offset = np.repeat(starts, sizes)
    nodes = {
        name: np.concatenate([getattr(tree, name) for tree in trees])
        for name in ("feature", "threshold", "children_left", "children_right", "missing_go_to_left")
    }
    leaf = nodes["children_left"] < 0
    arrays = {
        "feature": np.where(leaf, 0, nodes["feature"]),
        "threshold": np.where(leaf, 0, _rounded_down(nodes["threshold"])),
        "missing_left": nodes["missing_go_to_left"],
        "left": np.where(leaf, 0, offset + nodes["children_left"]),
        "right": np.where(leaf, 0, offset + nodes["children_right"]),
        "leaf": leaf,
        "start": starts,
    }
    return {name: torch.from_numpy(np.array(array)).to(VECTORS[name]) for name, array in arrays.items()}


def _rounded_down(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """To float32, as the inputs of a forest are: ``x <= threshold`` for the same x."""
    near = _tree_arrays.finite(thresholds, np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.finfo(np.float32).min), near)


def _check(arrays: Mapping[str, Tensor], features: int) -> None:
    """Refuse arrays that are not a forest."""
    _tree_arrays.check_vectors(arrays, {name: (dtype, 1) for name, dtype in VECTORS.items()} | _OTHERS)
    _tree_arrays.check_trees(arrays, features, None)
    value, known = arrays["value"], int(arrays["known"].sum())
    if known < 2 or value.shape != (int(arrays["leaf"].sum()), known):
        raise damaged("trees", "a share of each class for each leaf", f"{tuple(value.shape)} for {known} classes")
    if not bool((value >= 0).all()) or not bool(((value.sum(1) - 1).abs() <= 1e-3).all()):
        raise damaged("trees", "shares of classes that sum to 1", "others")
