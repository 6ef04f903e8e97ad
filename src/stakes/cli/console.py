"""A comparison on the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stakes.evaluation.comparison import Comparison, Row
from stakes.evaluation.metrics import Interval
from stakes.utility import Utility

_FULL_WIDTH = 130


def print_comparison(comparison: Comparison, utility: Utility, console: Console) -> None:
    """A row for each model and rule, then which was chosen and why."""
    unit = escape(f" [{utility.unit}]") if utility.unit else ""
    reference = f"{comparison.reference}, optimal"
    if not console.is_terminal:
        console.width = max(console.width, _FULL_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for heading in ("model", "decisions"):
        table.add_column(heading)
    for heading in ("utility (95 %)", f"cost{unit}", "accuracy", "NLL", "ECE", f"against {reference} (95 %)"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in comparison.rows:
        chosen = row.model == comparison.chosen and row.rule == "optimal"
        table.add_row(*_cells(row), style="bold" if chosen else "")
    console.print(table)
    console.print(
        f"\nChosen: [bold]{comparison.chosen}[/bold] with optimal decisions, {escape(comparison.why)}.", soft_wrap=True
    )
    console.print(verdict(comparison), soft_wrap=True)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.model,
        row.rule,
        interval(row.utility),
        f"{row.cost:.4g}",
        f"{row.accuracy:.3f}",
        f"{row.nll:.3f}",
        f"{row.ece:.3f}",
        "" if row.difference is None else interval(row.difference, sign=True),
    )


def interval(value: Interval, sign: bool = False) -> str:
    """``-12.3 (-14 to -11)``."""
    mean = f"{value.mean:+.4g}" if sign else f"{value.mean:.4g}"
    return f"{mean} ({value.low:.4g} to {value.high:.4g})"


def verdict(comparison: Comparison) -> str:
    """In words, which rows are beyond chance better or worse than the reference, and which are not."""
    groups: dict[str, list[str]] = {"worth more": [], "worth less": [], "not told apart by this test set": []}
    more, less, unclear = groups.values()
    for row in comparison.rows:
        if row.difference is not None:
            group = more if row.difference.low > 0 else less if row.difference.high < 0 else unclear
            group.append(row.model if row.rule == "optimal" else f"{row.model} (argmax)")
    parts = [f"{what}: {', '.join(names)}" for what, names in groups.items() if names]
    return f"Against {comparison.reference} with optimal decisions: {'; '.join(parts)}."
