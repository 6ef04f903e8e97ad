"""What the terminal shows: the answer on stdout; progress on stderr, as bars on a terminal, else as lines."""

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

from stakes.evaluation.metrics import Interval
from stakes.report.alternatives import chosen_because
from stakes.report.amounts import AmountFormat
from stakes.report.caveats import of_data, of_test_rows
from stakes.report.decided import thresholds
from stakes.report.headline import Headline, headline
from stakes.report.numbers import headline as amount_headline
from stakes.report.numbers.claims import covered_sentence
from stakes.report.words import number, share, verdict
from stakes.tables.amounts.run import AmountRun
from stakes.tables.fit import Event, FitJob
from stakes.tables.prepare import ALL
from stakes.tables.run import FinishedRun, Run
from stakes.training.config import Epoch

_FULL_WIDTH = 150
_WORDS = {"cached": "done before", "done": "done"}


def progress_bars(*columns: ProgressColumn | str) -> Progress:
    """Bars on stderr, which are shown on a terminal only."""
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


class FitsProgress:
    """A bar for all fits and one for each that runs; a line for each finished one, with an estimate of what is left."""

    def __init__(self, epochs: int) -> None:
        self._bars = progress_bars("{task.description}", BarColumn(), "{task.fields[status]}", TimeElapsedColumn())
        self._epochs, self._running = epochs, dict[FitJob, Any]()
        self._total = self._bars.add_task("fits", status="")
        self._planned = self._done = self._started = 0.0
        self._divisions = 1

    def plan(self, fits: Sequence[FitJob]) -> None:
        self._planned, self._started = sum(fit.effort for fit in fits), time.monotonic()
        self._divisions = len({fit.division for fit in fits})
        self._bars.update(self._total, total=self._planned)

    def __call__(self, fit: FitJob, event: Event) -> None:
        self._bars.start()  # not before there is something to show: until then others write to stderr
        folds = f"fold {fit.folds[0] + 1}" if len(fit.folds) == 1 else f"{len(fit.folds)} trainings"
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
            if event == "cached":
                self._planned -= fit.effort
            else:
                self._done += fit.effort
            self._bars.update(self._total, total=self._planned, completed=self._done, status=self._left())
            self._bars.console.print(f"{name}: {_WORDS[event]}{self._left()}", highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, soft_wrap=True)

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


def print_run(run: FinishedRun, console: Console) -> None:
    """The answer in sentences, what to know before relying on it, and a row for each model."""
    if not console.is_terminal:
        console.width = max(console.width, _FULL_WIDTH)
    if isinstance(run, AmountRun):
        _print_amounts(run, console)
    elif isinstance(run, Run):
        _print_classes(run, console)


def _print_amounts(run: AmountRun, console: Console) -> None:
    sentences = (amount_headline.rule(run), covered_sentence(run))
    _print_answer(amount_headline.headline(run), sentences, console)
    console.print(_amounts_table(run))
    _print_choice(run, amount_headline.of_test_rows(run), console)


def _amounts_table(run: AmountRun) -> Table:
    amounts = AmountFormat.of(run.utility)
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("model")
    for heading in ("cost (95 %)", "against the same every time (95 %)", "claimed", "at or below", "in 80 %", "CRPS"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in run.comparison.rows:
        saving = row.saving
        table.add_row(
            row.model,
            escape(amounts.interval(row.cost)),
            "" if saving is None else escape(f"{amounts.difference(saving)} ({amounts.range(saving)})"),
            escape(amounts.text(row.claimed_cost, amounts.digits(row.cost))),
            "" if row.covered is None else share(row.covered),
            share(row.within_80),
            number(row.crps),
            style="bold" if row.model == run.comparison.chosen else "",
        )
    return table


def _print_classes(run: Run, console: Console) -> None:
    _print_answer(headline(run), (thresholds(run),), console)
    console.print(_table(run))
    _print_choice(run, of_test_rows(run), console)


def _print_answer(answer: Headline, more: Sequence[str | None], console: Console) -> None:
    console.print(f"[bold]{escape(answer.sentence)}[/bold]", soft_wrap=True, highlight=False)
    for sentence in (answer.judgement, *answer.others, *more):
        if sentence:
            console.print(escape(sentence), soft_wrap=True, highlight=False)
    console.print()


def _print_choice(run: FinishedRun, notes: Sequence[str], console: Console) -> None:
    because = escape(chosen_because(run))
    console.print(f"\nChosen: [bold]{run.comparison.chosen}[/bold], {because}", soft_wrap=True, highlight=False)
    for sentence in (*notes, *of_data(run)):  # how close the choice was stands in the line above
        console.print(f"Note: {escape(sentence)}", soft_wrap=True, highlight=False)


def _table(run: Run) -> Table:
    comparison, amounts = run.comparison, AmountFormat.of(run.utility)
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for heading in ("model", "decides by"):
        table.add_column(heading)
    reference = "one decision for everybody" if comparison.reference == "constant" else comparison.reference
    for heading in (f"{amounts.noun} (95 %)", f"against {reference} (95 %)", "log-loss"):
        table.add_column(escape(heading), justify="right", overflow="fold")
    for row in comparison.rows:
        if row.model == "constant" and row.rule == "argmax":  # the most frequent outcome: nobody would decide so
            continue
        gain = None if row.difference is None else amounts.gain(row.difference)
        table.add_row(
            row.model,
            amounts.rule_names[row.rule],
            escape(amounts.interval(amounts.level(row.utility))),
            "" if gain is None else escape(_against(gain, amounts)),
            f"{row.nll:.3f}",
            style="bold" if comparison.is_chosen(row) else "",
        )
    return table


def _against(gain: Interval, amounts: AmountFormat) -> str:
    """``£6.90 less (£4.10 to £9.70 less)``, or that there is no difference."""
    difference = amounts.difference(gain)
    return difference if verdict(gain) == "same" else f"{difference} ({amounts.range(gain)})"
