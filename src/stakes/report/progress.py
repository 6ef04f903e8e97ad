"""The progress of many fits on the terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from stakes.tabular.fitting import Fit, TableTask
from stakes.training import Epoch


@contextmanager
def fits_progress(task: TableTask) -> Iterator[Callable[[Fit, Any], None]]:
    """A bar for each fit on a terminal, a line for each finished fit elsewhere; all on stderr."""
    if not sys.stderr.isatty():
        yield lambda fit, event: None if event else typer.echo(f"  {fit.model}, seed {fit.seed}: done", err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars: dict[Fit, Any] = {}

        def on_progress(fit: Fit, event: Epoch | None) -> None:
            name = f"{fit.model}, seed {fit.seed}"
            if fit not in bars:
                bars[fit] = progress.add_task(name, total=task.recipe.training.epochs)
            if event is None:
                progress.update(bars[fit], visible=False)
                progress.console.print(f"  {name}: done")
            else:
                progress.update(bars[fit], completed=event.number, description=f"{name}  utility {event.utility:.4g}")

        yield on_progress
