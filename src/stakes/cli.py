"""The command line: parse, call, print."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from stakes.errors import StakesError, StakesWarning

app = typer.Typer(
    help="Neural networks that know what a mistake costs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
costs_app = typer.Typer(help="Make and check tables of costs.", no_args_is_help=True)
app.add_typer(costs_app, name="costs")

Out = Annotated[Path, typer.Option(help="Folder for the model, the results and the report.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in --out.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the run in --out.")]
Workers = Annotated[int, typer.Option(min=1, help="Fits to run side by side, one thread each.")]


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr, never a traceback."""
    warnings.showwarning = _show_warning
    try:
        app()
    except StakesError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        _fail("interrupted; go on with --resume", code=130)


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="A table: CSV (any delimiter) or Parquet.", show_default=False)],
    target: Annotated[str, typer.Option(help="The column with the outcome.", show_default=False)],
    costs: Annotated[Path, typer.Option(help="The table of costs: see `stakes costs new`.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the model, the results and the report.", show_default=False)],
    test: Annotated[str, typer.Option(help="A file with test rows, or the share of DATA to hold out.")] = "0.2",
    validation: Annotated[float, typer.Option(help="Share of the rest that selects epoch and model.")] = 0.2,
    drop: Annotated[list[str] | None, typer.Option(help="Columns to leave out (commas, or repeat).")] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(help="Numeric columns that are codes, not amounts (commas, or repeat).")
    ] = None,
    labels: Annotated[str, typer.Option(help="Names for values of the target: 0=repaid,1=defaulted.")] = "",
    unit: Annotated[str | None, typer.Option(help="Unit of the costs, if their file does not say.")] = None,
    models: Annotated[
        str,
        typer.Option(
            help="Of: standard, weighted, calibrated, noise, noise+calibrated. [default: the first "
            "three; all with --label-noise]",
            show_default=False,
        ),
    ] = "",
    posterior: Annotated[str, typer.Option(help="dropout, ensemble or mean_field.")] = "dropout",
    members: Annotated[int, typer.Option(help="Networks in an ensemble.", min=2)] = 5,
    samples: Annotated[int, typer.Option(help="Draws from the posterior at prediction.", min=1)] = 100,
    label_noise: Annotated[
        str, typer.Option(help="Wrong labels in DATA: none, a rate such as 0.1, or learnt.")
    ] = "none",
    hidden: Annotated[str, typer.Option(help="Sizes of the hidden layers.")] = "128,64",
    dropout: Annotated[float, typer.Option(help="Dropout rate.")] = 0.1,
    epochs: Annotated[int, typer.Option(help="At most so many passes over the training rows.", min=1)] = 100,
    patience: Annotated[int, typer.Option(help="Stop after so many epochs without a better one.", min=1)] = 20,
    batch_size: Annotated[
        int | None, typer.Option(help="[default: 32 to 256, by the rows]", show_default=False)
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    seeds: Annotated[int, typer.Option(help="Repetitions of every model, from --seed on.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Where all randomness starts.")] = 0,
    workers: Workers = 1,
    resume: Resume = False,
    force: Force = False,
) -> None:
    """Train the alternatives on a table, compare what their decisions cost, and keep the best model."""
    from stakes.methods import METHODS, Recipe
    from stakes.tabular.fitting import TableTask
    from stakes.training import Training

    noise = _noise(label_noise)
    chosen = tuple(_split(models)) or tuple(m.name for m in METHODS if noise is not None or not m.noisy)
    family: dict[str, Any] = {"family": posterior} | ({"members": members} if posterior == "ensemble" else {})
    recipe = Recipe(
        hidden=tuple(_integers(hidden, "--hidden")),
        dropout=dropout,
        posterior=family,
        training=Training(epochs, batch_size, learning_rate, patience=patience),
        samples=samples,
        noise=noise,
    )
    task = TableTask(
        data=data,
        target=target,
        costs=costs,
        test=_share_or_file(test),
        validation=validation,
        drop=tuple(_split(*(drop or []))),
        categorical=tuple(_split(*(categorical or []))),
        renames=_renames(labels),
        unit=unit,
        models=chosen,
        recipe=recipe,
        seeds=seeds,
        seed=seed,
    )
    _run(task, out, resume=resume, force=force, workers=workers)


@app.command()
def decide(
    model: Annotated[Path, typer.Argument(help="The --out of `stakes fit`, or the model in it.", show_default=False)],
    data: Annotated[Path, typer.Argument(help="Rows to decide about: CSV or Parquet.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Where to write: .csv or .parquet.", show_default=False)],
    keep: Annotated[list[str] | None, typer.Option(help="Columns of DATA to carry over (commas, or repeat).")] = None,
) -> None:
    """Take the best decision for every row of a table, of any length."""
    from stakes.tabular.deciding import decide_table

    with _counter("rows decided") as count:
        rows = decide_table(model, data, out, keep=_split(*(keep or [])), on_rows=count)
    typer.echo(f"{out}: {rows} decisions", err=True)


@app.command()
def demo(
    out: Out = Path("demo"),
    seeds: Annotated[int, typer.Option(help="Repetitions of every model.", min=1)] = 5,
    corrupted: Annotated[int, typer.Option(help="Of 50 patients of a class, how many have a random label.")] = 20,
    workers: Workers = 2,
    resume: Resume = False,
    force: Force = False,
) -> None:
    """The paper's diagnosis example from end to end: data, costs, comparison, decisions."""
    from stakes.tabular.demo import demo_task

    task = demo_task(out / "data", seeds=seeds, corrupted=corrupted)
    typer.echo(
        f"stakes fit {task.data} --test {task.test} --target {task.target} --costs {task.costs} --hidden 20 "
        f"--dropout 0.2 --epochs 200 --patience 200 --batch-size 50 --label-noise {task.recipe.noise} --seeds {seeds} "
        f"--workers {workers} --out {out}\n",
        err=True,
    )
    _run(task, out, resume=resume, force=force, workers=workers)


@costs_app.command("new")
def costs_new(
    outcomes: Annotated[str, typer.Option(help="What can be true: a,b,c.", show_default=False)],
    decisions: Annotated[str, typer.Option(help="What can be done. [default: the outcomes]", show_default=False)] = "",
    unit: Annotated[str, typer.Option(help="Unit of the costs: £, minutes, ...")] = "",
    out: Annotated[Path, typer.Option(help="Where to write.")] = Path("costs.csv"),
) -> None:
    """Write a table of costs to fill in."""
    from stakes.cost_files import write_template

    if out.exists():
        raise StakesError(f"{out}: exists already; remove it, or choose another --out")
    names = _split(outcomes)
    write_template(out, names, _split(decisions) or names, unit)
    typer.echo(
        f"{out}: fill in what each decision (row) costs under each outcome (column), then: stakes costs check {out}"
    )


@costs_app.command("check")
def costs_check(
    file: Annotated[Path, typer.Argument(help="A table of costs.", show_default=False)],
    unit: Annotated[str | None, typer.Option(help="Unit of the costs, if the file does not say.")] = None,
) -> None:
    """Print a table of costs, its utility form, and what looks like a mistake in it."""
    from stakes.utility import Utility

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StakesWarning)  # they are printed below, as the answer
        utility = Utility.from_csv(file, unit=unit)
    named = f" [{utility.unit}]" if utility.unit else ""
    typer.echo(f"Cost{named}: rows are decisions, columns are outcomes\n{utility.format(utility.costs)}\n")
    typer.echo(f"Utility: higher is better\n{utility}\n")
    for concern in utility.concerns():
        typer.echo(f"warning: {concern}")
    typer.echo("" if utility.concerns() else "No warnings.", nl=not utility.concerns())


# Within --------------------------------------------------------------------------------------------


def _run(task: Any, out: Path, *, resume: bool, force: bool, workers: int) -> None:
    from rich.console import Console

    from stakes.report.console import print_comparison
    from stakes.report.markdown import write_report
    from stakes.report.progress import fits_progress
    from stakes.tabular.fitting import PreparedTable, fit_table
    from stakes.tabular.folder import RunFolder

    folder = RunFolder(out)
    found: list[PreparedTable] = []

    def describe(prepared: PreparedTable) -> None:
        found.append(prepared)
        counts = ", ".join(f"{count} {part}" for part, count in prepared.rows.items())
        copies = f"; {prepared.repeated} repeat another row, and stay on its side" if prepared.repeated else ""
        typer.echo(f"{task.data}: {counts} rows{copies}; {prepared.encoder.width} features", err=True)

    with fits_progress(task) as on_progress:
        comparison = fit_table(
            task, folder, resume=resume, force=force, workers=workers, on_prepared=describe, on_progress=on_progress
        )
    write_report(folder, task, found[0], comparison)
    print_comparison(comparison, found[0].problem.utility, Console())
    typer.echo(f"\n{folder.path}: the model is in model/, the numbers in summary.json, the report in report.md")


def _noise(text: str) -> Any:
    if text in ("none", "learnt"):
        return None if text == "none" else "learnt"
    try:
        return float(text)
    except ValueError:
        raise StakesError(f"--label-noise: expected none, a rate such as 0.1, or learnt, but got {text!r}") from None


def _share_or_file(text: str) -> Path | float:
    try:
        return float(text)
    except ValueError:
        return Path(text)


def _split(*texts: str) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _integers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in _split(text)]
    except ValueError:
        raise StakesError(f"{option}: expected whole numbers such as 128,64, but got {text!r}") from None


def _renames(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in _split(text)]
    if not all(mark and new.strip() for _, mark, new in pairs):
        raise StakesError(f"--labels: expected value=name pairs such as 0=repaid,1=defaulted, but got {text!r}")
    return {old.strip(): new.strip() for old, _, new in pairs}


@contextmanager
def _counter(what: str) -> Iterator[Any]:
    """A running count on stderr, where somebody may be watching."""
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


def _show_warning(message: Any, category: type[Warning], *rest: Any, **options: Any) -> None:
    if issubclass(category, StakesWarning):
        typer.echo(f"stakes: warning: {message}", err=True)


def _fail(message: str, code: int = 1) -> None:
    typer.echo(f"stakes: error: {' '.join(message.split())}", err=True)
    sys.exit(code)
