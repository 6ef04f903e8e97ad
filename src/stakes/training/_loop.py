"""The only training loop, for every posterior and every objective: one posterior, or a stack of them."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from stakes import inputs, seeds
from stakes._io.parallel import one_thread
from stakes.decisions import decide
from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.objectives import Objective, by_label
from stakes.posteriors.base import Posterior, weight_like
from stakes.training._checkpoint import Checkpoint, ModelState
from stakes.training.config import Epoch, Training
from stakes.training.examples import Examples
from stakes.utility import Utility

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from stakes.training._device import OneCPU

SMALL_NETWORK = 1_000_000  # parameters
T = TypeVar("T")


class TrainingLoop:
    """Epochs of steps, each epoch scored on validation: of one posterior, or of a stack of them."""

    def __init__(
        self,
        fabric: "OneCPU | Fabric",
        posterior: Posterior,
        objective: Objective,
        examples: Examples,
        config: Training,
        seed: int,
        make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    ) -> None:
        self.fabric, self.examples, self.config, self.seed = fabric, examples, config, seed
        self.objective = objective.fresh()
        self.batch_size = config.batch(len(examples))
        self._parameters = [parameter for parameter in posterior.parameters() if parameter.requires_grad]
        self.optimizer = (
            make_optimizer(self._parameters)
            if make_optimizer
            else torch.optim.Adam(self._parameters, lr=config.learning_rate, fused=True)
        )
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise StakesError(
                "expected an optimizer that takes one gradient for each step, but got LBFGS, which evaluates the loss "
                "several times: use Adam or SGD"
            )
        self._losses = _BatchLoss(posterior, self.objective, examples)
        self._has_batch_norm = any(isinstance(layer, _BatchNorm) for layer in posterior.modules())
        self._forward: nn.Module
        self._stepper: Optimizer
        self._forward, self._stepper = fabric.setup(self._losses, self.optimizer)

    def run(
        self, models: Sequence[ModelState], report: Callable[[Epoch], None], checkpoint: Checkpoint | None = None
    ) -> None:
        """Train to the last epoch or until no model gets better; leave each with its best weights, and finish it."""
        with one_thread() if _is_small(models[0].posterior, self.fabric.device) else nullcontext():
            with seeds.seeded(self.seed, "check"):  # for a dataset that draws random numbers
                batch = next(models[0].examples.batches(torch.arange(min(2, len(self.examples))), 2))
            models[0].posterior.check(self.fabric.to_device(batch.x))
            for number in range(len(models[0].history.epochs) + 1, self.config.epochs + 1):
                learning = [model for model in models if not model.history.stalled(self.config.patience)]
                if not learning:
                    break
                with seeds.seeded(self.seed, "epoch", number, self.fabric.global_rank):
                    loss = self._epoch(number, len(models))
                self._require_finite(loss, number, models)
                for model in learning:
                    epoch = self._scored(model, Epoch(number, loss))
                    due = checkpoint is not None and checkpoint.is_due()
                    epoch, due = self.fabric.broadcast((epoch, due))
                    model.add(epoch)
                    states = self._gather(self.objective.state_dict()) if due else []
                    try:
                        report(epoch)  # may step a scheduler, which changes the learning rates to be saved
                    finally:
                        if checkpoint is not None and due and self.fabric.is_global_zero:
                            checkpoint.save(model, self.optimizer, states)
            for model in models:
                model.restore_best()
                with seeds.seeded(model.seed, "finish"):
                    model.posterior.finish(_Batches(model, self.fabric.device, self.batch_size))

    def _epoch(self, number: int, models: int) -> float:
        """One pass over the examples: the mean loss over all processes."""
        if self.config.schedule != "constant":  # else the rates may follow a scheduler of the caller
            for group in self.optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * self.config.factor(number - 1)
        order = _shard(len(self.examples), self.fabric.global_rank, self.fabric.world_size)
        self.objective.start_epoch(self._losses.posterior, self._inputs(order))
        self._losses.train()
        order = order[torch.randperm(len(order), generator=seeds.generator(self.seed, "order", number))]
        if self._has_batch_norm and len(order) > 1 and len(order) % self.batch_size == 1:
            order = order[:-1]  # batch norm has no variance in a last batch of one; another example in each epoch
        self._stepper.zero_grad()  # of gradients from elsewhere
        total, count = torch.zeros((), device=self.fabric.device), 0
        # The loss is a mean over the models of a stack, but each takes the step that is its own.
        scale = None if models == 1 else torch.tensor(float(models), device=self.fabric.device)
        for batch in self.examples.batches(order, self.batch_size):
            positions, x, labels, weights = self.fabric.to_device(batch)
            loss = self._loss(x, labels, positions, weights)
            self.fabric.backward(loss, scale)
            self._stepper.step()
            self._stepper.zero_grad()
            total.add_(loss.detach(), alpha=len(labels))
            count += len(labels)
        self._share_buffers()
        losses = self._gather(float(total) / count)
        return sum(losses) / len(losses)

    def _loss(self, x: Inputs, labels: Tensor, positions: Tensor, weights: Tensor | None) -> Tensor:
        try:
            return self._forward(x, labels, positions, weights)  # type: ignore[no-any-return]
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise StakesError(
                "batch norm needs more than one value of each channel in a batch, but a batch has "
                f"{len(labels)} example: train with a batch_size of 2 or more"
            ) from None

    def _require_finite(self, loss: float, number: int, models: Sequence[ModelState]) -> None:
        """Raise if training has diverged, in the loss or in the last step of the epoch; the best weights are kept."""
        if math.isfinite(loss) and all(bool(parameter.isfinite().all()) for parameter in self._parameters):
            return
        for model in models:
            model.restore_best()
        best = models[0].history.best
        kept = "of its best epoch" if len(models) > 1 else f"of epoch {best}" if best else "from before training"
        raise StakesError(
            f"the loss or the weights became infinite or NaN in epoch {number} (loss {loss}): try a lower learning "
            f"rate than {self.config.learning_rate}, and look for extreme values in the inputs; each posterior now "
            f"has the weights {kept}"
        )

    def _scored(self, model: ModelState, epoch: Epoch) -> Epoch:
        if model.validation is None or model.utility is None or not self.config.validates(epoch.number):
            return epoch
        with seeds.seeded(model.seed, "validation"):  # for a dataset that draws random numbers
            value, nll = score(
                model.posterior, model.validation, model.utility, self.config.samples, model.seed, self.batch_size
            )
        return replace(epoch, utility=value, nll=nll)

    def _gather(self, value: T) -> list[T]:
        """``value`` of every process, in each of them."""
        return [self.fabric.broadcast(value, src=rank) for rank in range(self.fabric.world_size)]

    @torch.no_grad()
    def _share_buffers(self) -> None:
        """Give every process the buffers of the first: running statistics differ by the last batch of each."""
        if self.fabric.world_size > 1:
            buffers = list(self._losses.buffers())
            for buffer, first in zip(buffers, self.fabric.broadcast([each.cpu() for each in buffers]), strict=True):
                buffer.copy_(first)

    def _inputs(self, order: Tensor) -> Iterator[tuple[Tensor, Inputs]]:
        for batch in self.examples.batches(order, self.examples.block(self.batch_size)):
            yield batch.positions, _as_weights(batch.x, self._losses.posterior)


@dataclass(frozen=True)
class _Batches:
    """``(x, labels)`` of a model's training examples in order, on its device, for any number of passes."""

    model: ModelState
    device: torch.device
    batch_size: int

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        for batch in self.model.examples.in_order(self.batch_size):
            yield _as_weights(batch.x, self.model.posterior), batch.labels.to(self.device)


def score(
    posterior: Posterior, examples: Examples, utility: Utility, samples: int, seed: int, batch_size: int
) -> tuple[float, float | None]:
    """The mean utility of the optimal decisions, and the mean NLL of the observed labels, over the labels that count
    and by their weights.
    """
    utility.require_examples(len(examples))
    draws = posterior.draw(samples, seeds.derive(seed, "score"))
    total, mass = 0.0, 0.0
    nll: float | None = 0.0
    for batch in examples.in_order(batch_size):
        utility_of_batch = utility.rows(batch.positions)
        outcomes = draws(batch.x).mixture()
        labels = batch.labels.to(outcomes.weights.device)
        log_prob = posterior.likelihood.mixture_log_prob(outcomes, labels)
        decisions = decide(outcomes, utility_of_batch)
        if bool(decisions.utilities.isnan().any()):
            raise StakesError(
                "expected predictions for every validation example, but some are NaN: look for missing values in the "
                "validation inputs"
            )
        weights = torch.ones(len(labels)) if batch.weights is None else batch.weights.cpu()
        weights, labels = by_label(weights, labels.shape).expand(labels.shape).double(), labels.cpu()
        counted = posterior.likelihood.counted(labels)
        if counted is not None:
            weights, labels = weights.where(counted, 0), labels.where(counted, 0)
        worth = torch.from_numpy(utility_of_batch.realised(decisions.choice.cpu(), labels))
        total += float((weights * worth).sum())
        nll = None if nll is None or log_prob is None else nll - float((weights * log_prob.detach().cpu()).sum())
        mass += float(weights.sum())
    if mass == 0:
        raise StakesError("expected validation labels that count, but all are ignored, or have the weight 0")
    return total / mass, None if nll is None else nll / mass


class _BatchLoss(nn.Module):
    """The loss of a batch as one module, so that Fabric's strategies see a single forward pass."""

    def __init__(self, posterior: Posterior, objective: Objective, examples: Examples) -> None:
        super().__init__()
        self.posterior = posterior
        self.objective = objective
        self.labels = len(examples)

    def forward(self, x: Inputs, labels: Tensor, index: Tensor, weights: Tensor | None) -> Tensor:
        loss = self.objective(self.posterior, x, labels, index=index, weights=weights)
        counted = self.posterior.likelihood.counted(labels)
        if counted is None:
            # An image has a label for every pixel, so the bound is over all labels, and so is its KL.
            return loss + self.posterior.kl() / (self.labels * labels[0].numel())
        # The mean is over the labels that count; the KL keeps its proportion to their sum, B of N examples.
        count = counted.sum()
        return loss + self.posterior.kl() * (len(labels) / self.labels) * (count > 0) / count.clamp_min(1)


def _as_weights(x: Inputs, posterior: Posterior) -> Inputs:
    """Inputs on the device and in the precision of the weights: Fabric converts only what goes into training."""
    weight = weight_like(posterior)
    return inputs.cast(x, weight.device, weight.dtype)


def _is_small(posterior: Posterior, device: torch.device) -> bool:
    """Whether one thread is fastest: a few dense layers on a CPU."""
    sizes = [parameter.numel() for parameter in posterior.parameters()]
    dense = all(parameter.ndim <= 2 for parameter in posterior.parameters())
    return device.type == "cpu" and dense and sum(sizes) < SMALL_NETWORK


def _shard(count: int, rank: int, world: int) -> Tensor:
    """The positions that one process trains on: always the same, and equally many for each."""
    per_process = -(-count // world)
    return torch.arange(per_process * world)[rank::world] % count
