"""Checks of utility tables: what is refused, and what can be used but is probably not what was meant."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stakes.errors import StakesError, listing

LARGEST_PROGRAM = 10_000  # cells of a table for which linear programs are solved
TOLERANCE = 1e-9


def refuse_repeats(names: Sequence[str], kind: str) -> None:
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise StakesError(f"expected each {kind} once, but got {listing(repeated)} more than once")


def swapped(values: Collection[str], decisions: Sequence[str], outcomes: Sequence[str]) -> str | None:
    """What to say if the values of a target are the names of decisions, and not those of outcomes."""
    if not values or not set(values) <= set(decisions) or set(values) <= set(outcomes):
        return None
    return (
        f"decisions and outcomes seem to be swapped: the data have {listing(sorted(values))}, which are the decisions "
        f"of the costs; their outcomes are {listing(outcomes)}: a row for each decision, a column for each outcome"
    )


def table_warnings(table: NDArray[np.float64], decisions: Sequence[str], outcomes: Sequence[str]) -> list[str]:
    """What is probably a mistake in a table of utilities, decisions x outcomes, in words."""
    if np.ptp(table) == 0:
        return ["every decision is worth the same under every outcome: there is nothing to decide"]
    return [
        *_flipped(table, decisions, outcomes),
        *never_best(table, decisions),
        *_useless_outcomes(table, outcomes),
    ]


def _flipped(table: NDArray[np.float64], decisions: Sequence[str], outcomes: Sequence[str]) -> list[str]:
    """Decisions that are worse than others under the outcome that they are named after."""
    named = [(decisions.index(name), column) for column, name in enumerate(outcomes) if name in decisions]
    wrong = [(row, column) for row, column in named if table[row, column] < table[:, column].max()]
    if not wrong:
        return []
    if len(wrong) == len(named) and all(table[row, column] == table[:, column].min() for row, column in wrong):
        return [
            "right decisions are worth less than wrong ones under every outcome: the sign seems to be flipped; "
            "a file of costs begins with 'cost', one of utilities with 'utility'"
        ]
    return [
        f"under outcome {outcomes[column]!r} the decision of that name is worth less than "
        f"{decisions[int(table[:, column].argmax())]!r}: is a sign flipped, or are two cells exchanged?"
        for row, column in wrong
    ]


def never_best(table: NDArray[np.float64], decisions: Sequence[str]) -> list[str]:
    """Decisions that another one, or a mixture of others, beats whatever the probabilities of the outcomes are."""
    messages = []
    best_somewhere = (table == table.max(0)).any(1)
    for row, name in enumerate(decisions):
        rivals = [r for r in range(len(decisions)) if (table[r] >= table[row]).all() and (table[r] > table[row]).any()]
        if rivals:
            messages.append(
                f"decision {name!r} can never be the best one: {decisions[rivals[0]]!r} is worth "
                "at least as much under every outcome"
            )
        elif not best_somewhere[row] and table.size <= LARGEST_PROGRAM and _greatest_lead(table, row) < -TOLERANCE:
            messages.append(
                f"decision {name!r} is never best: whatever the probabilities of the outcomes, "
                "one of the other decisions is worth more"
            )
    return messages


def ever_best(tables: NDArray[np.float64], *, exact: bool) -> NDArray[np.bool_]:
    """``(..., D, C) -> (..., D)``: which decisions are best for some probabilities of the outcomes.

    Those that no other one dominates; if ``exact``, without those that only a mixture of others beats, which takes a
    linear programme for each that is not the best under any outcome. With two outcomes there is no difference.
    """
    at_least = (tables[..., :, None, :] >= tables[..., None, :, :]).all(-1)  # (..., D, D): row against column
    best: NDArray[np.bool_] = np.asarray(~(at_least & ~np.swapaxes(at_least, -1, -2)).any(-2))
    if exact and math.prod(tables.shape[-2:]) <= LARGEST_PROGRAM:
        for place in np.ndindex(tables.shape[:-2]):
            rows, copies = np.unique(tables[place][best[place]], axis=0, return_inverse=True)
            highest = rows == rows.max(0)
            leads = (highest & (highest.sum(0) == 1)).any(1)  # alone, under some outcome
            for row in np.flatnonzero(~leads):
                leads[row] = _greatest_lead(rows, int(row)) > TOLERANCE
            best[(*place, np.flatnonzero(best[place]))] = leads[copies.ravel()]
    return best


def _greatest_lead(table: NDArray[np.float64], row: int) -> float:
    """By how much a decision leads all others where it leads most, as a share of the table's span.

    Over the probabilities p of the outcomes and the lead t: maximise t with p @ (table[row] - table[r]) >= t.
    """
    from scipy.optimize import linprog  # takes a while to import, and few tables need it

    behind = np.delete(table, row, axis=0) - table[row]  # (D - 1, C)
    count = table.shape[1]
    solution = linprog(
        c=[*[0.0] * count, -1.0],
        A_ub=np.c_[behind / np.ptp(table), np.ones(len(behind))],
        b_ub=np.zeros(len(behind)),
        A_eq=[[*[1.0] * count, 0.0]],
        b_eq=[1.0],
        bounds=[*[(0.0, 1.0)] * count, (None, None)],
    )
    return float(-solution.fun) if solution.success else 0.0


def _useless_outcomes(table: NDArray[np.float64], outcomes: Sequence[str]) -> list[str]:
    """Outcomes that do not matter, or not beside another one."""
    messages = []
    differences = table - table[:1]  # (D, C): what an outcome says about the choice between decisions
    for column, name in enumerate(outcomes):
        if not differences[:, column].any():
            messages.append(f"outcome {name!r} does not matter: every decision is worth the same under it")
            continue
        twins = [c for c in range(column) if np.allclose(differences[:, c], differences[:, column], rtol=1e-12, atol=0)]
        if twins:
            messages.append(
                f"outcomes {outcomes[twins[0]]!r} and {name!r} call for the same decisions: "
                "no decision tells them apart"
            )
    return messages


def require_choices(choices: NDArray[Any], shape: tuple[int, ...], decisions: int) -> None:
    """Refuse what are not numbers of decisions, one for each outcome."""
    whole = choices.dtype.kind in "iu" and choices.shape == shape
    if not whole or (choices.size and not 0 <= choices.min() <= choices.max() < decisions):
        raise StakesError(
            f"expected a decision from 0 to {decisions - 1} for each outcome, {shape}, but got {choices.dtype} of the "
            f"shape {choices.shape}" + (f", from {choices.min()} to {choices.max()}" if choices.size else "")
        )
