"""What decisions cost in parts of the test rows, by a column of the user's choice."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stakes.evaluation.comparison import select
from stakes.evaluation.few_cases import FEW_CASES, few_decisive_cases
from stakes.evaluation.metrics import Interval, bootstrap, paired_difference
from stakes.report.amounts import AmountFormat
from stakes.report.words import verdict
from stakes.tables.run import FinishedRun, Run

MOST_GROUPS = 12
_QUARTERS = 4


def subgroups(run: Run) -> dict[str, Any] | None:
    """Rows, cost and gain over the reference in each group; None if no column was named."""
    if run.by is None:
        return None
    ours, theirs = (
        np.stack([item.utilities for item in select(run.scored, model, "optimal")])
        for model in (run.comparison.chosen, run.comparison.reference)
    )
    labels, difference = run.labels.numpy(), ours.mean(0) - theirs.mean(0)

    def too_few(members: NDArray[np.bool_]) -> bool:
        groups = None if run.groups is None else run.groups[members]
        return bool(few_decisive_cases(run.utility.rows(members), labels[members], difference[members], groups))

    return by_group(run, run.by, ours, theirs, too_few)


def by_group(
    run: FinishedRun,
    by: tuple[str, ...],
    ours: NDArray[np.float64],
    theirs: NDArray[np.float64],
    too_few: Callable[[NDArray[np.bool_]], bool] = lambda members: False,
) -> dict[str, Any]:
    """Costs and gains by group, from the utilities ``(R, N)`` of two models.

    ``too_few`` tells whether what is found in some rows rests on too few cases.
    """
    amounts, seed = AmountFormat.of(run.utility), run.settings["seed"]
    rows: list[dict[str, Any]] = []
    for name, members in grouped(by).items():
        together: dict[str, Any] = {
            key: None if each is None else each[members] for key, each in run.dependence.items()
        }
        level = amounts.level(bootstrap(ours[:, members], seed=seed, **together))
        gain = amounts.gain(paired_difference(ours[:, members], theirs[:, members], seed=seed, **together))
        few = int(members.sum()) < FEW_CASES
        doubtful = verdict(gain) in ("more", "less") and (few or too_few(members))
        counts = {"rows": int(members.sum()), "few": few, "doubtful": doubtful, "worse": gain.high < 0 and not doubtful}
        rows.append({"name": name, **counts, "level": level, "gain": gain})
    scale = min(row["level"].low for row in rows), max(row["level"].high for row in rows)
    return {"column": run.settings["by"], "rows": rows, "scale": scale, "said": _said(rows, amounts)}


def grouped(values: tuple[str, ...]) -> dict[str, NDArray[np.bool_]]:
    """Which rows are in each group: of equal values; of many numbers, quarters; of many others, the rest together."""
    texts = np.array([value or "missing" for value in values])
    names, counts = np.unique(texts, return_counts=True)
    if len(names) <= MOST_GROUPS:
        return {str(name): texts == name for name in names[np.argsort(-counts, kind="stable")]}
    try:
        numbers = np.array([float(value) if value else np.nan for value in values])
    except ValueError:
        largest = names[np.argsort(-counts, kind="stable")][: MOST_GROUPS - 1]
        groups = {str(name): texts == name for name in largest}
        return groups | {f"{len(names) - len(largest):,} others": ~np.isin(texts, largest)}
    edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, _QUARTERS + 1)))
    part = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    present = ~np.isnan(numbers)
    groups = {}
    for index in range(len(edges) - 1):
        members = present & (part == index)
        if members.any():
            groups[f"{numbers[members].min():g} to {numbers[members].max():g}"] = members
    return groups | ({} if present.all() else {"missing": ~present})


def _said(rows: list[dict[str, Any]], amounts: AmountFormat) -> str:
    """The groups in which the model does worse than its alternative, beyond chance; or how far groups lie apart."""
    enough = [row for row in rows if not row["few"]]
    worse = [row["name"] for row in rows if row["worse"]]
    if worse:
        return f"In {', '.join(worse)} the model does worse than its alternative, beyond chance."
    if not enough:
        return f"No group has {FEW_CASES} test rows or more: nothing can be told of them."
    ends: tuple[Interval, Interval] = (
        min((row["level"] for row in enough), key=lambda level: level.mean),
        max((row["level"] for row in enough), key=lambda level: level.mean),
    )
    low, high = (amounts.mean(level) for level in ends)
    return f"The {amounts.noun} per decision goes from {low} to {high}, in groups of {FEW_CASES} test rows or more."
