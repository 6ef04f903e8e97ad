"""The class frequencies, whatever the input: what the best decision for everybody follows from."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from stakes import inputs
from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.outcomes import Footprint, Outcomes, Predictor
from stakes.predictors._rows import BLOCK_ROWS, damaged


class Constant(Predictor):
    """The same probabilities ``(C,)`` for every input, of any kind."""

    def __init__(self, probs: Tensor) -> None:
        right = isinstance(probs, Tensor) and probs.dtype == torch.float64 and probs.ndim == 1 and len(probs) >= 1
        if not right or not bool((probs >= 0).all()) or not abs(float(probs.sum()) - 1) <= 1e-6:
            raise damaged("class frequencies", "float64 probabilities that sum to 1", "others")
        self.frequencies, self.classes = probs, len(probs)

    @classmethod
    def fit(cls, labels: Tensor, classes: int, weights: Tensor | None = None) -> Self:
        """The shares of the classes among ``labels``, or of their weights."""
        totals = torch.bincount(labels, None if weights is None else weights.double(), minlength=classes).double()
        if len(totals) != classes or not float(totals.sum()) > 0:
            raise StakesError(f"expected labels of {classes} classes, some with a weight above 0, but got others")
        return cls(totals / totals.sum())

    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        double = any(tensor.dtype == torch.float64 for tensor in inputs.tensors_of(x))
        probs = self.frequencies if double else self.frequencies.float()
        return Outcomes(probs.expand(last - first, inputs.count(x), -1))

    def footprint(self, x: Inputs) -> Footprint:
        return Footprint(1, 2**21 // BLOCK_ROWS)

    def spec(self) -> dict[str, Any]:
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return {"probs": self.frequencies}

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        if set(tensors) != {"probs"}:
            raise damaged("class frequencies", "the vector probs", "others")
        return cls(tensors["probs"])
