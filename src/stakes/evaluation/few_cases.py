"""Differences that rest on few cases of an outcome: a bootstrap of what happened does not tell what could have.

Two models that differ in 2 of 40 cases of fraud could as well have differed in 7: so many are within a 95 % interval of
a count of 2. Where that would undo a difference, it cannot be told from chance, whatever the bootstrap says. How often
that is wrong was simulated: see docs/design.md.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stakes.utility import TableUtility

FEW_CASES = 20  # of an outcome
UNSEEN = 3  # so many more cases than were seen would be no surprise: the "rule of three"


class FewCases(NamedTuple):
    """An outcome with few cases that could turn a difference."""

    outcome: str
    cases: int  # among all rows
    differing: int  # of them, those in which the two came to different amounts

    def __str__(self) -> str:
        """As a clause."""
        if self.cases < FEW_CASES:
            return f"there {'is' if self.cases == 1 else 'are'} only {counted(self.outcome, self.cases)}"
        few = f"only {self.differing}" if self.differing else "none"
        return f"the two differ in {few} of {counted(self.outcome, self.cases)}"


def few_that_could_turn(
    utility: TableUtility, labels: NDArray[np.int64], difference: NDArray[np.float64]
) -> tuple[FewCases, ...]:
    """Outcomes whose few (differing) cases, and three more, could make up for the whole of a difference.

    ``difference``, (N,), is by how much the decision about each row was worth more than that of the other model.
    """
    counts = case_counts(utility, labels)
    differing = case_counts(utility, labels[difference != 0])
    whole, stakes = abs(float(difference.sum())), at_stake(utility, labels)
    few = np.zeros(len(counts), dtype=bool)
    for seen in (counts, differing):
        few |= (seen < FEW_CASES) & ((seen + UNSEEN) * stakes >= whole)
    return tuple(FewCases(utility.outcomes[c], int(counts[c]), int(differing[c])) for c in np.flatnonzero(few))


def case_counts(utility: TableUtility, labels: ArrayLike) -> NDArray[np.int64]:
    """(C,) how many rows have each outcome."""
    return np.bincount(np.asarray(labels, dtype=np.int64), minlength=len(utility.outcomes))


def at_stake(utility: TableUtility, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """(C,) how much decisions about a case of each outcome differ at most, in utility; the mean, where rows differ."""
    spread = utility.values.max(-2) - utility.values.min(-2)  # (C,) or (N, C)
    if spread.ndim == 1:
        return np.asarray(spread)
    own = [column[labels == c] if (labels == c).any() else column for c, column in enumerate(spread.T)]
    return np.array([values.mean() for values in own])


def counted(outcome: str, count: int) -> str:
    """``6 cases of fraud``."""
    return f"{count:,} {'case' if count == 1 else 'cases'} of {outcome}"
