"""Training a posterior, or several small ones together."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from stakes import seeds
from stakes.errors import StakesError
from stakes.objectives import Objective
from stakes.posteriors.base import Posterior
from stakes.training._checkpoint import TrainingState
from stakes.training._device import OneCPU, launched
from stakes.training._loop import Course, Trainee
from stakes.training.config import Epoch, History, Training
from stakes.training.examples import Examples, StackedExamples, TensorExamples, as_examples
from stakes.training.stacked import Stack
from stakes.utility import Utility

Data = Examples | Dataset[Any] | tuple[Tensor, ...]


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
    examples = as_examples(train)
    held_out = as_examples(validation) if validation is not None else None
    _require_utility(held_out is not None, utility)
    fabric = launched(accelerator, devices, strategy, precision)
    course = Course(fabric, posterior, objective, examples, config, seed, optimizer)
    run = {**asdict(config), "seed": seed, "objective": type(objective).__name__, "examples": len(examples)}
    run["posterior"] = {"family": type(posterior).__qualname__, **posterior.settings()}
    state = TrainingState(
        posterior,
        course.optimizer,
        objective,
        run,
    )
    trainee = Trainee(state, held_out, utility, seed, History(select=config.select))
    if resume and checkpoint is not None and checkpoint.exists():
        trainee.history = state.load(checkpoint)
    with _reporter(progress if fabric.is_global_zero else False, config) as report:
        course.run([trainee], report, checkpoint if fabric.is_global_zero else None)
    return trainee.history


def fit_together(
    posteriors: Sequence[Posterior],
    objective: Objective,
    trains: Sequence[TensorExamples],
    validations: Sequence[Examples] | None = None,
    *,
    utility: Utility | None = None,
    config: Training = Training(),  # noqa: B008 (frozen)
    seeds_of: Sequence[int],
    progress: Callable[[Epoch], None] = lambda epoch: None,
) -> list[History]:
    """Train small networks of one kind as one (`posteriors.stack`): each as `fit` would, in a fraction of the time.

    Each has its own seed, training set (equally many examples) and validation set, and keeps its own best epoch.
    The reported loss is the mean over all. The answer differs from `fit`'s only in the random numbers.
    """
    _require_utility(validations is not None, utility)
    counts = [len(posteriors), len(trains), len(seeds_of), len(posteriors if validations is None else validations)]
    if len(set(counts)) != 1 or not posteriors:
        raise StakesError(f"expected as many sets of examples and seeds as posteriors, but got {counts}")
    seed = seeds.derive(seeds_of[0], "together", *seeds_of)
    orders = [torch.randperm(len(trains[0]), generator=seeds.generator(own, "rows")) for own in seeds_of]
    examples = StackedExamples(trains, orders)
    stack = Stack(posteriors)
    course = Course(OneCPU(), stack, objective, examples, config, seed)
    held_out: Sequence[Examples | None] = validations or [None] * len(posteriors)
    trainees = []
    for posterior, held, own in zip(posteriors, held_out, seeds_of, strict=True):
        state = TrainingState(posterior, course.optimizer, objective, {})
        trainees.append(Trainee(state, held, utility, own, History(select=config.select)))
    course.run(trainees, progress)
    return [trainee.history for trainee in trainees]


def _require_utility(validated: bool, utility: Utility | None) -> None:
    if validated and utility is None:
        raise StakesError("expected a utility to choose the best epoch on validation with: pass utility=")


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
