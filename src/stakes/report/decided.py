"""Decision by decision: how often each met each outcome, what was right for it, and where thresholds lie."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stakes.decisions import RULES
from stakes.evaluation.comparison import Row, select
from stakes.report.amounts import AmountFormat
from stakes.report.words import number, share
from stakes.tables.run import Run

_NEVER = 1e-12  # a range of probabilities that is narrower is none


def confusions(run: Run) -> list[dict[str, Any]]:
    """How often each decision met each outcome, and what that came to; the chosen model first."""
    tables, names = [], AmountFormat.of(run.utility).rule_names
    for row in sorted(run.comparison.rows, key=lambda row: not run.comparison.is_chosen(row)):
        scored = select(run.scored, row.model, row.rule)
        counts = np.sum([item.counts for item in scored], axis=0)
        total = np.zeros(counts.shape)
        for item in scored:
            np.add.at(total, (item.choice.numpy(), run.labels.numpy()), run.utility.stated(item.utilities))
        tables.append({"row": row, "rule": names[row.rule], "counts": _shaded(counts), "money": _shaded(total)})
    return tables


def recall(run: Run) -> dict[str, Any] | None:
    """Of each outcome, how many cases got the decision that is best for it; None where rows have their own costs."""
    if run.utility.per_example:
        return None
    utility, rules = run.utility, RULES[::-1]
    best = utility.best_response
    counts = {rule: _counts(run, run.comparison.row(run.comparison.chosen, rule)) for rule in rules}
    rows = []
    for c, outcome in enumerate(utility.outcomes):
        cases = counts["optimal"][:, c].sum()
        shares = [share(counts[rule][best[c], c] / cases) if cases else "no cases" for rule in rules]
        rows.append((outcome, utility.decisions[best[c]], f"{cases:,}", shares))
    labels = set(utility.decisions) == set(utility.outcomes)
    if labels:
        right = [share(counts[rule][best, np.arange(len(best))].sum() / counts[rule].sum()) for rule in rules]
        rows.append(("all", "", f"{counts['optimal'].sum():,}", right))
    return {
        "rows": rows,
        "rules": [AmountFormat.of(utility).rule_names[rule] for rule in rules],
        "names": _recall_names(run),
    }


def thresholds(run: Run) -> str | None:
    """For two outcomes: from which probability on each decision is taken, in a sentence."""
    utility = run.utility
    if len(utility.outcomes) != 2 or utility.per_example:
        return None
    about = int(utility.class_weights.argmax())  # the outcome that is costlier to miss
    probability = f"the probability of {utility.outcomes[about]}"
    ranges = _ranges(utility.values[:, 1 - about], utility.values[:, about])
    parts = []
    for decision, low, high in ranges:
        if len(ranges) == 1:
            where = "whatever the probabilities are"
        elif low == 0:
            where = f"when {probability} is below {percent(high)}"
        elif high == 1:
            where = f"when it is above {percent(low)}"
        else:
            where = f"when it is from {percent(low)} to {percent(high)}"
        parts.append(f"“{utility.decisions[decision]}” {where}")
    taken = {decision for decision, _, _ in ranges}
    never = [f"“{name}”" for d, name in enumerate(utility.decisions) if d not in taken]
    rest = f" {', '.join(never)} {'is' if len(never) == 1 else 'are'} never best." if never else ""
    return f"At these {AmountFormat.of(utility).plural}, decide {', '.join(parts)}.{rest}"


def percent(value: float) -> str:
    """With as many digits as a threshold needs: 8.1 %, 0.052 %."""
    return f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.3g} %"


def _ranges(at_zero: NDArray[np.float64], at_one: NDArray[np.float64]) -> list[tuple[int, float, float]]:
    """Which line is the highest where, from 0 to 1: (line, from, to). Of equal ones, the first."""
    crossings = {0.0, 1.0}
    for a in range(len(at_zero)):
        for b in range(a):
            start, slope = at_zero[a] - at_zero[b], (at_one[a] - at_zero[a]) - (at_one[b] - at_zero[b])
            if slope and 0 < -start / slope < 1:
                crossings.add(float(-start / slope))
    ends = sorted(crossings)
    ranges: list[tuple[int, float, float]] = []
    for low, high in pairwise(ends):
        if high - low < _NEVER:
            continue
        middle = (low + high) / 2
        best = int(((1 - middle) * at_zero + middle * at_one).argmax())
        if ranges and ranges[-1][0] == best:
            ranges[-1] = best, ranges[-1][1], high
        else:
            ranges.append((best, low, high))
    return ranges


def _recall_names(run: Run) -> dict[str, str]:
    """Of two outcomes and two decisions, what medicine calls it: the costlier outcome to miss is the positive one."""
    outcomes = run.utility.outcomes
    if len(outcomes) != 2 or len(run.utility.decisions) != 2:  # a third decision misses nothing, and is no hit either
        return {}
    about = int(run.utility.class_weights.argmax())
    return {outcomes[about]: "sensitivity", outcomes[1 - about]: "specificity"}


def _counts(run: Run, row: Row) -> NDArray[np.int64]:
    return np.asarray(np.sum([item.counts for item in select(run.scored, row.model, row.rule)], axis=0))


def _shaded(values: NDArray[Any]) -> dict[str, Any]:
    """Cells with a level of shading from 0 to 4, the larger the darker, and sums."""

    def text(value: float) -> str:
        return f"{value:z,.0f}" if value == round(value) else number(float(value))

    most = float(values.max())
    rows = [[(text(value), int(np.ceil(4 * value / most)) if value > 0 else 0) for value in row] for row in values]
    return {
        "rows": list(zip(rows, map(text, values.sum(1)), strict=True)),
        "sums": [*map(text, values.sum(0)), text(values.sum())],
    }
