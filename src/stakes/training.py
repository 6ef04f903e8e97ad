"""Training: the only loop, for every posterior and every objective."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from stakes import seeds
from stakes.checkpoints import Epoch, History, TrainingState
from stakes.data.examples import Examples, as_examples
from stakes.decision import decide
from stakes.errors import StakesError
from stakes.metrics import utilities
from stakes.objectives import Objective
from stakes.posteriors.base import Posterior
from stakes.threads import one_thread
from stakes.utility import Utility

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SMALL_NETWORK = 1_000_000  # parameters

Data = Examples | Dataset[Any] | tuple[Tensor, ...]


@dataclass(frozen=True)
class Training:
    """How to train. Every method that is compared gets the same."""

    epochs: int = 100
    batch_size: int | None = None  # None: 32 to 256, by the number of examples
    learning_rate: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    patience: int | None = 20  # epochs without a better validation utility before stopping; None: never
    samples: int = 20  # draws with which validation is scored
    validate_every: int = 1  # epochs
    select: Literal["utility", "nll"] = "utility"  # what the best epoch has the highest, or the lowest, of
    checkpoint_seconds: float = 5.0  # how often, at most, a checkpoint is written

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "samples", "validate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise StakesError(f"expected {name} to be at least 1, but got {value}")
        if not 0 < self.learning_rate < math.inf:
            raise StakesError(f"expected a learning rate above 0, but got {self.learning_rate}")
        if self.schedule not in ("constant", "cosine"):
            raise StakesError(f"expected the schedule 'constant' or 'cosine', but got {self.schedule!r}")
        if self.select not in ("utility", "nll"):
            raise StakesError(f"expected to select by 'utility' or 'nll', but got {self.select!r}")

    def batch(self, examples: int) -> int:
        """The batch size: the one asked for, or a power of two near a 64th of the examples."""
        return self.batch_size or min(256, max(32, 2 ** round(math.log2(examples / 64 + 1))))

    def validates(self, number: int) -> bool:
        """Whether an epoch, counted from 1, is scored on validation; the last one always is."""
        return number % self.validate_every == 0 or number == self.epochs

    def factor(self, epoch: int) -> float:
        """What the learning rate is multiplied by in an epoch, counted from 0."""
        return 1.0 if self.schedule == "constant" else (1 + math.cos(math.pi * epoch / self.epochs)) / 2


def fit(
    posterior: Posterior,
    objective: Objective,
    train: Data,
    validation: Data | None = None,
    *,
    utility: Utility | None = None,
    config: Training = Training(),  # noqa: B008 (frozen)
    seed: int = 0,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: bool | Callable[[Epoch], None] = True,
    accelerator: str = "cpu",
    devices: int = 1,
    strategy: str = "auto",
    precision: Any = None,
) -> History:
    """Train ``posterior`` in place, and leave it with the weights of its best epoch, in eval mode.

    The best epoch is the one with the highest mean ``utility`` on ``validation`` under the optimal
    decision (or, if the config says so, the lowest NLL): the same rule for every objective. Without
    ``validation`` it is the last one.

    ``checkpoint`` is a file: with ``resume``, training goes on from it, to the same result as if it had
    never stopped. The last four arguments go to Lightning Fabric; a strategy has to keep a whole copy of
    the network on each device (``ddp`` does).
    """
    from lightning_fabric import Fabric  # takes two seconds, so it waits until there is something to train

    examples = as_examples(train)
    held_out = as_examples(validation) if validation is not None else None
    if held_out is not None and utility is None:
        raise StakesError("expected a utility to choose the best epoch on validation with: pass utility=")
    fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy, precision=precision)
    fabric.launch()
    make = optimizer or (lambda parameters: torch.optim.Adam(parameters, lr=config.learning_rate, fused=True))
    step, wrapped = fabric.setup(
        _Step(posterior, objective, examples), make([p for p in posterior.parameters() if p.requires_grad])
    )
    run = {**asdict(config), "seed": seed, "objective": type(objective).__name__, "examples": len(examples)}
    state = TrainingState(posterior, wrapped.optimizer, objective, run | {"posterior": posterior.spec()})
    history = History(select=config.select)
    if resume and checkpoint is not None and checkpoint.exists():
        history = state.load(checkpoint)
    threads = one_thread() if _is_small(posterior, fabric.device) else nullcontext()
    with threads, _reporter(progress if fabric.is_global_zero else False, config) as report:
        for number in range(len(history.epochs) + 1, config.epochs + 1):
            if history.stalled(config.patience):
                break
            with seeds.seeded(seed, "epoch", number, fabric.global_rank):
                loss = _train_epoch(fabric, step, wrapped, examples, config, number, seed)
            epoch = Epoch(number, loss)
            if held_out is not None and utility is not None and config.validates(number):
                value, nll = score(posterior, held_out, utility, config.samples, seed, config.batch(len(examples)))
                epoch = replace(epoch, utility=value, nll=nll)
            history = history.with_epoch(fabric.broadcast(epoch))
            state.keep_if_best(history)
            if checkpoint is not None and fabric.is_global_zero:
                state.save_if_due(checkpoint, history, config.checkpoint_seconds)
            report(epoch)
    state.restore_best()
    posterior.eval()
    return history


def _is_small(posterior: Posterior, device: torch.device) -> bool:
    """Whether more threads than one would only stand in each other's way: a few dense layers on a CPU."""
    sizes = [parameter.numel() for parameter in posterior.parameters()]
    dense = all(parameter.ndim <= 2 for parameter in posterior.parameters())
    return device.type == "cpu" and dense and sum(sizes) < SMALL_NETWORK


def score(
    posterior: Posterior, examples: Examples, utility: Utility, samples: int, seed: int, batch_size: int
) -> tuple[float, float]:
    """The mean utility of the optimal decisions, and the mean NLL of the observed labels, by example weight."""
    if utility.values.ndim == 3 and len(utility.values) != len(examples):
        raise StakesError(
            f"expected a utility table for each of the {len(examples)} validation examples, or one for all, "
            f"but got {len(utility.values)}: pass utility= for the validation examples"
        )
    draws = posterior.draw(samples, seeds.derive(seed, "score"))
    total, surprise, mass = 0.0, 0.0, 0.0
    for batch in examples.in_order(batch_size):
        own = utility.rows(batch.positions.numpy())
        probs = draws(batch.x).mean_probs()
        labels = batch.labels.to(probs.device)
        observed = posterior.likelihood.observed_log_probs(probs.clamp_min(1e-12).log()).detach()
        losses = -observed.gather(-1, labels.unsqueeze(-1)).squeeze(-1).cpu()
        worth = torch.from_numpy(utilities(decide(probs, own), batch.labels, own))
        weights = torch.ones(len(labels)) if batch.weights is None else batch.weights
        weights = weights.reshape(-1, *[1] * (labels.ndim - 1)).expand(labels.shape).double()
        total += float((weights * worth).sum())
        surprise += float((weights * losses).sum())
        mass += float(weights.sum())
    return total / mass, surprise / mass


class _Step(nn.Module):
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


def _train_epoch(
    fabric: "Fabric", step: Any, optimizer: Any, examples: Examples, config: Training, number: int, seed: int
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * config.factor(number - 1)
    order = _shard(len(examples), fabric.global_rank, fabric.world_size)
    size = config.batch(len(examples))
    step.objective.start_epoch(step.posterior, _inputs(fabric, examples, order, size))
    step.train()
    order = order[torch.randperm(len(order), generator=seeds.generator(seed, "order", number))]
    total, count = torch.zeros((), device=fabric.device), 0
    on_cpu = fabric.device.type == "cpu"  # then nothing has to move, and asking takes as long as a small layer
    for batch in examples.batches(order, size):
        positions, x, labels, weights = batch if on_cpu else fabric.to_device(batch)
        loss = step(x, labels, positions, weights)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach() * len(x)
        count += len(x)
    mean = float(total) / count
    if not math.isfinite(mean):
        raise StakesError(
            f"the loss became {mean} in epoch {number}: try a lower learning rate than {config.learning_rate}, "
            "and look for wild values in the inputs"
        )
    return mean


def _shard(count: int, rank: int, world: int) -> Tensor:
    """The positions that one process trains on: always the same, and equally many for each."""
    per_process = -(-count // world)
    return torch.arange(per_process * world)[rank::world] % count


def _inputs(fabric: "Fabric", examples: Examples, order: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in examples.batches(order, examples.block(batch_size)):
        yield batch.positions, fabric.to_device(batch.x)


@contextmanager
def _reporter(progress: bool | Callable[[Epoch], None], config: Training) -> Iterator[Callable[[Epoch], None]]:
    """Where epochs are reported to: the caller's function, a progress bar on a terminal, or nowhere."""
    if callable(progress):
        yield progress
    elif progress and sys.stderr.isatty():
        with epoch_bar(config.epochs) as report:
            yield report
    else:
        yield lambda epoch: None


@contextmanager
def epoch_bar(epochs: int) -> Iterator[Callable[[Epoch], None]]:
    """A Rich progress bar on stderr that is told about each epoch."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=epochs)

        def report(epoch: Epoch) -> None:
            worth = "" if epoch.utility is None else f"  utility {epoch.utility:.4g}"
            bar.update(task, completed=epoch.number, description=f"training  loss {epoch.loss:.4g}{worth}")

        yield report
