"""The settings of training, and its history."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from stakes.errors import StakesError


@dataclass(frozen=True)
class Training:
    """How to train. Models that are compared are trained with the same settings."""

    epochs: int = 100
    batch_size: int | None = None  # None: 32 to 256, by the number of examples
    learning_rate: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"  # constant: the rates of the optimizer are left as they are
    patience: int | None = 20  # epochs without a better validation utility before stopping; None: never
    samples: int = 20  # draws with which validation is scored
    validate_every: int = 1  # epochs
    select: Literal["utility", "nll"] = "utility"  # the best epoch has the highest utility, or the lowest NLL
    checkpoint_seconds: float = 5.0  # at least, between two checkpoints
    schedule_by: Literal["epoch", "step"] = "epoch"  # when the schedule, or a scheduler given to `fit`, takes a step
    accumulate: int = 1  # batches whose gradients are accumulated into one step
    clip_norm: float | None = None  # the largest norm of a step's gradient; longer ones are scaled down to it

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "samples", "validate_every", "accumulate"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise StakesError(f"expected {name} to be at least 1, but got {value}")
        if not 0 < self.learning_rate < math.inf:
            raise StakesError(f"expected a learning rate above 0, but got {self.learning_rate}")
        if self.schedule not in ("constant", "cosine"):
            raise StakesError(f"expected the schedule 'constant' or 'cosine', but got {self.schedule!r}")
        if self.schedule_by not in ("epoch", "step"):
            raise StakesError(f"expected a schedule by 'epoch' or 'step', but got {self.schedule_by!r}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise StakesError(f"expected clip_norm to be above 0, but got {self.clip_norm}")
        if self.select not in ("utility", "nll"):
            raise StakesError(f"expected to select by 'utility' or 'nll', but got {self.select!r}")

    def batch(self, examples: int) -> int:
        """The batch size: as set, or a power of two near a 64th of the examples."""
        return self.batch_size or min(256, max(32, 2 ** round(math.log2(examples / 64 + 1))))

    def validates(self, number: int) -> bool:
        """Whether an epoch, counted from 1, is scored on validation; the last one always is."""
        return self.plans_validation(number) or number == self.epochs

    def plans_validation(self, number: int) -> bool:
        """Whether an epoch is scored on validation also where more of them follow."""
        return number % self.validate_every == 0

    def factor(self, epoch: float) -> float:
        """The factor of the learning rate in an epoch, counted from 0, or in a part of one."""
        return 1.0 if self.schedule == "constant" else (1 + math.cos(math.pi * epoch / self.epochs)) / 2


@dataclass(frozen=True)
class Step:
    """One step of the optimizer."""

    number: int  # from 1, over all epochs
    epoch: int  # from 1
    loss: float  # of the step's examples, in the first process
    learning_rate: float  # of the optimizer's first group of parameters, in this step
    gradient_norm: float | None = None  # before clipping; None without clip_norm


@dataclass(frozen=True)
class Epoch:
    """The result of one pass over the training data; utility and NLL are None if it was not validated."""

    number: int  # from 1
    loss: float
    utility: float | None = None  # mean on validation, under the optimal decision
    nll: float | None = None


@dataclass(frozen=True)
class History:
    """All the epochs, and the one whose weights the posterior ended with."""

    epochs: tuple[Epoch, ...] = ()
    best: int = 0  # number of the epoch; 0 before the first
    select: Literal["utility", "nll"] = "utility"

    @property
    def best_utility(self) -> float | None:
        return self.epochs[self.best - 1].utility if self.best else None

    def with_epoch(self, epoch: Epoch) -> "History":
        """Append an epoch: the best one if none before it is better. Without validation, the last is the best."""
        value = self._value(epoch)
        best = self._value(self.epochs[self.best - 1]) if self.best else None
        better = best is None or (value is not None and value >= best)
        return replace(self, epochs=(*self.epochs, epoch), best=epoch.number if better else self.best)

    def without_last_score(self) -> "History":
        """As if the last epoch had not been scored on validation."""
        history = History(select=self.select)
        for epoch in (*self.epochs[:-1], replace(self.epochs[-1], utility=None, nll=None)):
            history = history.with_epoch(epoch)
        return history

    def stalled(self, patience: int | None) -> bool:
        """Whether none of the last ``patience`` epochs is strictly better than all before."""
        top, since = -math.inf, 0
        for epoch in self.epochs:
            value = self._value(epoch)
            if value is not None and value > top:
                top, since = value, epoch.number
        return patience is not None and since > 0 and len(self.epochs) - since >= patience

    def _value(self, epoch: Epoch) -> float | None:
        if self.select == "utility":
            return epoch.utility
        return None if epoch.nll is None else -epoch.nll
