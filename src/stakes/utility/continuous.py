"""Losses of the error of a decision that is a number, with closed forms: newsvendor, squared, LINEX.

With e = outcome - decision:

    Newsvendor   under max(e, 0) + over max(-e, 0)   best: the under / (under + over) quantile
    Squared      cost e^2                            best: the mean
    Linex        cost (exp(c e) - c e - 1)           best: log E exp(c y) / c
"""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stakes.errors import StakesError
from stakes.mixtures import GaussianMixture, numbers
from stakes.outcomes import Outcomes
from stakes.utility.amounts import AmountUtility, Range
from stakes.utility.base import utilities


@utilities.register("newsvendor")
@dataclass(frozen=True, eq=False)
class Newsvendor(AmountUtility):
    """Each unit too few costs ``under``, each unit too many ``over``: numbers, or one for each example.

    >>> from stakes.mixtures import GaussianMixture
    >>> demand = GaussianMixture(torch.tensor([[100.0]]), torch.tensor([[20.0]]))
    >>> Newsvendor(under=15, over=5, unit="€").best_choice(demand)
    tensor([113.4898], dtype=torch.float64)

    Whole pallets, and no more than 80: ``Newsvendor(15, 5, at_least=0, at_most=80, step=1)``.
    """

    under: ArrayLike
    over: ArrayLike
    _tensors: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("under", "over"):
            values = np.array(getattr(self, name), dtype=np.float64)
            if values.ndim > 1 or not (np.isfinite(values).all() and (values >= 0).all()):
                raise StakesError(f"expected {name} as a cost of 0 or more, or one for each example, but got {values}")
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        super().__post_init__()
        sizes = {values.size for values in self._costs if values.ndim}
        if len(sizes) > 1:
            raise StakesError(f"expected as many costs of too few as of too many, but got {sorted(sizes)}")
        if not np.all(np.add(*self._costs) > 0):
            raise StakesError("expected a cost above 0 of too few or of too many, but got 0 for both")

    @property
    def _costs(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.under, self.over  # type: ignore[return-value]

    @property
    def share(self) -> NDArray[np.float64]:
        """The critical ratio, under / (under + over): the share of outcomes that the best decision covers."""
        under, over = self._costs
        return under / (under + over)

    def cost(self, choice: Tensor, outcome: Tensor) -> Tensor:
        error = outcome - choice
        under, over = (self._spread(name, error, choice) for name in ("under", "over"))
        return under * error.clamp_min(0) + over * (-error).clamp_min(0)

    def expected_cost(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        distribution = numbers(outcomes)
        short = distribution.shortfall(choice)
        under, over = (self._spread(name, short, choice) for name in ("under", "over"))
        return under * short + over * (choice - distribution.mean() + short)

    def optimum(self, outcomes: Outcomes) -> Tensor:
        shape = outcomes.shape[:-1]
        self.require_examples(shape[0])
        share = torch.as_tensor(self.share)
        return numbers(outcomes).quantile(share.reshape(*share.shape, *[1] * (len(shape) - 1)) if share.ndim else share)

    def _log_mean_exp(self, outcomes: Outcomes, choice: Tensor, rate: float) -> Tensor:
        if not isinstance(outcomes, GaussianMixture) or self.range != Range():
            return super()._log_mean_exp(outcomes, choice, rate)
        m, s, h = outcomes.location, outcomes.scale, choice.unsqueeze(-1)
        a, b = (rate * self._spread(name, m, h) for name in ("under", "over"))
        z = (h - m) / s
        short = a * (h - m) + (a * s).square() / 2 + torch.special.log_ndtr(-z - a * s)
        left = b * (m - h) + (b * s).square() / 2 + torch.special.log_ndtr(z - b * s)
        return torch.logaddexp(short, left).logsumexp(-1) - np.log(m.shape[-1])  # type: ignore[no-any-return]

    def _spread(self, name: str, like: Tensor, choice: Tensor) -> Tensor:
        """The costs ``(B,)`` on the first axis of the choices."""
        key = name, like.dtype, like.device
        if key not in self._tensors:
            with torch.inference_mode(False):  # what is cast now may be needed for a gradient later
                self._tensors[key] = torch.tensor(getattr(self, name)).to(like.device, like.dtype)
        costs = self._tensors[key]
        if costs.ndim == 0:
            return costs
        self.require_examples(choice.shape[0])
        return costs.reshape(-1, *[1] * (choice.ndim - 1))

    @property
    def per_example(self) -> bool:  # type: ignore[override]
        return any(values.ndim for values in self._costs)

    def rows(self, index: Any) -> Self:
        where = index.cpu().numpy() if isinstance(index, Tensor) else index
        under, over = (values[where] if values.ndim else values for values in self._costs)
        return replace(self, under=under, over=over) if self.per_example else self

    def require_examples(self, count: int) -> None:
        examples = max(values.size for values in self._costs)
        if self.per_example and count != examples:
            raise StakesError(f"expected {examples} examples, one for each cost of the utility, but got {count}")

    def to_dict(self) -> dict[str, Any]:
        under, over = self._costs
        return {"kind": "newsvendor", "under": under.tolist(), "over": over.tolist(), **self._shared_fields()}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_tensors": {}}  # what was cast for a device is no part of it


@utilities.register("squared")
@dataclass(frozen=True, eq=False)
class Squared(AmountUtility):
    """The squared error, times a ``weight``: what it costs to be wrong by 1."""

    weight: float = 1.0

    def __post_init__(self) -> None:
        _require_positive(self.weight, "weight")
        super().__post_init__()

    def cost(self, choice: Tensor, outcome: Tensor) -> Tensor:
        return self.weight * (outcome - choice).square()

    def expected_cost(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        distribution = numbers(outcomes)
        return self.weight * (distribution.variance() + (distribution.mean() - choice).square())

    def optimum(self, outcomes: Outcomes) -> Tensor:
        return numbers(outcomes).mean()

    def _log_mean_exp(self, outcomes: Outcomes, choice: Tensor, rate: float) -> Tensor:
        if not isinstance(outcomes, GaussianMixture) or self.range != Range():
            return super()._log_mean_exp(outcomes, choice, rate)
        rate, gap = rate * self.weight, outcomes.location - choice.unsqueeze(-1)
        widened = 1 + 2 * rate * outcomes.scale.square()
        return (-widened.log() / 2 - rate * gap.square() / widened).logsumexp(-1) - np.log(gap.shape[-1])  # type: ignore[no-any-return]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "squared", "weight": self.weight, **self._shared_fields()}


@utilities.register("linex")
@dataclass(frozen=True, eq=False)
class Linex(AmountUtility):
    """``weight (exp(c e) - c e - 1)``: with c above 0, too little costs exponentially, too much about linearly."""

    c: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.c) and self.c):
            raise StakesError(f"expected c as a number other than 0, but got {self.c}")
        _require_positive(self.weight, "weight")
        super().__post_init__()

    def cost(self, choice: Tensor, outcome: Tensor) -> Tensor:
        scaled = self.c * (outcome - choice)
        return self.weight * (scaled.expm1() - scaled)

    def expected_cost(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        distribution = numbers(outcomes)
        exponent = distribution.log_mean_exp(self.c) - self.c * choice
        return self.weight * (exponent.expm1() - self.c * (distribution.mean() - choice))

    def optimum(self, outcomes: Outcomes) -> Tensor:
        return numbers(outcomes).log_mean_exp(self.c) / self.c

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "linex", "c": self.c, "weight": self.weight, **self._shared_fields()}


def _require_positive(weight: float, name: str) -> None:
    if not 0 < weight < np.inf:
        raise StakesError(f"expected a {name} above 0, but got {weight}")
