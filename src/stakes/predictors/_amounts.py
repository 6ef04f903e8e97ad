"""What predictors of rows share whose outcomes are numbers: they say quantiles."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.errors import StakesError
from stakes.evaluation.metrics import crps
from stakes.inputs import Inputs, require_tensor
from stakes.mixtures import LEVELS, Quantiles
from stakes.outcomes import Outcomes
from stakes.predictors._rows import RowPredictor, as_arrays, damaged
from stakes.training.examples import TensorExamples

# That models are trained for, each alone; quantiles between them are interpolated.
TRAINED_LEVELS = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
CLOSE = 2e-3  # levels that are trained as one
LARGEST_LABEL = 1e150  # whose square is a number


class AmountPredictor(RowPredictor):
    """Its outcomes are numbers, as `Quantiles`."""

    @abstractmethod
    def quantiles(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """``(B, 99)`` the quantiles of rows ``(B, features)``."""

    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        rows = require_tensor(x, self.model_name).double().numpy()
        self.require_width(rows)
        return Quantiles(torch.from_numpy(self.quantiles(rows))).repeat(last - first)

    def mean_crps(self, examples: TensorExamples) -> float:
        """On rows that it did not train on."""
        x, labels, weights = as_arrays(examples, self.model_name)
        return float(np.average(crps(self.quantiles(x), labels), weights=weights))


def standard_of(train: TensorExamples, model_name: str) -> Tensor:
    """``(4,)`` of the labels: mean, standard deviation (1 if they are equal), lowest and highest."""
    labels, weights = train.labels.double(), train.weights
    if labels.ndim != 1 or not len(labels) or not train.labels.is_floating_point() or not bool(labels.isfinite().all()):
        raise StakesError(
            f"expected labels that are finite numbers, (N,) floats, to train {model_name} on, but got others"
        )
    shares = torch.ones_like(labels) if weights is None else weights.double()
    shares = shares / shares.sum()
    mean = (shares * labels).sum()
    deviation = (shares * (labels - mean).square()).sum().sqrt()
    unit = deviation if float(deviation) > 1e-12 * max(1e-300, float(labels.abs().max())) else torch.ones_like(mean)
    return torch.stack([mean, unit, labels.min(), labels.max()])


def standardised(examples: TensorExamples, standard: Tensor) -> TensorExamples:
    """The examples with standardised labels."""
    return TensorExamples(examples.x, (examples.labels.double() - standard[0]) / standard[1], examples.weights)


def check_standard(standard: Tensor, what: str) -> None:
    """Refuse what `standard_of` does not give."""
    right = standard.dtype == torch.float64 and standard.shape == (4,) and bool((standard.abs() <= LARGEST_LABEL).all())
    if not right or not float(standard[1]) > 0 or not float(standard[2]) <= float(standard[3]):
        raise damaged(what, "mean, standard deviation, lowest and highest of the labels", "others")


def levels_with(extra: Sequence[float]) -> Tensor:
    """``(K,)`` the levels to train for."""
    if not all(0 < level < 1 for level in extra):
        raise StakesError(f"expected levels above 0 and below 1, but got {list(extra)}")
    chosen: list[float] = []
    for level in sorted({*TRAINED_LEVELS, *map(float, extra)}):
        if not chosen or level - chosen[-1] > CLOSE:
            chosen.append(level)
    return torch.tensor(chosen, dtype=torch.float64)


def check_levels(levels: Tensor, what: str) -> None:
    right = levels.dtype == torch.float64 and levels.ndim == 1 and len(levels) >= 2
    if not right or not bool(((levels > 0) & (levels < 1)).all()) or not bool((levels.diff() > 0).all()):
        raise damaged(what, "two levels or more between 0 and 1, in order", "others")


def interpolated(values: NDArray[np.float64], levels: Tensor) -> NDArray[np.float64]:
    """``(B, K) -> (B, 99)``: from quantiles at some levels to those at `LEVELS`, put in order.

    Between two levels they are as of a normal distribution, linear in its own quantiles; beyond the outermost, the
    line of the last two goes on.
    """
    return np.sort(values, axis=1) @ _interpolation(tuple(levels.tolist()))


@cache
def _interpolation(levels: tuple[float, ...]) -> NDArray[np.float64]:
    """``(K, 99)`` the share of each quantile in each of those at `LEVELS`."""
    known, wanted = (torch.special.ndtri(each).numpy() for each in (torch.tensor(levels, dtype=torch.float64), LEVELS))
    after = np.searchsorted(known, wanted).clip(1, len(known) - 1)
    share = (wanted - known[after - 1]) / (known[after] - known[after - 1])
    matrix = np.zeros((len(known), len(wanted)))
    columns = np.arange(len(wanted))
    matrix[after - 1, columns], matrix[after, columns] = 1 - share, share
    return matrix


def weighted_quantiles(labels: NDArray[Any], weights: NDArray[Any] | None, levels: Tensor = LEVELS) -> Tensor:
    """``(K,)`` of numbers ``(n,)``: without weights interpolated between two of them, with weights one of them."""
    if weights is None or np.ptp(weights) == 0:
        return torch.as_tensor(np.quantile(labels, levels.numpy()))
    return torch.as_tensor(np.quantile(labels, levels.numpy(), weights=weights, method="inverted_cdf")).double()
