"""Checks of utility tables: what is refused, and what can be used but is probably not what was meant."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stakes.errors import StakesError, listing


def refuse_repeats(names: Sequence[str], kind: str) -> None:
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise StakesError(f"expected each {kind} once, but got {listing(repeated)} more than once")


def table_warnings(table: NDArray[np.float64], decisions: Sequence[str], outcomes: Sequence[str]) -> list[str]:
    """What is probably a mistake in a table of utilities, decisions x outcomes, in words."""
    if np.ptp(table) == 0:
        return ["every decision is worth the same under every outcome: there is nothing to decide"]
    messages = []
    for row, name in enumerate(decisions):
        rivals = [r for r in range(len(decisions)) if (table[r] >= table[row]).all() and (table[r] > table[row]).any()]
        if rivals:
            messages.append(
                f"decision {name!r} can never be the best one: {decisions[rivals[0]]!r} is worth "
                "at least as much under every outcome"
            )
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
