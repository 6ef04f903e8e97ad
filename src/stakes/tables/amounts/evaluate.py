"""``stakes evaluate`` for outcomes that are numbers: what decisions came to, against what was claimed and tested."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stakes.decisions import decide
from stakes.errors import StakesError
from stakes.evaluation import metrics
from stakes.evaluation.amounts import score, select, shares_below
from stakes.evaluation.metrics import Interval
from stakes.evaluation.promises import Promise, promise
from stakes.mixtures import Quantiles
from stakes.tables.amounts.decider import INTERVAL_SHARE, AmountDecider
from stakes.tables.amounts.other_costs import AmountCosts, warn_beyond_levels
from stakes.tables.amounts.run import AmountRun
from stakes.tables.drift import Drift
from stakes.tables.evaluate import (
    FEW_ROWS,
    Due,
    Reason,
    drift_of,
    drift_reasons,
    read_outcomes,
    retraining_due,
    row_dependence,
    row_times,
    warn_of_training_rows,
)
from stakes.tables.formats import number_format, read_numbers
from stakes.tables.joined import decision_indices, match_decisions
from stakes.tables.values import numbers, row_number, utility_of_rows
from stakes.utility import Newsvendor, NumberUtility, PricedNewsvendor, Utility

FloatArray = NDArray[np.float64]


class TakenAmounts(NamedTuple):
    """Decisions as they were taken, and what was said of them."""

    choice: Tensor  # (N,)
    claimed: FloatArray | None  # (N,) the expected costs; None if they are not known
    low: FloatArray | None  # (N,)
    high: FloatArray | None
    quantiles: Tensor | None = None  # (N, 99); None if they were taken earlier

    def within(self, outcomes: FloatArray) -> float | None:
        """The share of outcomes between low and high."""
        if self.low is None or self.high is None:
            return None
        return float(((self.low <= outcomes) & (outcomes <= self.high)).mean())


@dataclass(frozen=True, eq=False)
class Cases:
    """The rows, in the order of their file, for tables and charts."""

    taken: TakenAmounts
    outcomes: FloatArray  # (N,)
    costs: FloatArray  # (N,)
    times: FloatArray | None  # (N,) where the run has them
    time: str | None  # their column
    dates: bool  # whether times are dates, in seconds since 1970


@dataclass(frozen=True, eq=False)
class LastTest:
    """The chosen model on the test rows of its run."""

    rows: int
    cost: Interval | None  # None where other costs depend on columns that a run does not keep
    claimed_cost: float | None
    covered: float | None  # of a newsvendor
    within: float
    below: tuple[FloatArray, ...]  # (99,) for each seed: the share of outcomes at or below each level


@dataclass(frozen=True, eq=False)
class AmountEvaluation:
    """Decisions whose outcomes are known. A saving above 0 is better."""

    target: str
    files: Mapping[str, str]
    utility: NumberUtility  # of the rows
    left_out: Mapping[str, int]  # how many could not be used, by reason
    rows: int
    cost: Interval  # of a decision
    constant: str | None  # the decision for everybody; None where the costs of each row ask for another
    constant_cost: Interval
    saving: Interval  # against that, paired
    last: LastTest
    against_last: Interval | None  # the saving against the last test
    claimed_cost: float | None  # None if decisions came without it
    above_claim: Interval | None  # realised less claimed, paired
    covered: Interval | None  # the share of outcomes at or below the decision; of a newsvendor only
    unbounded: Interval | None  # and at or below one without steps and bounds; None if that is not known
    share: float | None  # and the one that the costs ask for
    within: float | None  # the share of outcomes between low and high
    drift: Drift | None
    cases: Cases
    seed: int
    promise: Promise
    other: AmountCosts | None = None  # costs that are not those of the run, as they were given
    remarks: tuple[str, ...] = ()  # on decisions by these
    block: int | None = None  # consecutive times that intervals resample together

    @property
    def reasons(self) -> list[Reason]:
        """What speaks for retraining, beyond chance; a handful of rows says nothing about costs."""
        claim, drift, enough = self.above_claim, self.drift, self.rows >= FEW_ROWS
        checks: dict[Reason, bool] = {
            "last test": enough and self.against_last is not None and self.against_last.high < 0,
            "claim": enough and claim is not None and claim.low > 0,
            "constant": enough and self.saving.high < 0,
            **drift_reasons(drift),
        }
        return [reason for reason, holds in checks.items() if holds]

    @property
    def due(self) -> Due:
        """Whether retraining is due: results are worse; rows have changed, but not the results; neither; too few."""
        return retraining_due(self.reasons, self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; an interval has its mean, low and high end."""
        return {
            "target": self.target,
            **({} if self.other is None else {"costs": self.other.to_dict()}),
            **self.files,
            "rows": self.rows,
            "left_out": dict(self.left_out),
            "unit": self.utility.unit,
            "cost": self.cost,
            "constant": {"decision": self.constant, "cost": self.constant_cost, "saving": self.saving},
            "last_test": {"rows": self.last.rows, "cost": self.last.cost, "saving": self.against_last},
            "claims": None
            if self.claimed_cost is None
            else {"cost": self.claimed_cost, "above": self.above_claim, "within_90": self.within},
            "coverage": None if self.covered is None else {"at_or_below": self.covered, "asked_for": self.share},
            "block": self.block,
            "promise": self.promise.to_dict(),
            "drift": None if self.drift is None else self.drift.to_dict(),
            "retraining": {"due": self.due, "because": self.reasons},
        }


def evaluate_amounts(
    path: Path,
    labelled: Path,
    *,
    decisions: Path | None = None,
    id_columns: Sequence[str] = (),
    target: str | None = None,
    costs: Path | Utility | None = None,
    worst: float | None = None,
) -> AmountEvaluation:
    """What the decisions of a run's model came to on rows whose outcomes are known, taken now or before.

    ``costs`` are others than those of the run, by which decisions are taken and all is valued, the last test too.
    ``worst`` is the most that a decision can cost, for a promise: see `stakes.evaluation.promises`.
    """
    run, decider = AmountRun.load(path), AmountDecider(path, costs=costs)
    target = run.settings["target"] if target is None else target
    frame, left_out = read_outcomes(labelled, target, decisions, id_columns, decider.encoder.formats)
    known_to_model = warn_of_training_rows(run, labelled)
    table: pd.DataFrame | None = None
    if decisions is not None:
        frame, table, unmatched = match_decisions(frame, labelled, decisions, id_columns)
        left_out |= unmatched
    try:
        if not len(frame):
            raise StakesError(
                f"expected outcomes in column {target!r}, but there are none; fill them in, or use --target"
            )
        written = decider.encoder.formats.number(target)
        outcomes = torch.tensor(read_numbers(frame[target], written or number_format(frame[target])))
        if not bool(outcomes.isfinite().all()):
            row = row_number(frame.index, int((~outcomes.isfinite()).long().argmax()))
            raise StakesError(f"column {target!r}: expected finite numbers, but row {row} has none; leave that row out")
        lags = decider.model.lags
        whole = frame if lags is None or table is not None else lags.add(frame)
        clean = decider.encoder.formats.clean(whole)
        utility = utility_of_rows(decider.utility, clean)
        assert isinstance(utility, NumberUtility)
        if table is None:
            warn_beyond_levels(utility, len(frame))
            took = decider.model.decide(torch.from_numpy(decider.encoder.encode(clean)), utility=utility)
            low, high = (each.numpy() for each in took.interval(INTERVAL_SHARE))
            claimed = np.asarray(utility.cost_of(took.expected_utility.double().numpy()))
            taken = TakenAmounts(took.choice, claimed, low, high, Quantiles.of(took.outcomes).at_levels)
        drift = drift_of(decider, clean)
    except StakesError as error:
        raise StakesError(f"{labelled}: {error}") from None
    if table is not None:
        taken = _taken(table, decisions, utility)
    named = {"labelled": labelled, "decisions": decisions, "costs": costs if isinstance(costs, Path) else None}
    names = {
        "target": target,
        "files": {key: file.name for key, file in named.items() if file is not None},
        "left_out": {name: count for name, count in left_out.items() if count},
        "other": None if costs is None else decider.utility,
        "remarks": () if table is not None else decider.remarks,
    }
    realised = np.asarray(utility.cost_of(utility.realised(taken.choice, outcomes)))
    cases = Cases(taken, outcomes.numpy(), realised, *row_times(run, frame))
    groups = row_dependence(run, frame)["groups"]
    withheld = known_to_model or run.reason_against_promise(cases.times)
    promised = promise(realised, utility, worst=worst, times=cases.times, withheld=withheld)
    return _evaluation(run, utility, cases, groups, drift=drift, promise=promised, **names)


def _evaluation(
    run: AmountRun, utility: NumberUtility, cases: Cases, groups: NDArray[np.int64] | None, **names: Any
) -> AmountEvaluation:
    seed, taken, costs = run.settings["seed"], cases.taken, cases.costs
    outcomes = torch.from_numpy(cases.outcomes)

    def mean(values: ArrayLike) -> Interval:
        return metrics.bootstrap(values, seed=seed, times=cases.times, groups=groups)

    past = select(run.scored, "constant")[0].predictions.quantiles.double().mean(0)
    for_all = decide(Quantiles(past.expand(len(outcomes), -1)), utility)
    constant = np.asarray(utility.cost_of(utility.realised(for_all.choice, outcomes)))
    last, own = _last_test(run, names["other"]), mean(costs)
    covered = unbounded = None
    if isinstance(utility, Newsvendor):
        covered = mean(outcomes <= taken.choice)
        free = None if taken.quantiles is None else utility.optimum(Quantiles(taken.quantiles))
        unbounded = None if free is None else mean(outcomes <= free)
    alike = bool((for_all.choice == for_all.choice[0]).all())
    return AmountEvaluation(
        **names,
        utility=utility,
        rows=len(outcomes),
        cost=own,
        constant=_text(utility, for_all.choice[0]) if alike else None,
        constant_cost=mean(constant),
        saving=mean(constant - costs),
        last=last,
        against_last=None if last.cost is None else metrics.independent_difference(last.cost, own),
        claimed_cost=None if taken.claimed is None else float(taken.claimed.mean()),
        above_claim=None if taken.claimed is None else mean(costs - taken.claimed),
        covered=covered,
        unbounded=unbounded,
        share=float(np.mean(utility.share)) if isinstance(utility, Newsvendor) else None,
        within=taken.within(cases.outcomes),
        cases=cases,
        seed=seed,
        block=None if cases.times is None else metrics.block_length(cases.times),
    )


def _last_test(run: AmountRun, other: AmountCosts | None) -> LastTest:
    """The chosen model in the test of the run: what its decisions cost as it was, or at other costs."""
    row, scored = run.comparison.row(run.comparison.chosen), select(run.scored, run.comparison.chosen)
    below = tuple(shares_below(item.predictions.quantiles, run.labels) for item in scored)
    last = LastTest(len(run.labels), row.cost, row.claimed_cost, row.covered, row.within_90, below)
    if other is None:
        return last
    if isinstance(other, PricedNewsvendor):
        return replace(last, cost=None, claimed_cost=None, covered=None)
    again = [score(item.predictions, run.labels, other) for item in scored]
    costs = np.stack([item.costs for item in again])  # (R, N)
    covered = [item.scores["covered"] for item in again if item.scores["covered"] is not None]
    return replace(
        last,
        cost=metrics.bootstrap(costs, seed=run.settings["seed"], **run.dependence),
        claimed_cost=float(np.mean([item.expected_costs for item in again])),
        covered=float(np.mean(covered)) if covered else None,
    )


def _text(utility: NumberUtility, choice: Tensor) -> str:
    return utility.decisions[int(choice)] if utility.decisions else f"{float(choice):.6g}"


def _taken(table: pd.DataFrame, path: Path | None, utility: NumberUtility) -> TakenAmounts:
    """From a file of decisions, in the order of the rows."""
    claimed, low, high = (numbers(table[name]) if name in table else None for name in ("expected_cost", "low", "high"))
    if not utility.decisions:
        try:
            choice = torch.tensor(numbers(table["decision"]))
        except StakesError as error:
            raise StakesError(f"{path}: {error}; if other costs were decided by, give them") from None
        if not bool(choice.isfinite().all()):
            raise StakesError(f"{path}: expected a number in every row of the column 'decision', but some are missing")
        return TakenAmounts(choice, claimed, low, high)
    return TakenAmounts(decision_indices(table, path, utility.decisions), claimed, low, high)
