"""Decision calibration for one known utility (after Zhao et al. 2021): what a decision claims to be worth, it is.

For the rows that get the decision a, the mean of (observed - predicted) is added to their predictions,
again and again until no decision's predictions are off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from stakes.calibration.base import Calibrator, calibrators, require_classes
from stakes.errors import StakesError
from stakes.outcomes import Outcomes
from stakes.utility import Utility

FEWEST_ROWS = 1000  # on a few hundred it does nothing good
PRIOR_ROWS = 20  # that say a decision's predictions are right
MOST_ROUNDS, CLOSE = 200, 1e-3  # CLOSE: the mean distance, in L1, that is left


@calibrators.register("decision")
@dataclass(frozen=True, eq=False)
class DecisionCalibration(Calibrator):
    """``p + corrections[round][decision]``, round by round, where the decision is the best one for p so far."""

    utility: Utility
    corrections: Sequence[Sequence[Sequence[float]]]  # (rounds, D, C)

    def __post_init__(self) -> None:
        if isinstance(self.utility, dict):  # as it is saved
            object.__setattr__(self, "utility", Utility.from_dict(self.utility))
        if self.utility.per_example:
            raise StakesError("expected one utility for all examples to calibrate for, but each has its own")

    @classmethod
    def fit(cls, outcomes: Outcomes, labels: Tensor, utility: Utility) -> Self:
        """On rows ``(B, C)`` that the model did not train on, at least 1,000 of them."""
        require_classes(outcomes, labels)
        if labels.ndim != 1 or len(labels) < FEWEST_ROWS:
            raise StakesError(
                f"expected at least {FEWEST_ROWS} rows for decision calibration, but got {tuple(labels.shape)}: use "
                "Temperature"
            )
        calibrator, probs = cls(utility, []), outcomes.weights.detach().double()
        observed, corrections = nn.functional.one_hot(labels.long(), probs.shape[-1]).to(probs), []
        for _ in range(MOST_ROUNDS):
            chosen = nn.functional.one_hot(calibrator._choices(probs), len(utility.decisions)).to(probs)  # (B, D)
            counts = chosen.sum(0).unsqueeze(-1)
            means = chosen.T @ (observed - probs) / counts.clamp_min(1)  # (D, C)
            if float((counts / len(probs) * means.abs()).sum()) < CLOSE:
                break
            corrections.append(means * counts / (counts + PRIOR_ROWS))
            probs = _moved(probs, chosen @ corrections[-1])
        return cls(utility, [correction.tolist() for correction in corrections])

    def __call__(self, outcomes: Outcomes) -> Outcomes:
        if outcomes.numeric:
            raise StakesError("expected named outcomes for decision calibration, but these are numbers: use a Shift")
        probs = outcomes.weights
        for correction in self.corrections:
            probs = _moved(probs, probs.new_tensor(correction)[self._choices(probs)])
        return Outcomes(probs)

    def _choices(self, probs: Tensor) -> Tensor:
        return self.utility.best_choice(Outcomes(probs))

    def settings(self) -> dict[str, Any]:
        return {"utility": self.utility.to_dict(), "corrections": self.corrections}


def _moved(probs: Tensor, by: Tensor) -> Tensor:
    """Probabilities again: none below 0, and a sum of 1."""
    moved = (probs + by).clamp_min(0)
    return moved / moved.sum(-1, keepdim=True).clamp_min(torch.finfo(moved.dtype).tiny)
