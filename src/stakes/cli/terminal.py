"""What the terminal shows: a comparison on stdout; progress on stderr, as bars on a terminal, else as lines."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TimeElapsedColumn
from rich.table import Table

from stakes.evaluation.comparison import Comparison
from stakes.report.words import RULE_NAMES, VERDICTS, Verdict, bracketed, interval, number, verdict
from stakes.tables.fit import Event, Listener
from stakes.tables.task import Fit, TableTask
from stakes.training.config import Epoch
from stakes.utility import Utility

_FULL_WIDTH = 150
_WORDS = {"found": "done before", "done": "done"}


def progress_bars(*columns: ProgressColumn | str) -> Progress:
    """Bars on stderr, which are shown on a terminal only."""
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


@contextmanager
def fits_progress(task: TableTask) -> Iterator[Listener]:
    """A bar for all fits and one for each that runs, above them a line for each finished one."""
    status = "{task.fields[status]}"
    progress = progress_bars("{task.description}", BarColumn(), status, TimeElapsedColumn())
    count = len(task.fits())
    total = progress.add_task("fits", total=count, status=f"0/{count}")
    bars: dict[Fit, Any] = {}

    def listener(fit: Fit, event: Event) -> None:
        progress.start()  # not before there is something to show: until then others write to stderr
        name = f"  {fit.model}, seed {fit.seed}"
        if event == "started":  # a model that reports no epochs keeps a bar without an end
            bars[fit] = progress.add_task(name, total=None, status="")
        elif isinstance(event, Epoch):
            status = f"epoch {event.number}" + ("" if event.utility is None else f", utility {event.utility:.4g}")
            epochs = task.recipe.training.epochs
            progress.update(bars[fit], total=epochs, completed=event.number, status=status)
        else:
            if fit in bars:
                progress.remove_task(bars.pop(fit))
            progress.console.print(f"{name}: {_WORDS[event]}", highlight=False, soft_wrap=True)
            progress.advance(total)
            progress.update(total, status=f"{progress.tasks[0].completed:.0f}/{count}")

    try:
        yield listener
    finally:
        progress.stop()


def print_comparison(comparison: Comparison, utility: Utility, console: Console) -> None:
    """A row for each model and rule, then which was chosen and why."""
    if not console.is_terminal:
        console.width = max(console.width, _FULL_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for heading in ("model", "decides by"):
        table.add_column(heading)
    unit, against = escape(bracketed(utility)), f"against {comparison.reference} (95 %)"
    for heading in ("utility (95 %)", f"cost{unit}", "accuracy", "NLL", "ECE", against):
        table.add_column(heading, justify="right", overflow="fold")
    for row in comparison.rows:
        table.add_row(
            row.model,
            RULE_NAMES[row.rule],
            interval(row.utility),
            number(row.cost),
            *(f"{value:.3f}" for value in (row.accuracy, row.nll, row.ece)),
            "" if row.difference is None else interval(row.difference, sign=True),
            style="bold" if comparison.is_chosen(row) else "",
        )
    console.print(table)
    chosen = f"[bold]{comparison.chosen}[/bold], deciding by {RULE_NAMES['optimal']}"
    console.print(f"\nChosen: {chosen}, {escape(comparison.why)}.", soft_wrap=True)
    console.print(verdicts(comparison), soft_wrap=True)


def verdicts(comparison: Comparison) -> str:
    """In words, which rows are beyond chance better or worse than the reference, and which are not."""
    groups: dict[Verdict, list[str]] = {kind: [] for kind in VERDICTS}
    for row in comparison.rows:
        if row.difference is not None:
            rule = "" if row.rule == "optimal" else f" ({RULE_NAMES[row.rule]})"
            groups[verdict(row.difference)].append(f"{row.model}{rule}")
    parts = [f"{VERDICTS[kind]}: {', '.join(names)}" for kind, names in groups.items() if names]
    return f"Against {comparison.reference}, deciding by {RULE_NAMES['optimal']}: {'; '.join(parts)}."
