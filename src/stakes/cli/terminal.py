"""What the terminal shows: a comparison on stdout; progress on stderr, as bars on a terminal, else as lines."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TimeElapsedColumn
from rich.table import Table

from stakes.evaluation.comparison import Comparison, Row
from stakes.report.words import (
    RULE_NAMES,
    VERDICTS,
    Verdict,
    bracketed,
    chosen_because,
    cost_difference,
    cost_interval,
    interval,
    verdict,
)
from stakes.tables.fit import Event, Fit
from stakes.tables.prepare import ALL
from stakes.training.config import Epoch
from stakes.utility import Utility

_FULL_WIDTH = 150
_WORDS = {"found": "done before", "done": "done"}


def progress_bars(*columns: ProgressColumn | str) -> Progress:
    """Bars on stderr, which are shown on a terminal only."""
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


class FitsProgress:
    """A bar for all fits and one for each that runs; a line for each finished one, with an estimate of what is left."""

    def __init__(self, epochs: int) -> None:
        self._bars = progress_bars("{task.description}", BarColumn(), "{task.fields[status]}", TimeElapsedColumn())
        self._epochs, self._running = epochs, dict[Fit, Any]()
        self._total = self._bars.add_task("fits", status="")
        self._planned = self._done = self._started = 0.0
        self._divisions = 1

    def plan(self, fits: Sequence[Fit]) -> None:
        self._planned, self._started = sum(fit.effort for fit in fits), time.monotonic()
        self._divisions = len({fit.division for fit in fits})
        self._bars.update(self._total, total=self._planned)

    def __call__(self, fit: Fit, event: Event) -> None:
        self._bars.start()  # not before there is something to show: until then others write to stderr
        folds = f"fold {fit.folds[0] + 1}" if len(fit.folds) == 1 else f"{len(fit.folds)} folds"
        division = (
            "" if self._divisions == 1 else ", all rows" if fit.division == ALL else f", test part {fit.division}"
        )
        name = f"  {fit.model}, {folds}{division}, seed {fit.seed}"
        if event == "started":  # a model that reports no epochs keeps a bar without an end
            self._running[fit] = self._bars.add_task(name, total=None, status="")
        elif isinstance(event, Epoch):
            status = f"epoch {event.number}" + ("" if event.nll is None else f", log-loss {event.nll:.4g}")
            self._bars.update(self._running[fit], total=self._epochs, completed=event.number, status=status)
        else:
            if fit in self._running:
                self._bars.remove_task(self._running.pop(fit))
            if event == "found":
                self._planned -= fit.effort
            else:
                self._done += fit.effort
            self._bars.update(self._total, total=self._planned, completed=self._done, status=self._left())
            self._bars.console.print(f"{name}: {_WORDS[event]}{self._left()}", highlight=False, soft_wrap=True)

    def _left(self) -> str:
        """An estimate, from the efforts of the fits that are done and those that are not."""
        if not self._done or self._done >= self._planned:
            return ""
        seconds = (time.monotonic() - self._started) * (self._planned - self._done) / self._done
        return f", about {seconds / 60:.0f} min left" if seconds > 90 else f", about {math.ceil(seconds)} s left"

    def stop(self) -> None:
        self._bars.stop()


@contextmanager
def fits_progress(epochs: int) -> Iterator[FitsProgress]:
    progress = FitsProgress(epochs)
    try:
        yield progress
    finally:
        progress.stop()


def print_comparison(comparison: Comparison, utility: Utility, console: Console) -> None:
    """A row for each model and rule, then which was chosen and why."""
    if not console.is_terminal:
        console.width = max(console.width, _FULL_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for heading in ("model", "decides by"):
        table.add_column(heading)
    unit = escape(bracketed(utility))
    headings = (
        f"cost{unit} (95 %)",
        f"against {comparison.reference} (95 %)",
        "against the best other (95 %)",
        "log-loss",
    )
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for row in _shown(comparison):
        table.add_row(
            row.model,
            RULE_NAMES[row.rule],
            interval(cost_interval(row.utility, utility)),
            *(
                "" if each is None else interval(cost_difference(each, utility), sign=True)
                for each in (row.difference, row.lead)
            ),
            f"{row.nll:.3f}",
            style="bold" if comparison.is_chosen(row) else "",
        )
    console.print(table)
    because = escape(chosen_because(comparison, utility))
    console.print(f"\nChosen: [bold]{comparison.chosen}[/bold], {because}.", soft_wrap=True)
    console.print(verdicts(comparison), soft_wrap=True)


def _shown(comparison: Comparison) -> list[Row]:
    """All rows but that of the most frequent outcome for everybody: nobody would decide so."""
    return [row for row in comparison.rows if (row.model, row.rule) != ("constant", "argmax")]


def verdicts(comparison: Comparison) -> str:
    """In words, which rows are beyond chance better or worse than the reference, and which are not."""
    groups: dict[Verdict, list[str]] = {kind: [] for kind in VERDICTS}
    for row in _shown(comparison):
        if row.difference is not None:
            rule = "" if row.rule == "optimal" else f" ({RULE_NAMES[row.rule]})"
            groups[verdict(row.difference)].append(f"{row.model}{rule}")
    parts = [f"{VERDICTS[kind]}: {', '.join(names)}" for kind, names in groups.items() if names]
    return f"Against {comparison.reference}, deciding by {RULE_NAMES['optimal']}: {'; '.join(parts)}."
