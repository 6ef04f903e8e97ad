"""Can it be believed? Quantiles against how often outcomes were below them, expected against actual costs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stakes.evaluation.amounts import select, shares_below
from stakes.evaluation.metrics import Interval, bootstrap
from stakes.mixtures import LEVELS, Quantiles
from stakes.report.amounts import AmountFormat
from stakes.report.charts import diagonal_chart, scatter_chart
from stakes.report.words import number, share
from stakes.tables.amounts.run import AmountRun
from stakes.utility import Newsvendor

LEAST_ROWS, MOST_BINS = 20, 10  # in a bin of expected costs; bins
LEAST_SPREAD = 0.1  # of expected costs, against their mean: where they hardly differ, there is nothing to see
RULE_OF_THREE = 3  # rows
_EVERY = slice(4, None, 10)  # levels .05, .15, ... .95


def claims(run: AmountRun) -> dict[str, Any]:
    amounts = AmountFormat.of(run.utility)
    rows = {}
    for row in run.comparison.rows:
        digits = amounts.digits(row.cost)
        rows[row.model] = {
            "expected": amounts.text(row.claimed_cost, digits),
            "actual": amounts.text(row.cost.mean, digits),
            "covered": "" if row.covered is None else share(row.covered),
            "within_80": share(row.within_80),
            "within_90": share(row.within_90),
        }
    return {
        "rows": rows,
        "asked": None if run.comparison.rows[0].share is None else share(run.comparison.rows[0].share),
        "covered": covered_sentence(run),
        "coverage": coverage_chart(coverage(run), run.comparison.chosen),
        "bins": bins_chart(cost_bins(run), amounts),
    }


def coverage(run: AmountRun) -> dict[str, list[tuple[float, float]]]:
    """For each model, at some levels: the share of outcomes at or below that quantile, over all seeds."""
    return {
        model: coverage_curve(
            [shares_below(item.predictions.quantiles, run.labels) for item in select(run.scored, model)]
        )
        for model in run.comparison.models
    }


def coverage_curve(below: Sequence[NDArray[np.float64]]) -> list[tuple[float, float]]:
    """From the shares of outcomes below each level, (99,) of each seed: their mean, at some levels."""
    means = np.mean(below, axis=0)[_EVERY]
    return list(zip(LEVELS[_EVERY].tolist(), means.tolist(), strict=True))


def coverage_chart(curves: Mapping[str, Sequence[tuple[float, float]]], thick: str) -> dict[str, Any]:
    words = "share of outcomes at or below it", "level of the quantile"
    label = f"Levels of quantiles against the share of outcomes below: {', '.join(curves)}"
    return diagonal_chart(curves, thick, words, label)


def covered_sentence(run: AmountRun) -> str | None:
    """How many outcomes the decisions covered, against how many the costs ask for; only a newsvendor asks."""
    utility = run.utility
    if not isinstance(utility, Newsvendor):
        return None
    scored, asked = select(run.scored, run.comparison.chosen), float(np.mean(utility.share))
    level = _covered(run, [item.choice for item in scored])
    free = _covered(run, [utility.optimum(Quantiles(item.predictions.quantiles)) for item in scored])
    return coverage_sentence(level, asked, len(run.labels), free)


def coverage_sentence(level: Interval, asked: float, rows: int, free: Interval | None) -> str:
    """``free`` is what decisions would have covered without steps and bounds; None if that is not known.

    Where all rows are covered, or none, resamples say no more than that; by the rule of three, three rows more or less
    are chance.
    """
    sentence = (
        f"Decisions were enough for {share(level.mean)} of what happened (95 % interval {share(level.low)} to "
        f"{share(level.high)}); the costs ask for {share(asked)}"
    )
    if level.low <= asked <= level.high or abs(level.mean - asked) <= RULE_OF_THREE / rows:
        return f"{sentence}, which chance explains."
    reason = f"outcomes were {'higher' if level.mean < asked else 'lower'} than the model expected"
    if free is None:
        reason = f"{reason}, or the steps and bounds of decisions are the reason"
    elif free.low <= asked <= free.high:
        reason = "the steps and bounds of decisions are the reason"
    return f"{sentence}. That is beyond chance: {reason}."


def _covered(run: AmountRun, decisions: list[Tensor]) -> Interval:
    covered = np.stack([(run.labels <= choice).numpy() for choice in decisions])
    return bootstrap(covered, seed=run.settings["seed"], **run.dependence)


def cost_bins(run: AmountRun) -> list[tuple[float, Interval]]:
    """Rows by what the chosen model expects them to cost: the mean of that, and of what they did cost."""
    scored = select(run.scored, run.comparison.chosen)
    claimed = np.mean([item.expected_costs for item in scored], axis=0)
    costs = np.mean([item.costs for item in scored], axis=0)
    return binned(claimed, costs, run.settings["seed"])


def binned(claimed: NDArray[np.float64], costs: NDArray[np.float64], seed: int) -> list[tuple[float, Interval]]:
    """Rows by what they were expected to cost: the mean of that, and of what they did cost."""
    order = np.argsort(claimed, kind="stable")
    if np.ptp(claimed) < LEAST_SPREAD * np.abs(claimed).mean():
        return []
    parts: list[NDArray[np.int64]] = np.array_split(order, max(1, min(MOST_BINS, len(order) // LEAST_ROWS)))
    return [(float(claimed[part].mean()), bootstrap(costs[part], seed=seed)) for part in parts]


def bins_chart(bins: list[tuple[float, Interval]], amounts: AmountFormat) -> dict[str, Any] | None:
    """None where all rows are expected to cost about the same."""
    if len(bins) < 2:
        return None
    words = {
        "label": "Expected against actual cost: " + "; ".join(f"{number(x)}, {number(y.mean)}" for x, y in bins),
        "x": f"expected cost{amounts.bracketed}",
        "y": f"actual cost{amounts.bracketed}",
    }
    return scatter_chart(bins, words)
