"""How many test cases of each outcome there are, and what is at stake in them."""

import numpy as np
from numpy.typing import NDArray

from stakes.tables.run import Run

FEW_CASES = 20  # of an outcome: with fewer, a bootstrap of what happened does not tell what could have happened
UNSEEN = 3  # so many more cases than were seen would be no surprise: the "rule of three"


def outcome_counts(run: Run) -> NDArray[np.int64]:
    """(C,)"""
    return np.bincount(run.labels.numpy(), minlength=len(run.utility.outcomes))


def at_stake(run: Run) -> NDArray[np.float64]:
    """(C,) how much decisions about a case of each outcome differ at most, in utility."""
    spread = run.utility.values.max(-2) - run.utility.values.min(-2)  # (C,) or (N, C)
    if spread.ndim == 1:
        return np.asarray(spread)
    labels = run.labels.numpy()
    own = [column[labels == c] if (labels == c).any() else column for c, column in enumerate(spread.T)]
    return np.array([values.mean() for values in own])


def at_stake_at_most(run: Run) -> NDArray[np.float64]:
    """(C,) what all cases of each outcome could come to, had they been decided otherwise, or had there been more."""
    return (outcome_counts(run) + UNSEEN) * at_stake(run)


def counted(outcome: str, count: int) -> str:
    """``6 cases of fraud``."""
    return f"{count:,} {'case' if count == 1 else 'cases'} of {outcome}"
