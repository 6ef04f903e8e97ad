"""What can be asked of outcomes that are numbers: exactly of a mixture, and of any others from their atoms."""

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


class Mixture(Outcomes, ABC):
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
    def numeric(self) -> bool:
        return True

    @property
    def shape(self) -> torch.Size:
        return torch.Size([*self.location.shape[:-1], self.location.shape[-1] * len(self._nodes()[0])])

    @cached_property
    def values(self) -> Tensor:  # type: ignore[override]
        nodes = self._nodes()[0].to(self.location)
        return self._amount(self.location.unsqueeze(-1) + self.scale.unsqueeze(-1) * nodes).flatten(-2)

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
        """P(y <= h)."""
        return self._cdfs(h.unsqueeze(-1)).mean(-1)

    def shortfall(self, h: Tensor) -> Tensor:
        """E max(y - h, 0)."""
        return self._shortfalls(h.unsqueeze(-1)).mean(-1)

    def density(self, y: Tensor) -> Tensor:
        return self._log_densities(y.unsqueeze(-1)).exp().mean(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        """The logarithm of the density."""
        return self._log_densities(y.unsqueeze(-1)).logsumexp(-1) - math.log(self.location.shape[-1])

    def log_mean_exp(self, c: Tensor | float) -> Tensor:
        """log E exp(c y)."""
        raise StakesError(f"E exp(c y) is infinite under a {type(self).__name__}: use a Gaussian likelihood with LINEX")

    @torch.no_grad()
    def quantile(self, share: Tensor | float) -> Tensor:
        """The smallest h with P(y <= h) >= share; a number, or one for each."""
        target = torch.as_tensor(share, dtype=self.location.dtype, device=self.location.device)
        # It lies between the lowest and the highest of the components' own.
        each = self._quantiles(target.unsqueeze(-1))
        low, high = each.amin(-1), each.amax(-1)
        narrowest, h = self.scale.amin(-1), each.mean(-1)
        for _ in range(MOST_STEPS):
            above = self.cdf(h) - target
            low, high = torch.where(above < 0, h, low), torch.where(above < 0, high, h)
            step = h - above / self.density(h)
            inside = (step >= low) & (step <= high)
            before, h = h, torch.where(inside, step, (low + high) / 2)
            if bool(((h - before).abs() <= PRECISION * narrowest).all()):
                break
        return h

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

    @abstractmethod
    def shifted(self, by: float) -> Self:
        """Those of y + ``by``."""


class Atoms:
    """The same answers for any outcomes that are numbers, from their atoms."""

    def __init__(self, outcomes: Outcomes) -> None:
        if outcomes.values is None:
            raise StakesError("expected outcomes that are numbers, but got named classes: use a table of costs")
        self.weights, self.values = outcomes.weights, outcomes.values
        if self.values.device.type != "mps":
            self.weights, self.values = self.weights.double(), self.values.double()

    def mean(self) -> Tensor:
        return (self.weights * self.values).sum(-1)

    def variance(self) -> Tensor:
        return (self.weights * (self.values - self.mean().unsqueeze(-1)).square()).sum(-1)

    def cdf(self, h: Tensor) -> Tensor:
        return (self.weights * (self.values <= h.unsqueeze(-1))).sum(-1)

    def shortfall(self, h: Tensor) -> Tensor:
        return (self.weights * (self.values - h.unsqueeze(-1)).clamp_min(0)).sum(-1)

    def log_mean_exp(self, c: Tensor | float) -> Tensor:
        rate = torch.as_tensor(c, dtype=self.values.dtype, device=self.values.device).unsqueeze(-1)
        return (self.weights.log() + rate * self.values).logsumexp(-1)

    def quantile(self, share: Tensor | float) -> Tensor:
        target = torch.as_tensor(share, dtype=self.values.dtype, device=self.values.device).unsqueeze(-1)
        values, order = self.values.expand(self.weights.shape).sort(-1)
        total = self.weights.gather(-1, order).cumsum(-1)
        # Sums of weights round: a share that they reach but for that is reached.
        first = (total < target - 1e-9).sum(-1, keepdim=True).clamp_max(values.shape[-1] - 1)
        return values.gather(-1, first).squeeze(-1)


def numbers(outcomes: Outcomes) -> Mixture | Atoms:
    """What can be asked of outcomes that are numbers: exact for a mixture."""
    return outcomes if isinstance(outcomes, Mixture) else Atoms(outcomes)
