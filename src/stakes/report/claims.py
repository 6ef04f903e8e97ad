"""Can it be believed? What models expected against what happened, whether draws settle decisions, reliability."""

from typing import Any

import numpy as np
import torch

from stakes.evaluation import metrics
from stakes.evaluation.comparison import select
from stakes.report.amounts import Amounts
from stakes.report.charts import reliability_chart
from stakes.report.words import share
from stakes.tables.run import Run

ERRORS_WITHIN = 2  # a margin within so many Monte-Carlo standard errors is not settled by the draws


def claims(run: Run) -> dict[str, Any]:
    """Expected against actual amounts per decision, the share of decisions that draws settle, and reliability."""
    amounts, models = Amounts.of(run.utility), run.comparison.models
    rows, curves = {}, {}
    for model in models:
        row = run.comparison.row(model, "optimal")
        scored = select(run.scored, model, "optimal")
        digits = amounts.digits(amounts.level(row.utility))
        means = [float(np.mean([item.scores[key] for item in scored])) for key in ("claimed_utility", "utility")]
        settled = settled_share(run, model)
        rows[model] = {
            "expected": amounts.text(amounts.value(means[0]), digits),
            "actual": amounts.text(amounts.value(means[1]), digits),
            "ece": f"{row.ece:.3f}",
            "nll": f"{row.nll:.3f}",
            "settled": "has no draws" if settled is None else share(settled),
        }
        if model != "constant":  # one confidence for all rows is no curve
            probs = torch.cat([item.predictions.probs for item in scored])
            curves[model] = metrics.reliability(probs, run.labels.repeat(len(scored)))
    return {
        "rows": rows,
        "any_settled": any(row["settled"] != "has no draws" for row in rows.values()),
        "draws": run.settings["recipe"]["samples"],
        "chart": reliability_chart(curves, run.comparison.chosen) if curves else None,
    }


def settled_share(run: Run, model: str) -> float | None:
    """The share of a model's decisions that its draws settle; None if it has no draws."""
    shares = []
    for item in select(run.scored, model, "optimal"):
        error = item.predictions.margin_error
        if error is None:
            return None
        shares.append(float((item.margin >= ERRORS_WITHIN * error).double().mean()))
    return float(np.mean(shares))
