"""``stakes decide`` and ``stakes evaluate``: a model in use."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from stakes.decisions import SETTLE
from stakes.errors import StakesError

if TYPE_CHECKING:
    from stakes.utility import Utility

DECIDE_EXAMPLE = "Example: stakes decide run new_patients.csv --out decisions.csv --id patient_id"
EVALUATE_EXAMPLE = "Example: stakes evaluate run outcomes.csv --decisions decisions.csv --id patient_id"


Under = Annotated[
    str | None,
    typer.Option(
        metavar="COST",
        help="Where outcomes are numbers, another cost of each unit too few, with --over: a number, a column, or a "
        "formula, =0.4 * price. Steps and bounds stay those of the fit.",
        show_default="as fitted",
    ),
]
Over = Annotated[
    str | None,
    typer.Option(metavar="COST", help="And of each unit too many, with --under.", show_default="as fitted"),
]

Worst = Annotated[
    float | None,
    typer.Option(
        metavar="COST",
        help="The most that one decision can cost, where the costs do not say it (those of units, and formulas): then "
        "the report states a mean cost that holds with 95 % confidence.",
    ),
]


def decide(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of `stakes fit`, or the model/ in it.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Rows to decide about: CSV or .parquet.")],
    out: Annotated[Path, typer.Option(help="File to write (or replace): its name ends in .csv or .parquet.")],
    id_columns: Annotated[
        str,
        typer.Option("--id", metavar="COLUMN", help="The column of DATA that names the rows, or several: day,shop."),
    ] = "",
    keep: Annotated[
        list[str] | None, typer.Option(metavar="NAMES", help="Columns of DATA to carry over: a,b (or repeat).")
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Other costs to decide by: the same outcomes, and any decisions; where outcomes are numbers, a cost "
            "curve for each action.",
        ),
    ] = None,
    under: Under = None,
    over: Over = None,
    on_unusual: Annotated[
        str,
        typer.Option(
            metavar="note|refer|stop",
            help="Rows unlike those of training: note them in the column unusual; refer them, by the decision of "
            "--refer; or stop, and write nothing.",
        ),
    ] = "note",
    refer: Annotated[
        str | None, typer.Option(metavar="DECISION", help="The decision for unusual rows, with --on-unusual refer.")
    ] = None,
    why: Annotated[
        int, typer.Option(metavar="N", help="Add the N columns of DATA that moved each decision most.", min=0)
    ] = 0,
    settle: Annotated[
        float,
        typer.Option(
            metavar="CONFIDENCE",
            help="Of a model of one posterior, saved from Python: a row takes no more draws once its decision is this "
            "sure to be that of endless draws; 1: all draws. Models of `stakes fit` take all draws.",
        ),
    ] = SETTLE,
) -> None:
    """Take the best decision for every row of a table, of any length.

    Writes the rows in order, with the columns decision, expected_cost, runner_up (the second-best decision), margin (to
    it), cost_DECISION for every decision, settled (whether more draws would hardly change it: always, where nothing in
    the model is random), p_OUTCOME for every outcome, and unusual (what is unlike the rows of training). Where
    utilities were given, they stand in place of costs. With --why, why_1 is such as "age +3.2": so much the row's age
    adds to the margin, against the ages of training rows. Where outcomes are numbers, the columns are decision,
    expected_cost, low and high (the outcome lies between them with 90 %), and unusual; "weekday +4.2" is then what the
    weekday adds to the decision. A summary with drift goes to stderr and to NAME.summary.json. DATA needs no target
    column, but those that costs depend on.
    """
    from stakes.cli.terminal import progress_bars
    from stakes.report.words import number_of
    from stakes.tables.amounts.other_costs import given_costs
    from stakes.tables.decide import WHY_ROWS, decide_table
    from stakes.tables.decider import Decider, OnUnusual
    from stakes.tables.read import BLOCK_ROWS
    from stakes.tables.task import split

    columns = dict.fromkeys([*split(id_columns), *split(*(keep or []))])
    other = given_costs(model, costs, under, over)
    decider = Decider(model, settle, costs=other, on_unusual=cast(OnUnusual, on_unusual), refer=refer, why=why)
    rows = WHY_ROWS if why else BLOCK_ROWS
    with progress_bars("{task.completed} rows decided") as progress:
        on_rows = partial(progress.advance, progress.add_task("", total=None))
        decided = decide_table(decider, data, out, keep=list(columns), rows=rows, on_rows=on_rows)
    typer.echo(f"{out}: {number_of(decided.rows, 'decision')}. {' '.join(decided.sentences())}", err=True)


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The --out of `stakes fit`.")],
    labelled: Annotated[
        Path, typer.Argument(metavar="LABELLED", help="Rows whose outcomes are known by now: CSV or .parquet.")
    ],
    decisions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Decisions taken earlier, as `stakes decide --id` writes them; they are not taken again.",
        ),
    ] = None,
    id_columns: Annotated[
        str,
        typer.Option(
            "--id", metavar="COLUMN", help="The column that names the rows in FILE and LABELLED, or several: day,shop."
        ),
    ] = "",
    target: Annotated[
        str | None, typer.Option(help="The column of LABELLED with the outcome.", show_default="that of RUN")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="Names for its values: 0=repaid,1=defaulted.", show_default="those of RUN"),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Other costs to decide and to count by: the same outcomes, and any decisions; where outcomes are "
            "numbers, a cost curve for each action.",
            show_default="those of RUN",
        ),
    ] = None,
    under: Under = None,
    over: Over = None,
    worst: Worst = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report.", show_default="RUN/evaluation-1, and so on")
    ] = None,
) -> None:
    """Once outcomes are known: what the decisions cost, and whether the model is still good.

    Compares that with what the model claimed, with deciding the same for everybody, and with the last test; says
    whether rows, probabilities or costs have drifted, and whether retraining is due. Writes evaluation.html and
    evaluation.json. With other costs (--costs; or --under and --over), all of that is at those, the last test too: its
    rows are decided again.
    """
    from stakes.report.evaluation import sentences, write_evaluation
    from stakes.tables.amounts.other_costs import given_costs
    from stakes.tables.decider import is_about_amounts
    from stakes.tables.evaluate import evaluate_run
    from stakes.tables.task import renames, split

    other = given_costs(run, costs, under, over)
    if is_about_amounts(run):
        if labels is not None:
            raise StakesError("--labels is for outcomes with names, but those of this run are numbers; leave it out")
        _evaluate_amounts(run, labelled, decisions, split(id_columns), target, other, worst, out)
        return
    evaluation = evaluate_run(
        run,
        labelled,
        decisions=decisions,
        id_columns=split(id_columns),
        target=target,
        renames=None if labels is None else renames(labels),
        costs=costs,
        worst=worst,
    )
    folder = write_evaluation(evaluation, run, out)
    for sentence in sentences(evaluation):
        typer.echo(sentence)
    typer.echo(f"{folder / 'evaluation.html'}: the report, one file to open in a browser or to mail", err=True)


def _evaluate_amounts(
    run: Path,
    labelled: Path,
    decisions: Path | None,
    id_columns: Sequence[str],
    target: str | None,
    costs: "Path | Utility | None",
    worst: float | None,
    out: Path | None,
) -> None:
    from stakes.report.amount_evaluation import sentences, write_evaluation
    from stakes.tables.amounts.evaluate import evaluate_amounts

    evaluation = evaluate_amounts(
        run, labelled, decisions=decisions, id_columns=id_columns, target=target, costs=costs, worst=worst
    )
    folder = write_evaluation(evaluation, run, out)
    for sentence in sentences(evaluation):
        typer.echo(sentence)
    typer.echo(f"{folder / 'evaluation.html'}: the report, one file to open in a browser or to mail", err=True)
