"""``stakes evaluate``: once outcomes are known, what decisions came to, against what was claimed and tested before."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.decisions import decide
from stakes.errors import StakesError, StakesWarning
from stakes.evaluation import metrics
from stakes.evaluation.claims import claimed_range
from stakes.evaluation.comparison import select
from stakes.evaluation.few_cases import FewCases, few_decisive_cases
from stakes.evaluation.metrics import Interval, Reliability
from stakes.evaluation.promises import Promise, promise
from stakes.outcomes import Outcomes
from stakes.tables.decider import Decider
from stakes.tables.drift import Drift, DriftCount
from stakes.tables.formats import Formats
from stakes.tables.joined import TakenDecisions, join_decisions
from stakes.tables.read import read_table
from stakes.tables.run import FinishedRun, Run
from stakes.tables.times import TimeFormat
from stakes.tables.values import as_text, encode_labels, utility_of_rows
from stakes.utility import FormulaUtility, TableUtility
from stakes.utility.table import Counts

FEW_ROWS = 30  # fewer cannot tell whether a model has become worse
MANY_UNUSUAL = 0.05  # of the rows
FEW_UNUSUAL = 4  # rows, which are not many whatever their share
DOUBT = 0.05  # probability of a false alarm in any outcome

Due = Literal["yes", "watch", "no", "unknown"]
Reason = Literal["last test", "claim", "constant", "outcomes", "shifted", "unusual"]


class OutcomeCount(NamedTuple):
    """How often an outcome happened, and what the model had said, with what chance explains."""

    name: str
    observed: int
    expected: float
    low: float
    high: float

    @property
    def off(self) -> bool:
        return not self.low <= self.observed <= self.high


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Decisions whose outcomes are known. Differences are of utilities: above 0, the decisions were worth more."""

    target: str
    files: Mapping[str, str]
    utility: TableUtility  # of the rows
    left_out: Mapping[str, int]  # how many could not be used, by reason
    counts: Counts  # (D, C)
    worth: Interval  # utility of a decision
    constant: str | None  # the decision for everybody; None where the costs of each row ask for another
    constant_worth: Interval
    against_constant: Interval  # paired
    few: tuple[FewCases, ...]  # outcomes with few cases that could turn that
    last_worth: Interval | None  # in the last test; None where other costs depend on columns that a run does not keep
    last_rows: int
    against_last: Interval | None
    claimed: Interval | None  # utility expected of a decision, and its range by chance; None without probabilities
    against_claim: Interval | None  # paired
    outcomes: tuple[OutcomeCount, ...]  # none without probabilities
    reliability: Reliability | None
    last_reliability: Reliability
    drift: Drift | None  # None where features, or a description of the training rows, are not there
    promise: Promise

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @property
    def reasons(self) -> list[Reason]:
        """What speaks for retraining, beyond chance; a handful of rows says nothing about costs."""
        drift, enough = self.drift, self.rows >= FEW_ROWS
        checks: dict[Reason, bool] = {
            "last test": enough and self.against_last is not None and self.against_last.high < 0,
            "claim": enough and self.claimed is not None and self.worth.mean < self.claimed.low,
            "constant": enough and self.against_constant.high < 0 and not self.few,
            "outcomes": any(each.off for each in self.outcomes),
            **drift_reasons(drift),
        }
        return [reason for reason, holds in checks.items() if holds]

    @property
    def due(self) -> Due:
        """Whether retraining is due: results are worse; rows have changed, but not the results; neither; too few."""
        return retraining_due(self.reasons, self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types. Amounts of a decision are as the user gave them, costs or utilities; an interval has its
        mean, low and high end. ``worth_more``: how much more utility the decisions had than that.
        """
        given, claims = self.utility.given, None
        if self.claimed is not None and self.against_claim is not None and self.reliability is not None:
            claims = {
                given: float(self.utility.stated(self.claimed.mean)),
                "by_chance": stated_interval(self.claimed, self.utility)[1:],
                "worth_more": list(self.against_claim),
                "calibration_error": self.reliability.ece,
            }
        return {
            "target": self.target,
            **self.files,
            "rows": self.rows,
            "left_out": dict(self.left_out),
            "unit": self.utility.unit,
            given: stated_interval(self.worth, self.utility),
            "constant": {
                "decision": self.constant,
                given: stated_interval(self.constant_worth, self.utility),
                "worth_more": list(self.against_constant),
            },
            "last_test": {
                "rows": self.last_rows,
                given: None if self.last_worth is None else stated_interval(self.last_worth, self.utility),
                "worth_more": None if self.against_last is None else list(self.against_last),
                "calibration_error": self.last_reliability.ece,
            },
            "claims": claims,
            "outcomes": [each._asdict() | {"off": each.off} for each in self.outcomes],
            "confusion": self.counts.tolist(),
            "promise": self.promise.to_dict(),
            "drift": None if self.drift is None else self.drift.to_dict(),
            "retraining": {"due": self.due, "because": self.reasons},
        }


def stated_interval(worth: Interval, utility: TableUtility) -> Interval:
    """A mean utility as the user gave amounts."""
    mean, *ends = (float(utility.stated(value)) for value in worth)
    return Interval(mean, min(ends), max(ends))


def evaluate_run(
    path: Path,
    labelled: Path,
    *,
    decisions: Path | None = None,
    id_columns: Sequence[str] = (),
    target: str | None = None,
    renames: Mapping[str, str] | None = None,
    costs: Path | None = None,
    worst: float | None = None,
) -> Evaluation:
    """What the decisions of a run's model came to on rows whose outcomes are known.

    Decisions are taken now, or were taken before: ``decisions`` is a file of them, joined by ``id_columns``. ``costs``
    is a file of other costs than those of the run, by which decisions are taken and all is valued, the last test too.
    ``worst`` is the most that a decision can cost, for a promise: see `stakes.evaluation.promises`.
    """
    run, decider = Run.load(path), Decider(path, costs=costs)
    target = run.settings["target"] if target is None else target
    frame, left_out = read_outcomes(labelled, target, decisions, id_columns, decider.encoder.formats)
    known_to_model = warn_of_training_rows(run, labelled)
    if decisions is not None:
        frame, taken, unmatched = join_decisions(frame, labelled, decisions, id_columns, decider.utility)
        left_out |= unmatched
    try:
        if not len(frame):
            raise StakesError(
                f"expected outcomes in column {target!r}, but there are none; fill them in, or use --target"
            )
        renames = run.settings["renames"] if renames is None else renames
        labels = encode_labels(frame[target], decider.utility.outcomes, renames=renames, name=target)
        frame = decider.encoder.formats.clean(frame)
        utility = utility_of_rows(decider.utility, frame)
        if decisions is None:
            took = decider.model.decide(torch.from_numpy(decider.encoder.encode(frame)), decider.settle, utility)
            taken = TakenDecisions(took.choice, took.probs.double())
        drift = drift_of(decider, frame)
    except StakesError as error:
        raise StakesError(f"{labelled}: {error}") from None
    named = {"labelled": labelled, "decisions": decisions, "costs": costs}
    files = {key: file.name for key, file in named.items() if file is not None}
    names = {"target": target, "files": files, "left_out": {name: count for name, count in left_out.items() if count}}
    before = _last_test(run, None if costs is None else decider.utility)
    known, dependence = torch.from_numpy(labels), row_dependence(run, frame)
    realised = utility.cost_of(utility.realised(taken.choice, known))
    times = dependence["times"]
    withheld = known_to_model or run.reason_against_promise(times)
    promised = promise(realised, utility, worst=worst, times=times, withheld=withheld)
    return _evaluation(run, utility, known, taken, before, dependence, drift=drift, promise=promised, **names)


def warn_of_training_rows(run: FinishedRun, labelled: Path) -> str:
    """Say so where the rows are those that the run was made with; and why nothing can be promised then, or nothing."""
    if hashlib.sha256(labelled.read_bytes()).hexdigest() != run.settings.get("data_sha256"):
        return ""
    known = f"{labelled.name} is the file of the run: the model was trained on most of these rows"
    warnings.warn(
        f"{known}, and seems better than it is; its report has results on rows that it was tested on",
        StakesWarning,
        stacklevel=3,
    )
    return f"{known}, so that all on this page is better than it will be"


def row_dependence(run: FinishedRun, frame: pd.DataFrame) -> dict[str, Any]:
    """How rows depend on each other, as `metrics.bootstrap` takes it: by the columns of the run's --group and --time.

    Where such a column is not there, a warning says that intervals may be too narrow.
    """
    group, time = run.settings["group"], run.settings["time"]
    for option, name in (("group", group), ("time", time)):
        if name is not None and name not in frame:
            warnings.warn(
                f"the column {name!r}, by which the run has --{option}, is not there: intervals take rows to be "
                "independent of each other, and may be too narrow",
                StakesWarning,
                stacklevel=3,
            )
    groups = pd.factorize(frame[group], use_na_sentinel=False)[0] if group in frame else None
    return {"groups": groups, "times": row_times(run, frame)[0]}


def drift_reasons(drift: Drift | None) -> dict[Reason, bool]:
    """Whether columns have shifted, and whether many rows are unusual."""
    many = drift is not None and drift.unusual > max(FEW_UNUSUAL, MANY_UNUSUAL * drift.rows)
    return {"shifted": drift is not None and bool(drift.drifted), "unusual": many}


def retraining_due(reasons: Sequence[Reason], rows: int) -> Due:
    """Yes if results are worse; watch if only rows have changed."""
    if set(reasons) - {"shifted", "unusual"}:
        return "yes"
    return "watch" if reasons else "unknown" if rows < FEW_ROWS else "no"


def row_times(run: FinishedRun, frame: pd.DataFrame) -> tuple[NDArray[np.float64] | None, str | None, bool]:
    """(N,) the times of the rows, their column, and whether they are dates; None where they have none."""
    time = run.settings["time"]
    if time is None or time not in frame:
        return None, None, False
    known = "time_pattern" in run.rows  # not of runs that were saved before it was kept
    time_format = TimeFormat(run.rows["time_pattern"]) if known else TimeFormat.of(frame[time])
    return time_format.times(frame[time]), time, time_format.pattern is not None


def _last_test(run: Run, other: TableUtility | FormulaUtility | None) -> Interval | None:
    """What the decisions of the chosen model were worth in the test of the run: as it was, or at other costs."""
    if other is None:
        return run.comparison.row(run.comparison.chosen, "optimal").utility
    if isinstance(other, FormulaUtility):
        return None
    scored = select(run.scored, run.comparison.chosen, "optimal")
    choices = [decide(item.predictions.probs, other).choice for item in scored]
    realised = [other.realised(choice, run.labels) for choice in choices]
    return metrics.bootstrap(realised, seed=run.settings["seed"], **run.dependence)


def read_outcomes(
    labelled: Path, target: str, decisions: Path | None, id_columns: Sequence[str], formats: Formats
) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows whose outcomes are known, with what is written in some format as text, and how many are not."""
    if (decisions is None) != (not id_columns):
        missing = "--decisions FILE" if decisions is None else "--id COLUMN"
        raise StakesError(f"expected --decisions FILE and --id COLUMN together, but {missing} is not given: add it")
    frame = read_table(labelled, written=formats.columns)
    absent = [name for name in (target, *id_columns) if name not in frame.columns]
    if absent:
        raise StakesError(f"{labelled}: expected the column {absent[0]!r}, but it is not there; check the spelling")
    known = as_text(frame[target]).notna()
    return frame[known], {"rows without an outcome": int((~known).sum())}


def _evaluation(
    run: Run,
    utility: TableUtility,
    labels: Tensor,
    taken: TakenDecisions,
    last_worth: Interval | None,
    dependence: Mapping[str, Any],
    *,
    drift: Drift | None,
    promise: Promise,
    **names: Any,
) -> Evaluation:
    seed, worth = run.settings["seed"], utility.realised(taken.choice, labels)
    last = select(run.scored, run.comparison.chosen, "optimal")
    shares = select(run.scored, "constant", "optimal")[0].predictions.probs.mean(0)
    for_all = decide(shares.expand(len(labels), -1), utility).choice
    constant = utility.realised(for_all, labels)
    claimed, reliability = None, None
    if taken.probs is not None:
        claimed = utility.expected(Outcomes(taken.probs)).gather(-1, taken.choice[:, None]).squeeze(-1).double().numpy()
        reliability = metrics.reliability(taken.probs, labels)
    own = metrics.bootstrap(worth, seed=seed, **dependence)
    return Evaluation(
        **names,
        utility=utility,
        counts=metrics.confusion_counts(taken.choice, labels, utility),
        worth=own,
        constant=utility.decisions[int(for_all[0])] if bool((for_all == for_all[0]).all()) else None,
        constant_worth=metrics.bootstrap(constant, seed=seed, **dependence),
        against_constant=metrics.paired_difference(worth, constant, seed=seed, **dependence),
        few=few_decisive_cases(utility, labels.numpy(), worth - constant, dependence["groups"]),
        last_worth=last_worth,
        last_rows=len(run.labels),
        against_last=None if last_worth is None else metrics.independent_difference(own, last_worth),
        claimed=None
        if taken.probs is None
        else claimed_range(utility, taken.choice, taken.probs, labels, **dependence),
        against_claim=None if claimed is None else metrics.paired_difference(worth, claimed, seed=seed, **dependence),
        outcomes=() if taken.probs is None else outcome_counts(utility.outcomes, taken.probs, labels, **dependence),
        reliability=reliability,
        last_reliability=metrics.reliability(
            torch.cat([item.predictions.probs for item in last]), run.labels.repeat(len(last))
        ),
        drift=drift,
        promise=promise,
    )


def drift_of(decider: Decider, frame: pd.DataFrame) -> Drift | None:
    """None where there is nothing to compare, or nothing to compare with."""
    if decider.profile is None or not set(decider.profile.names) <= set(frame.columns):
        return None
    count = DriftCount(decider.profile)
    count.add(decider.profile.view(frame))
    return count.result()


def outcome_counts(
    names: tuple[str, ...],
    probs: Tensor,
    labels: Tensor,
    groups: NDArray[np.int64] | None = None,
    times: NDArray[np.float64] | None = None,
) -> tuple[OutcomeCount, ...]:
    """How often each outcome happened, against the sum of its probabilities, with a normal interval; a wider one where
    rows that belong together strayed together.
    """
    width, rows = NormalDist().inv_cdf(1 - DOUBT / (2 * len(names))), len(labels)
    counts = []
    for number, (name, of_name) in enumerate(zip(names, probs.double().T.numpy(), strict=True)):
        happened, expected = labels.numpy() == number, float(of_name.sum())
        error = float(np.sqrt((of_name * (1 - of_name)).sum()))
        if groups is not None or times is not None:
            error = max(error, rows * metrics.standard_error(happened - of_name, groups=groups, times=times))
        reach = width * error + 0.5  # half a count, for counts are whole
        low, high = max(0.0, expected - reach), min(float(rows), expected + reach)
        counts.append(OutcomeCount(name, int(happened.sum()), expected, low, high))
    return tuple(counts)
