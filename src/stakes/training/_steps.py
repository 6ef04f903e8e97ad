"""Steps of the optimizer: the gradient of a batch or of several, clipped, at the rate of a schedule."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from stakes import inputs
from stakes.errors import StakesError
from stakes.posteriors.base import Posterior, weight_like
from stakes.training._checkpoint import restored
from stakes.training.config import Step, Training
from stakes.training.examples import Batch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from stakes.training._device import OneCPU

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler]


class Steps:
    """Steps of ``posterior`` that lower ``loss``, a module that returns the mean over the labels of a batch."""

    def __init__(
        self,
        fabric: "OneCPU | Fabric",
        posterior: Posterior,
        loss: nn.Module,
        config: Training,
        make_optimizer: MakeOptimizer | None,
        make_scheduler: MakeScheduler | None,
        on_step: Callable[[Step], None] | None,
    ) -> None:
        self._fabric, self._config, self._likelihood = fabric, config, posterior.likelihood
        self._weight = weight_like(posterior)  # inputs have its precision
        for name, make in (("optimizer", make_optimizer), ("scheduler", make_scheduler)):
            if make is not None and not callable(make):
                raise StakesError(
                    f"expected {name}= to be a function that makes one, such as lambda parameters: "
                    f"torch.optim.SGD(parameters, lr=0.1), but got {type(make).__name__}"
                )
        parameters = [parameter for parameter in posterior.parameters() if parameter.requires_grad]
        self.optimizer = (
            make_optimizer(parameters)
            if make_optimizer
            else torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
        )
        self._scheduler = make_scheduler(self.optimizer) if make_scheduler else None
        self._check()
        self._on_step = on_step if fabric.is_global_zero else None
        self._taken = 0
        self._forward: Any  # an nn.Module, or Fabric's
        self._stepper: Optimizer
        self._forward, self._stepper = fabric.setup(loss, self.optimizer)

    def start_epoch(self, epoch: int) -> None:
        if self._config.schedule_by == "epoch":
            self._set_rates(epoch - 1)
        self._stepper.zero_grad()  # of gradients from elsewhere

    def end_epoch(self) -> None:
        if self._scheduler is not None and self._config.schedule_by == "epoch":
            self._scheduler.step()

    def take(self, batches: Sequence[Batch], epoch: int, share: float, scale: Tensor | None) -> Tensor:
        """Take a step on some batches as if they were one, after a ``share`` of the epoch, and return their loss;
        its gradient is multiplied by ``scale``.
        """
        if self._config.schedule_by == "step":
            self._set_rates(epoch - 1 + share)
        loss = self._backward(batches, scale)
        norm = None
        if self._config.clip_norm is not None:
            norm = self._fabric.clip_gradients(
                self._forward, self._stepper, max_norm=self._config.clip_norm, error_if_nonfinite=False
            )
        self._stepper.step()
        self._stepper.zero_grad()
        self._taken += 1
        rate = self.optimizer.param_groups[0]["lr"]
        if self._scheduler is not None and self._config.schedule_by == "step":
            self._scheduler.step()
        if self._on_step is not None:
            self._on_step(Step(self._taken, epoch, float(loss), float(rate), None if norm is None else float(norm)))
        return loss

    def state(self) -> dict[str, Any]:
        """What has to be kept to go on after an interruption, beside the optimizer."""
        return {"steps": self._taken, "scheduler": None if self._scheduler is None else self._scheduler.state_dict()}

    def load_state(self, state: Mapping[str, Any] | None) -> None:
        """Go on from `state`; None: that of an earlier version of stakes, which had no schedulers."""
        saved = state and state["scheduler"]
        if (saved is None) != (self._scheduler is None):
            raise StakesError("expected the scheduler that the checkpoint was written with: resume with the same one")
        if self._scheduler is not None:
            self._scheduler.load_state_dict(restored(saved, self._scheduler.state_dict()))
        self._taken = state["steps"] if state else 0

    def _backward(self, batches: Sequence[Batch], scale: Tensor | None) -> Tensor:
        if len(batches) == 1:
            loss = self._loss(batches[0])
            self._fabric.backward(loss, scale)
            return loss.detach()
        labels = sum(self._count(batch.labels) for batch in batches)
        total = torch.zeros((), device=self._fabric.device)
        for number, batch in enumerate(batches, 1):
            with self._fabric.no_backward_sync(self._forward, enabled=number < len(batches)):
                loss = self._loss(batch, labels)
                self._fabric.backward(loss, scale)
            total = total + loss.detach()
        return total

    def _count(self, labels: Tensor) -> int:
        """How many labels the loss is a mean over."""
        counted = self._likelihood.counted(labels)
        return labels.numel() if counted is None else int(counted.sum())

    def _loss(self, batch: Batch, total: int | None = None) -> Tensor:
        positions, x, labels, weights = self._fabric.to_device(batch)
        x = inputs.cast(x, self._weight.device, self._weight.dtype)
        try:
            return self._forward(x, labels, positions, weights, total)  # type: ignore[no-any-return]
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise StakesError(
                "batch norm needs more than one value of each channel in a batch, but a batch has "
                f"{len(labels)} example: train with a batch_size of 2 or more, or with drop_last=True in a DataLoader"
            ) from None

    def _set_rates(self, epoch: float) -> None:
        if self._config.schedule != "constant":  # else the rates may follow a scheduler of the caller
            for group in self.optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * self._config.factor(epoch)

    def _check(self) -> None:
        """Refuse an optimizer and a scheduler that cannot be stepped like others."""
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise StakesError(
                "expected an optimizer that takes one gradient for each step, but got LBFGS, which evaluates the loss "
                "several times: use Adam or SGD"
            )
        if isinstance(self._scheduler, ReduceLROnPlateau):
            raise StakesError(
                "expected a scheduler that follows the steps or epochs, but ReduceLROnPlateau follows a number: call "
                "its step(epoch.nll) or step(epoch.utility) in a function given as progress="
            )
        if self._scheduler is not None and self._config.schedule != "constant":
            raise StakesError(f"expected a scheduler, or schedule={self._config.schedule!r}, but got both")
