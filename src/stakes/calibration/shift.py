"""A shift of outcomes that are numbers, so that a quantile covers its share of outcomes, whatever the model is."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

from torch import Tensor

from stakes.calibration.base import Calibrator, calibrators
from stakes.errors import StakesError
from stakes.mixtures import Distribution, numbers
from stakes.outcomes import Outcomes


@calibrators.register("shift")
@dataclass(frozen=True)
class Shift(Calibrator):
    """All outcomes, and so all quantiles, moved ``by`` a number."""

    by: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.by):
            raise StakesError(f"expected a finite number to shift by, but got {self.by}")

    @classmethod
    def fit(cls, outcomes: Outcomes, labels: Tensor, share: float) -> Self:
        """So that the ``share`` quantile h covers it: P(y <= h) = ceil((n + 1) share) / (n + 1), exactly.

        That holds for a new row that is exchangeable with the n rows of these labels, whatever the model is. Of a
        `Newsvendor` the share is ``utility.share``.
        """
        if labels.shape != outcomes.shape[:-1]:
            raise StakesError(
                f"expected a number for each of {tuple(outcomes.shape[:-1])}, but got {tuple(labels.shape)}"
            )
        if not 0 < share < 1:
            raise StakesError(f"expected a share above 0 and below 1, but got {share}")
        # But for rounding, as in (9 + 1) 0.3.
        rank = math.ceil((labels.numel() + 1) * share - 1e-9)
        if rank > labels.numel():
            raise StakesError(
                f"expected at least {math.ceil(share / (1 - share) - 1e-9)} rows for a share of {share}, but got "
                f"{labels.numel()}"
            )
        gaps = labels - numbers(outcomes).quantile(share)
        return cls(float(gaps.flatten().kthvalue(rank).values))

    def __call__(self, outcomes: Outcomes) -> Outcomes:
        if isinstance(outcomes, Distribution):
            return outcomes.shifted(self.by)
        if outcomes.values is None:
            raise StakesError("expected outcomes that are numbers to shift, but got named classes: use Temperature")
        return Outcomes(outcomes.weights, values=outcomes.values + self.by)

    def settings(self) -> dict[str, Any]:
        return asdict(self)
