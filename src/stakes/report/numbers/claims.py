"""Can it be believed? Quantiles against how often outcomes were below them, expected against actual costs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stakes.evaluation.amounts import select
from stakes.evaluation.metrics import Interval, bootstrap
from stakes.mixtures import LEVELS, Quantiles
from stakes.report.amounts import Amounts
from stakes.report.charts import diagonal_chart, scatter_chart
from stakes.report.words import number, share
from stakes.tables.amounts.run import AmountRun
from stakes.utility import Newsvendor

LEAST_ROWS, MOST_BINS = 20, 10  # in a bin of expected costs; bins
LEAST_SPREAD = 0.1  # of expected costs, against their mean: where they hardly differ, there is nothing to see
_EVERY = slice(4, None, 10)  # levels .05, .15, ... .95


def claims(run: AmountRun) -> dict[str, Any]:
    amounts = Amounts.of(run.utility)
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
    bins = cost_bins(run)
    return {
        "rows": rows,
        "asked": None if run.comparison.rows[0].share is None else share(run.comparison.rows[0].share),
        "covered": covered_sentence(run),
        "coverage": diagonal_chart(
            coverage(run),
            run.comparison.chosen,
            ("share of outcomes at or below it", "level of the quantile"),
            f"Levels of quantiles against the share of outcomes below: {', '.join(run.comparison.models)}",
        ),
        "bins": None if len(bins) < 2 else _bins_chart(run, bins, amounts),
    }


def coverage(run: AmountRun) -> dict[str, list[tuple[float, float]]]:
    """For each model, at some levels: the share of outcomes at or below that quantile, over all seeds."""
    outcomes, levels = run.labels.unsqueeze(-1), LEVELS[_EVERY]
    curves = {}
    for model in run.comparison.models:
        below = [
            (outcomes <= Quantiles(item.predictions.quantiles).at_levels[:, _EVERY]).double().mean(0).numpy()
            for item in select(run.scored, model)
        ]
        curves[model] = list(zip(levels.tolist(), np.mean(below, axis=0).tolist(), strict=True))
    return curves


def covered_sentence(run: AmountRun) -> str | None:
    """How many outcomes the decisions covered, against how many the costs ask for; only a newsvendor asks."""
    utility = run.utility
    if not isinstance(utility, Newsvendor):
        return None
    scored, asked = select(run.scored, run.comparison.chosen), float(np.mean(utility.share))
    level = _covered(run, [item.choice for item in scored])
    sentence = (
        f"Decisions were enough for {share(level.mean)} of what happened (95 % interval {share(level.low)} to "
        f"{share(level.high)}); the costs ask for {share(asked)}"
    )
    if level.low <= asked <= level.high:
        return f"{sentence}, which chance explains."
    free = _covered(run, [utility.optimum(Quantiles(item.predictions.quantiles)) for item in scored])
    reason = f"outcomes were {'higher' if level.mean < asked else 'lower'} than the model expected"
    if free.low <= asked <= free.high:
        reason = "the steps and bounds of decisions are the reason"
    return f"{sentence}. That is beyond chance: {reason}."


def _covered(run: AmountRun, decisions: list[Tensor]) -> Interval:
    covered = np.stack([(run.labels <= choice).numpy() for choice in decisions])
    return bootstrap(covered, seed=run.settings["seed"], times=None if run.times is None else run.times.numpy())


def cost_bins(run: AmountRun) -> list[tuple[float, Interval]]:
    """Rows by what the chosen model expects them to cost: the mean of that, and of what they did cost."""
    scored = select(run.scored, run.comparison.chosen)
    claimed = np.mean([item.expected_costs for item in scored], axis=0)
    costs = np.mean([item.costs for item in scored], axis=0)
    order = np.argsort(claimed, kind="stable")
    if np.ptp(claimed) < LEAST_SPREAD * np.abs(claimed).mean():
        return []
    parts: list[NDArray[np.int64]] = np.array_split(order, max(1, min(MOST_BINS, len(order) // LEAST_ROWS)))
    return [(float(claimed[part].mean()), bootstrap(costs[part], seed=run.settings["seed"])) for part in parts]


def _bins_chart(run: AmountRun, bins: list[tuple[float, Interval]], amounts: Amounts) -> dict[str, Any]:
    words = {
        "label": "Expected against actual cost: " + "; ".join(f"{number(x)}, {number(y.mean)}" for x, y in bins),
        "x": f"expected cost{amounts.bracketed}",
        "y": f"actual cost{amounts.bracketed}",
    }
    return scatter_chart(bins, words)
