"""Numbers that are given by their quantiles, as boosted trees, quantile regressions and blends of models say them."""

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from stakes.errors import StakesError
from stakes.mixtures.atoms import Atoms, numbers
from stakes.mixtures.base import Distribution
from stakes.outcomes import Outcomes

LEVELS = torch.arange(1, 100, dtype=torch.float64) / 100
_WEIGHTS = torch.tensor([0.015, *[0.01] * 97, 0.015], dtype=torch.float64)


class Quantiles(Distribution):
    """The quantiles ``(..., 99)`` at the `LEVELS` .01, .02, ... .99.

    >>> even = Quantiles(torch.arange(1.0, 100.0).expand(2, -1))
    >>> even.quantile(0.255)
    tensor([25.5000, 25.5000], dtype=torch.float64)

    They are put in order if they cross (rearrangement, which brings them nearer to the true ones, Chernozhukov,
    Fernández-Val and Galichon 2010). Between two levels a quantile is interpolated; beyond the outermost it is the
    outermost. As outcomes they are 99 atoms, each with the share of outcomes that it is nearest to: a hundredth, and
    one and a half for the outermost. Means come from them: of a normal distribution, expected costs are 1 % too low.
    """

    def __init__(self, values: Tensor) -> None:
        if values.ndim < 1 or values.shape[-1] != len(LEVELS):
            raise StakesError(f"expected quantiles (..., {len(LEVELS)}), but got the shape {tuple(values.shape)}")
        values = values if values.device.type == "mps" else values.double()
        if bool((values.diff(dim=-1) < 0).any()):
            values = values.sort(-1).values
        super().__init__(_WEIGHTS.to(values).expand(values.shape), values=values)
        self.values: Tensor = values
        self._atoms = Atoms(self)

    @classmethod
    def of(cls, outcomes: Outcomes) -> "Quantiles":
        """Those of any outcomes that are numbers."""
        return outcomes if isinstance(outcomes, Quantiles) else cls(numbers(outcomes).quantiles(LEVELS))

    # As outcomes ---------------------------------------------------------------------------------------

    def mixture(self) -> Outcomes:
        """Of equal draws it is one of them; of others, the atoms of all."""
        if len(self.values) == 1 or self.values.stride(0) == 0:
            return self._like(lambda values: values[0])
        return super().mixture()

    def rows(self, index: Tensor, dim: int = 0) -> Self:
        numbers = index.nonzero().flatten() if index.dtype == torch.bool else index
        return self._like(lambda values: values.index_select(dim, numbers))

    def repeat(self, count: int) -> Self:
        return self._like(lambda values: values.expand(count, *values.shape))

    def _joined(self, parts: Sequence[Outcomes], dim: int) -> Outcomes:
        alike = [part.values for part in parts if isinstance(part, Quantiles)]
        return type(self)(torch.cat(alike, dim)) if len(alike) == len(parts) else super()._joined(parts, dim)

    def _like(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(change(self.values))

    # Of the numbers ------------------------------------------------------------------------------------

    def mean(self) -> Tensor:
        return self._atoms.mean()

    def variance(self) -> Tensor:
        return self._atoms.variance()

    def shortfall(self, h: Tensor) -> Tensor:
        return self._atoms.shortfall(h)

    def log_mean_exp(self, c: Tensor | float) -> Tensor:
        return self._atoms.log_mean_exp(c)

    def cdf(self, h: Tensor) -> Tensor:
        """The inverse of `quantile`: 0 below the lowest, 1 from the highest on."""
        h = h.to(self.values).expand(self.values.shape[:-1])
        below = torch.searchsorted(self.values.contiguous(), h.unsqueeze(-1).contiguous(), right=True)
        before = (below - 1).clamp(0, len(LEVELS) - 2)
        low, high = (self.values.gather(-1, index).squeeze(-1) for index in (before, before + 1))
        share = ((h - low) / (high - low)).clamp(0, 1)
        between = (before.squeeze(-1) + 1 + share.nan_to_num(1.0)) / 100
        return torch.where(below.squeeze(-1) == 0, 0, torch.where(below.squeeze(-1) == len(LEVELS), 1, between))

    def quantile(self, share: Tensor | float) -> Tensor:
        shape = self.values.shape[:-1]
        target = torch.as_tensor(share, dtype=self.values.dtype, device=self.values.device).expand(shape)
        return self._at(target.unsqueeze(-1)).squeeze(-1)

    def quantiles(self, levels: Tensor) -> Tensor:
        return self._at(levels.to(self.values).expand(*self.values.shape[:-1], -1))

    def _at(self, shares: Tensor) -> Tensor:
        """``(..., L) -> (..., L)``."""
        position = (shares * 100 - 1).clamp(0, len(LEVELS) - 1)
        # A level is met but for rounding, and then exactly.
        nearest = position.round()
        position = torch.where((position - nearest).abs() < 1e-9, nearest, position)
        before = position.floor().long().clamp_max(len(LEVELS) - 2)
        low, high = self.values.gather(-1, before), self.values.gather(-1, before + 1)
        return torch.lerp(low, high, position - before)

    def shifted(self, by: float) -> Self:
        return self._like(lambda values: values + by)
