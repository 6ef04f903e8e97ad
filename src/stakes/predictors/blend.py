"""Blends: several predictors as one, and the weights that rows which none of them trained on give to each."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.mixtures import LEVELS, Quantiles
from stakes.outcomes import Footprint, Outcomes, Predictor
from stakes.predictors import registry
from stakes.predictors._rows import BLOCK_ROWS, damaged

PENALTY = 3.0  # of weights that are not equal, against a sum of log-losses over rows
FLOOR = 1e-6  # of probabilities: less tells nothing about a model, and 0, from all of them, would decide alone
MOST_ROWS = 5_000  # that decide about weights of quantiles: more tell no more
NEGLIGIBLE = 1e-3  # a weight that is not worth computing a model for


class Blend(Predictor):
    """The weighted mean of what its parts say, each mixed over its draws. It has one draw, and no Monte-Carlo error.

    >>> from stakes.predictors import Constant
    >>> never, always = (Constant(torch.tensor(probs, dtype=torch.float64)) for probs in ([1, 0], [0, 1]))
    >>> Blend([never, always], weights=[0.9, 0.1])(torch.zeros(1, 3)).mean_probs()
    tensor([[0.9000, 0.1000]])
    """

    def __init__(self, parts: Sequence[Predictor], weights: Sequence[float] | None = None) -> None:
        self.parts = tuple(parts)
        self.weights = (1 / max(1, len(self.parts)),) * len(self.parts) if weights is None else tuple(weights)
        _check_weights(self.weights, len(self.parts))
        self.device = self.parts[0].device
        for side in ("features", "classes"):
            widths = {getattr(part, side) for part in self.parts} - {None}
            if len(widths) > 1:
                raise StakesError(f"expected parts of a blend with equal {side}, but got {sorted(widths)}")
            setattr(self, side, next(iter(widths), None))

    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        weighted = [
            (weight, part(x).mixture()) for weight, part in zip(self.weights, self.parts, strict=True) if weight
        ]
        if any(each.values is not None for _, each in weighted):
            raise StakesError("expected parts of a blend with named outcomes, but those of one are numbers")
        mean = sum(weight * each.weights.to(self.device) for weight, each in weighted)
        assert isinstance(mean, Tensor)
        return Outcomes(mean.expand(last - first, *mean.shape))

    def footprint(self, x: Inputs) -> Footprint:
        """Blocks of many inputs: each part cuts them again, to its own size."""
        return Footprint(1, 2**21 // BLOCK_ROWS)

    def spec(self) -> dict[str, Any]:
        return {"parts": [registry.spec_of(part) for part in self.parts], "weights": list(self.weights)}

    def state_dict(self) -> dict[str, Tensor]:
        """The numbers of each part, its position before their names: ``"1.bias"``."""
        return {
            f"{position}.{name}": tensor
            for position, part in enumerate(self.parts)
            for name, tensor in part.state_dict().items()
        }

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        specs, weights = spec["parts"], spec["weights"]
        if not isinstance(specs, list) or not isinstance(weights, list):
            raise damaged("blend", "lists of parts and weights", f"{type(specs).__name__}, {type(weights).__name__}")
        own: dict[str, dict[str, Tensor]] = {str(position): {} for position in range(len(specs))}
        for name, tensor in tensors.items():
            position, _, rest = name.partition(".")
            if position not in own:
                raise damaged("blend", f"tensors of {len(specs)} parts", repr(name))
            own[position][rest] = tensor
        _check_weights(weights, len(specs))
        return cls([registry.load(each, own[str(i)], network) for i, each in enumerate(specs)], weights)


class QuantileBlend(Blend):
    """The weighted mean of the quantiles of its parts, level by level: parts whose outcomes are numbers.

    At every level its pinball loss is at most the weighted mean of theirs, and a blend of normal distributions is one.
    """

    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        weighted = [
            weight * Quantiles.of(part(x).mixture()).at_levels.to(self.device)
            for weight, part in zip(self.weights, self.parts, strict=True)
            if weight
        ]
        return Quantiles(torch.stack(weighted).sum(0)).repeat(last - first)


def _check_weights(weights: Sequence[Any], parts: int) -> None:
    numbers = all(isinstance(each, int | float) and math.isfinite(each) and each >= 0 for each in weights)
    if not parts or len(weights) != parts or not numbers or not abs(sum(weights) - 1) <= 1e-6:
        raise StakesError(
            f"expected one weight for each of {parts} parts of a blend, none negative, with a sum of 1, but got "
            f"{list(weights)!r:.80}"
        )


def blend_weights(probs: Tensor, penalty: float = PENALTY, counts: Tensor | None = None) -> Tensor:
    r"""``(M,)`` weights of M models from the probabilities ``(M, N)`` that each gave to what happened in N rows.

    The rows must be ones that the models did not train on. The weights minimise

        - sum_n c_n log sum_m w_m p_mn  +  penalty * M * sum_m (w_m - 1/M)^2,

    where ``counts`` c ``(N,)`` say how much each row counts (1 by default; their mean is taken to be 1):

    a convex problem: the log-loss of the blend, and a pull towards equal weights that a few hundred rows outweigh only
    where models differ much. Where rows say so, a weight is exactly 0.
    """
    if probs.ndim != 2 or not probs.numel() or not bool(((probs >= 0) & (probs <= 1 + 1e-3)).all()):
        raise StakesError(f"expected probabilities (models, rows), but got {tuple(probs.shape)}, or others than these")
    given = probs.double().clamp_min(FLOOR).numpy()
    models, rows = given.shape
    shares = np.full(rows, 1 / rows) if counts is None else (counts.double() / counts.double().sum()).numpy()

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        mixed = weights @ given
        return float(-shares @ np.log(mixed)), -given @ (shares / mixed)

    return _best_weights(loss, models, rows, penalty)


def quantile_weights(
    values: Sequence[Tensor],
    labels: Tensor,
    weights: Tensor | None = None,
    penalty: float = PENALTY,
    emphasis: Tensor | None = None,
) -> Tensor:
    r"""``(M,)`` weights of a `QuantileBlend` from the quantiles ``(N, 99)`` that each of M models gave for N rows.

    The rows must be ones that the models did not train on. The weights minimise the CRPS of the blend, in units of that
    with equal weights, summed over rows, and the same penalty as for `blend_weights`: a convex problem, too.
    ``weights`` are those of the rows, ``emphasis`` (N, 99) those of the levels of each row; without it all are alike.
    """
    if not len(values) or any(each.shape != (len(labels), len(LEVELS)) for each in values) or not len(labels):
        raise StakesError(
            f"expected quantiles ({len(labels)}, {len(LEVELS)}) of each model, but got {[(*v.shape,) for v in values]}"
        )
    step = -(-len(labels) // MOST_ROWS)  # of more rows, every second, say
    given = np.stack([each[::step].double().numpy() for each in values])  # (M, n, 99)
    numbers, levels = labels[::step].double().numpy()[:, None], LEVELS.numpy()
    shares = np.ones(len(numbers)) if weights is None else weights[::step].double().numpy()
    by_level = (shares / shares.sum())[:, None]  # (n, 1), or (n, 99)
    if emphasis is not None:
        by_level = by_level * emphasis[::step].double().numpy()

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        short = numbers - np.tensordot(weights, given, 1)  # (n, 99)
        slope = (np.where(short > 0, levels, levels - 1)) * by_level
        return float((slope * short).sum()), -np.tensordot(given, slope, 2)

    models = len(given)
    unit = loss(np.full(models, 1 / models))[0] or 1.0

    def relative(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = loss(weights)
        return value / unit, gradient / unit

    return _best_weights(relative, models, len(labels), penalty)


def _best_weights(
    loss: Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]], models: int, rows: int, penalty: float
) -> Tensor:
    """The weights with a sum of 1 that minimise a mean loss, given with its gradient, and a pull to equal ones."""
    from scipy.optimize import minimize

    strength = penalty * models / rows

    def penalised(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        (value, gradient), away = loss(weights), weights - 1 / models
        return value + strength * float(away @ away), gradient + 2 * strength * away

    result = minimize(
        penalised,
        np.full(models, 1 / models),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * models,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    weights = np.where(result.x < NEGLIGIBLE, 0, result.x)
    return torch.from_numpy(weights / weights.sum())
