"""Numbers that are given by their quantiles, as boosted trees, quantile regressions and blends of models say them."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from stakes.errors import StakesError
from stakes.mixtures.atoms import Atoms, numbers
from stakes.mixtures.base import Distribution
from stakes.outcomes import Outcomes

LEVELS = torch.arange(1, 100, dtype=torch.float64) / 100
_WEIGHTS = torch.tensor([0.015, *[0.01] * 97, 0.015], dtype=torch.float64)
BEYOND = 0.01  # of the outcomes are below the lowest quantile, and as many above the highest
FARTHEST = 1e-9  # the share that any smaller one is taken as, so that a quantile is a finite number
_FIVE_TIMES = 4  # quantiles further inside, five times as many outcomes lie beyond
_ROOT = math.sqrt(2)
_TAIL_NODES = torch.tensor([2 - _ROOT, 2 + _ROOT], dtype=torch.float64)  # of Gauss-Laguerre: moments up to the third
_TAIL_WEIGHTS = BEYOND * torch.tensor([2 + _ROOT, 2 - _ROOT], dtype=torch.float64) / 4
_ATOM_WEIGHTS = torch.cat(
    [_TAIL_WEIGHTS.flip(0), torch.tensor([0.005, *[0.01] * 97, 0.005], dtype=torch.float64), _TAIL_WEIGHTS]
)


class Quantiles(Distribution):
    """The quantiles ``(..., 99)`` at the `LEVELS` .01, .02, ... .99.

    >>> even = Quantiles(torch.arange(1.0, 100.0).expand(2, -1))
    >>> even.quantile(0.255)
    tensor([25.5000, 25.5000], dtype=torch.float64)

    They are put in order if they cross (rearrangement, which brings them nearer to the true ones, Chernozhukov,
    Fernández-Val and Galichon 2010). Between two levels a quantile is interpolated. Beyond the outermost, outcomes fall
    off exponentially, at the rate at which they do between the outermost and the one with five times as many outcomes
    beyond (.95 and .99, .05 and .01); nothing is beyond where these two are equal. So expected costs are at most 1 %
    too high of a normal distribution, right to 0.5 % of an exponential one, and too low where tails are heavier: by 5 %
    of Student's t with 3 degrees of freedom, at a share of 95 %.

    As outcomes they are 103 atoms: the 99 quantiles, and two nodes of a quadrature in each tail.
    """

    def __init__(self, at_levels: Tensor) -> None:
        if at_levels.ndim < 1 or at_levels.shape[-1] != len(LEVELS):
            raise StakesError(f"expected quantiles (..., {len(LEVELS)}), but got the shape {tuple(at_levels.shape)}")
        at_levels = at_levels if at_levels.device.type == "mps" else at_levels.double()
        if bool((at_levels.diff(dim=-1) < 0).any()):
            at_levels = at_levels.sort(-1).values
        self.at_levels = at_levels
        self._weights, self._log_weights = None, None
        self._make = self._atom_weights

    @classmethod
    def of(cls, outcomes: Outcomes) -> "Quantiles":
        """Those of any outcomes that are numbers."""
        return outcomes if isinstance(outcomes, Quantiles) else cls(numbers(outcomes).quantiles(LEVELS))

    # As outcomes ---------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        return torch.Size([*self.at_levels.shape[:-1], len(_ATOM_WEIGHTS)])

    @cached_property
    def values(self) -> Tensor:  # type: ignore[override]
        nodes = _TAIL_NODES.to(self.at_levels)
        below = self._lowest.unsqueeze(-1) - self._lower.unsqueeze(-1) * nodes.flip(0)
        above = self._highest.unsqueeze(-1) + self._upper.unsqueeze(-1) * nodes
        return torch.cat([below, self.at_levels, above], -1)

    def _atom_weights(self, log: bool) -> Tensor:
        weights = _ATOM_WEIGHTS.to(self.at_levels)
        return (weights.log() if log else weights).expand(self.shape)

    def mixture(self) -> Outcomes:
        """Of equal draws it is one of them; of others, the atoms of all."""
        if len(self.at_levels) == 1 or self.at_levels.stride(0) == 0:
            return self._like(lambda quantiles: quantiles[0])
        return super().mixture()

    def rows(self, index: Tensor, dim: int = 0) -> Self:
        numbers = index.nonzero().flatten() if index.dtype == torch.bool else index
        return self._like(lambda quantiles: quantiles.index_select(dim, numbers))

    def repeat(self, count: int) -> Self:
        return self._like(lambda quantiles: quantiles.expand(count, *quantiles.shape))

    def _joined(self, parts: Sequence[Outcomes], dim: int) -> Outcomes:
        alike = [part.at_levels for part in parts if isinstance(part, Quantiles)]
        return type(self)(torch.cat(alike, dim)) if len(alike) == len(parts) else super()._joined(parts, dim)

    def _like(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(change(self.at_levels))

    # Of the numbers ------------------------------------------------------------------------------------

    def mean(self) -> Tensor:
        return (_WEIGHTS.to(self.at_levels) * self.at_levels).sum(-1) + BEYOND * (self._upper - self._lower)

    def variance(self) -> Tensor:
        mean, low, high = self.mean(), self._lower, self._upper
        squares = (_WEIGHTS.to(self.at_levels) * (self.at_levels - mean.unsqueeze(-1)).square()).sum(-1)
        tails = high * (self._highest - mean + high) + low * (mean - self._lowest + low)
        return squares + 2 * BEYOND * tails

    def shortfall(self, h: Tensor) -> Tensor:
        short = (_WEIGHTS.to(self.at_levels) * (self.at_levels - h.unsqueeze(-1)).clamp_min(0)).sum(-1)
        below, above = _excess(self._lower, self._lowest - h), _excess(self._upper, h - self._highest)
        return short + BEYOND * (above + below - self._lower)

    def log_mean_exp(self, c: Tensor | float) -> Tensor:
        """Of the atoms: an exponential tail itself may have none."""
        return Atoms(self).log_mean_exp(c)

    def cdf(self, h: Tensor) -> Tensor:
        """The inverse of `quantile`, as far as that goes."""
        quantiles = self.at_levels
        h = h.to(quantiles).expand(quantiles.shape[:-1])
        below = torch.searchsorted(quantiles.contiguous(), h.unsqueeze(-1).contiguous(), right=True)
        before = (below - 1).clamp(0, len(LEVELS) - 2)
        low, high = (quantiles.gather(-1, index).squeeze(-1) for index in (before, before + 1))
        share = ((h - low) / (high - low)).clamp(0, 1)
        between = (before.squeeze(-1) + 1 + share.nan_to_num(1.0)) / 100
        first, last = below.squeeze(-1) == 0, below.squeeze(-1) == len(LEVELS)
        lower = BEYOND * _still_beyond(self._lower, self._lowest - h)
        upper = 1 - BEYOND * _still_beyond(self._upper, h - self._highest)
        return torch.where(first, lower, torch.where(last, upper, between))

    def quantile(self, share: Tensor | float) -> Tensor:
        shape = self.at_levels.shape[:-1]
        target = torch.as_tensor(share, dtype=self.at_levels.dtype, device=self.at_levels.device).expand(shape)
        return self._at(target.unsqueeze(-1)).squeeze(-1)

    def quantiles(self, levels: Tensor) -> Tensor:
        return self._at(levels.to(self.at_levels).expand(*self.at_levels.shape[:-1], -1))

    def _at(self, shares: Tensor) -> Tensor:
        """``(..., L) -> (..., L)``."""
        position = (shares * 100 - 1).clamp(0, len(LEVELS) - 1)
        # A level is met but for rounding, and then exactly.
        nearest = position.round()
        position = torch.where((position - nearest).abs() < 1e-9, nearest, position)
        before = position.floor().long().clamp_max(len(LEVELS) - 2)
        low, high = self.at_levels.gather(-1, before), self.at_levels.gather(-1, before + 1)
        inside = torch.lerp(low, high, position - before)
        below, above = (torch.log(BEYOND / beyond.clamp(FARTHEST, BEYOND)) for beyond in (shares, 1 - shares))
        return inside + self._upper.unsqueeze(-1) * above - self._lower.unsqueeze(-1) * below

    # Of the tails: the mean distance of the outcomes beyond the outermost quantiles from them ------------------

    @property
    def _lowest(self) -> Tensor:
        return self.at_levels[..., 0]

    @property
    def _highest(self) -> Tensor:
        return self.at_levels[..., -1]

    @property
    def _lower(self) -> Tensor:
        return (self.at_levels[..., _FIVE_TIMES] - self._lowest) / math.log(5)

    @property
    def _upper(self) -> Tensor:
        return (self._highest - self.at_levels[..., -1 - _FIVE_TIMES]) / math.log(5)

    def shifted(self, by: float) -> Self:
        return self._like(lambda quantiles: quantiles + by)


def _still_beyond(mean: Tensor, distance: Tensor) -> Tensor:
    """P(x > distance) of an exponential x with this mean; of none, if the mean is 0."""
    return torch.where(mean > 0, (-distance.clamp_min(0) / mean.clamp_min(torch.finfo(mean.dtype).tiny)).exp(), 0)


def _excess(mean: Tensor, distance: Tensor) -> Tensor:
    """E max(x - distance, 0) of an exponential x with this mean, from a distance of 0 on."""
    return mean * _still_beyond(mean, distance)
