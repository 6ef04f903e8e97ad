"""Draws that are made anew at a training step, and no more of them than its decisions need."""

from collections.abc import Callable
from itertools import pairwise
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from stakes import inputs
from stakes.inputs import Inputs
from stakes.outcomes import Outcomes
from stakes.posteriors._sampling.balance import PAIR

# Before six tenths of the draws are known, hardly any lead is out of reach of the rest.
LOOKS = (0.6, 0.8)

# (outcomes, rows, share): which of the inputs, whose numbers are ``rows``, need no more than this share of their draws.
Enough = Callable[[Outcomes, Tensor, float], Tensor]


class FreshDraws(NamedTuple):
    """Draws for the inputs of one batch."""

    outputs: Callable[[Inputs, int, int], Tensor]  # (x, first, last) -> (last - first, b, C, ...), x any of the inputs
    divisible: bool = False  # whether some of the draws, for some of the inputs, take much less time than all


def mixture_of_enough(
    draws: FreshDraws, outcomes_of: Callable[[Tensor], Outcomes], x: Inputs, samples: int, enough: Enough
) -> Tensor:
    """``(B, ..., K)`` the mean probabilities of the draws that each input takes."""

    def total(x: Inputs, first: int, last: int) -> Tensor:
        return outcomes_of(draws.outputs(x, first, last)).log_weights.exp().sum(0)  # (b, ..., K)

    looks = sorted({PAIR * ceil(share * samples / PAIR) for share in LOOKS})
    ends = [*(look for look in looks if look < samples), samples]
    totals = total(x, 0, ends[0])
    taken = torch.full_like(totals[..., :1], ends[0])
    rows = torch.arange(len(totals), device=totals.device)
    for first, last in pairwise(ends):
        going_on = ~enough(Outcomes(totals[rows] / first), rows, first / samples)
        rows, x = rows[going_on], inputs.rows(x, going_on)
        if not len(rows):
            break
        totals[rows] += total(x, first, last)
        taken[rows] = last
    return totals / taken
