"""Training a posterior."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stakes.errors import StakesError
from stakes.objectives import Objective
from stakes.posteriors.base import Posterior
from stakes.training._checkpoint import Checkpoint, ModelState
from stakes.training._device import launch
from stakes.training._loop import TrainingLoop
from stakes.training.config import Epoch, History, Training
from stakes.training.examples import Data, as_examples
from stakes.utility import Utility


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
    checkpoint: str | os.PathLike[str] | None = None,
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
    ``validation`` it is the last one. After it, the posterior's own last step (`Posterior.finish`) is taken.

    ``objective`` is not changed: what it remembers belongs to the run. Learning rates are only changed with
    ``schedule="cosine"``, so that a scheduler of your own (stepped in ``progress``) is left alone: a function given as
    ``progress`` is called after each epoch in every process, the bar is shown by the first one. A network with batch
    norm skips an example, another in each epoch, if it would be alone in the last batch.

    ``checkpoint`` is a file: with ``resume``, training goes on from it, to the same result as if it had
    never stopped. The last four arguments go to Lightning Fabric; a strategy has to keep a whole copy of
    the network on each device (``ddp`` does).
    """
    if resume and checkpoint is None:
        raise StakesError("expected a file to resume from: pass checkpoint=")
    examples = as_examples(train)
    fabric = launch(accelerator, devices, strategy, precision)
    loop = TrainingLoop(fabric, posterior, objective, examples, config, seed, optimizer)
    held_out = None if validation is None else as_examples(validation)
    model = ModelState(posterior, examples, held_out, utility, seed, History(select=config.select))
    settings = {**asdict(config), "seed": seed, "objective": type(objective).__name__, "examples": len(examples)}
    settings["posterior"] = {"family": type(posterior).__qualname__, **posterior.settings()}
    settings["processes"] = fabric.world_size
    file = None if checkpoint is None else Checkpoint(Path(checkpoint), settings, config.checkpoint_seconds)
    if resume and file is not None and file.path.exists():
        file.load(model, loop.optimizer, loop.objective, fabric.global_rank)
    with _reporter(progress if callable(progress) or fabric.is_global_zero else False, config.epochs) as report:
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
