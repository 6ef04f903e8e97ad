"""The only training loop, for every posterior and every objective: one posterior, or a stack of them."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from stakes import inputs, seeds
from stakes._io.parallel import one_thread
from stakes.decisions import decide
from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.objectives import Objective
from stakes.posteriors.base import Posterior, weight_like
from stakes.training._checkpoint import Checkpoint, ModelState
from stakes.training._steps import MakeOptimizer, MakeScheduler, Steps
from stakes.training.config import Epoch, Step, Training
from stakes.training.examples import Examples, Shard
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
        make_optimizer: MakeOptimizer | None = None,
        make_scheduler: MakeScheduler | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        self.fabric, self.examples, self.config, self.seed = fabric, examples, config, seed
        self.objective = objective.fresh()
        self._check()
        self.batch_size = examples.batch_size or config.batch(len(examples))
        self._losses = _BatchLoss(posterior, self.objective, examples)
        self._parameters = [parameter for parameter in posterior.parameters() if parameter.requires_grad]
        self._has_batch_norm = any(isinstance(layer, _BatchNorm) for layer in posterior.modules())
        self.steps = Steps(fabric, posterior, self._losses, config, make_optimizer, make_scheduler, on_step)

    def run(
        self,
        models: Sequence[ModelState],
        report: Callable[[Epoch], None],
        checkpoint: Checkpoint | None = None,
        keep: Callable[[Sequence[int]], None] = lambda indices: None,
    ) -> None:
        """Train to the last epoch or until no model gets better; leave each with its best weights, and finish it.

        ``keep`` is called with the indices of the models that still train, whenever some have stopped.
        """
        if len(models) > 1 and self.config.clip_norm is not None:
            raise StakesError("clip_norm is for one network: the gradients of models trained together have no one norm")
        with one_thread() if _is_small(models[0].posterior, self.fabric.device) else nullcontext():
            with seeds.seeded(self.seed, "check"):  # for a dataset that draws random numbers
                batch = models[0].examples.first()
            self._prepare(models)
            models[0].posterior.check(self.fabric.to_device(batch.x))
            learning = list(models)
            for number in range(len(models[0].history.epochs) + 1, self.config.epochs + 1):
                before, learning = learning, [m for m in learning if not m.history.stalled(self.config.patience)]
                if not learning:
                    break
                if len(learning) < len(before):
                    keep([index for index, model in enumerate(models) if model in learning])
                with seeds.seeded(self.seed, "epoch", number, self.fabric.global_rank):
                    loss = self._epoch(number, len(learning))
                self._require_finite(loss, number, models)
                for model in learning:
                    epoch = self._scored(model, Epoch(number, loss))
                    due = checkpoint is not None and checkpoint.is_due()
                    epoch, due = self.fabric.broadcast((epoch, due))
                    model.add(epoch, self.config.plans_validation(epoch.number))
                    due = due or (checkpoint is not None and self._is_last(model))
                    states = self._gather(self.objective.state_dict()) if due else []
                    try:
                        report(epoch)  # may step a scheduler, which changes the learning rates to be saved
                    finally:
                        if checkpoint is not None and due and self.fabric.is_global_zero:
                            checkpoint.save(model, self.steps.optimizer, states, self.steps.state())
            for model in models:
                model.restore_best()
                with seeds.seeded(model.seed, "finish"):
                    model.posterior.finish(_Batches(model, self.fabric.device, self.batch_size))

    def _prepare(self, models: Sequence[ModelState]) -> None:
        """Prepare the likelihoods from the training labels; models of a stack share those of the first."""

        def labels() -> Iterator[Tensor]:  # not read unless they are wanted
            for batch in models[0].examples.in_order(self.batch_size):
                yield batch.labels

        for model in models:
            with seeds.seeded(self.seed, "labels"):  # for a dataset that draws random numbers
                model.posterior.likelihood.prepare(labels())

    def _epoch(self, number: int, models: int) -> float:
        """One pass over the examples: the mean loss over all processes."""
        shard = Shard(self.seed, number, self.fabric.global_rank, self.fabric.world_size)
        data = self.examples.epoch(shard, self.batch_size, alone=not self._has_batch_norm)
        self.objective.start_epoch(self._losses.posterior, self._inputs(data.positions))
        self._losses.train()
        self.steps.start_epoch(number)
        total, count = torch.zeros((), device=self.fabric.device), 0
        # The loss is a mean over the models of a stack, but each takes the step that is its own.
        scale = None if models == 1 else torch.tensor(float(models), device=self.fabric.device)
        batches, batches_seen, learns = iter(data.batches), 0, False
        likelihood = self._losses.posterior.likelihood
        while group := list(itertools.islice(batches, self.config.accumulate)):
            learns = learns or any(likelihood.learns_from(batch.labels, batch.weights) for batch in group)
            loss = self.steps.take(group, number, batches_seen / (data.batch_count or 1), scale)
            examples = sum(len(batch.labels) for batch in group)
            total.add_(loss, alpha=examples)
            count, batches_seen = count + examples, batches_seen + len(group)
        self.steps.end_epoch()
        self._share_buffers()
        if not any(self._gather(learns)):
            raise StakesError(
                f"expected training labels that count, but in epoch {number} all are ignored, or have the weight 0"
            )
        losses = self._gather(float(total) / count)
        return sum(losses) / len(losses)

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

    def _inputs(self, positions: Tensor | None) -> Iterator[tuple[Any, Inputs]]:
        """``(index, x)`` of the examples of an epoch; of a pass over a stream, which has no index."""
        examples, size = self.examples, self.examples.block(self.batch_size)
        for batch in examples.in_order(size) if positions is None else examples.batches(positions, size):
            yield batch.positions, _as_weights(batch.x, self._losses.posterior)

    def _is_last(self, model: ModelState) -> bool:
        return len(model.history.epochs) == self.config.epochs or model.history.stalled(self.config.patience)

    def _check(self) -> None:
        """Refuse settings that do not go together."""
        if self.objective.needs_index and not self.examples.indexed:
            raise StakesError(
                f"{type(self.objective).__name__} as it is set has to know which examples a batch holds, and those of "
                'an IterableDataset have no index: use a map-style dataset, or refresh="step" with one utility for all'
            )
        if self.examples.indexed:
            self.objective.require_examples(len(self.examples))
        loader_batch_size = self.examples.batch_size
        if loader_batch_size is not None and self.config.batch_size not in (None, loader_batch_size):
            raise StakesError(
                f"expected the batch_size of the DataLoader, {loader_batch_size}, but got {self.config.batch_size} in "
                "the config: leave it out there"
            )
        if self.config.schedule != "constant" and self.config.schedule_by == "step" and not self.examples.indexed:
            raise StakesError(
                f"schedule={self.config.schedule!r} by step has to know the number of steps in an epoch, and an "
                'IterableDataset does not say it: use schedule_by="epoch", or a scheduler of your own'
            )


@dataclass(frozen=True)
class _Batches:
    """``(x, labels)`` of a model's training examples in order, with weights where they have them, on its device, for
    any number of passes.
    """

    model: ModelState
    device: torch.device
    batch_size: int

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.model.examples.in_order(self.batch_size):
            weights = () if batch.weights is None else (batch.weights.to(self.device),)
            yield _as_weights(batch.x, self.model.posterior), batch.labels.to(self.device), *weights


def score(
    posterior: Posterior, examples: Examples, utility: Utility, samples: int, seed: int, batch_size: int
) -> tuple[float, float | None]:
    """The mean utility of the optimal decisions, and the mean NLL of the observed labels, over the labels that count
    and by their weights.
    """
    if utility.per_example:
        utility.require_examples(len(examples))
    draws = posterior.draw(samples, seeds.derive(seed, "score"))
    total, mass = 0.0, 0.0
    nll: float | None = 0.0
    for batch in examples.in_order(batch_size):
        utility_of_batch = utility.rows(batch.positions)
        outcomes = draws(batch.x).mixture()
        labels = batch.labels.to(outcomes.weights.device)
        log_prob = posterior.likelihood.mixture_log_prob(outcomes, labels)
        try:
            decisions = decide(outcomes, utility_of_batch)
        except StakesError as error:
            raise StakesError(f"a batch of {len(labels)} validation examples: {error}") from None
        weights = torch.ones(len(labels)) if batch.weights is None else batch.weights.cpu()
        weights, labels = inputs.by_label(weights, labels.shape).expand(labels.shape).double(), labels.cpu()
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
        self.example_count = len(examples)

    def forward(
        self, x: Inputs, labels: Tensor, index: Tensor | None, weights: Tensor | None, total: int | None = None
    ) -> Tensor:
        """The batch's part in a mean over ``total`` labels that count in several batches; None: it is alone."""
        loss, kl = self.objective(self.posterior, x, labels, index=index, weights=weights), self.posterior.kl()
        counted = self.posterior.likelihood.counted(labels)
        if counted is None and total is None:
            # An image has a label for every pixel, so the bound is over all labels, and so is its KL.
            return loss + kl / (self.example_count * labels[0].numel())
        # The mean is over the labels that count; the KL keeps its proportion to their sum, B of N examples.
        count = labels.numel() if counted is None else int(counted.sum())
        whole = count if total is None else total
        share = len(labels) / self.example_count * (whole > 0)  # also of a batch without such labels, beside others
        return loss * (count / max(1, whole)) + kl * (share / max(1, whole))


def _as_weights(x: Inputs, posterior: Posterior) -> Inputs:
    """Inputs on the device and in the precision of the weights: Fabric converts only what goes into training."""
    weight = weight_like(posterior)
    return inputs.cast(x, weight.device, weight.dtype)


def _is_small(posterior: Posterior, device: torch.device) -> bool:
    """Whether one thread is fastest: a few dense layers on a CPU."""
    sizes = [parameter.numel() for parameter in posterior.parameters()]
    dense = not any(isinstance(layer, _ConvNd) for layer in posterior.modules())
    return device.type == "cpu" and dense and sum(sizes) < SMALL_NETWORK
