"""What can be asked of any outcomes that are numbers, from their atoms."""

from functools import cached_property

import torch
from torch import Tensor

from stakes.errors import StakesError
from stakes.mixtures.base import Distribution
from stakes.outcomes import Outcomes

ROUNDING = 1e-9  # of sums of weights: a share that they reach but for that is reached


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
        values, total = self._sorted
        target = torch.as_tensor(share, dtype=values.dtype, device=values.device).unsqueeze(-1)
        first = (total < target - ROUNDING).sum(-1, keepdim=True).clamp_max(values.shape[-1] - 1)
        return values.gather(-1, first).squeeze(-1)

    def quantiles(self, levels: Tensor) -> Tensor:
        """``(L,) -> (..., L)``: at several levels."""
        values, total = self._sorted
        target = (levels.to(values) - ROUNDING).expand(*values.shape[:-1], -1).contiguous()
        return values.gather(-1, torch.searchsorted(total, target).clamp_max(values.shape[-1] - 1))

    @cached_property
    def _sorted(self) -> tuple[Tensor, Tensor]:
        """The values in order, and the sums of their weights up to each."""
        values, order = self.values.expand(self.weights.shape).sort(-1)
        return values, self.weights.gather(-1, order).cumsum(-1)


def interval(outcomes: Outcomes, share: float) -> tuple[Tensor, Tensor]:
    """``(...)`` two numbers between which the outcome lies with probability ``share``, as much beyond either."""
    if not 0 < share < 1:
        raise StakesError(f"expected a share of the outcomes above 0 and below 1, but got {share}")
    distribution = numbers(outcomes)
    return distribution.quantile((1 - share) / 2), distribution.quantile((1 + share) / 2)


def numbers(outcomes: Outcomes) -> Distribution | Atoms:
    """What can be asked of outcomes that are numbers: exact for a mixture."""
    return outcomes if isinstance(outcomes, Distribution) else Atoms(outcomes)
