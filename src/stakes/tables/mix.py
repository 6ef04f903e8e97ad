"""From trained models to those that are compared: the mean of their parts, a strength of calibration, a blend.

All that there is to choose is chosen on the rows that folds held out.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stakes.evaluation import metrics
from stakes.evaluation.comparison import Choice
from stakes.outcomes import Predictor
from stakes.tables.catalogue import Catalogue
from stakes.tables.problem import Problem
from stakes.utility import Utility


@dataclass(frozen=True)
class Mix(ABC):
    """A model as it is compared and saved: trained models with weights."""

    weights: Mapping[str, float]  # by trained model; their sum is 1
    details: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def predictions(self, trained: Mapping[str, Tensor]) -> Tensor:
        """From those of the trained models, ``(n, K)`` each: see `stakes.tables.problem.predict_rows`."""
        mixed = sum(weight * trained[name].double() for name, weight in self.weights.items())
        assert isinstance(mixed, Tensor)
        return self.corrected(mixed).float()

    def corrected(self, mixed: Tensor) -> Tensor:
        return mixed

    @abstractmethod
    def predictor(self, parts: Mapping[str, Sequence[Predictor]]) -> Predictor:
        """From the parts of the trained models, one for each fold."""

    def shares(self, parts: Mapping[str, Sequence[Predictor]]) -> tuple[list[Predictor], list[float]]:
        """All parts, and the weight of each."""
        shares = [(part, weight / len(parts[name])) for name, weight in self.weights.items() for part in parts[name]]
        return [part for part, _ in shares], [share for _, share in shares]


@dataclass(frozen=True, eq=False)
class HeldOut(ABC):
    """The rows that folds held out, fold after fold, and what every trained model predicts for them."""

    mix: ClassVar[type[Mix]]
    catalogue: ClassVar[Catalogue]
    loss_name: ClassVar[str]

    predictions: Mapping[str, Tensor]  # by trained model, (n, K)
    labels: Tensor  # (n,)
    utility: Utility  # one for all rows, or one for each
    weights: Tensor | None = None  # (n,) of the rows
    dependence: Mapping[str, Any] = field(default_factory=dict)  # of the rows, as `metrics.bootstrap` takes it

    @classmethod
    def of(cls, problem: Problem, predictions: Mapping[str, Tensor]) -> Self:
        rows, weights = problem.selection_rows, problem.examples.weights
        return cls(
            predictions,
            problem.examples.labels[rows],
            problem.utility.rows(rows),
            None if weights is None else weights[rows],
            problem.selection_dependence,
        )

    @abstractmethod
    def worth(self, predictions: Tensor) -> NDArray[np.float64]:
        """(n,) what the decisions by ``predictions`` turned out to be worth."""

    @abstractmethod
    def loss(self, predictions: Tensor) -> float:
        """What one model is chosen by where there is no blend; the lower, the better."""

    @abstractmethod
    def blend(self, members: Mapping[str, Mix]) -> Mix:
        """The members with weights; its details name their ``weights``."""

    def mean(self, values: NDArray[np.float64]) -> float:
        return float(np.average(values, weights=None if self.weights is None else self.weights.numpy()))

    def mixes(self, names: Sequence[str]) -> dict[str, Mix]:
        """The models to compare, of those that were trained."""
        compared = self.catalogue.compared
        mixes = {name: self.mix({compared[name][-1]: 1.0}) for name in compared if name not in ("blend", "calibrated")}
        members = self.catalogue.blended(names) if "blend" in names else ()
        if "calibrated" in (*names, *members):
            mixes["calibrated"] = self._calibrated()
        if "blend" in names:
            blend = self.blend({name: mixes[name] for name in members})
            strength = mixes["calibrated"].details if "calibrated" in blend.details["weights"] else {}
            mixes["blend"] = replace(blend, details={**blend.details, **strength})
        return {name: mixes[name] for name in names}

    def _calibrated(self) -> Mix:
        """The weakest calibration that none is better than by more than a standard error."""
        best, *stronger = self.catalogue.compared["calibrated"]
        worth = self.worth(self.predictions[best])
        for name in stronger if len(self.labels) > 1 else ():
            other = self.worth(self.predictions[name])
            gain = other - worth
            if self.mean(gain) > metrics.standard_error(gain, weights=self.weights, **self.dependence):
                best, worth = name, other
        return self.mix({best: 1.0}, details={"strength": float(best.partition("-")[2] or 0)})


def blended_weights(members: Mapping[str, Mix], weights: Sequence[float]) -> tuple[dict[str, float], dict[str, float]]:
    """The weights above 0: by member, and by trained model. A member is one trained model, with a weight of 1."""
    by_member = {name: weight for name, weight in zip(members, weights, strict=True) if weight}
    return by_member, {trained: by_member[name] for name in by_member for trained in members[name].weights}


@dataclass(frozen=True, eq=False)
class Solution:
    """The models to compare, made of trained ones, and what these predict for the test rows."""

    held_out: HeldOut
    mixes: Mapping[str, Mix]
    test: Mapping[str, Tensor] = field(repr=False)  # by trained model, (n, K)

    def on_test(self, model: str) -> Tensor:
        """(n, K) what a model predicts for the test rows."""
        return self.mixes[model].predictions(self.test)

    def validation(self, model: str) -> float:
        """The mean utility of its decisions on the rows held out."""
        return self.held_out.mean(self._worth(model))

    def choose(self, seed: int) -> Choice:
        """The blend; without one, the model with the lowest loss; but the constant, where neither beats it."""
        held_out = self.held_out
        worth = {name: self._worth(name) for name in self.mixes}
        others = [name for name in self.mixes if name != "constant"]
        if "blend" in others:
            chosen, why = "blend", "a blend of models is the default"
        else:
            losses = {name: held_out.loss(self._predictions(name)) for name in others}
            chosen = min(losses, key=lambda name: losses[name]) if losses else "constant"
            why = f"it has the lowest {held_out.loss_name} on the rows that folds held out"
        if "constant" in worth and held_out.mean(worth["constant"]) >= held_out.mean(worth[chosen]):
            chosen = "constant"
            why = "no model did better than one decision for everybody on the rows that folds held out"
        rivals = {name: held_out.mean(values) for name, values in worth.items() if name != chosen}
        if not rivals:
            return Choice(chosen, "it is the only one")
        rival = max(rivals, key=lambda name: rivals[name])
        lead = metrics.paired_difference([worth[chosen]], [worth[rival]], seed=seed, **held_out.dependence)
        return Choice(chosen, why, rival, lead)

    def _predictions(self, model: str) -> Tensor:
        return self.mixes[model].predictions(self.held_out.predictions)

    def _worth(self, model: str) -> NDArray[np.float64]:
        return self.held_out.worth(self._predictions(model))
