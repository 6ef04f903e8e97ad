"""Comparison: the decisions of every model scored once, then side by side on the same test examples, with intervals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stakes.decisions import RULES, Rule, decide
from stakes.evaluation import metrics
from stakes.evaluation.metrics import Interval
from stakes.utility import TableUtility
from stakes.utility.table import Counts

_SCORES = ("utility", "cost", "regret", "claimed_utility", "accuracy", "nll", "brier", "ece")
_AVERAGED = ("cost", "accuracy", "nll", "ece")


@dataclass(frozen=True, eq=False)
class Predictions:
    """What one model with one seed says of the test examples, and the validation utility it is selected by."""

    model: str
    seed: int
    probs: Tensor  # (N, C)
    validation_utility: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Scored:
    """The decisions of one model with one seed under one rule, and what they turned out to be worth."""

    predictions: Predictions
    rule: Rule
    choice: Tensor  # (N,)
    margin: Tensor  # (N,) expected utility above that of the runner-up
    utilities: NDArray[np.float64]  # (N,) realised
    counts: Counts  # (D, C)
    scores: Mapping[str, float]

    @property
    def model(self) -> str:
        return self.predictions.model

    @property
    def seed(self) -> int:
        return self.predictions.seed

    def to_dict(self) -> dict[str, Any]:
        """All but what there is for each example."""
        return {
            "model": self.model,
            "rule": self.rule,
            "seed": self.seed,
            **self.scores,
            "validation_utility": self.predictions.validation_utility,
            "confusion": self.counts.tolist(),
            **self.predictions.details,
        }

    @classmethod
    def from_dict(
        cls, fields: Mapping[str, Any], predictions: Predictions, choice: Tensor, margin: Tensor, utilities: Tensor
    ) -> "Scored":
        scores = {key: fields[key] for key in _SCORES}
        counts = np.array(fields["confusion"], dtype=np.int64)
        return cls(predictions, fields["rule"], choice, margin, utilities.numpy(), counts, scores)


def score(predictions: Predictions, labels: Tensor, utility: TableUtility) -> list[Scored]:
    """Decide under each rule and score the decisions. Everything that is reported of a model comes from here."""
    probs = predictions.probs
    calibration = {
        "nll": metrics.nll(probs, labels),
        "brier": metrics.brier(probs, labels),
        "ece": metrics.reliability(probs, labels).ece,
    }
    scored = []
    for rule in RULES:
        decisions = decide(probs, utility, rule)
        counts = metrics.confusion_counts(decisions.choice, labels, utility)
        utilities = utility.realised(decisions.choice, labels)
        mean = float(utilities.mean())
        scores = {
            "utility": mean,
            "cost": utility.cost_of(mean),
            "regret": float(utility.regrets(decisions.choice, labels).mean()),
            "claimed_utility": float(decisions.expected_utility.double().mean()),
            "accuracy": float((decisions.choice == utility.response_to(labels)).double().mean()),
            **calibration,
        }
        scored.append(Scored(predictions, rule, decisions.choice, decisions.margin, utilities, counts, scores))
    return scored


def select(scored: Iterable[Scored], model: str, rule: Rule) -> list[Scored]:
    """Those of one model under one rule, by seed."""
    return sorted((item for item in scored if (item.model, item.rule) == (model, rule)), key=lambda item: item.seed)


# Side by side --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One model under one rule, over all its seeds."""

    model: str
    rule: Rule
    utility: Interval
    cost: float
    accuracy: float
    nll: float
    ece: float
    seeds: int
    difference: Interval | None  # paired, to the reference row; None for the reference itself
    rival: str | None  # the best of the other models, by their test utilities with optimal decisions
    lead: Interval | None  # paired, over that

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; an interval has three entries: its mean by its own name, _low and _high."""
        flat: dict[str, Any] = {}
        for name, value in vars(self).items():
            is_interval = name in _INTERVALS
            flat |= dict(zip(_entries(name), value or [None] * 3, strict=True)) if is_interval else {name: value}
        return flat

    @classmethod
    def from_dict(cls, flat: Mapping[str, Any]) -> "Row":
        plain = {field.name: flat[field.name] for field in fields(cls)}
        for name in _INTERVALS:
            if plain[name] is not None:
                plain[name] = Interval(*(float(flat[key]) for key in _entries(name)))
        return cls(**plain)


_INTERVALS = ("utility", "difference", "lead")


def _entries(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


@dataclass(frozen=True)
class Choice:
    """The model that is chosen, without the test rows, and how sure that is."""

    model: str
    why: str
    rival: str | None = None  # the best of the others, by the rows that it was chosen on
    lead: Interval | None = None  # by how much the decisions of the chosen model were worth more on these rows

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Choice":
        lead = None if fields["lead"] is None else Interval(*fields["lead"])
        return cls(**{**fields, "lead": lead})


@dataclass(frozen=True)
class Comparison:
    """All rows, and which model was chosen."""

    rows: tuple[Row, ...]
    reference: str  # the model of the paired differences, with optimal decisions
    choice: Choice

    @property
    def chosen(self) -> str:
        return self.choice.model

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row.model for row in self.rows))

    def is_chosen(self, row: Row) -> bool:
        return (row.model, row.rule) == (self.chosen, "optimal")

    def to_dict(self, utility: TableUtility) -> dict[str, Any]:
        return {
            "unit": utility.unit,
            "outcomes": list(utility.outcomes),
            "decisions": list(utility.decisions),
            "chosen": self.chosen,
            "choice": asdict(self.choice),
            "reference": {"model": self.reference, "rule": "optimal"},
            "rows": [row.to_dict() for row in self.rows],
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Comparison":
        rows = tuple(Row.from_dict(row) for row in fields["rows"])
        return cls(rows, fields["reference"]["model"], Choice.from_dict(fields["choice"]))

    def row(self, model: str, rule: Rule) -> Row:
        return next(row for row in self.rows if (row.model, row.rule) == (model, rule))


def compare(
    scored: Sequence[Scored],
    choice: Choice,
    seed: int,
    groups: NDArray[np.int64] | None = None,
    times: NDArray[np.float64] | None = None,
) -> Comparison:
    """Intervals over test examples (and seeds); paired differences to the constant, and to the best other model.

    ``groups`` and ``times`` say which test examples depend on each other: see `metrics.bootstrap`.
    """
    dependence: dict[str, Any] = {"groups": groups, "times": times}
    models = list(dict.fromkeys(item.model for item in scored))
    reference = "constant" if "constant" in models else models[0]
    means = {model: np.mean([item.utilities.mean() for item in select(scored, model, "optimal")]) for model in models}
    rows = []
    for model, rule in ((model, rule) for model in models for rule in RULES):
        group = select(scored, model, rule)
        mean = {key: float(np.mean([item.scores[key] for item in group])) for key in _AVERAGED}
        rival = max((other for other in models if other != model), key=lambda other: means[other], default=None)
        difference, lead = (
            None if other in (None, (model, rule)) else advantage(scored, (model, rule), other, seed, **dependence)
            for other in ((reference, "optimal"), None if rival is None else (rival, "optimal"))
        )
        interval = metrics.bootstrap([item.utilities for item in group], seed=seed, **dependence)
        rows.append(Row(model, rule, interval, seeds=len(group), difference=difference, rival=rival, lead=lead, **mean))
    return Comparison(tuple(rows), reference, choice)


def advantage(
    scored: Sequence[Scored],
    ours: tuple[str, Rule],
    theirs: tuple[str, Rule],
    seed: int,
    **dependence: Any,
) -> Interval:
    """How much more the decisions of one model and rule were worth than those of another, paired.

    ``dependence``: the groups and times of `metrics.bootstrap`.
    """
    first, second = ([item.utilities for item in select(scored, *pair)] for pair in (ours, theirs))
    return metrics.paired_difference(first, second, seed=seed, **dependence)


def best_seed(predictions: Iterable[Predictions], model: str) -> Predictions:
    """The predictions of the model's seed with the highest validation utility; the first, where there is none."""
    candidates = [item for item in predictions if item.model == model]
    return max(candidates, key=lambda item: -np.inf if item.validation_utility is None else item.validation_utility)
