"""Gradient boosted trees: scikit-learn trains them, checked arrays hold them, and NumPy alone predicts with them.

A row walks down each tree (`_tree_arrays`), and the values of the leaves it ends in add up to raw scores:

    two classes:  p(second) = 1 / (1 + exp(-score))        more: p = softmax(scores)
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stakes.features import Features
from stakes.predictors import _boosting, _tree_arrays
from stakes.predictors._rows import ClassPredictor, damaged, known_classes, scorable, softmax, spread
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
_OTHERS = {"known": torch.bool}  # (C,) the classes that occurred in training; the others have probability 0


class BoostedTrees(ClassPredictor):
    """Trees as arrays, for inputs of so many ``features``, which ``columns`` may tell apart.

    Every index is checked: arrays may come from a stranger.
    """

    model_name = "boosted trees"

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

        known = known_classes(train.labels, classes, cls.model_name)
        rows = _boosting.Boosting(train, scorable(validation, known), features, cls.model_name)
        model = rows.fit(HistGradientBoostingClassifier, SETTINGS, (ITERATIONS, BLIND_ITERATIONS), seed)
        grown = [(tree, score) for trees in model._predictors for score, tree in enumerate(trees)]
        arrays = rows.arrays(grown, model._baseline_prediction) | {"known": known}
        trees = cls(arrays, rows.x.shape[1], features)
        trees.require_equal(rows.x, model.predict_proba(rows.native.T), known)
        return trees

    def probs(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """``(B, C)`` the probabilities of rows ``(B, features)``; NaN is a missing value."""
        self.require_width(x)
        scores = _boosting.raw_scores(self.arrays, x, self.columns)
        if len(scores) == 1:
            with np.errstate(over="ignore"):  # exp(large) = inf, and the probability is 0
                second = 1 / (1 + np.exp(-scores[0]))
            return spread(np.stack([1 - second, second], 1), self.arrays["known"])
        return spread(softmax(scores).T, self.arrays["known"])

    def spec(self) -> dict[str, Any]:
        return _boosting.spec(self.features, self.columns)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.arrays)

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        return cls(tensors, spec["features"], _tree_arrays.read_features(spec))


def _check(arrays: Mapping[str, Tensor], features: int, columns: Features | None) -> None:
    """Refuse arrays that are not boosted trees of classes."""
    _boosting.check(arrays, _OTHERS, features, columns)
    known, scores = int(arrays["known"].sum()), len(arrays["baseline"])
    if known < 2 or scores != (1 if known == 2 else known):
        raise damaged("trees", "a score for each class, or one for two classes", f"{scores} for {known} classes")
