"""The command line: parse, call, print."""

import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stakes.cli import in_use
from stakes.cli.costs import costs_app
from stakes.cli.reproduce import reproduce_app
from stakes.errors import StakesError, StakesWarning
from stakes.posteriors.ensemble import DEFAULT_MEMBERS
from stakes.tables.amounts.models import AMOUNT_MODELS
from stakes.tables.models import COMPARED
from stakes.tables.problem import FAMILIES, LEARNING_RATES, Recipe
from stakes.tables.task import CHECKPOINT_SECONDS, TableTask

if TYPE_CHECKING:
    from stakes.tables.run import FinishedRun

# pandas and scikit-learn are imported by the commands that need them, so that help comes soon.

app = typer.Typer(
    help="Decisions whose mistakes have a price: from a table and its costs to a model, decisions and a report.",
    epilog="Start with `stakes demo`, or with your costs: `stakes costs new --outcomes healthy,ill`.",
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(costs_app, name="costs")
app.add_typer(reproduce_app, name="reproduce")

_amounts, _data, _models, _fitting, _run = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("Outcomes that are numbers", "The data", "The models", "The training", "The run")
)
_RECIPE = Recipe()  # the defaults
_TRAINING = _RECIPE.training
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
START = """stakes: decisions whose mistakes have a price.

  See it work:                 stakes demo
  1. What decisions cost:      stakes costs new --outcomes healthy,ill --decisions "send home,treat" --unit £
     (fill in costs.csv)       stakes costs check costs.csv
  2. A model from your table:  stakes fit patients.csv --target diagnosis --costs costs.csv --out run
     where it is a number:     stakes fit demand.csv --target sold --under 15 --over 5 --unit € --out run
  3. Decide about new rows:    stakes decide run new.csv --out decisions.csv
  4. Once outcomes are known:  stakes evaluate run outcomes.csv

All commands: stakes --help"""
# For `stakes fit`, by parameter: what to do about one that is missing.
NEXT_STEPS = {
    "data": "give a table first, as in: stakes fit patients.csv --target diagnosis --costs costs.csv --out run",
    "target": "name the column with the outcome, as in --target diagnosis",
    "out": "name a folder for the model and the report, as in --out run",
}
_MOST_SEED = 2**31  # scikit-learn takes seeds up to 2**32, and --seeds counts on from --seed

Names = list[str] | None
Out = Annotated[Path, typer.Option(help="Folder for the model, the results and the report.")]
Resume = Annotated[bool, _run("--resume", help="Go on with the run in --out, if one was interrupted.")]
Force = Annotated[bool, _run("--force", help="Replace the run in --out.")]
Workers = Annotated[int, _run(min=1, help="Fits to run side by side, each on one core.")]


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr, never a traceback."""
    warnings.showwarning = _show_warning
    try:
        if not sys.argv[1:]:
            typer.echo(START)
            return
        code = app(sys.argv[1:], standalone_mode=False)
    except StakesError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):  # which Typer's usage errors have, in all its versions
            raise
        context, option = getattr(error, "ctx", None), getattr(error, "param", None)
        message = error.format_message().rstrip(".")
        path = context.command_path if context else "stakes"
        step = NEXT_STEPS.get(option.name) if option is not None and message.startswith("Missing") else None
        _fail(f"{message}; {f'{step}; ' if step and path.endswith('fit') else ''}see `{path} --help`", 2)
    if code == 130:
        _fail("interrupted; what `stakes fit` had finished is kept: --resume goes on with it", code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stakes {version('stakes')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


@app.command(epilog="Example: stakes fit patients.csv --target diagnosis --costs costs.csv --out run")
def fit(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A table: CSV (any delimiter) or .parquet.")],
    target: Annotated[str, typer.Option(help="The column of DATA with the outcome.")],
    out: Out,
    costs: Annotated[
        Path | None,
        typer.Option(
            help="What each decision costs under each outcome (see `stakes costs new`), or, where the outcome is a "
            "number, as a curve for each action.",
        ),
    ] = None,
    under: Annotated[
        str | None,
        _amounts(metavar="COST", help="What each unit too few costs: a number, a column, or a formula, =0.4 * price."),
    ] = None,
    over: Annotated[str | None, _amounts(metavar="COST", help="What each unit too many costs.")] = None,
    step: Annotated[
        float | None, _amounts(help="Between two decisions: 1 for whole units.", show_default="any number")
    ] = None,
    at_least: Annotated[float | None, _amounts(help="The lowest decision.")] = None,
    at_most: Annotated[float | None, _amounts(help="The highest decision, such as a capacity.")] = None,
    lags: Annotated[
        str,
        _amounts(
            metavar="NUMBERS",
            help="With --time: earlier amounts as features, so many times back, 1,7,14, and weekday and month. "
            "`stakes decide` then reads the whole file at once.",
        ),
    ] = "",
    series: Annotated[
        str | None,
        _amounts(metavar="NAME", help="With --lags: a column, such as a shop's, each with amounts of its own in time."),
    ] = None,
    likelihood: Annotated[
        str, _amounts(help="Of the network: gaussian, log_normal (amounts above 0) or student_t (heavy tails).")
    ] = _RECIPE.likelihood,
    test: Annotated[
        str | None,
        _data(
            help="What to test on: a share of the rows, a file of other rows, or cv: every row once, by models that "
            "did not see it.",
            show_default="cv below 1,000 rows, else 0.2",
        ),
    ] = None,
    folds: Annotated[
        int | None,
        _data(
            help="Parts of the other rows: a model is trained once for each, stopped early on it, and averaged.",
            min=2,
            show_default="5; 3 from 20,000 rows on",
        ),
    ] = None,
    group: Annotated[
        str | None, _data(metavar="NAME", help="A column whose rows belong together, such as a patient's: never split.")
    ] = None,
    time: Annotated[
        str | None, _data(metavar="NAME", help="A column of dates or numbers: the latest rows are tested on.")
    ] = None,
    id_column: Annotated[
        str | None, _data("--id", metavar="NAME", help="A column that names the rows: in the report, and no feature.")
    ] = None,
    by: Annotated[
        str | None, _data(metavar="NAME", help="A column: the report has the costs for each of its values.")
    ] = None,
    keep_rows: Annotated[
        bool,
        _data(
            "--keep-rows/--no-keep-rows",
            help="Keep training rows in the saved model, readable for all: 64 for `stakes decide --why`, and those "
            "that the model of neighbours looks up.",
        ),
    ] = TableTask.keep_rows,
    drop: Annotated[Names, _data(metavar="NAMES", help="Columns to leave out: a,b (or repeat).")] = None,
    categorical: Annotated[
        Names, _data(metavar="NAMES", help="Columns whose numbers are codes, not amounts: a,b.")
    ] = None,
    labels: Annotated[str, _data(help="Names for values of the target, as in the costs: 0=repaid,1=defaulted.")] = "",
    unit: Annotated[str | None, _data(help="Unit of the costs, if their file does not say.")] = None,
    models: Annotated[
        str,
        _models(
            help=f"What to compare, of: {', '.join(COMPARED)}; where the outcome is a number, of: "
            f"{', '.join(AMOUNT_MODELS.compared)}.",
            show_default="all but weighted; with --label-noise the noise models, and no blend",
        ),
    ] = "",
    network: Annotated[str, _models(help="tabm or mlp.")] = _RECIPE.network,
    posterior: Annotated[
        str | None,
        _models(
            help="Of an MLP: dropout, ensemble, mean_field or laplace.",
            show_default="dropout; a TabM is an ensemble itself",
        ),
    ] = None,
    members: Annotated[int, _models(help="Networks in an ensemble.", min=2)] = DEFAULT_MEMBERS,
    samples: Annotated[int, _models(help="Draws from the posterior for each prediction.", min=1)] = _RECIPE.samples,
    label_noise: Annotated[
        str, _models(help="The share of labels that are as if drawn at random: none, a rate such as 0.1, or learnt.")
    ] = "none",
    hidden: Annotated[str, _models(help="Sizes of the hidden layers of an MLP.")] = ",".join(map(str, _RECIPE.hidden)),
    dropout: Annotated[
        float, _models(help="Dropout rate of an MLP, from 0 up to 1; an ensemble and laplace have none.")
    ] = _RECIPE.dropout,
    epochs: Annotated[int, _fitting(help="Most passes over the rows.", min=1)] = _TRAINING.epochs,
    patience: Annotated[
        int | None, _fitting(help="Stop after so many epochs without a better one.", min=1)
    ] = _TRAINING.patience,
    batch_size: Annotated[
        int | None, _fitting(help="Rows in a step.", min=1, show_default="64 to 512, by the rows")
    ] = _TRAINING.batch_size,
    learning_rate: Annotated[
        float | None, _fitting(help="Adam's learning rate.", show_default="0.004 for a TabM, 0.001 for an MLP")
    ] = None,
    seeds: Annotated[int, _run(help="Repetitions of every model, to see how results vary.", min=1)] = TableTask.seeds,
    seed: Annotated[int, _run(help="Where all randomness starts.", min=0, max=_MOST_SEED)] = TableTask.seed,
    workers: Workers = CORES,
    resume: Resume = False,
    force: Force = False,
) -> None:
    """Train the alternatives on a table, compare what their decisions cost, and keep the best model.

    constant decides alike for everybody: what can be had without a model. logistic, forest and boosting are
    scikit-learn's logistic regression, random forest and boosted trees. standard is a neural network, calibrated
    one that learns for the decisions themselves, if that pays; weighted gives costly outcomes more weight; noise and
    noise+calibrated allow for wrong labels. The blend, the default choice, weighs these by rows that they did not
    train on.
    """
    from stakes.tables import task as arguments
    from stakes.training.config import Training

    noise = arguments.label_noise(label_noise)
    rate = LEARNING_RATES[arguments.network(network)] if learning_rate is None else learning_rate
    training = Training(
        epochs, batch_size, rate, patience=patience, select="nll", checkpoint_seconds=CHECKPOINT_SECONDS
    )
    family = posterior or FAMILIES[arguments.network(network)]
    recipe = Recipe(
        network=arguments.network(network),
        hidden=arguments.sizes(hidden),
        dropout=dropout,
        posterior={"family": family} | ({"members": members} if family == "ensemble" else {}),
        training=training,
        samples=samples,
        noise=noise,
        likelihood=arguments.likelihood(likelihood),
    )
    task = TableTask(
        data=data,
        target=target,
        costs=costs,
        test=arguments.share_or_file(test),
        folds=folds,
        group=group,
        keep_rows=keep_rows,
        time=time,
        id=id_column,
        by=by,
        drop=tuple(arguments.split(*(drop or []))),
        categorical=tuple(arguments.split(*(categorical or []))),
        renames=arguments.renames(labels),
        unit=unit,
        models=tuple(arguments.split(models)) or None,
        under=under,
        over=over,
        step=step,
        at_least=at_least,
        at_most=at_most,
        lags=arguments.lags(lags),
        series=series,
        recipe=recipe,
        seeds=seeds,
        seed=seed,
    )
    _fit_and_report(task, out, resume=resume, force=force, workers=workers)


app.command(epilog=in_use.DECIDE_EXAMPLE)(in_use.decide)
app.command(epilog=in_use.EVALUATE_EXAMPLE)(in_use.evaluate)


@app.command(epilog="Example: stakes report run")
def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of `stakes fit`.")],
    worst: in_use.Worst = None,
) -> None:
    """Make the report of a finished run again, from its saved results.

    Writes report.html, one file to open in a browser or to mail: it needs no network. Nothing is trained, and the
    data are not needed.
    """
    from stakes.report.page import write_page
    from stakes.tables.run_folder import RunFolder
    from stakes.tables.runs import load_run

    page = RunFolder(run).page
    write_page(load_run(run), page, worst)
    typer.echo(str(page))


@app.command()
def demo(out: Out = Path("demo"), workers: Workers = 2, resume: Resume = False, force: Force = False) -> None:
    """Real data from end to end: breast tumours, three decisions about each, the models compared, a report."""
    from stakes.cli.demo import LOOK, demo_task, write_tumours
    from stakes.tables.run_folder import RunFolder
    from stakes.tables.task import command

    RunFolder(out).refuse_if_taken(None, resume=resume, force=force)
    task = demo_task(out / "data")
    if not (resume and task.data.exists()):
        write_tumours(out / "data")
    typer.echo(f"{LOOK}\n\n{command(task.settings(), str(out))} --workers {workers}\n", err=True)
    _fit_and_report(task, out, resume=resume, force=force, workers=workers)
    typer.echo(
        f"\nOpen {RunFolder(out).page}: read its first sentence, then change a cost in the decision explorer. Your own "
        "data: `stakes` says the steps."
    )


# Private -------------------------------------------------------------------------------------------


def _fit_and_report(task: TableTask, out: Path, *, resume: bool, force: bool, workers: int) -> None:
    from rich.console import Console

    from stakes.cli.terminal import fits_progress, print_run
    from stakes.report import words
    from stakes.report.page import write_page
    from stakes.tables.fit import FitJob, fit_table
    from stakes.tables.prepare import PreparedTable
    from stakes.tables.run_folder import RunFolder

    folder = RunFolder(out)

    with fits_progress(task.recipe.training.epochs) as progress:

        def on_prepared(prepared: PreparedTable, fits: Sequence[FitJob]) -> None:
            copies = f"; {prepared.repeated:,} repeat another row, and stay on its side" if prepared.repeated else ""
            width = prepared.divisions[-1].encoder.width
            typer.echo(f"{task.data}: {words.split_sentence(prepared.rows)}{copies}; {width} features", err=True)
            progress.plan(fits)

        run = fit_table(
            task,
            folder,
            resume=resume,
            force=force,
            workers=workers,
            on_prepared=on_prepared,
            on_progress=progress,
            on_stage=lambda what: progress.say(f"  {what}"),
        )
    write_page(run, folder.page)
    print_run(run, Console())
    typer.echo(f"\n{folder.path}: the model is in model/{_kept_rows(task, run)}; the numbers in summary.json")
    typer.echo(f"{folder.page}: the report, one file to open in a browser or to mail")


def _kept_rows(task: TableTask, run: "FinishedRun") -> str:
    """Which training rows the saved model holds, for who would give it away."""
    from stakes.tables.profile import BACKGROUND_ROWS

    if not task.keep_rows:
        return ""
    chosen = next(item for item in run.scored if item.model == run.comparison.chosen)
    parts = chosen.predictions.details.get("weights", {chosen.model: 1.0})
    looked_up = [name for name in parts if task.kind.catalogue.keeps_rows(name)]
    all_rows = f"those that {looked_up[0]!r} looks up, and " if looked_up else ""
    explained = min(BACKGROUND_ROWS, run.rows["train"])
    return f"; it holds training rows, {all_rows}{explained} for `stakes decide --why` (--no-keep-rows: none)"


def _show_warning(message: Any, category: type[Warning], *rest: Any, **options: Any) -> None:
    if issubclass(category, StakesWarning):
        typer.echo(f"stakes: warning: {message}", err=True)


def _fail(message: str, code: int = 1) -> None:
    typer.echo(f"stakes: error: {' '.join(message.split())}", err=True)
    sys.exit(code)
