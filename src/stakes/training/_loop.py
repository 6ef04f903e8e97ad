"""The only training loop, for every posterior and every objective: one posterior, or a stack of them."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stakes import seeds
from stakes._io.threads import one_thread
from stakes.decisions import decide
from stakes.errors import StakesError
from stakes.objectives import Objective
from stakes.posteriors.base import Posterior
from stakes.training._checkpoint import TrainingState
from stakes.training.config import Epoch, History, Training
from stakes.training.examples import Examples
from stakes.utility import Utility

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from stakes.training._device import OneCPU

SMALL_NETWORK = 1_000_000  # parameters


@dataclass
class Trainee:
    """A posterior in training: where its epochs are scored, and what has come of them."""

    state: TrainingState
    held_out: Examples | None
    utility: Utility | None
    seed: int
    history: History

    def scored(self, epoch: Epoch, config: Training, batch_size: int) -> Epoch:
        if self.held_out is None or self.utility is None or not config.validates(epoch.number):
            return epoch
        value, nll = score(self.state.posterior, self.held_out, self.utility, config.samples, self.seed, batch_size)
        return replace(epoch, utility=value, nll=nll)

    def add(self, epoch: Epoch) -> None:
        self.history = self.history.with_epoch(epoch)
        self.state.keep_if_best(self.history)


class Course:
    """The loop: epochs of steps, each epoch scored; of one posterior, or of a stack of them."""

    def __init__(
        self,
        fabric: "OneCPU | Fabric",
        posterior: Posterior,
        objective: Objective,
        examples: Examples,
        config: Training,
        seed: int,
        make: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    ) -> None:
        self.fabric, self.examples, self.config, self.seed = fabric, examples, config, seed
        self.batch_size = config.batch(len(examples))
        parameters = [parameter for parameter in posterior.parameters() if parameter.requires_grad]
        self.optimizer = make(parameters) if make else torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
        self._losses = _BatchLoss(posterior, objective, examples)
        self._forward: nn.Module
        self._stepper: Optimizer
        self._forward, self._stepper = fabric.setup(self._losses, self.optimizer)

    def run(self, trainees: Sequence[Trainee], report: Callable[[Epoch], None], checkpoint: Path | None = None) -> None:
        posteriors = [trainee.state.posterior for trainee in trainees]
        with one_thread() if _is_small(posteriors[0], self.fabric.device) else nullcontext():
            for number in range(len(trainees[0].history.epochs) + 1, self.config.epochs + 1):
                learning = [one for one in trainees if not one.history.stalled(self.config.patience)]
                if not learning:
                    break
                with seeds.seeded(self.seed, "epoch", number, self.fabric.global_rank):
                    loss = self._epoch(number, len(trainees))
                for one in learning:
                    epoch = one.scored(Epoch(number, loss), self.config, self.batch_size)
                    one.add(self.fabric.broadcast(epoch))
                    if checkpoint is not None:
                        one.state.save_if_due(checkpoint, one.history, self.config.checkpoint_seconds)
                    report(epoch)
        for one in trainees:
            one.state.restore_best()
            one.state.posterior.eval()

    def _epoch(self, number: int, models: int) -> float:
        """One pass over the examples: the mean loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * self.config.factor(number - 1)
        order = _shard(len(self.examples), self.fabric.global_rank, self.fabric.world_size)
        self._losses.objective.start_epoch(self._losses.posterior, self._inputs(order))
        self._losses.train()
        order = order[torch.randperm(len(order), generator=seeds.generator(self.seed, "order", number))]
        self._stepper.zero_grad()  # of gradients from elsewhere
        total, count = torch.zeros((), device=self.fabric.device), 0
        # The loss is a mean over the models of a stack, but each takes the step that is its own.
        scale = None if models == 1 else torch.tensor(float(models), device=self.fabric.device)
        for batch in self.examples.batches(order, self.batch_size):
            positions, x, labels, weights = self.fabric.to_device(batch)
            loss = self._forward(x, labels, positions, weights)
            self.fabric.backward(loss, scale)
            self._stepper.step()
            self._stepper.zero_grad()
            total.add_(loss.detach(), alpha=len(x))
            count += len(x)
        mean = float(total) / count
        if not math.isfinite(mean):
            raise StakesError(
                f"the loss became {mean} in epoch {number}: try a lower learning rate than "
                f"{self.config.learning_rate}, and look for wild values in the inputs"
            )
        return mean

    def _inputs(self, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.examples.batches(order, self.examples.block(self.batch_size)):
            yield batch.positions, _in_precision_of(self._losses.posterior, self.fabric.to_device(batch.x))


def score(
    posterior: Posterior, examples: Examples, utility: Utility, samples: int, seed: int, batch_size: int
) -> tuple[float, float | None]:
    """The mean utility of the optimal decisions, and the mean NLL of the observed labels, by example weight."""
    utility.require_examples(len(examples))
    draws = posterior.draw(samples, seeds.derive(seed, "score"))
    total, surprise, mass = 0.0, 0.0, 0.0
    for batch in examples.in_order(batch_size):
        utility_of_batch = utility.rows(batch.positions)
        outcomes = draws(batch.x).mixture()
        labels = batch.labels.to(outcomes.weights.device)
        log_prob = posterior.likelihood.mixture_log_prob(outcomes, labels)
        choice = decide(outcomes, utility_of_batch).choice
        worth = torch.from_numpy(utility_of_batch.realised(choice.cpu(), batch.labels.cpu()))
        weights = torch.ones(len(labels)) if batch.weights is None else batch.weights
        weights = weights.reshape(-1, *[1] * (labels.ndim - 1)).expand(labels.shape).double()
        total += float((weights * worth).sum())
        surprise += math.nan if log_prob is None else -float((weights * log_prob.detach().cpu()).sum())
        mass += float(weights.sum())
    return total / mass, None if math.isnan(surprise) else surprise / mass


class _BatchLoss(nn.Module):
    """The loss of a batch as one module, so that Fabric's strategies see a single forward pass."""

    def __init__(self, posterior: Posterior, objective: Objective, examples: Examples) -> None:
        super().__init__()
        self.posterior = posterior
        self.objective = objective
        self.labels = len(examples)

    def forward(self, x: Tensor, labels: Tensor, index: Tensor, weights: Tensor | None) -> Tensor:
        loss = self.objective(self.posterior, x, labels, index=index, weights=weights)
        # An image has a label for every pixel, so the bound is over all labels, and so is its KL.
        return loss + self.posterior.kl() / (self.labels * labels[0].numel())


def _in_precision_of(posterior: Posterior, x: Tensor) -> Tensor:
    """Inputs in the precision of the weights: Fabric may have changed it, and converts only what goes into training."""
    weight = next(posterior.parameters(), x)
    return x.to(weight.dtype) if x.is_floating_point() else x


def _is_small(posterior: Posterior, device: torch.device) -> bool:
    """Whether more threads than one would only stand in each other's way: a few dense layers on a CPU."""
    sizes = [parameter.numel() for parameter in posterior.parameters()]
    dense = all(parameter.ndim <= 2 for parameter in posterior.parameters())
    return device.type == "cpu" and dense and sum(sizes) < SMALL_NETWORK


def _shard(count: int, rank: int, world: int) -> Tensor:
    """The positions that one process trains on: always the same, and equally many for each."""
    per_process = -(-count // world)
    return torch.arange(per_process * world)[rank::world] % count
