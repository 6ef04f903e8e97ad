"""Decisions by a blend some of whose parts are random, with the Monte-Carlo error of their margins.

A `Blend` mixes each part over its draws, and has one draw itself; the draws are behind it all the same. They are cut
into groups, of which each makes a blend of its own: how far these disagree is how far the decision depends on the
draws.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stakes.calibration import Calibrated
from stakes.calibration.base import Calibrator
from stakes.decisions import Decisions, decide
from stakes.decisions.rules import FEWEST_GROUPS, monte_carlo_error
from stakes.outcomes import Outcomes, Predictor
from stakes.posteriors.batch_ensemble import BatchEnsemble
from stakes.posteriors.ensemble import Ensemble
from stakes.predictors import Blend, SampledPosterior
from stakes.utility import TableUtility

MOST_GROUPS = 20


@dataclass(frozen=True, eq=False)
class RandomBlend:
    """A blend, and the calibrators that it goes through, the innermost first."""

    blend: Blend
    calibrators: tuple[Calibrator, ...]
    groups: int

    @classmethod
    def of(cls, predictor: Predictor) -> "RandomBlend | None":
        """None where nothing is random: more members of an ensemble, say, cannot be had from a saved model."""
        calibrators: list[Calibrator] = []
        while isinstance(predictor, Calibrated):
            calibrators.insert(0, predictor.calibrator)
            predictor = predictor.predictor
        if not isinstance(predictor, Blend):
            return None
        weighted_parts = zip(predictor.parts, predictor.weights, strict=True)
        units = [part.samples // _unit(part) for part, weight in weighted_parts if weight and _is_random(part)]
        return cls(predictor, tuple(calibrators), _divisor(min(units))) if units and min(units) > 1 else None

    def decide(self, x: Tensor, utility: TableUtility) -> Decisions:
        """As the blend decides, with margin errors."""
        mixed, of_groups = self._probs(x)
        decisions = decide(self._calibrated(mixed), utility)
        if len(utility.decisions) == 1:
            return decisions
        advantage = utility.advantage(self._calibrated(of_groups), decisions.choice, decisions.runner_up)  # (G, B)
        return replace(decisions, margin_error=monte_carlo_error(advantage))

    @torch.no_grad()
    def _probs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, C)`` of all draws, and ``(G, B, C)`` of each group."""
        mixed, of_groups = torch.zeros(()), torch.zeros(())
        for part, weight in zip(self.blend.parts, self.blend.weights, strict=True):
            if not weight:
                continue
            if not _is_random(part):
                weighted = weight * part(x).mean_probs()
                mixed, of_groups = mixed + weighted, of_groups + weighted
                continue
            draws = part(x).probs()  # (S, B, C)
            used = len(draws) // _unit(part) // self.groups * self.groups * _unit(part)
            mixed = mixed + weight * draws.mean(0)
            of_groups = of_groups + weight * draws[:used].reshape(self.groups, -1, *draws.shape[1:]).mean(1)
        return mixed, of_groups

    def _calibrated(self, probs: Tensor) -> Outcomes:
        outcomes = Outcomes(probs)
        for calibrator in self.calibrators:
            outcomes = calibrator(outcomes)
        return outcomes


def _is_random(part: Predictor) -> bool:
    """Whether another seed would give other draws."""
    return (
        isinstance(part, SampledPosterior)
        and part.samples > 1
        and not isinstance(part.posterior, Ensemble | BatchEnsemble)
    )


def _unit(part: Predictor) -> int:
    """Draws that stay together: those that balance each other, unless that would leave too few groups."""
    return part.group if part.samples // part.group >= FEWEST_GROUPS else 1


def _divisor(count: int) -> int:
    """The most groups into which ``count`` can be cut without a rest; where these are few, with a rest."""
    whole = [groups for groups in range(FEWEST_GROUPS, MOST_GROUPS + 1) if count % groups == 0]
    return max(whole, default=min(count, MOST_GROUPS))
