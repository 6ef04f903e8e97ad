"""A comparison on the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stakes.evaluation.comparison import Comparison
from stakes.report.words import RULE_NAMES, VERDICTS, Verdict, bracketed, interval, number, verdict
from stakes.utility import Utility

_FULL_WIDTH = 150


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
    parts = [f"{VERDICTS[kind].label}: {', '.join(names)}" for kind, names in groups.items() if names]
    return f"Against {comparison.reference}, deciding by {RULE_NAMES['optimal']}: {'; '.join(parts)}."
