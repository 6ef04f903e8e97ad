"""Outcomes that are numbers: the decisions of every model scored once, then side by side, with intervals.

What a model says of a row are the quantiles of its outcome at `LEVELS`. All amounts are costs; a saving above 0 is
better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stakes.decisions import decide
from stakes.evaluation import metrics
from stakes.evaluation.comparison import Choice
from stakes.evaluation.metrics import Interval
from stakes.mixtures import Quantiles
from stakes.utility import Newsvendor, Utility

FloatArray = NDArray[np.float64]
INTERVAL_SHARES = (0.8, 0.9)  # shares of the outcomes that the intervals whose coverage is told should hold
_SCORES = (
    "cost",
    "claimed_cost",
    "crps",
    "covered",
    "share",
    *(f"within_{100 * share:.0f}" for share in INTERVAL_SHARES),
)


@dataclass(frozen=True, eq=False)
class AmountPredictions:
    """What one model with one seed says of the test rows, and the mean cost on held-out rows it is selected by."""

    model: str
    seed: int
    quantiles: Tensor  # (N, 99) at LEVELS
    validation_cost: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AmountScored:
    """The decisions of one model with one seed, and what they turned out to cost."""

    predictions: AmountPredictions
    choice: Tensor  # (N,) numbers; integers into the decisions, where these are named actions
    expected_costs: FloatArray  # (N,) what the model claims
    costs: FloatArray  # (N,) realised
    scores: Mapping[str, float | None]

    @property
    def model(self) -> str:
        return self.predictions.model

    @property
    def seed(self) -> int:
        return self.predictions.seed

    def to_dict(self) -> dict[str, Any]:
        """All but what there is for each row."""
        return {
            "model": self.model,
            "seed": self.seed,
            **self.scores,
            "validation_cost": self.predictions.validation_cost,
            **self.predictions.details,
        }

    @classmethod
    def from_dict(
        cls,
        entries: Mapping[str, Any],
        predictions: AmountPredictions,
        choice: Tensor,
        expected_costs: Tensor,
        costs: Tensor,
    ) -> "AmountScored":
        scores = {key: entries[key] for key in _SCORES}
        return cls(predictions, choice, expected_costs.numpy(), costs.numpy(), scores)


def score(predictions: AmountPredictions, outcomes: Tensor, utility: Utility) -> AmountScored:
    """Decide and score the decisions. Everything that is reported of a model comes from here.

    ``covered`` is the share of outcomes at or below the decision, ``share`` the one that the costs ask for, in the mean
    of the rows; only a newsvendor has them. ``within_80`` is the share of outcomes inside the model's 80 % interval.
    """
    quantiles = Quantiles(predictions.quantiles)
    decisions = decide(quantiles, utility)
    costs = np.asarray(utility.cost_of(utility.realised(decisions.choice, outcomes)), dtype=np.float64)
    claimed = np.asarray(utility.cost_of(decisions.expected_utility.double().numpy()), dtype=np.float64)
    newsvendor = isinstance(utility, Newsvendor)
    scores: dict[str, float | None] = {
        "cost": float(costs.mean()),
        "claimed_cost": float(claimed.mean()),
        "crps": float(metrics.crps(predictions.quantiles, outcomes).mean()),
        "covered": float((outcomes <= decisions.choice).double().mean()) if newsvendor else None,
        "share": float(np.mean(utility.share)) if isinstance(utility, Newsvendor) else None,
    }
    for share in INTERVAL_SHARES:
        low, high = decisions.interval(share)
        scores[f"within_{100 * share:.0f}"] = float(((low <= outcomes) & (outcomes <= high)).double().mean())
    return AmountScored(predictions, decisions.choice, claimed, costs, scores)


def shares_below(quantiles: Tensor, outcomes: Tensor) -> FloatArray:
    """``(N, 99), (N,) -> (99,)``: the share of outcomes at or below the quantile of each level."""
    below = outcomes.unsqueeze(-1) <= Quantiles(quantiles).at_levels
    return np.asarray(below.double().mean(0))


def select(scored: Sequence[AmountScored], model: str) -> list[AmountScored]:
    """Those of one model, by seed."""
    return sorted((item for item in scored if item.model == model), key=lambda item: item.seed)


def best_seed(scored: Sequence[AmountScored], model: str) -> AmountScored:
    """The model's seed whose decisions cost least on held-out rows, which is the one that is saved."""
    return min(
        select(scored, model),
        key=lambda item: np.inf if item.predictions.validation_cost is None else item.predictions.validation_cost,
    )


# Side by side --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AmountRow:
    """One model, over all its seeds."""

    model: str
    seeds: int
    cost: Interval  # of a decision
    claimed_cost: float
    above_claim: Interval  # realised less claimed cost, paired
    saving: Interval | None  # paired, against the reference; None for the reference itself
    rival: str | None  # the cheapest of the other models on the test rows
    lead: Interval | None  # the saving against that, paired
    crps: float
    covered: float | None
    share: float | None
    within_80: float
    within_90: float

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> "AmountRow":
        plain = {each.name: entries[each.name] for each in fields(cls)}
        intervals = {name: None if plain[name] is None else Interval(*plain[name]) for name in _INTERVALS}
        return cls(**plain | intervals)


_INTERVALS = ("cost", "above_claim", "saving", "lead")
_MEANS = ("claimed_cost", "crps", "covered", "share", "within_80", "within_90")


@dataclass(frozen=True)
class AmountComparison:
    """All models, and which was chosen."""

    rows: tuple[AmountRow, ...]
    reference: str  # the model that savings are against
    choice: Choice
    block: int | None = None  # consecutive times that intervals resample together; None: rows are independent

    @property
    def chosen(self) -> str:
        return self.choice.model

    @property
    def models(self) -> list[str]:
        return [row.model for row in self.rows]

    def row(self, model: str) -> AmountRow:
        return next(row for row in self.rows if row.model == model)

    def to_dict(self, utility: Utility) -> dict[str, Any]:
        """Plain JSON types; an interval has its mean, low and high end."""
        return {
            "unit": utility.unit,
            "decisions": list(utility.decisions) or "numbers",
            "chosen": self.chosen,
            "choice": asdict(self.choice),
            "reference": {"model": self.reference},
            "block": self.block,
            "rows": [asdict(row) for row in self.rows],
        }

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> "AmountComparison":
        rows = tuple(AmountRow.from_dict(row) for row in entries["rows"])
        return cls(rows, entries["reference"]["model"], Choice.from_dict(entries["choice"]), entries["block"])


def compare(
    scored: Sequence[AmountScored],
    choice: Choice,
    seed: int,
    times: FloatArray | None = None,
    groups: NDArray[np.int64] | None = None,
) -> AmountComparison:
    """Intervals over test rows (and seeds); savings against the constant, and against the best other model.

    Where rows have ``times``, those of neighbouring times are resampled together, for they are alike; where they have
    ``groups``, those of a group.
    """

    def mean(values: FloatArray) -> Interval:
        return metrics.bootstrap(values, seed=seed, times=times, groups=groups)

    models = list(dict.fromkeys(item.model for item in scored))
    reference = "constant" if "constant" in models else models[0]
    costs = {model: np.stack([item.costs for item in select(scored, model)]) for model in models}  # (R, N) each
    rows = []
    for model in models:
        group = select(scored, model)
        rival = min((name for name in models if name != model), key=lambda name: costs[name].mean(), default=None)
        saving, lead = (
            None if other in (None, model) else mean(costs[other] - costs[model]) for other in (reference, rival)
        )
        claimed = np.stack([item.expected_costs for item in group])
        means = {key: _mean([item.scores[key] for item in group]) for key in _MEANS}
        rows.append(
            AmountRow(
                model=model,
                seeds=len(group),
                cost=mean(costs[model]),
                above_claim=mean(costs[model] - claimed),
                saving=saving,
                rival=rival,
                lead=lead,
                **means,
            )
        )
    return AmountComparison(tuple(rows), reference, choice, None if times is None else metrics.block_length(times))


def _mean(values: Sequence[float | None]) -> Any:
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None
