"""The progress of long work on stderr: something that moves on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from stakes.tables.fit import Event, Listener
from stakes.tables.task import Fit, TableTask
from stakes.training.config import Epoch

_WORDS = {"found": "done before", "done": "done"}


@contextmanager
def fits_progress(task: TableTask) -> Iterator[Listener]:
    """A bar for all fits and one for each that runs, above them a line for each finished one."""
    if sys.stderr.isatty():
        with _bars(task) as listener:
            yield listener
    else:
        yield _line


def _line(fit: Fit, event: Event) -> None:
    if isinstance(event, str) and event in _WORDS:
        typer.echo(f"  {_name(fit)}: {_WORDS[event]}", err=True)


@contextmanager
def _bars(task: TableTask) -> Iterator[Listener]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    count = len(task.fits())
    total = progress.add_task("fits", total=count, status=f"0/{count}")
    bars: dict[Fit, Any] = {}

    def listener(fit: Fit, event: Event) -> None:
        progress.start()  # not before there is something to show: until then others write to stderr
        if event == "started":  # a model that reports no epochs keeps a bar without an end
            bars[fit] = progress.add_task(f"  {_name(fit)}", total=None, status="")
        elif isinstance(event, Epoch):
            status = f"epoch {event.number}" + ("" if event.utility is None else f", utility {event.utility:.4g}")
            epochs = task.recipe.training.epochs
            progress.update(bars[fit], total=epochs, completed=event.number, status=status)
        else:
            if fit in bars:
                progress.remove_task(bars.pop(fit))
            progress.console.print(f"  {_name(fit)}: {_WORDS[event]}", highlight=False)
            progress.advance(total)
            progress.update(total, status=f"{progress.tasks[0].completed:.0f}/{count}")

    try:
        yield listener
    finally:
        progress.stop()


@contextmanager
def counter(what: str) -> Iterator[Callable[[int], None]]:
    """A running count, where somebody may be watching."""
    total = 0

    def count(more: int) -> None:
        nonlocal total
        total += more
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{total} {what}")
            sys.stderr.flush()

    try:
        yield count
    finally:
        if total and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")


def _name(fit: Fit) -> str:
    return f"{fit.model}, seed {fit.seed}"
