"""Boosted trees for outcomes that are numbers: of quantiles, or of the mean with the errors that it made."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stakes.features import Features
from stakes.mixtures import LEVELS
from stakes.predictors import _boosting, _tree_arrays
from stakes.predictors._amounts import (
    AmountPredictor,
    check_levels,
    check_standard,
    interpolated,
    levels_with,
    standard_of,
    standardised,
    weighted_quantiles,
)
from stakes.predictors._rows import as_arrays, damaged
from stakes.seeds import derive
from stakes.training.examples import TensorExamples

# Of scikit-learn's models, found on training rows: leaves of 5 rows, as for classes, know too little of a quantile.
SETTINGS = {
    "learning_rate": 0.1,
    "max_leaf_nodes": 15,
    "min_samples_leaf": 10,
    "max_features": 0.5,
    "n_iter_no_change": 10,
}
ITERATIONS, BLIND_ITERATIONS = 500, 50  # at most, stopped early on the rows held out; without any
FEW_ROWS = 20  # held out, by which quantiles are moved half of the way


class _NumberTrees(AmountPredictor):
    """Trees as arrays, whose scores are standardised numbers. Every index is checked: they may come from a stranger."""

    others: ClassVar[Mapping[str, torch.dtype]]  # the arrays that it has beside those of its trees

    def __init__(self, arrays: Mapping[str, Tensor], features: int, columns: Features | None = None) -> None:
        _boosting.check(arrays, self.others, features, columns)
        check_standard(arrays["standard"], "trees")
        self.arrays, self.features, self.columns = dict(arrays), features, columns

    def scores(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """``(B, K)``."""
        return _boosting.raw_scores(self.arrays, x, self.columns).T

    def in_unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        mean, deviation, low, high = self.arrays["standard"].tolist()
        inside: NDArray[np.float64] = (mean + deviation * values).clip(low, high)
        return inside

    def spec(self) -> dict[str, Any]:
        return _boosting.spec(self.features, self.columns)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.arrays)

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        return cls(tensors, spec["features"], _tree_arrays.read_features(spec))


class QuantileTrees(_NumberTrees):
    """Boosted trees of several quantiles, each trained alone, interpolated between them, never beyond the labels."""

    model_name = "boosted trees of quantiles"
    others: ClassVar = {"standard": torch.float64, "levels": torch.float64}

    def __init__(self, arrays: Mapping[str, Tensor], features: int, columns: Features | None = None) -> None:
        super().__init__(arrays, features, columns)
        check_levels(arrays["levels"], "trees")
        if len(arrays["levels"]) != len(arrays["baseline"]):
            raise damaged("trees", "a score for each level", f"{len(arrays['baseline'])}")

    @classmethod
    def fit(
        cls,
        train: TensorExamples,
        held_out: TensorExamples | None,
        seed: int = 0,
        features: Features | None = None,
        levels: Sequence[float] = (),
    ) -> Self:
        """Train scikit-learn's HistGradientBoostingRegressor for quantiles, at ``levels`` too, such as a utility's own.

        On the rows held out, training stops, and what had the lowest loss there is kept; then each quantile is moved,
        so that it covers its share of them: on rows that they were trained on, trees see too little of the spread.
        ``features`` say what the columns of a table are, as for `BoostedTrees`.
        """
        standard, chosen = standard_of(train, cls.model_name), levels_with(levels)
        held_out = None if held_out is None else standardised(held_out, standard)
        rows = _boosting.Boosting(standardised(train, standard), held_out, features, cls.model_name)
        models = [_fitted(rows, seed, number, quantile=level) for number, level in enumerate(chosen.tolist())]
        grown = [(trees[0], number) for number, model in enumerate(models) for trees in model._predictors]
        baseline = np.concatenate([model._baseline_prediction.ravel() for model in models])
        arrays = rows.arrays(grown, baseline) | {"standard": standard, "levels": chosen}
        predictor = cls(arrays, rows.x.shape[1], features)
        theirs = np.stack([model.predict(rows.native.T) for model in models], 1)
        predictor.require_close(predictor.scores(rows.x), theirs)
        if rows.held_out is not None:
            x, labels, weights = rows.held_out
            predictor.arrays["baseline"] += _corrections(predictor.scores(x), labels, weights, chosen)
        return predictor

    def quantiles(self, x: NDArray[Any]) -> NDArray[np.float64]:
        return self.in_unit(interpolated(self.scores(x), self.arrays["levels"]))


class MeanTrees(_NumberTrees):
    """Boosted trees of the mean, and around it the quantiles of the errors that they made on rows held out."""

    model_name = "boosted trees of the mean"
    others: ClassVar = {"standard": torch.float64, "errors": torch.float64}

    def __init__(self, arrays: Mapping[str, Tensor], features: int, columns: Features | None = None) -> None:
        super().__init__(arrays, features, columns)
        errors = arrays["errors"]
        if errors.shape != LEVELS.shape or not bool((errors.abs() <= _boosting.LARGEST_SCORE).all()):
            raise damaged("trees", f"{len(LEVELS)} quantiles of errors", "others")
        if len(arrays["baseline"]) != 1:
            raise damaged("trees", "one score", f"{len(arrays['baseline'])}")

    @classmethod
    def fit(
        cls,
        train: TensorExamples,
        held_out: TensorExamples | None,
        seed: int = 0,
        features: Features | None = None,
    ) -> Self:
        """Train scikit-learn's HistGradientBoostingRegressor, as `QuantileTrees` do.

        Without rows held out, the errors are those on training rows, which are too small.
        """
        standard = standard_of(train, cls.model_name)
        judged = standardised(train if held_out is None else held_out, standard)
        rows = _boosting.Boosting(
            standardised(train, standard), None if held_out is None else judged, features, cls.model_name
        )
        model = _fitted(rows, seed, 0)
        arrays = rows.arrays([(trees[0], 0) for trees in model._predictors], model._baseline_prediction)
        predictor = cls(arrays | {"standard": standard, "errors": torch.zeros_like(LEVELS)}, rows.x.shape[1], features)
        predictor.require_close(predictor.scores(rows.x)[:, 0], model.predict(rows.native.T))
        x, labels, weights = as_arrays(judged, cls.model_name)
        predictor.arrays["errors"] = weighted_quantiles(labels - predictor.scores(x)[:, 0], weights)
        return predictor

    def quantiles(self, x: NDArray[Any]) -> NDArray[np.float64]:
        return self.in_unit(self.scores(x) + self.arrays["errors"].numpy())


def _corrections(
    scores: NDArray[np.float64], labels: NDArray[Any], weights: NDArray[Any] | None, levels: Tensor
) -> Tensor:
    """``(K,)`` what moves quantiles ``(n, K)`` to where they cover their shares of n labels; of few, a part of it."""
    gaps = [weighted_quantiles(labels - each, weights, level) for each, level in zip(scores.T, levels, strict=True)]
    shares = np.ones(len(labels)) if weights is None else weights
    rows = float(shares.sum() ** 2 / (shares**2).sum())  # as many alike would say as much
    return torch.stack(gaps) * rows / (rows + FEW_ROWS)


def _fitted(rows: _boosting.Boosting, seed: int, number: int, quantile: float | None = None) -> Any:
    """A model of a quantile, or of the mean, with the trees up to where it was best on the rows held out."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    loss = {"loss": "squared_error"} if quantile is None else {"loss": "quantile", "quantile": quantile}
    iterations = (ITERATIONS, BLIND_ITERATIONS)
    model = rows.fit(HistGradientBoostingRegressor, {**SETTINGS, **loss}, iterations, derive(seed, "level", number))
    if len(model.validation_score_):
        del model._predictors[max(1, int(np.argmax(model.validation_score_))) :]
    return model
