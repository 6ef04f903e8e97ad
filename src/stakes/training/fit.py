"""Training a posterior."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stakes._io.memory import keep_freed_memory
from stakes.errors import StakesError
from stakes.objectives import Objective
from stakes.posteriors.base import Posterior
from stakes.training._checkpoint import Checkpoint, ModelState
from stakes.training._device import launch
from stakes.training._loop import TrainingLoop
from stakes.training._steps import MakeOptimizer, MakeScheduler
from stakes.training.config import Epoch, History, Step, Training
from stakes.training.examples import Examples
from stakes.training.loaders import Data, as_examples
from stakes.utility import Utility

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from stakes.training._device import OneCPU


def fit(
    posterior: Posterior,
    objective: Objective,
    train: Data,
    validation: Data | None = None,
    *,
    utility: Utility | None = None,
    config: Training = Training(),  # noqa: B008 (frozen)
    seed: int = 0,
    examples: int | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | Callable[[Epoch], None] = True,
    on_step: Callable[[Step], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    accelerator: str = "cpu",
    devices: int = 1,
    strategy: str = "auto",
    precision: Any = None,
) -> History:
    """Train ``posterior`` in place, and leave it with the weights of its best epoch, in eval mode.

    ``train`` and ``validation`` are ``(x, labels)`` or ``(x, labels, weights)``, a `Dataset`, or a `DataLoader`, whose
    sampler then chooses the batches, over a map-style or an iterable dataset. ``x`` is a tensor, or a tuple or dict of
    tensors; items of datasets are tuples like these, or dicts with ``labels``. ``examples`` is the number of
    training examples, by which the KL is divided, where an iterable dataset has no length.

    The best epoch is the one with the highest mean ``utility`` on ``validation`` under the optimal
    decision (or, if the config says so, the lowest NLL): the same rule for every objective. Without
    ``validation`` it is the last one. After it, the posterior's own last step (`Posterior.finish`) is taken.

    ``objective`` is not changed: what it remembers belongs to the run. ``optimizer`` makes one of the parameters,
    ``scheduler`` one of that optimizer: it takes a step after each epoch, or after each step with
    ``Training(schedule_by="step")``. Without it, learning rates are only changed with ``schedule="cosine"``. A network
    with batch norm skips an example, another in each epoch, if it would be alone in the last batch.

    ``on_step`` and ``on_epoch`` are called after each `Step` of the optimizer and each `Epoch`, in the first process
    only. A function given as ``progress`` is called after each epoch in every process, in place of the bar.

    ``checkpoint`` is a file: with ``resume``, training goes on from it, to the same result as if it had
    never stopped, also with more epochs than it was begun with. The last four arguments go to Lightning Fabric; a
    strategy has to keep a whole copy of the network on each device (``ddp``, ``ddp_spawn`` and ``ddp_notebook`` do).
    With those that start processes from this one, functions given to `fit` are called in these.
    """
    if resume and checkpoint is None:
        raise StakesError("expected a file to resume from: pass checkpoint=")
    run = partial(
        _train,
        objective=objective,
        train=as_examples(train, examples),
        validation=None if validation is None else as_examples(validation),
        utility=utility,
        config=config,
        seed=seed,
        optimizer=optimizer,
        scheduler=scheduler,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        resume=resume,
        progress=progress,
        on_step=on_step,
        on_epoch=on_epoch,
    )
    return launch(run, posterior, accelerator, devices, strategy, precision)


def _train(
    fabric: "OneCPU | Fabric",
    posterior: Posterior,
    *,
    objective: Objective,
    train: Examples,
    validation: Examples | None,
    utility: Utility | None,
    config: Training,
    seed: int,
    optimizer: MakeOptimizer | None,
    scheduler: MakeScheduler | None,
    checkpoint: Path | None,
    resume: bool,
    progress: bool | Callable[[Epoch], None],
    on_step: Callable[[Step], None] | None,
    on_epoch: Callable[[Epoch], None] | None,
) -> History:
    """What each process of `fit` does."""
    keep_freed_memory()
    loop = TrainingLoop(fabric, posterior, objective, train, config, seed, optimizer, scheduler, on_step)
    model = ModelState(posterior, train, validation, utility, seed, History(select=config.select))
    file = None
    if checkpoint is not None:
        made = loop.steps.optimizer
        settings = {**asdict(config), "seed": seed, "objective": objective.settings(), "examples": len(train)}
        settings["posterior"] = {"family": type(posterior).__qualname__, **posterior.settings()}
        settings["optimizer"] = {
            "kind": type(made).__name__,
            **{key: str(value) for key, value in made.defaults.items()},
        }
        settings["validation"] = None
        if validation is not None and utility is not None:
            examples = len(validation) if validation.indexed else None  # a stream need not know how many it has
            settings["validation"] = {"examples": examples, "utility": utility.digest()}
        settings["processes"] = fabric.world_size
        file = Checkpoint(checkpoint, settings, config.checkpoint_seconds)
    if resume and file is not None and file.path.exists():
        loop.steps.load_state(file.load(model, loop.steps.optimizer, loop.objective, fabric.global_rank))
    with _reporter(progress if callable(progress) or fabric.is_global_zero else False, config.epochs) as show:

        def report(epoch: Epoch) -> None:
            show(epoch)
            if on_epoch is not None and fabric.is_global_zero:
                on_epoch(epoch)

        loop.run([model], report, file)
    return model.history


@contextmanager
def _reporter(progress: bool | Callable[[Epoch], None], epochs: int) -> Iterator[Callable[[Epoch], None]]:
    """The function that epochs are reported to: the caller's, or a progress bar if stderr is a terminal."""
    if callable(progress) or not (progress and sys.stderr.isatty()):
        yield progress if callable(progress) else lambda epoch: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=epochs)

        def report(epoch: Epoch) -> None:
            utility = "" if epoch.utility is None else f"  utility {epoch.utility:.4g}"
            bar.update(task, completed=epoch.number, description=f"training  loss {epoch.loss:.4g}{utility}")

        yield report
