"""Decisions that more draws could not turn, whatever these say."""

from torch import Tensor

from stakes.outcomes import Outcomes
from stakes.utility import Utility

# Shares of all draws. Before six tenths of them are known, hardly any lead is out of reach of the rest.
LOOKS = (0.6, 0.8)
WORTH_A_LOOK = 0.1  # of the draws of a batch, which have to be saved


class CertainDecisions:
    """For a batch, of which one pass is known: the one that training makes.

    ``utility`` is that of the batch, ``first_pass`` ``(S, B, C)`` what the pass says of it.
    """

    def __init__(self, utility: Utility, first_pass: Outcomes) -> None:
        self._utility, self._first_pass = utility, first_pass

    def look(self) -> float | None:
        """After which share of the draws most are saved if they are as the first pass is; None if that is too few."""
        mean = Outcomes(self._first_pass.log_weights.exp().mean(0))
        saved = {share: (1 - share) * float(self._utility.is_certain(mean, share).float().mean()) for share in LOOKS}
        best = max(LOOKS, key=saved.__getitem__)
        return best if saved[best] >= WORTH_A_LOOK else None

    def __call__(self, outcomes: Outcomes, share: float) -> Tensor:
        """``(B,)``: which decisions are certain, after a ``share`` of the draws."""
        return self._utility.is_certain(outcomes, share)
