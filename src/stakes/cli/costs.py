"""``stakes costs``: make and check tables of costs."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from stakes.errors import StakesError, StakesWarning

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
        f"{out}: fill in what each decision (row) costs under each outcome (column), then: stakes costs check {out}"
    )


@costs_app.command("check")
def costs_check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table of costs.")],
    unit: Annotated[str | None, typer.Option(help="Unit of the costs, if the file does not say.")] = None,
) -> None:
    """Print a table of costs, its utility form, and what looks like a mistake in it."""
    from stakes.report.words import bracketed
    from stakes.utility import Utility

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StakesWarning)  # they are printed below, as the answer
        utility = Utility.from_csv(file, unit=unit)
    typer.echo(f"Cost{bracketed(utility)}: rows are decisions, columns are outcomes\n{utility.format(utility.costs)}\n")
    typer.echo(f"Utility: higher is better\n{utility}\n")
    for message in utility.warnings():
        typer.echo(f"warning: {message}")
    if not utility.warnings():
        typer.echo("No warnings.")
