"""Differences that rest on few cases of an outcome, where a bootstrap understates the uncertainty.

Two models that differ in 2 of 40 cases of fraud could as well have differed in 7: so many are within a 95 % interval of
a count of 2. Where that would undo a difference, it cannot be told from chance, whatever the bootstrap says. How often
that is wrong was simulated: see docs/design.md.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stakes.utility import TableUtility

FEW_CASES = 20  # of an outcome
UNSEEN = 3  # so many more cases than were seen would be no surprise: the "rule of three"


class FewCases(NamedTuple):
    """An outcome with few cases that could turn a difference."""

    outcome: str
    cases: int  # among all
    differing: int  # of them, those in which the two came to different amounts


def few_cases_clause(few: Sequence[FewCases]) -> str:
    """``there are only 6 cases of fraud and 12 of theft``, or in how few of many cases the two differ."""
    rare = [case for case in few if case.cases < FEW_CASES]
    parts = []
    if rare:
        first, *others = rare
        counts = [counted(first.outcome, first.cases), *(f"{case.cases:,} of {case.outcome}" for case in others)]
        verb = "is" if first.cases == 1 and not others else "are"
        parts.append(f"there {verb} only {', '.join(counts[:-1])}{' and ' if others else ''}{counts[-1]}")
    for case in few:
        if case.cases >= FEW_CASES:
            number = f"only {case.differing}" if case.differing else "none"
            parts.append(f"the two differ in {number} of {counted(case.outcome, case.cases)}")
    return " and ".join(parts)


def few_decisive_cases(
    utility: TableUtility,
    labels: NDArray[np.int64],
    difference: NDArray[np.float64],
    groups: NDArray[np.int64] | None = None,
) -> tuple[FewCases, ...]:
    """Outcomes whose few cases carry a difference, or could make up for the whole of it.

    ``difference``, (N,), is by how much the decision about each row was worth more than that of the other model. An
    outcome carries it if half of it or more comes from fewer than 20 cases. It could make up for it if its cases that
    speak against it and three more of them, at their worst, are worth as much; of an outcome with fewer than 20 cases,
    more still, for it may itself be more frequent than was seen. With ``groups``, (N,), the rows of a group that have
    one outcome are one case.
    """
    counts, stakes = cases_and_stakes(utility, labels, groups)
    if groups is not None:
        (_, labels), case_of_row = np.unique(np.stack([groups, labels]), axis=1, return_inverse=True)
        difference = np.bincount(case_of_row, difference)  # type: ignore[assignment]  # with weights, floats
    whole = float(difference.sum())
    differing = np.bincount(labels[difference != 0], minlength=len(counts))
    by_outcome = np.bincount(labels, difference, minlength=len(counts))
    few = (differing < FEW_CASES) & (2 * np.abs(by_outcome) >= abs(whole))
    against = np.bincount(labels[difference * whole < 0], minlength=len(counts))
    rare = (counts > 0) & (counts < FEW_CASES)
    more_frequent = 1 + rare * 2 * (np.sqrt(counts) + 1) / np.maximum(counts, 1)
    few |= (against < FEW_CASES) & ((against + UNSEEN) * more_frequent * stakes >= abs(whole))
    return tuple(FewCases(utility.outcomes[c], int(counts[c]), int(differing[c])) for c in np.flatnonzero(few))


def cases_and_stakes(
    utility: TableUtility, labels: NDArray[np.int64], groups: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(C,) how many cases each outcome has, and how much decisions about one differ at most, in utility: the mean,
    where rows differ. A case is a row; or, with ``groups``, the rows of a group with one outcome.
    """
    rows = np.bincount(labels, minlength=len(utility.outcomes))
    spread = utility.values.max(-2) - utility.values.min(-2)  # (C,) or (N, C)
    if spread.ndim == 2:
        columns = [column[labels == c] if rows[c] else column for c, column in enumerate(spread.T)]
        spread = np.array([values.mean() for values in columns])
    if groups is None:
        return rows, spread
    cases = np.bincount(np.unique(np.stack([groups, labels]), axis=1)[1], minlength=len(rows))
    rows_each = np.where(cases > 0, rows / np.maximum(cases, 1), rows.sum() / cases.sum())
    return cases, spread * rows_each


def counted(outcome: str, count: int) -> str:
    """``6 cases of fraud``."""
    return f"{count:,} {'case' if count == 1 else 'cases'} of {outcome}"
