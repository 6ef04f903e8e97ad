"""The models side by side, and what their decisions came to: too little, too much, or action by action."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stakes.evaluation.amounts import AmountRow, select
from stakes.evaluation.metrics import Interval
from stakes.report.alternatives import FINDINGS, chosen_because
from stakes.report.amounts import AmountFormat
from stakes.report.groups import by_group
from stakes.report.numbers.headline import amount, contrast
from stakes.report.words import number, share
from stakes.tables.amounts.run import AmountRun
from stakes.utility import AmountUtility, CurveUtility
from stakes.utility.menu import MenuUtility

FloatArray = NDArray[np.float64]
ABOUT = {
    "constant": "decides the same every time, by the amounts of the past: what can be had without a model",
    "linear": "is linear quantile regression",
    "neighbours": "goes by the rows of the past that are most alike",
    "forest": "goes by the rows of the past that fall into the same leaves of a random forest",
    "mean": "predicts the mean with boosted trees, with the errors of the past around it",
    "boosting": "is gradient boosting of decision trees, for the quantiles that the costs ask for",
    "standard": "is a neural network that learns the distribution, whatever mistakes cost",
    "calibrated": "is a neural network that learns for the decisions themselves, if that pays",
    "blend": "averages the quantiles of the others, weighted by rows that they did not train on",
}


def alternatives(run: AmountRun) -> dict[str, Any]:
    """A row for each model: its cost, against the constant and against the best of the others, and its quantiles."""
    rows = [_shown(run, row) for row in run.comparison.rows]
    levels = [row.cost for row in run.comparison.rows]
    return {
        "rows": rows,
        "level_scale": (min(level.low for level in levels), max(level.high for level in levels)),
        "reference": "the same every time" if run.comparison.reference == "constant" else run.comparison.reference,
        "about": {model: ABOUT[model] for model in run.comparison.models if model in ABOUT},
        "because": chosen_because(run),
    }


def _shown(run: AmountRun, row: AmountRow) -> dict[str, Any]:
    saving, lead = (None if gain is None else _gain(run, gain) for gain in (row.saving, row.lead))
    return {
        "row": row,
        "saving": saving,
        "lead": lead,
        "crps": number(row.crps),
        "within": share(row.within_80),
    }


def _gain(run: AmountRun, gain: Interval) -> dict[str, Any]:
    finding = contrast(run, gain).finding
    finding_text = FINDINGS[finding] if finding != "too_few" else "too few rows to tell"
    return {"gain": gain, "finding": finding, "said": finding_text}


def subgroups(run: AmountRun) -> dict[str, Any] | None:
    """Costs by the groups of ``--by``, if it was given."""
    if run.by is None:
        return None
    ours, theirs = (
        -np.stack([item.costs for item in select(run.scored, model)])
        for model in (run.comparison.chosen, run.comparison.reference)
    )
    return by_group(run, run.by, ours, theirs)


# What the decisions came to ------------------------------------------------------------------------


def mistakes(run: AmountRun) -> list[dict[str, Any]] | None:
    """How often, by how much and at what cost decisions were too low and too high; None where they are actions."""
    if not isinstance(run.utility, AmountUtility):
        return None
    shown = dict.fromkeys([run.comparison.chosen, run.comparison.reference])
    return [{"model": model, "rows": _errors(run, model)} for model in shown]


def _errors(run: AmountRun, model: str) -> list[tuple[str, ...]]:
    scored = select(run.scored, model)
    errors = np.concatenate([(run.labels - item.choice).numpy() for item in scored])  # (R N,)
    return error_rows(
        errors, np.concatenate([item.costs for item in scored]), AmountFormat.of(run.utility), len(scored)
    )


def error_rows(errors: FloatArray, costs: FloatArray, amounts: AmountFormat, seeds: int = 1) -> list[tuple[str, ...]]:
    """Of outcomes less decisions: how many were too low, too high and right, by how much, and the cost in all."""
    rows: list[tuple[str, ...]] = []
    for name, members in (("too little", errors > 0), ("too much", errors < 0), ("exactly right", errors == 0)):
        mean = amount(float(np.abs(errors[members]).mean())) if members.any() and name != "exactly right" else ""
        total = float(costs[members].sum()) / seeds
        rows.append((name, share(float(members.mean())), mean, amounts.plain(total)))
    return rows


def actions(run: AmountRun) -> dict[str, Any] | None:
    """How often each action was taken, what it was expected to cost and did; None where decisions are numbers."""
    utility = run.utility
    if not isinstance(utility, MenuUtility):
        return None
    scored = select(run.scored, run.comparison.chosen)
    choices = np.concatenate([item.choice.numpy() for item in scored])
    claimed, costs = (np.concatenate([getattr(item, key) for item in scored]) for key in ("expected_costs", "costs"))
    outcomes = np.tile(run.labels.numpy(), len(scored))
    curves = utility.curves if isinstance(utility, CurveUtility) else {}
    return action_rows(utility, choices, outcomes, claimed, costs, len(scored)) | {
        "model": run.comparison.chosen,
        "curves": [(name, _curve(curve, AmountFormat.of(utility))) for name, curve in curves.items()],
    }


def action_rows(
    utility: MenuUtility,
    choices: NDArray[np.int64],
    outcomes: FloatArray,
    claimed: FloatArray | None,
    costs: FloatArray,
    seeds: int = 1,
) -> dict[str, Any]:
    """For each action how often it was taken, what was expected and came, and the best of all taken every time."""
    amounts, rows = AmountFormat.of(utility), []
    always = utility.costs(torch.from_numpy(outcomes)).double().mean(0).tolist()
    for index, name in enumerate(utility.decisions):
        taken = choices == index
        cells = [""] * 4
        if taken.any():
            cells = [
                amount(float(np.median(outcomes[taken]))),
                *("" if each is None else amounts.plain(float(each[taken].mean())) for each in (claimed, costs)),
                amounts.plain(float(costs[taken].sum()) / seeds),
            ]
        rows.append({"name": name, "count": f"{taken.sum() / seeds:,.0f}", "share": share(float(taken.mean())),
                     "cells": cells, "always": amounts.plain(always[index])})  # fmt: skip
    return {"rows": rows, "best": utility.decisions[int(np.argmin(always))]}


def _curve(curve: Any, amounts: AmountFormat) -> str:
    """``always 400 €``, or its points: ``0: 5,000 €, 60: 5,000 €, 60: 0 €``."""
    if np.ndim(curve) == 0 or len({cost for _, cost in curve}) == 1:
        return f"always {amounts.plain(curve if np.ndim(curve) == 0 else curve[0][1])}"
    return ", ".join(f"{amount(outcome)}: {amounts.plain(cost)}" for outcome, cost in curve)
