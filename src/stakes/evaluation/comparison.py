"""Comparison: the alternatives on the same test examples, paired, with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stakes.decisions import RULES, Rule, decide
from stakes.errors import StakesError
from stakes.evaluation import metrics
from stakes.evaluation.metrics import Interval
from stakes.utility import Utility

REFERENCE = "boosting"
_AVERAGED = ("cost", "accuracy", "nll", "ece")


# Scores --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Run:
    """One model with one seed: its mean predictive on the test set, and what it was selected by."""

    model: str
    seed: int
    probs: torch.Tensor  # (N, C)
    validation_utility: float | None
    details: Mapping[str, Any] = field(default_factory=dict)
    margin_error: torch.Tensor | None = None  # (N,) Monte-Carlo standard error of its margins, if there were draws


def score_run(run: Run, labels: torch.Tensor, utility: Utility) -> list[dict[str, Any]]:
    """A row for each rule, with the run's details."""
    calibration = {
        "nll": metrics.nll(run.probs, labels),
        "brier": metrics.brier(run.probs, labels),
        "ece": metrics.reliability(run.probs, labels).ece,
    }
    rows = []
    for rule in RULES:
        decisions = decide(run.probs, utility, rule)
        counts = metrics.confusion_counts(decisions.choice, labels, utility)
        worth = metrics.realised_utility(counts, utility)
        row = {
            "model": run.model,
            "rule": rule,
            "seed": run.seed,
            "utility": worth,
            "cost": utility.cost_of(worth),
            "regret": metrics.regret(counts, utility),
            "claimed_utility": metrics.claimed_utility(decisions),
            "accuracy": metrics.accuracy(counts, utility),
            **calibration,
            "validation_utility": run.validation_utility,
            "confusion": counts.tolist(),
            **run.details,
        }
        rows.append(row)
    return rows


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

    def to_dict(self) -> dict[str, Any]:
        flat: dict[str, Any] = {"model": self.model, "rule": self.rule, **_spread("utility", self.utility)}
        flat |= {key: getattr(self, key) for key in ("cost", "accuracy", "nll", "ece", "seeds")}
        return flat | _spread("difference", self.difference)

    @classmethod
    def from_dict(cls, flat: Mapping[str, Any]) -> "Row":
        plain = {key: flat[key] for key in ("model", "rule", "cost", "accuracy", "nll", "ece", "seeds")}
        utility, difference = (
            None if flat[name] is None else Interval(*(flat[key] for key in _spread(name, None)))
            for name in ("utility", "difference")
        )
        if utility is None:
            raise StakesError(f"expected the utility of {plain['model']!r}, but it is missing")
        return cls(utility=utility, difference=difference, **plain)


@dataclass(frozen=True)
class Comparison:
    """All rows, which model was chosen, and why."""

    rows: tuple[Row, ...]
    reference: str  # the model that all are held against, with optimal decisions
    chosen: str
    why: str

    def to_dict(self, utility: Utility) -> dict[str, Any]:
        return {
            "unit": utility.unit,
            "outcomes": list(utility.outcomes),
            "decisions": list(utility.decisions),
            "chosen": self.chosen,
            "why": self.why,
            "reference": {"model": self.reference, "rule": "optimal"},
            "rows": [row.to_dict() for row in self.rows],
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Comparison":
        rows = tuple(Row.from_dict(row) for row in fields["rows"])
        return cls(rows, fields["reference"]["model"], fields["chosen"], fields["why"])

    def row(self, model: str, rule: Rule) -> Row:
        return next(row for row in self.rows if (row.model, row.rule) == (model, rule))


def summarise(runs: Sequence[Run], labels: torch.Tensor, utility: Utility, seed: int) -> Comparison:
    """Intervals over test examples (and seeds), and paired differences to standard with optimal decisions."""
    models = list(dict.fromkeys(run.model for run in runs))
    reference = "standard" if "standard" in models else models[0]
    worth = {(model, rule): _utilities(runs, model, rule, labels, utility) for model in models for rule in RULES}
    held_against = worth[reference, "optimal"]
    scores = [row for run in runs for row in score_run(run, labels, utility)]
    rows = []
    for (model, rule), values in worth.items():
        own_scores = [row for row in scores if (row["model"], row["rule"]) == (model, rule)]
        mean = {key: float(np.mean([row[key] for row in own_scores])) for key in _AVERAGED}
        own = (model, rule) == (reference, "optimal")
        difference = None if own else _paired(values, held_against, seed)
        rows.append(
            Row(model, rule, metrics.bootstrap(values, seed=seed), seeds=len(values), difference=difference, **mean)
        )
    chosen, why = _choose(runs, models)
    return Comparison(tuple(rows), reference, chosen, why)


def advantage(
    runs: Sequence[Run],
    ours: tuple[str, Rule],
    theirs: tuple[str, Rule],
    labels: torch.Tensor,
    utility: Utility,
    seed: int,
) -> Interval:
    """How much more the decisions of one model and rule were worth than those of another, paired."""
    first, second = (_utilities(runs, model, rule, labels, utility) for model, rule in (ours, theirs))
    return _paired(first, second, seed)


def best_run(runs: Sequence[Run], model: str) -> Run:
    """The run of a model that did best on validation; the first, where there was none."""
    own = [run for run in runs if run.model == model]
    return max(own, key=lambda run: -np.inf if run.validation_utility is None else run.validation_utility)


def _choose(runs: Sequence[Run], models: Sequence[str]) -> tuple[str, str]:
    """By mean validation utility over seeds; a tie goes to the model named first."""
    means = {}
    for model in models:
        scores = [run.validation_utility for run in runs if run.model == model]
        if any(score is None for score in scores):
            return models[0], "there was no validation set to choose on, so the first model was taken"
        means[model] = float(np.mean([score for score in scores if score is not None]))
    chosen = max(means, key=lambda model: means[model])
    listed = ", ".join(f"{model} {score:.4g}" for model, score in means.items())
    return chosen, f"highest mean utility on the validation rows ({listed}); the test rows had no part in it"


def _utilities(
    runs: Sequence[Run], model: str, rule: Rule, labels: torch.Tensor, utility: Utility
) -> NDArray[np.float64]:
    """(seeds, N) what each decision turned out to be worth."""
    own = sorted((run for run in runs if run.model == model), key=lambda run: run.seed)
    return np.stack([metrics.utilities(decide(run.probs, utility, rule), labels, utility) for run in own])


def _paired(ours: NDArray[np.float64], theirs: NDArray[np.float64], seed: int) -> Interval:
    """Where the numbers of seeds differ, only examples can be paired: then seeds are averaged first."""
    if ours.shape != theirs.shape:
        ours, theirs = ours.mean(0), theirs.mean(0)
    return metrics.paired_difference(ours, theirs, seed=seed)


def _spread(name: str, interval: Interval | None) -> dict[str, float | None]:
    """``{name, name_low, name_high}``."""
    values = {"mean": None, "low": None, "high": None} if interval is None else asdict(interval)
    return {name: values["mean"], f"{name}_low": values["low"], f"{name}_high": values["high"]}
