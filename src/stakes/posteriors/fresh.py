"""Draws that are made anew at a training step, and no more of them than its decisions need."""

from collections.abc import Callable
from math import ceil
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stakes import inputs
from stakes.inputs import Inputs
from stakes.outcomes import Outcomes
from stakes.posteriors._sampling.balance import PAIR


class Enough(Protocol):
    """Knows for which inputs of a batch the mixture of fewer draws will do."""

    def look(self) -> float | None:
        """The share of all draws after which it is worth asking; None if it never is."""

    def __call__(self, outcomes: Outcomes, share: float) -> Tensor:
        """``(B,)``: whether the mixture of this share of the draws, ``outcomes``, will do for each input."""


class FreshDraws(NamedTuple):
    """Draws for the inputs of one batch."""

    outputs: Callable[[Inputs, int, int], Tensor]  # (x, first, last) -> (last - first, b, C, ...), x any of the inputs
    divisible: bool = False  # whether some of the draws, for some of the inputs, take much less time than all


def mixture_of_enough(
    draws: FreshDraws, outcomes_of: Callable[[Tensor], Outcomes], x: Inputs, samples: int, enough: Enough
) -> Tensor:
    """``(B, C)`` the mean probabilities of the draws that each input takes."""

    def total(x: Inputs, first: int, last: int) -> Tensor:
        return outcomes_of(draws.outputs(x, first, last)).log_weights.exp().sum(0)  # (b, C)

    look = enough.look()
    some = samples if look is None else min(PAIR * ceil(look * samples / PAIR), samples)  # in pairs, which may balance
    totals = total(x, 0, some)
    if some == samples:
        return totals / samples
    unclear = ~enough(Outcomes(totals / some), some / samples)
    if bool(unclear.any()):
        totals[unclear] += total(inputs.rows(x, unclear), some, samples)
    return totals / torch.where(unclear, samples, some).unsqueeze(-1)
