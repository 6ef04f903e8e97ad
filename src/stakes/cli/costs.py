"""``stakes costs``: make and check tables of costs."""

import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stakes.errors import StakesError, StakesWarning, listing

if TYPE_CHECKING:
    from stakes.utility import CurveUtility, FormulaUtility, TableUtility

FIRST_ROWS = 3

costs_app = typer.Typer(help="Make and check tables of costs.")


@costs_app.command("new")
def costs_new(
    outcomes: Annotated[str, typer.Option(metavar="NAMES", help="What can be true: healthy,mild,severe.")],
    decisions: Annotated[
        str, typer.Option(metavar="NAMES", help="What can be done: treat,refer.", show_default="the outcomes")
    ] = "",
    unit: Annotated[str, typer.Option(help="Unit of the costs: £, minutes, ...")] = "",
    out: Annotated[Path, typer.Option(help="Where to write.")] = Path("costs.csv"),
) -> None:
    """Write a table of costs to fill in."""
    from stakes.tables.task import split
    from stakes.utility.csv import write_template

    if out.exists():
        raise StakesError(f"{out}: exists already; remove it, or choose another --out")
    names = split(outcomes)
    write_template(out, names, split(decisions) or names, unit)
    typer.echo(
        f"{out}: fill in what each decision (row) costs under each outcome (column), a number or a formula over "
        f"columns of your data such as =0.45 * amount + 20, then: stakes costs check {shlex.quote(str(out))}"
    )


@costs_app.command("check")
def costs_check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table of costs.")],
    unit: Annotated[str | None, typer.Option(help="Unit of the costs, if the file does not say.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE",
            help="CSV or Parquet: what formulas such as =0.45 * amount come to, and whether the names are its own.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column of --data with the outcome, to compare the names with."),
    ] = None,
    labels: Annotated[
        str, typer.Option(help="Names for values of the target, as for `stakes fit`: 0=repaid,1=defaulted.")
    ] = "",
) -> None:
    """Print a table of costs, its utility form, and what looks like a mistake in it."""
    from stakes.report.amounts import AmountFormat
    from stakes.tables.task import renames
    from stakes.utility import CurveUtility, FormulaUtility, Utility

    if labels and target is None:
        raise StakesError("--labels: expected the column that they are for, but there is none; name it with --target")
    if target is not None and data is None:
        raise StakesError("--target: expected a table with this column, but there is none; give it with --data")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StakesWarning)  # they are printed below, as the answer
        utility = Utility.from_csv(file, unit=unit)
    if isinstance(utility, CurveUtility):
        typer.echo(_of_curves(utility))
        return
    heading = f"Cost{AmountFormat.of(utility).bracketed}: rows are decisions, columns are outcomes"
    problems = [] if data is None else _names_unlike(utility, data, target, renames(labels))
    if isinstance(utility, FormulaUtility):
        shown = "Give a table with --data to see what they come to." if data is None else _of_rows(utility, data)
        typer.echo(
            f"{heading}\n{utility}\n\nThey depend on the row, by the columns {listing(utility.columns)}.\n{shown}"
        )
        for message in problems:
            typer.echo(f"warning: {message}")
        return
    typer.echo(f"{heading}\n{utility.format(utility.costs)}\n")
    typer.echo(f"Utility: higher is better\n{utility}\n")
    problems = [*utility.warnings(), *problems]
    for message in problems:
        typer.echo(f"warning: {message}")
    if not problems:
        typer.echo("No warnings.")
    if data is not None:
        typer.echo(f"The costs are the same for every row of {data}.")


def _names_unlike(
    utility: "TableUtility | FormulaUtility", data: Path, target: str | None, labels: Mapping[str, str]
) -> list[str]:
    """What is to be said of outcomes that are not those of a table, or are its decisions."""
    from pandas.api.types import is_string_dtype

    from stakes.tables.labelled import require_columns
    from stakes.tables.read import read_table
    from stakes.tables.values import text_codes
    from stakes.utility.checks import swapped

    frame = read_table(data)
    messages = []
    for name in frame.columns if target is None else require_columns(data, [target], frame):
        if target is None and not is_string_dtype(frame[name]):
            continue
        texts = {labels.get(text, text) for text in text_codes(frame[name])[1] if text is not None}
        if message := swapped(texts, utility.decisions, utility.outcomes):
            messages.append(f"column {name!r}: {message}")
        elif target is not None and not texts <= set(utility.outcomes):
            messages.append(
                f"column {name!r} has {listing(sorted(texts - set(utility.outcomes)))}, but the outcomes of the costs "
                f"are {listing(utility.outcomes)}: name the values with --labels, or correct the costs"
            )
    return messages


def _of_curves(utility: "CurveUtility") -> str:
    """The cost of each action at the points of all curves, and warnings about actions that are never best."""
    from stakes.report.amounts import AmountFormat
    from stakes.utility.checks import never_best
    from stakes.utility.table import aligned

    points, costs = utility.at_points()
    cells = [[f"{cost:.6g}" for cost in row] for row in costs.tolist()]
    header = [f"{point:.6g}" for point in points.tolist()]
    bracketed = AmountFormat.of(utility).bracketed
    lines = [f"Cost{bracketed}: rows are actions, columns are outcomes, at and between which costs are known"]
    lines += [aligned(cells, utility.decisions, header), ""]
    # Between these points all curves are straight: no other outcomes need to be looked at.
    problems = [f"warning: {message}" for message in never_best(-costs, utility.decisions)]
    return "\n".join(lines + (problems or ["No warnings."]))


def _of_rows(utility: "FormulaUtility", data: Path) -> str:
    """What formulas come to in a table: the range of each cell, and the costs of the first rows."""
    from stakes.tables.formats import Formats, decimal_mark
    from stakes.tables.read import read_table
    from stakes.tables.values import utility_of_rows
    from stakes.utility.table import aligned

    frame = read_table(data)
    try:
        priced = [name for name in utility.columns if name in frame]
        frame = Formats.fit(frame[priced], decimal=decimal_mark(frame)).clean(frame)
        tables = utility_of_rows(utility, frame)
    except StakesError as error:
        raise StakesError(f"{data}: {error}") from None
    costs = tables.costs + 0.0  # no -0
    ends = [[[f"{cost:.6g}" for cost in row] for row in table] for table in (costs.min(0), costs.max(0))]
    ranges = [
        [low if low == high else f"{low} to {high}" for low, high in zip(*rows, strict=True)]
        for rows in zip(*ends, strict=True)
    ]
    parts = [f"In the {len(frame):,} rows of {data}\n{aligned(ranges, utility.decisions, utility.outcomes)}"]
    for number, table in enumerate(costs[:FIRST_ROWS]):
        row = ", ".join(f"{name} {frame[name].iloc[number]}" for name in utility.columns)
        parts.append(f"Row {number + 1}: {row}\n{tables.format(table)}")
    parts += [f"warning: {message}" for message in tables.warnings()]
    return "\n" + "\n\n".join(parts)
