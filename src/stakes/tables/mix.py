"""From trained models to those that are compared: the mean of their parts, a strength of calibration, a blend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.calibration import Calibrated, Temperature
from stakes.decisions import decide
from stakes.evaluation import metrics
from stakes.evaluation.comparison import Choice
from stakes.outcomes import Outcomes, Predictor
from stakes.predictors import Blend, blend_weights
from stakes.tables.models import CLASSES, COMPARED
from stakes.tables.problem import Problem
from stakes.utility import TableUtility

COLDEST = 0.5  # temperature of a blend: rows that are all right would ask for one that makes it sure of everything

TINY = 1e-12  # a probability, so that a log-loss is finite


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The rows that folds held out, fold after fold, and what every trained model said of them."""

    probs: Mapping[str, Tensor]  # by trained model, (n, C)
    labels: Tensor  # (n,)
    utility: TableUtility  # one for all rows, or one for each
    weights: Tensor | None = None  # (n,) of the rows
    groups: NDArray[np.int64] | None = None  # (n,) what the rows belong to

    @classmethod
    def of(cls, problem: Problem, probs: Mapping[str, Tensor]) -> "HeldOut":
        rows, weights = problem.selection_rows, problem.examples.weights
        own_weights = None if weights is None else weights[rows]
        labels, utility = problem.examples.labels[rows], problem.table.rows(rows)
        return cls(probs, labels, utility, own_weights, problem.selection_groups)

    def realised(self, probs: Tensor) -> NDArray[np.float64]:
        """(n,) what the decisions by ``probs`` turned out to be worth."""
        return self.utility.realised(decide(probs, self.utility).choice, self.labels)

    def observed(self, probs: Tensor) -> Tensor:
        """(n,) the probability of what happened."""
        return probs.gather(1, self.labels.unsqueeze(1)).squeeze(1)

    def log_loss(self, probs: Tensor) -> float:
        return self.mean(-self.observed(probs).double().clamp_min(TINY).log().numpy())

    def mean(self, values: NDArray[np.float64]) -> float:
        return float(np.average(values, weights=None if self.weights is None else self.weights.numpy()))


@dataclass(frozen=True)
class Mix:
    """A model as it is compared and saved: trained models with weights, and a temperature."""

    weights: Mapping[str, float]  # by trained model; their sum is 1
    temperature: float = 1.0
    details: Mapping[str, Any] = field(default_factory=dict)

    def probs(self, trained: Mapping[str, Tensor]) -> Tensor:
        """From those of the trained models, ``(n, C)`` each."""
        mixed = sum(weight * trained[name].double() for name, weight in self.weights.items())
        assert isinstance(mixed, Tensor)
        if self.temperature != 1:
            mixed = Temperature(self.temperature)(Outcomes(mixed)).weights
        return mixed.float()

    def predictor(self, parts: Mapping[str, Sequence[Predictor]]) -> Predictor:
        """From the parts of the trained models, one for each fold."""
        shares = [(part, weight / len(parts[name])) for name, weight in self.weights.items() for part in parts[name]]
        blend = Blend([part for part, _ in shares], [share for _, share in shares])
        return blend if self.temperature == 1 else Calibrated(blend, Temperature(self.temperature))


def mix(names: Sequence[str], held: HeldOut) -> dict[str, Mix]:
    """The models to compare, of those that were trained; what there is to choose is chosen on the rows held out."""
    single = {name: Mix({COMPARED[name][-1]: 1.0}) for name in COMPARED if name not in ("blend", "calibrated")}
    members = CLASSES.blended(names) if "blend" in names else ()
    if "calibrated" in (*names, *members):
        single["calibrated"] = _calibrated(held)
    if "blend" in names:
        single["blend"] = _blend({name: single[name] for name in members}, held)
    return {name: single[name] for name in names}


def _calibrated(held: HeldOut) -> Mix:
    """The weakest calibration that none is better than by more than a standard error, on the rows held out."""
    best, *stronger = COMPARED["calibrated"]
    worth = held.realised(held.probs[best])
    for name in stronger if len(held.labels) > 1 else ():
        other = held.realised(held.probs[name])
        gain = other - worth
        if held.mean(gain) > gain.std(ddof=1) / np.sqrt(len(gain)):
            best, worth = name, other
    return Mix({best: 1.0}, details={"strength": float(best.partition("-")[2] or 0)})


def _blend(members: Mapping[str, Mix], held: HeldOut) -> Mix:
    """Weights by the log-loss of the rows held out, then a temperature."""
    probs = [mix.probs(held.probs) for mix in members.values()]
    observed = torch.stack([held.observed(each) for each in probs])  # (M, n)
    weights = (
        blend_weights(observed, counts=held.weights).tolist() if len(held.labels) else [1 / len(probs)] * len(probs)
    )
    shares = {name: weight for name, weight in zip(members, weights, strict=True) if weight}
    # A member is one trained model, with its own weight of 1.
    plain = Mix({trained: weight for name, weight in shares.items() for trained in members[name].weights})
    temperature = 1.0
    if len(held.labels):
        fitted = Temperature.fit(Outcomes(plain.probs(held.probs)), held.labels, held.weights)
        temperature = max(COLDEST, fitted.temperature)
    return Mix(plain.weights, temperature, {"weights": shares, "temperature": temperature})


def choose(mixes: Mapping[str, Mix], held: HeldOut, seed: int) -> Choice:
    """The blend; without one, the model with the lowest log-loss; but the constant, where neither beats it."""
    probs = {name: mix.probs(held.probs) for name, mix in mixes.items()}
    worth = {name: held.realised(each) for name, each in probs.items()}
    others = [name for name in mixes if name != "constant"]
    if "blend" in others:
        chosen, why = "blend", "a blend of models is the default"
    else:
        losses = {name: held.log_loss(probs[name]) for name in others}
        chosen = min(losses, key=lambda name: losses[name]) if losses else "constant"
        why = "it has the lowest log-loss on the rows that folds held out"
    if "constant" in worth and held.mean(worth["constant"]) >= held.mean(worth[chosen]):
        chosen, why = "constant", "no model did better than one decision for everybody on the rows that folds held out"
    rivals = {name: held.mean(values) for name, values in worth.items() if name != chosen}
    if not rivals:
        return Choice(chosen, "it is the only one")
    rival = max(rivals, key=lambda name: rivals[name])
    lead = metrics.paired_difference([worth[chosen]], [worth[rival]], seed=seed, groups=held.groups)
    return Choice(chosen, why, rival, lead)
