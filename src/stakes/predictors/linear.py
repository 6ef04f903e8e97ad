"""Multinomial logistic regression: scikit-learn trains it, a matrix and a vector hold it."""

import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stakes.errors import StakesError
from stakes.predictors._rows import ClassPredictor, as_arrays, damaged, known_classes, scorable, softmax, spread
from stakes.training.examples import TensorExamples

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # scikit-learn's C, from the simplest model on
DEFAULT_STRENGTH = 1.0  # without validation rows
LARGEST_WEIGHT = 1e9
FLOOR = 1e-12  # of probabilities in a log-loss


class Logistic(ClassPredictor):
    """``p = softmax(weights x + bias)`` over the ``known`` classes; the others have probability 0."""

    model_name = "a logistic regression"

    def __init__(self, weights: Tensor, bias: Tensor, known: Tensor) -> None:
        _check(weights, bias, known)
        self.weights, self.bias, self.known = weights, bias, known
        self.features, self.classes = weights.shape[1], len(known)

    @classmethod
    def fit(cls, train: TensorExamples, validation: TensorExamples | None, classes: int, seed: int = 0) -> Self:
        """Train scikit-learn's LogisticRegression, with the strength that has the lowest log-loss on validation rows.

        Nothing about it is random; ``seed`` is there as in the other predictors.
        """
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        known = known_classes(train.labels, classes, cls.model_name)
        held_out = scorable(validation, known)
        x, labels, weights = as_arrays(train, cls.model_name)
        if not np.isfinite(x).all():
            raise StakesError("expected finite numbers to train a logistic regression on, but some are not")
        model = LogisticRegression(max_iter=1000, warm_start=True)
        best, lowest = None, np.inf
        for strength in STRENGTHS if held_out is not None else (DEFAULT_STRENGTH,):
            model.C = strength
            with warnings.catch_warnings():  # where the last iterate is, is judged on the validation rows
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(x, labels, weights)
            candidate = cls(*_parameters(model), known)
            loss = 0.0 if held_out is None else candidate._log_loss(held_out)
            if best is None or loss < lowest:
                candidate.require_equal(x, model.predict_proba(x), known)
                best, lowest = candidate, loss
        assert best is not None
        return best

    def probs(self, x: NDArray[Any]) -> NDArray[np.float64]:
        self.require_width(x)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self.weights.numpy() @ x.T.astype(np.float64) + self.bias.numpy()[:, None]  # (K, B)
        if not np.isfinite(scores).all():
            raise StakesError("expected finite numbers for a logistic regression, but some are not: encode gaps first")
        return spread(softmax(scores).T, self.known)

    def _log_loss(self, examples: TensorExamples) -> float:
        x, labels, weights = as_arrays(examples, self.model_name)
        probs = self.probs(x)[np.arange(len(x)), labels]
        return float(np.average(-np.log(probs.clip(FLOOR)), weights=weights))

    def spec(self) -> dict[str, Any]:
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return {"weights": self.weights, "bias": self.bias, "known": self.known}

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        if set(tensors) != {"weights", "bias", "known"}:
            raise damaged(cls.model_name, "weights, bias and known classes", "other tensors")
        return cls(**tensors)


def _parameters(model: Any) -> tuple[Tensor, Tensor]:
    """``(K, F)`` and ``(K,)``; of two classes scikit-learn keeps the log-odds of the second, so the first has 0."""
    weights, bias = torch.tensor(model.coef_), torch.tensor(model.intercept_)
    if len(bias) == 1:
        weights, bias = torch.cat([torch.zeros_like(weights), weights]), torch.cat([torch.zeros_like(bias), bias])
    return weights.double(), bias.double()


def _check(weights: Tensor, bias: Tensor, known: Tensor) -> None:
    if (weights.dtype, bias.dtype, known.dtype) != (torch.float64, torch.float64, torch.bool):
        raise damaged(Logistic.model_name, "float64 weights and bias and bool known classes", "other types")
    if known.ndim != 1 or weights.ndim != 2 or bias.shape != weights.shape[:1] or int(known.sum()) != len(bias):
        raise damaged(Logistic.model_name, "a row of weights and a bias for each known class", "other shapes")
    if len(bias) < 2 or not all(bool((tensor.abs() <= LARGEST_WEIGHT).all()) for tensor in (weights, bias)):
        raise damaged(Logistic.model_name, f"2 classes or more, with weights within ±{LARGEST_WEIGHT:g}", "others")
