"""Gradient boosted trees: scikit-learn trains them, checked arrays hold them, and NumPy alone predicts with them.

A row walks down each tree, left where ``x[feature] <= threshold``, and the values of the leaves it ends in add up to
raw scores:

    two classes:  p(second) = 1 / (1 + exp(-score))        more: p = softmax(scores)
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stakes.errors import StakesError
from stakes.inputs import Inputs, require_tensor
from stakes.outcomes import Footprint, Outcomes, Predictor
from stakes.seeds import derive
from stakes.training.examples import TensorExamples

ITERATIONS = 500  # at most: early stopping ends before, where there are validation rows
TOLERANCE = 1e-6  # between our probabilities and scikit-learn's
LARGEST_SCORE = 1e6  # of a leaf or a baseline: sums of larger ones may overflow
BLOCK_ROWS = 2**17

_NODES = {  # one entry for each node; a tree's nodes stand together, the root first
    "feature": torch.int64,
    "threshold": torch.float64,
    "missing_left": torch.bool,  # whether a missing value goes left
    "left": torch.int64,  # the child's position among all nodes; not read in a leaf
    "right": torch.int64,
    "leaf": torch.bool,
    "value": torch.float64,  # what a leaf adds to the score
}
_VECTORS = _NODES | {
    "start": torch.int64,  # (T,) the root of each tree
    "score": torch.int64,  # (T,) the score it adds to
    "baseline": torch.float64,  # (K,) the scores before the first tree
    "known": torch.bool,  # (C,) the classes that occurred in training; the others have probability 0
}


class BoostedTrees(Predictor):
    """Trees as arrays, for inputs of so many ``features``. Every index is checked: arrays may come from a stranger."""

    features: int

    def __init__(self, arrays: Mapping[str, Tensor], features: int) -> None:
        _check(arrays, features)
        self.arrays, self.features, self.classes = dict(arrays), features, len(arrays["known"])
        self._nodes = list(zip(*(self.arrays[name].tolist() for name in _NODES), strict=True))

    @classmethod
    def fit(cls, train: TensorExamples, validation: TensorExamples | None, classes: int, seed: int) -> Self:
        """Train scikit-learn's HistGradientBoostingClassifier, stopped early on the validation rows."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        known = torch.bincount(train.labels, minlength=classes) > 0
        if len(known) != classes or int(known.sum()) < 2:
            raise StakesError(
                f"expected labels of at least 2 of {classes} classes to train boosted trees on, but got "
                f"{sorted(set(train.labels.tolist()))}"
            )
        if validation is not None:  # a class that training never saw cannot be scored
            rows = known[validation.labels].nonzero()[:, 0]
            validation = validation.subset(rows) if len(rows) else None
        model = HistGradientBoostingClassifier(
            random_state=derive(seed, "boosting") % 2**32, early_stopping=validation is not None, max_iter=ITERATIONS
        )
        held_out: dict[str, Any] = {}
        if validation is not None:
            held_out = {
                "X_val": require_tensor(validation.x, "boosted trees").double().numpy(),
                "y_val": validation.labels.numpy(),
            }
            held_out |= {"sample_weight_val": None if validation.weights is None else validation.weights.numpy()}
        x = require_tensor(train.x, "boosted trees").double().numpy()
        weights = None if train.weights is None else train.weights.numpy()
        model.fit(x, train.labels.numpy(), weights, **held_out)
        trees = cls(_arrays(model, known), x.shape[1])
        error = np.abs(trees.probs(x)[:, known.numpy()] - model.predict_proba(x)).max()
        if not error <= TOLERANCE:
            raise StakesError(
                f"expected the stored trees to predict as scikit-learn's, but they differ by {error:.2g}; "
                "this version of scikit-learn stores trees in another way: use the version stakes is tested with"
            )
        return trees

    def probs(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """``(B, C)`` the probabilities of rows ``(B, features)``; NaN is a missing value."""
        if x.ndim != 2 or x.shape[1] != self.features:
            raise StakesError(f"expected rows of {self.features} features, but got inputs of shape {x.shape}")
        scores = self._scores(_finite(x.T))
        if len(scores) == 1:
            with np.errstate(over="ignore"):  # exp(large) = inf, and the probability is 0
                second = 1 / (1 + np.exp(-scores[0]))
            present = np.stack([1 - second, second])
        else:
            present = np.exp(scores - scores.max(0))
            present /= present.sum(0)
        known = self.arrays["known"].numpy()
        probs = np.zeros((len(x), len(known)))
        probs[:, known] = present.T
        return probs

    def _scores(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """``(K, B)`` raw scores: at each node the rows that reach it are split in two, so each row costs its depth."""
        rows = np.arange(columns.shape[1])
        scores = np.repeat(self.arrays["baseline"].numpy()[:, None], len(rows), axis=1)
        missing = [bool(np.isnan(column).any()) for column in columns]
        for start, score in zip(self.arrays["start"].tolist(), self.arrays["score"].tolist(), strict=True):
            reached = [(start, rows)]
            while reached:
                node, here = reached.pop()
                feature, threshold, missing_left, left, right, leaf, value = self._nodes[node]
                if leaf:
                    scores[score, here] += value
                    continue
                values = columns[feature].take(here)
                goes_left = values <= threshold
                if missing_left and missing[feature]:
                    goes_left |= np.isnan(values)
                for child, part in ((left, here[goes_left]), (right, here[~goes_left])):
                    if len(part):
                        reached.append((child, part))
        return scores

    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        x = require_tensor(x, "boosted trees")
        probs = torch.from_numpy(self.probs(x.double().numpy()))
        probs = probs if x.dtype == torch.float64 else probs.float()  # inputs may be integers, or of half precision
        return Outcomes(probs.expand(last - first, -1, -1))

    def footprint(self, x: Inputs) -> Footprint:
        """Blocks of many rows, however wide: there is a fixed cost for each node."""
        return Footprint(1, 2**21 // BLOCK_ROWS)

    def spec(self) -> dict[str, Any]:
        return {"features": self.features}

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.arrays)

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        return cls(tensors, spec["features"])


def _arrays(model: Any, known: Tensor) -> dict[str, Tensor]:
    """The trees of a fitted HistGradientBoostingClassifier."""
    trees = [(tree.nodes, score) for trees in model._predictors for score, tree in enumerate(trees)]
    sizes = np.array([len(nodes) for nodes, _ in trees])
    starts = np.cumsum(sizes) - sizes
    nodes = np.concatenate([nodes for nodes, _ in trees])
    if nodes["is_categorical"].any():
        raise StakesError("expected trees that split on numbers, but some split on categories: encode them first")
    offset = np.repeat(starts, sizes)
    arrays = {
        "feature": nodes["feature_idx"],
        # Infinite where all that is not missing goes left, or only minus infinity does.
        "threshold": _finite(nodes["num_threshold"]),
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
    return {name: torch.from_numpy(array.copy()).to(_VECTORS[name]) for name, array in arrays.items()}


def _finite(numbers: NDArray[Any]) -> NDArray[np.float64]:
    """The largest numbers stand for infinity, in inputs as in thresholds."""
    largest = np.finfo(np.float64).max
    finite: NDArray[np.float64] = np.clip(numbers, -largest, largest, dtype=np.float64, order="C")
    return finite


def _check(arrays: Mapping[str, Tensor], features: int) -> None:
    """Refuse arrays that are not trees: a walk down them must end, in a leaf of its own tree."""
    if {name: (tensor.dtype, tensor.ndim) for name, tensor in arrays.items()} != {
        name: (dtype, 1) for name, dtype in _VECTORS.items()
    }:
        raise _damaged(f"the vectors {', '.join(_VECTORS)}", "others")
    count, trees = len(arrays["leaf"]), len(arrays["start"])
    if any(len(arrays[name]) != count for name in _NODES) or len(arrays["score"]) != trees or not 1 <= trees <= count:
        raise _damaged("one entry for each node and each tree", "vectors of other lengths")
    known, scores = int(arrays["known"].sum()), len(arrays["baseline"])
    if known < 2 or scores != (1 if known == 2 else known):
        raise _damaged("a score for each class, or one for two classes", f"{scores} for {known} classes")
    start, score = arrays["start"], arrays["score"]
    if start[0] != 0 or (start.diff() < 1).any() or start[-1] >= count:
        raise _damaged("trees that follow each other", "starts that are out of order")
    if (score < 0).any() or (score >= scores).any():
        raise _damaged(f"trees for scores 0 to {scores - 1}", "others")
    if not all(arrays[name].isfinite().all() for name in ("threshold", "value", "baseline")):
        raise _damaged("finite thresholds and values", "some that are not")
    if (torch.cat([arrays["value"][arrays["leaf"]], arrays["baseline"]]).abs() > LARGEST_SCORE).any():
        raise _damaged(f"leaves and baselines within ±{LARGEST_SCORE:g}", "larger ones")
    inner = ~arrays["leaf"]
    feature, left, right = (arrays[name][inner] for name in ("feature", "left", "right"))
    if type(features) is not int or (feature < 0).any() or (feature >= features).any():
        raise _damaged(f"features below {features}", "others")
    node = torch.arange(count)
    end = torch.cat([start[1:], torch.tensor([count])])[torch.searchsorted(start, node, right=True) - 1]
    children = torch.cat([left, right])
    after = (children > node[inner].repeat(2)).all() and (children < end[inner].repeat(2)).all()
    roots = torch.zeros(count, dtype=torch.bool)
    roots[start] = True
    if not after or not torch.equal(children.sort().values, node[~roots]):
        raise _damaged("children that come after their parent, in its tree, once each", "others")


def _damaged(expected: str, got: str) -> StakesError:
    return StakesError(f"damaged trees: expected {expected}, but got {got}; save the model again")
