"""Draws that somebody else made: as an array of what they say, or as a function for each."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from stakes.errors import StakesError
from stakes.inputs import Inputs, count, tensors_of
from stakes.outcomes import Outcomes, Predictive, Predictor

CLASS_AXIS = 2  # of (S, B, C, ...)
Scale = Literal["probs", "logits", "log_probs"]
Draw = Callable[[Any], Tensor | ArrayLike]


class Samples(Predictor):
    """Draws that were made elsewhere: see `Predictor.from_samples`."""

    def __init__(self, draws: Sequence[Draw] | Tensor, scale: Scale, names: Sequence[Any] | None) -> None:
        if not len(draws):
            raise StakesError("expected at least one draw, but got none")
        self._draws, self._scale, self.samples = draws, scale, len(draws)
        self.names = None if names is None else tuple(map(str, names))
        if isinstance(draws, Tensor):
            self.classes = draws.shape[CLASS_AXIS]

    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        if isinstance(self._draws, Tensor):
            (rows,) = tensors_of(x)  # the positions of the inputs
            return self._checked(self._draws[first:last, rows])
        said = self._checked(torch.stack([_tensor(draw(x)) for draw in self._draws[first:last]]))
        if said.shape[1] != count(x):
            raise StakesError(
                f"expected draws that say something of each of {count(x)} inputs, but got {said.shape[1]}"
            )
        return said

    def _checked(self, said: Tensor) -> Outcomes:
        """From ``(S, B, C, ...)``."""
        if said.ndim < 3:
            raise StakesError(f"expected draws of shape (S, B, C, ...), but got {tuple(said.shape)}")
        if self.names is not None and said.shape[CLASS_AXIS] != len(self.names):
            raise StakesError(
                f"expected {len(self.names)} classes, one for each name, on axis 2, but got {tuple(said.shape)}"
            )
        if self._scale == "logits":
            return Outcomes.from_logits(said, CLASS_AXIS)
        last = said.movedim(CLASS_AXIS, -1)
        return Outcomes.from_probs(last if self._scale == "probs" else last.exp())


def from_samples(
    probs: Any = None, *, logits: Any = None, log_probs: Any = None, classes: Sequence[Any] | None = None
) -> Predictive | Predictor:
    """See `Predictor.from_samples`."""
    given: dict[Scale, Any] = {"probs": probs, "logits": logits, "log_probs": log_probs}
    known = [scale for scale, value in given.items() if value is not None]
    if len(known) != 1:
        raise StakesError(f"expected one of probs=, logits= and log_probs=, but got {len(known)} of them")
    scale, draws = known[0], given[known[0]]
    if isinstance(draws, Sequence | nn.ModuleList) and len(draws) and all(map(callable, draws)):
        return Samples(list(draws), scale, classes)
    array = _tensor(draws)
    if array.ndim < 3:
        raise StakesError(
            "expected draws as an array of shape (S, B, C, ...), the draws first, or a list of functions, one for each "
            f"draw, but got the shape {tuple(array.shape)}: mean probabilities (B, C) go to decide as they are"
        )
    draws_of_inputs = Samples(array, scale, classes)
    draws_of_inputs.outcomes(torch.arange(array.shape[1])[:1], 0, 1)  # which checks it
    return draws_of_inputs(torch.arange(array.shape[1]))


def _tensor(said: Any) -> Tensor:
    try:
        if isinstance(said, Sequence) and any(isinstance(each, Tensor) for each in said):
            said = torch.stack([torch.as_tensor(each) for each in said])
        tensor = said.detach() if isinstance(said, Tensor) else torch.from_numpy(np.array(said))
    except (TypeError, ValueError, RuntimeError) as error:
        raise StakesError(
            "expected draws as an array of numbers of shape (S, B, C, ...), or as a list of functions, one for each "
            f"draw, but got something else ({error})"
        ) from None
    if tensor.is_complex():
        raise StakesError(f"expected draws that are real numbers, but got {tensor.dtype}")
    return tensor if tensor.is_floating_point() else tensor.float()
