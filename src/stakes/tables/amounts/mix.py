"""From trained models to those that are compared, where outcomes are numbers: means of quantiles, and a blend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.decisions import decide
from stakes.evaluation import metrics
from stakes.evaluation.comparison import Choice
from stakes.mixtures import LEVELS, Quantiles
from stakes.outcomes import Predictor
from stakes.predictors import QuantileBlend, quantile_weights
from stakes.tables.amounts.models import AMOUNTS
from stakes.tables.kind import Solution
from stakes.tables.problem import Problem
from stakes.utility import Newsvendor, Utility


@dataclass(frozen=True, eq=False)
class HeldAmounts:
    """The rows that folds held out, fold after fold, and the quantiles that every trained model said of them."""

    quantiles: Mapping[str, Tensor]  # by trained model, (n, 99)
    labels: Tensor  # (n,)
    utility: Utility  # one for all rows, or one for each
    groups: NDArray[np.int64] | None = None  # (n,) what the rows belong to

    @classmethod
    def of(cls, problem: Problem, quantiles: Mapping[str, Tensor]) -> "HeldAmounts":
        rows = problem.selection_rows
        return cls(quantiles, problem.examples.labels[rows], problem.utility.rows(rows), problem.selection_groups)

    def costs(self, quantiles: Tensor) -> NDArray[np.float64]:
        """(n,) what the decisions by ``quantiles`` turned out to cost."""
        realised = self.utility.realised(decide(Quantiles(quantiles), self.utility).choice, self.labels)
        return np.asarray(self.utility.cost_of(realised))

    @property
    def emphasis(self) -> Tensor | None:
        """(n, 99) what each level counts: half of it all alike, half of it the one that a row's own costs ask for."""
        if not isinstance(self.utility, Newsvendor):
            return None
        shares = torch.as_tensor(self.utility.share).expand(len(self.labels)).contiguous()
        own = (shares[:, None] - LEVELS).abs().argmin(1)
        counts = torch.full((len(self.labels), len(LEVELS)), 0.5 / len(LEVELS), dtype=torch.float64)
        return counts.scatter_add_(1, own[:, None], torch.full((len(own), 1), 0.5, dtype=torch.float64))


@dataclass(frozen=True)
class AmountMix:
    """A model as it is compared and saved: trained models with weights, of their quantiles."""

    weights: Mapping[str, float]  # by trained model; their sum is 1
    details: Mapping[str, Any] = field(default_factory=dict)

    def quantiles(self, trained: Mapping[str, Tensor]) -> Tensor:
        """From those of the trained models, ``(n, 99)`` each."""
        mixed = sum(weight * trained[name].double() for name, weight in self.weights.items())
        assert isinstance(mixed, Tensor)
        return mixed.float()

    def predictor(self, parts: Mapping[str, Sequence[Predictor]]) -> Predictor:
        """From the parts of the trained models."""
        shares = [(part, weight / len(parts[name])) for name, weight in self.weights.items() for part in parts[name]]
        return QuantileBlend([part for part, _ in shares], [share for _, share in shares])


def mix(names: Sequence[str], held: HeldAmounts) -> dict[str, AmountMix]:
    """The models to compare, of those that were trained; what there is to choose is chosen on the rows held out."""
    compared = AMOUNTS.compared
    single = {name: AmountMix({compared[name][-1]: 1.0}) for name in compared if name not in ("blend", "calibrated")}
    members = AMOUNTS.blended(names) if "blend" in names else ()
    if "calibrated" in (*names, *members):
        single["calibrated"] = _calibrated(held)
    if "blend" in names:
        single["blend"] = _blend({name: single[name] for name in members}, held)
    return {name: single[name] for name in names}


def _calibrated(held: HeldAmounts) -> AmountMix:
    """The weakest calibration that none is better than by more than a standard error, on the rows held out."""
    best, *stronger = AMOUNTS.compared["calibrated"]
    costs = held.costs(held.quantiles[best])
    for name in stronger if len(held.labels) > 1 else ():
        other = held.costs(held.quantiles[name])
        saved = costs - other
        if saved.mean() > saved.std(ddof=1) / np.sqrt(len(saved)):
            best, costs = name, other
    return AmountMix({best: 1.0}, details={"strength": float(best.partition("-")[2] or 0)})


def _blend(members: Mapping[str, AmountMix], held: HeldAmounts) -> AmountMix:
    """Weights by the pinball loss of the rows held out."""
    quantiles = [mix.quantiles(held.quantiles) for mix in members.values()]
    weights = [1 / len(quantiles)] * len(quantiles)
    if len(held.labels):
        weights = quantile_weights(quantiles, held.labels, emphasis=held.emphasis).tolist()
    shares = {name: weight for name, weight in zip(members, weights, strict=True) if weight}
    # A member is one trained model, with its own weight of 1.
    by_trained = {trained: weight for name, weight in shares.items() for trained in members[name].weights}
    return AmountMix(by_trained, {"weights": shares})


@dataclass(frozen=True, eq=False)
class AmountSolution(Solution):
    """Mixes of quantiles."""

    mixes: Mapping[str, AmountMix]
    held: HeldAmounts

    def on_test(self, model: str) -> Tensor:
        return self.mixes[model].quantiles(self.test)

    def validation(self, model: str) -> float:
        return -float(self._costs(model).mean())

    def choose(self, seed: int) -> Choice:
        """The blend; without one, the model with the cheapest decisions; but the constant, where neither beats it."""
        costs = {name: self._costs(name) for name in self.mixes}
        others = [name for name in self.mixes if name != "constant"]
        if "blend" in others:
            chosen, why = "blend", "a blend of models is the default"
        else:
            chosen = min(others, key=lambda name: costs[name].mean()) if others else "constant"
            why = "its decisions were the cheapest on the rows that folds held out"
        if "constant" in costs and costs["constant"].mean() <= costs[chosen].mean():
            chosen = "constant"
            why = "no model did better than the best decision of the past on the rows that folds held out"
        rivals = {name: values.mean() for name, values in costs.items() if name != chosen}
        if not rivals:
            return Choice(chosen, "it is the only one")
        rival = min(rivals, key=lambda name: rivals[name])
        lead = metrics.paired_difference([costs[rival]], [costs[chosen]], seed=seed, groups=self.held.groups)
        return Choice(chosen, why, rival, lead)

    def _costs(self, model: str) -> NDArray[np.float64]:
        return self.held.costs(self.mixes[model].quantiles(self.held.quantiles))
