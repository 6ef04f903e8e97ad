"""What can be asked of outcomes that are numbers, and mixtures, which answer exactly."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from stakes.errors import StakesError
from stakes.outcomes import Outcomes

MOST_STEPS = 100  # of the search for a quantile, which is Newton's where that stays between the bounds
PRECISION = 1e-9  # of a quantile, in scales of the narrowest component
GRID, FINE = 65, 0.5  # points from which many levels are found, and the narrowest scales that they may be apart
GRID_PRECISION = 1e-6  # of what is searched for between them, in the same scales
BLOCK = 256  # rows whose quantiles are searched for at once, so that they stay in the processor's cache


class Distribution(Outcomes, ABC):
    """Outcomes that are numbers, and know more of themselves than their atoms: ``(...)``, from h ``(...)``."""

    @property
    def numeric(self) -> bool:
        return True

    @abstractmethod
    def mean(self) -> Tensor: ...

    @abstractmethod
    def variance(self) -> Tensor: ...

    @abstractmethod
    def cdf(self, h: Tensor) -> Tensor:
        """P(y <= h)."""

    @abstractmethod
    def shortfall(self, h: Tensor) -> Tensor:
        """E max(y - h, 0)."""

    @abstractmethod
    def log_mean_exp(self, c: Tensor | float) -> Tensor:
        """log E exp(c y)."""

    @abstractmethod
    def quantile(self, share: Tensor | float) -> Tensor:
        """The smallest h with P(y <= h) >= share; a number, or one for each."""

    @abstractmethod
    def quantiles(self, levels: Tensor) -> Tensor:
        """``(L,) -> (..., L)``: at several levels, which are in order."""

    @abstractmethod
    def shifted(self, by: float) -> Self:
        """Those of y + ``by``."""


class Mixture(Distribution):
    """``(..., M)`` components, the last axis, with equal weights; ``(..., M K)`` atoms, of K nodes each."""

    location: Tensor
    scale: Tensor

    def __init__(self, location: Tensor, scale: Tensor) -> None:
        # In double precision: amounts may be large, and differences between decisions small.
        location, scale = (each if each.device.type == "mps" else each.double() for each in (location, scale))
        self.location, self.scale = torch.broadcast_tensors(location, scale)  # type: ignore[no-untyped-call]
        self._weights, self._log_weights = None, None
        self._make = self._node_weights

    # As outcomes ---------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        return torch.Size([*self.location.shape[:-1], self.location.shape[-1] * len(self._nodes()[0])])

    @cached_property
    def values(self) -> Tensor:  # type: ignore[override]
        nodes = self._nodes()[0].to(self.location)
        return self._amount(self.location.unsqueeze(-1) + self.scale.unsqueeze(-1) * nodes).flatten(-2)

    @property
    def has_nan(self) -> bool:
        return bool((self.location.isnan() | self.scale.isnan()).any())

    def mixture(self) -> Self:
        return self._like(lambda tensor: tensor.movedim(0, -2).flatten(-2))

    def rows(self, index: Tensor, dim: int = 0) -> Self:
        numbers = index.nonzero().flatten() if index.dtype == torch.bool else index
        return self._like(lambda tensor: tensor.index_select(dim, numbers))

    def repeat(self, count: int) -> Self:
        return self._like(lambda tensor: tensor.expand(count, *tensor.shape))

    def _joined(self, parts: Sequence[Outcomes], dim: int) -> Outcomes:
        alike = [part for part in parts if isinstance(part, Mixture) and part._kind == self._kind]
        if len(alike) < len(parts):
            return super()._joined(parts, dim)
        fields = [[part.location for part in alike], [part.scale for part in alike]]
        return type(self)(*(torch.cat(tensors, dim) for tensors in fields), **self._parameters)

    def _node_weights(self, log: bool) -> Tensor:
        log_weights = self._nodes()[1].to(self.location) - math.log(self.location.shape[-1])
        return (log_weights if log else log_weights.exp()).repeat(self.location.shape[-1]).expand(self.shape)

    def _like(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(change(self.location), change(self.scale), **self._parameters)

    @property
    def _parameters(self) -> dict[str, Any]:
        """The keyword arguments of its constructor."""
        return {}

    @property
    def _kind(self) -> tuple[type, dict[str, Any]]:
        return type(self), self._parameters

    # Of the mixture: (...), from h (...) ------------------------------------------------------------------

    def mean(self) -> Tensor:
        return self._means().mean(-1)

    def variance(self) -> Tensor:
        means = self._means()
        return self._variances().mean(-1) + means.var(-1, correction=0)

    def cdf(self, h: Tensor) -> Tensor:
        return self._cdfs(h.unsqueeze(-1)).mean(-1)

    def shortfall(self, h: Tensor) -> Tensor:
        return self._shortfalls(h.unsqueeze(-1)).mean(-1)

    def density(self, y: Tensor) -> Tensor:
        return self._log_densities(y.unsqueeze(-1)).exp().mean(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        """The logarithm of the density."""
        return self._log_densities(y.unsqueeze(-1)).logsumexp(-1) - math.log(self.location.shape[-1])

    def log_mean_exp(self, c: Tensor | float) -> Tensor:
        raise StakesError(f"E exp(c y) is infinite under a {type(self).__name__}: use a Gaussian likelihood with LINEX")

    @torch.no_grad()
    def quantile(self, share: Tensor | float) -> Tensor:
        target = torch.as_tensor(share, dtype=self.location.dtype, device=self.location.device)
        # It lies between the lowest and the highest of the components' own.
        each = self._quantiles(target.unsqueeze(-1))
        low, high = each.amin(-1), each.amax(-1)
        narrowest, h = self.scale.amin(-1), each.mean(-1)
        for _ in range(MOST_STEPS):
            before, (low, high, h) = h, self._newton_step(target, low, high, h)
            if bool(((h - before).abs() <= PRECISION * narrowest).all()):
                break
        return h

    @torch.no_grad()
    def quantiles(self, levels: Tensor) -> Tensor:
        flat = self._like(lambda tensor: tensor.reshape(-1, 1, tensor.shape[-1]))  # (N, 1, M)
        levels = levels.to(self.location)
        blocks = torch.split(torch.arange(len(flat.location)), BLOCK)
        parts = [flat.rows(rows)._block_of_quantiles(levels) for rows in blocks]
        return torch.cat(parts).reshape(*self.location.shape[:-1], len(levels))

    def _block_of_quantiles(self, levels: Tensor) -> Tensor:
        """``(N, 1, M)`` components -> (N, L): by interpolation on a grid, and Newton's steps where a component is
        narrower than the grid is fine.
        """
        low, high, h, spacing = self._interpolated(levels)
        narrowest = self.scale.amin(-1)  # (N, 1)
        active = (spacing > FINE * narrowest).flatten().nonzero().flatten()
        result = h.clone()
        mixture, low, high, h = self.rows(active), low[active], high[active], h[active]
        for _ in range(MOST_STEPS):
            before, (low, high, h) = h, mixture._newton_step(levels, low, high, h)
            result[active] = h
            moving = ((h - before).abs() > GRID_PRECISION * narrowest[active]).any(1).nonzero().flatten()
            if not len(moving):
                break
            active, mixture, low, high, h = active[moving], mixture.rows(moving), low[moving], high[moving], h[moving]
        return result

    def _interpolated(self, levels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``(N, L)`` the points of a grid below and above each quantile, what a cubic interpolation of the inverse says
        between them, and ``(N, 1)`` the spacing of the grid.
        """
        own = self._quantiles(levels[[0, -1]].reshape(2, 1, 1, 1))  # (2, N, 1, M), of each component
        low, high = own[0].amin(-1), own[1].amax(-1)  # (N, 1)
        grid = low + (high - low) * torch.linspace(0, 1, GRID).to(levels)  # (N, G)
        shares, slopes = self.cdf(grid), 1 / self.density(grid).clamp_min(1e-300)
        after = torch.searchsorted(shares, levels.expand(len(grid), -1).contiguous()).clamp(1, GRID - 1)
        (low, below, left), (high, above, right) = (
            [tensor.gather(1, index) for tensor in (grid, shares, slopes)] for index in (after - 1, after)
        )  # (N, L)
        rise = (above - below).clamp_min(1e-300)
        t = ((levels - below) / rise).clamp(0, 1)
        bend = (1 - t) * (left * rise - (high - low)) + t * ((high - low) - right * rise)
        h = torch.clamp(low + (high - low) * t + t * (1 - t) * bend, low, high)
        return low, high, h, grid[:, 1:2] - grid[:, :1]

    def _newton_step(self, target: Tensor, low: Tensor, high: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Towards P(y <= h) = target: the bounds, closer by h, and the next h, the middle where Newton's is outside."""
        above = self.cdf(h) - target
        low, high = torch.where(above < 0, h, low), torch.where(above < 0, high, h)
        step = h - above / self.density(h)
        return low, high, torch.where((step >= low) & (step <= high), step, (low + high) / 2)

    # Of each component: (..., M), from h (..., 1) --------------------------------------------------------

    def _amount(self, standard: Tensor) -> Tensor:
        """Of location + scale z."""
        return standard

    @abstractmethod
    def _nodes(self) -> tuple[Tensor, Tensor]:
        """``(K,)`` nodes of a standard component, and the logarithms of their weights."""

    @abstractmethod
    def _means(self) -> Tensor: ...

    @abstractmethod
    def _variances(self) -> Tensor: ...

    @abstractmethod
    def _cdfs(self, h: Tensor) -> Tensor: ...

    @abstractmethod
    def _shortfalls(self, h: Tensor) -> Tensor: ...

    @abstractmethod
    def _log_densities(self, y: Tensor) -> Tensor: ...

    @abstractmethod
    def _quantiles(self, share: Tensor) -> Tensor: ...
