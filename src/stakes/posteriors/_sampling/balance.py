"""Balanced draws: masks that are not independent from draw to draw, so that their mean has less noise.

In a group of G draws, a unit with dropout rate p is dropped in floor(pG) or ceil(pG) of them, pG on average; in
which ones is a random subset of the unit's own:

    count = floor(p G + u),  u ~ U(0, 1)          subset ~ uniform over those of G draws with ``count`` members

The mask of a single draw is exactly that of independent dropout, Bernoulli(p) for each unit and independent from unit
to unit, so the mean predictive is unbiased. Within a group the effects of single units cancel (systematic sampling);
groups are independent of each other. A unit's subset is stored as the bits of one integer.
"""

from collections.abc import Iterable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from stakes import seeds

SMALL_GROUP, LARGE_GROUP = 10, 20  # draws
PAIR = 2
_CHUNK = 2**18  # units whose subsets are chosen at once


def group_size(rates: Iterable[float]) -> int:
    """Draws in a group: few, so that few draws are a whole group, if pG is a whole number for every rate then."""
    return SMALL_GROUP if all(round(p * SMALL_GROUP, 9).is_integer() for p in rates) else LARGE_GROUP


def group_coverage(rates: Iterable[float]) -> float:
    """The least probability that a unit is both dropped and kept in a group: 1 if pG and (1 - p)G are 1 or more."""
    rates = list(rates)
    expected = group_size(rates) * min([1.0, *(min(p, 1 - p) for p in rates if p < 1)])
    return 1.0 if round(expected, 9) >= 1 else expected


def balanced_masks(p: float, size: int, numbers: Tensor) -> Tensor:
    """The masks of a group of ``size`` draws: bit j is 1 for a unit that draw j keeps.

    ``numbers`` are uniform in [0, 1), one for each unit, in double precision.
    """
    few, many, share, patterns = _subsets(p, size)
    # The first part of [0, 1) is for floor(pG) dropped draws, the rest for one more, in equal parts for each subset.
    index = (numbers * (few / share)).long()
    if many:
        others = few + ((numbers - share) * (many / (1 - share))).long().clamp(0, many - 1)
        index = torch.where(numbers < share, index.clamp(max=few - 1), others)
    return patterns.to(numbers.device).index_select(0, index.flatten()).view(numbers.shape)


def seeded_masks(p: float, size: int, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """As `balanced_masks`, for units of a shape, from a generator: the same numbers on every machine."""
    parts, units = [], shape.numel()
    for first in range(0, units, _CHUNK):
        count = min(_CHUNK, units - first)
        # Two numbers of 32 bits from each random word: a mask of an image has millions of them.
        words = torch.empty(-(-count // 2), dtype=torch.int64).random_(-(2**63), None, generator=generator)
        numbers = words.view(torch.int32)[:count].double().add_(2**31).mul_(2.0**-32)
        parts.append(balanced_masks(p, size, numbers))
    return torch.cat(parts).reshape(shape)


def fresh_masks(p: float, size: int, shape: torch.Size, samples: int, device: torch.device) -> Tensor:
    """``(samples, ...)`` masks, 1 for what is kept, from the global generator, in groups of ``size`` draws."""
    groups = []
    for first in range(0, samples, size):
        numbers = torch.rand(shape, dtype=torch.float64, device=device)
        groups.append(unpack(balanced_masks(p, size, numbers), 0, min(size, samples - first)))
    return torch.cat(groups)


def unpack(patterns: Tensor, first: int, last: int) -> Tensor:
    """``(...) -> (last - first, ...)``: the masks of some draws of a group, 1 for what is kept."""
    shifts = torch.arange(first, last, dtype=patterns.dtype, device=patterns.device)
    bits = patterns.bitwise_right_shift(shifts.view(-1, *[1] * patterns.ndim)).bitwise_and(1)
    return bits.to(torch.uint8)  # becomes float three times as fast as bool does


def antithetic_normal(shape: torch.Size, draw: int, seed: int, *names: str) -> Tensor:
    """Standard normal numbers for a draw: the counterpart for weights. Those of draws 2k and 2k + 1 are opposite, so
    that whatever is linear in them cancels in a pair.
    """
    noise = torch.randn(shape, generator=seeds.generator(seed, *names, draw // PAIR))
    return noise if draw % PAIR == 0 else -noise


@cache
def _subsets(p: float, size: int) -> tuple[int, int, float, Tensor]:
    """How many subsets of draws there are in which a unit is dropped floor(pG) times, and once more; the probability
    of the former; and the subsets: a bit for each draw, 1 where the unit is kept.
    """
    expected = round(p * size, 9)  # 0.7 * 10 is 7 here
    count = int(expected)
    numbers = np.arange(2**size, dtype=np.int64)
    dropped = size - np.bitwise_count(numbers)
    few, many = numbers[dropped == count], numbers[dropped == count + 1] if expected > count else numbers[:0]
    patterns = torch.from_numpy(np.concatenate([few, many])).to(torch.int16 if size < 16 else torch.int32)
    return len(few), len(many), 1 - (expected - count), patterns
