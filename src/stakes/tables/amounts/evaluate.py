"""``stakes evaluate`` for outcomes that are numbers: what decisions came to, against what was claimed and tested."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.decisions import decide
from stakes.errors import StakesError, listing
from stakes.evaluation import metrics
from stakes.evaluation.amounts import select
from stakes.evaluation.metrics import Interval
from stakes.mixtures import Quantiles
from stakes.tables.amounts.decider import WITHIN, AmountDecider
from stakes.tables.amounts.lags import times_of
from stakes.tables.amounts.run import AmountRun
from stakes.tables.drift import Drift
from stakes.tables.evaluate import FEW_ROWS, MANY_UNUSUAL, Due, Reason, drift_of, read_outcomes
from stakes.tables.joined import match_decisions
from stakes.tables.values import numbers, utility_of_rows
from stakes.utility import Newsvendor, NumberUtility

FloatArray = NDArray[np.float64]


class TakenAmounts(NamedTuple):
    """Decisions as they were taken, and what was said of them."""

    choice: Tensor  # (N,)
    claimed: FloatArray | None  # (N,) the expected costs; None if they are not known
    low: FloatArray | None  # (N,)
    high: FloatArray | None


@dataclass(frozen=True, eq=False)
class AmountEvaluation:
    """Decisions whose outcomes are known. A saving above 0 is better."""

    target: str
    files: Mapping[str, str]
    utility: NumberUtility  # of the rows
    left_out: Mapping[str, int]  # how many could not be used, by reason
    rows: int
    cost: Interval  # of a decision
    constant: str  # the decision for everybody
    constant_cost: Interval
    saving: Interval  # against that, paired
    last_cost: Interval  # in the last test
    last_rows: int
    against_last: Interval  # the saving against the last test
    claimed_cost: float | None  # None if decisions came without it
    above_claim: Interval | None  # realised less claimed, paired
    covered: float | None  # the share of outcomes at or below the decision; of a newsvendor only
    share: float | None  # and the one that the costs ask for
    within: float | None  # the share of outcomes between low and high
    drift: Drift | None
    block: int | None = None  # consecutive times that intervals resample together

    @property
    def reasons(self) -> list[Reason]:
        """What speaks for retraining, beyond chance."""
        claim, drift = self.above_claim, self.drift
        found: dict[Reason, bool] = {
            "last test": self.against_last.high < 0,
            "claim": claim is not None and claim.low > 0,
            "constant": self.saving.high < 0,
            "shifted": drift is not None and bool(drift.drifted),
            "unusual": drift is not None and drift.unusual > MANY_UNUSUAL * drift.rows,
        }
        return [reason for reason, holds in found.items() if holds]

    @property
    def due(self) -> Due:
        """Whether retraining is due: results are worse; rows have changed, but not the results; neither; too few."""
        if set(self.reasons) - {"shifted", "unusual"}:
            return "yes"
        return "watch" if self.reasons else "unknown" if self.rows < FEW_ROWS else "no"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; an interval has its mean, low and high end."""
        return {
            "target": self.target,
            **self.files,
            "rows": self.rows,
            "left_out": dict(self.left_out),
            "unit": self.utility.unit,
            "cost": self.cost,
            "constant": {"decision": self.constant, "cost": self.constant_cost, "saving": self.saving},
            "last_test": {"rows": self.last_rows, "cost": self.last_cost, "saving": self.against_last},
            "claims": None
            if self.claimed_cost is None
            else {"cost": self.claimed_cost, "above": self.above_claim, "within_90": self.within},
            "coverage": None if self.covered is None else {"at_or_below": self.covered, "asked_for": self.share},
            "block": self.block,
            "drift": None if self.drift is None else self.drift.to_dict(),
            "retraining": {"due": self.due, "because": self.reasons},
        }


def evaluate_amounts(
    path: Path,
    labelled: Path,
    *,
    decisions: Path | None = None,
    id_column: str | None = None,
    target: str | None = None,
) -> AmountEvaluation:
    """What the decisions of a run's model came to on rows whose outcomes are known, taken now or before."""
    run, decider = AmountRun.load(path), AmountDecider(path)
    target = run.settings["target"] if target is None else target
    frame, left_out = read_outcomes(labelled, target, decisions, id_column)
    table: pd.DataFrame | None = None
    if decisions is not None and id_column is not None:
        frame, table, unmatched = match_decisions(frame, labelled, decisions, id_column)
        left_out |= unmatched
    try:
        if not len(frame):
            raise StakesError(f"expected outcomes in column {target!r}, but there are none")
        outcomes = torch.tensor(numbers(frame[target]))
        lags = decider.model.lags
        whole = frame if lags is None or table is not None else lags.add(frame)
        clean = decider.encoder.formats.clean(whole)
        utility = utility_of_rows(decider.utility, clean)
        assert isinstance(utility, NumberUtility)
        if table is None:
            took = decider.model.decide(torch.from_numpy(decider.encoder.encode(clean)), utility=utility)
            low, high = (each.numpy() for each in took.interval(WITHIN))
            claimed = np.asarray(utility.cost_of(took.expected_utility.double().numpy()))
            taken = TakenAmounts(took.choice, claimed, low, high)
        drift = drift_of(decider, clean)
    except StakesError as error:
        raise StakesError(f"{labelled}: {error}") from None
    if table is not None:
        taken = _taken(table, decisions, utility)
    time = run.settings["time"]
    times = times_of(frame[time]) if time is not None and time in frame else None
    files = {"labelled": labelled.name} | ({"decisions": decisions.name} if decisions else {})
    names = {"target": target, "files": files, "left_out": {name: count for name, count in left_out.items() if count}}
    return _evaluation(run, utility, outcomes, taken, times, drift=drift, **names)


def _evaluation(
    run: AmountRun,
    utility: NumberUtility,
    outcomes: Tensor,
    taken: TakenAmounts,
    times: FloatArray | None,
    **names: Any,
) -> AmountEvaluation:
    seed = run.settings["seed"]

    def mean(values: FloatArray) -> Interval:
        return metrics.bootstrap(values, seed=seed, times=times)

    costs = np.asarray(utility.cost_of(utility.realised(taken.choice, outcomes)))
    past = select(run.scored, "constant")[0].predictions.quantiles.double().mean(0)
    for_all = decide(Quantiles(past.expand(len(outcomes), -1)), utility)
    constant = np.asarray(utility.cost_of(utility.realised(for_all.choice, outcomes)))
    last, own = run.comparison.row(run.comparison.chosen).cost, mean(costs)
    within = (
        None
        if taken.low is None or taken.high is None
        else (taken.low <= outcomes.numpy()) & (outcomes.numpy() <= taken.high)
    )
    newsvendor = isinstance(utility, Newsvendor)
    alike = bool((for_all.choice == for_all.choice[0]).all())
    return AmountEvaluation(
        **names,
        utility=utility,
        rows=len(outcomes),
        cost=own,
        constant=_text(utility, for_all.choice[0]) if alike else "as costs and the past say",
        constant_cost=mean(constant),
        saving=mean(constant - costs),
        last_cost=last,
        last_rows=len(run.labels),
        against_last=metrics.independent_difference(last, own),
        claimed_cost=None if taken.claimed is None else float(taken.claimed.mean()),
        above_claim=None if taken.claimed is None else mean(costs - taken.claimed),
        covered=float((outcomes <= taken.choice).double().mean()) if newsvendor else None,
        share=float(np.mean(utility.share)) if isinstance(utility, Newsvendor) else None,
        within=None if within is None else float(within.mean()),
        block=None if times is None else metrics.block_length(times),
    )


def _text(utility: NumberUtility, choice: Tensor) -> str:
    return utility.decisions[int(choice)] if utility.decisions else f"{float(choice):.6g}"


def _taken(table: pd.DataFrame, path: Path | None, utility: NumberUtility) -> TakenAmounts:
    """From a file of decisions, in the order of the rows."""
    claims = [numbers(table[name]) if name in table else None for name in ("expected_cost", "low", "high")]
    if not utility.decisions:
        choice = torch.tensor(numbers(table["decision"]))
        if not bool(choice.isfinite().all()):
            raise StakesError(f"{path}: expected a number in every row of the column 'decision', but some are missing")
        return TakenAmounts(choice, *claims)
    places = {name: number for number, name in enumerate(utility.decisions)}
    texts = table["decision"].astype(str).str.strip()
    unknown = sorted(set(texts) - set(places))
    if unknown:
        raise StakesError(
            f"{path}: expected the decisions {listing(places)} of the run's costs, but got {listing(unknown)}"
        )
    return TakenAmounts(torch.tensor([places[text] for text in texts]), *claims)
