"""Linear quantile regression: a row of weights and a bias for each of several quantiles."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stakes.errors import StakesError
from stakes.features import Features
from stakes.predictors._amounts import (
    AmountPredictor,
    check_levels,
    check_standard,
    interpolated,
    levels_with,
    standard_of,
    standardised,
)
from stakes.predictors._rows import as_arrays, damaged
from stakes.seeds import numpy_generator
from stakes.training.examples import TensorExamples

STRENGTHS = (1.0, 0.1, 0.03, 0.01, 0.003, 0.001)  # of the penalty, from the simplest model on
BLIND_STRENGTH = 0.01  # without rows held out
WIDTHS = (0.1, 0.03, 0.01)  # of the corner of the loss that is rounded, in standard deviations of the labels
MOST_ROWS = 50_000  # that it is trained on: a random part of more
LARGEST_WEIGHT = 1e9


class LinearQuantiles(AmountPredictor):
    """``weights x + bias`` for each of the ``levels``, standardised numbers, and interpolated between them."""

    model_name = "a linear quantile regression"

    def __init__(self, weights: Tensor, bias: Tensor, levels: Tensor, standard: Tensor) -> None:
        check_levels(levels, self.model_name)
        check_standard(standard, self.model_name)
        if (weights.dtype, bias.dtype) != (torch.float64, torch.float64):
            raise damaged(self.model_name, "float64 weights and bias", "other types")
        if weights.ndim != 2 or not weights.shape[1] or not len(weights) == len(bias) == len(levels) or bias.ndim != 1:
            raise damaged(self.model_name, "a row of weights and a bias for each level", "other shapes")
        if not all(bool((tensor.abs() <= LARGEST_WEIGHT).all()) for tensor in (weights, bias)):
            raise damaged(self.model_name, f"weights within ±{LARGEST_WEIGHT:g}", "larger ones")
        self.coefficients, self.bias, self.levels, self.standard = weights, bias, levels, standard
        self.features = weights.shape[1]

    @classmethod
    def fit(
        cls,
        train: TensorExamples,
        held_out: TensorExamples | None,
        seed: int = 0,
        features: Features | None = None,
        levels: Sequence[float] = (),
    ) -> Self:
        """Minimise the pinball loss and a penalty of squared weights, whose strength has the lowest CRPS on rows held
        out. Columns of numbers are standardised for it; ``features`` say which columns are none.
        """
        standard, chosen = standard_of(train, cls.model_name), levels_with(levels)
        x, labels, weights = as_arrays(standardised(train, standard), cls.model_name)
        if not np.isfinite(x).all():
            raise StakesError(
                f"expected finite numbers to train {cls.model_name} on, but some are not: encode gaps first"
            )
        center, scale = _columns(x, features)
        problem = _Pinball((x - center) / scale, labels, weights, chosen.numpy(), seed)

        best, lowest = None, np.inf
        for strength in STRENGTHS if held_out is not None else (BLIND_STRENGTH,):
            solution = problem.solve(strength)
            slopes = solution[:, :-1] / scale
            bias = solution[:, -1] - slopes @ center
            candidate = cls(torch.from_numpy(slopes), torch.from_numpy(bias), chosen, standard)
            loss = 0.0 if held_out is None else candidate.mean_crps(held_out)
            if best is None or loss < lowest:
                best, lowest = candidate, loss
        assert best is not None
        return best

    def quantiles(self, x: NDArray[Any]) -> NDArray[np.float64]:
        with np.errstate(over="ignore", invalid="ignore"):
            scores = x.astype(np.float64) @ self.coefficients.numpy().T + self.bias.numpy()
        if not np.isfinite(scores).all():
            raise StakesError(f"expected finite numbers for {self.model_name}, but some are not: encode gaps first")
        mean, deviation = self.standard[:2].tolist()
        values: NDArray[np.float64] = mean + deviation * interpolated(scores, self.levels)
        return values

    def spec(self) -> dict[str, Any]:
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return {"weights": self.coefficients, "bias": self.bias, "levels": self.levels, "standard": self.standard}

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        if set(tensors) != {"weights", "bias", "levels", "standard"}:
            raise damaged(cls.model_name, "weights, bias, levels and what is known of the labels", "other tensors")
        return cls(**tensors)


class _Pinball:
    """The pinball loss at several levels, its corner rounded: ``t r + width log(1 + exp(-r / width))``.

    It is solved for narrower and narrower corners, each from the solution before.
    """

    def __init__(
        self,
        x: NDArray[np.float64],
        labels: NDArray[Any],
        weights: NDArray[Any] | None,
        levels: NDArray[np.float64],
        seed: int,
    ) -> None:
        rows = np.arange(len(x))
        if len(x) > MOST_ROWS:
            rows = numpy_generator(seed, "rows").choice(rows, MOST_ROWS, replace=False)
        self.x = np.concatenate([x[rows], np.ones((len(rows), 1))], axis=1)  # (N, F + 1)
        self.labels, self.levels = labels[rows], levels
        shares = np.ones(len(rows)) if weights is None else weights[rows].astype(np.float64)
        self.shares = shares / shares.sum()
        self.solution = np.zeros((len(levels), self.x.shape[1]))
        self.solution[:, -1] = np.quantile(self.labels, levels)

    def solve(self, strength: float) -> NDArray[np.float64]:
        """``(K, F + 1)`` slopes and, last, the bias, which is not penalised."""
        from scipy.optimize import minimize

        for width in WIDTHS:
            result = minimize(
                self._loss,
                self.solution.ravel(),
                args=(strength, width),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": 300, "maxcor": 20, "ftol": 1e-8, "gtol": 1e-6},
            )
            self.solution = result.x.reshape(self.solution.shape)
        return self.solution.copy()

    def _loss(self, flat: NDArray[np.float64], strength: float, width: float) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(self.solution.shape)
        short = self.labels[:, None] - self.x @ weights.T  # (N, K)
        over = np.exp(-np.abs(short) / width)
        corner = np.maximum(-short, 0) + width * np.log1p(over)
        falling = np.where(short > 0, over, 1) / (1 + over)  # the derivative of the corner, negated
        slopes = weights[:, :-1]
        loss = float(self.shares @ (self.levels * short + corner).sum(1)) + strength / 2 * float((slopes**2).sum())
        gradient = ((falling - self.levels) * self.shares[:, None]).T @ self.x  # (K, F + 1)
        gradient[:, :-1] += strength * slopes
        return loss, gradient.ravel()


def _columns(x: NDArray[np.float64], features: Features | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the scale of each column; those that stand for gaps and levels stay as they are."""
    center, scale = x.mean(0), x.std(0)
    scale = np.where(scale > 1e-12 * np.abs(center).clip(1e-300), scale, 1.0)
    if features is not None:
        center[features.numbers :], scale[features.numbers :] = 0.0, 1.0
    return center, scale
