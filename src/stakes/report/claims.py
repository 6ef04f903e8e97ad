"""Can it be believed? What models expected against what happened, and reliability."""

from typing import Any

import numpy as np
import torch

from stakes.evaluation import metrics
from stakes.evaluation.comparison import select
from stakes.report.amounts import AmountFormat
from stakes.report.charts import reliability_chart
from stakes.tables.run import Run


def claims(run: Run) -> dict[str, Any]:
    """Expected against actual amounts per decision, and reliability."""
    amounts, models = AmountFormat.of(run.utility), run.comparison.models
    rows, curves = {}, {}
    for model in models:
        row = run.comparison.row(model, "optimal")
        scored = select(run.scored, model, "optimal")
        digits = amounts.digits(amounts.level(row.utility))
        means = [float(np.mean([item.scores[key] for item in scored])) for key in ("claimed_utility", "utility")]
        rows[model] = {
            "expected": amounts.text(amounts.value(means[0]), digits),
            "actual": amounts.text(amounts.value(means[1]), digits),
            "ece": f"{row.ece:.3f}",
            "nll": f"{row.nll:.3f}",
        }
        if model != "constant":  # one confidence for all rows is no curve
            probs = torch.cat([item.predictions.probs for item in scored])
            curves[model] = metrics.reliability(probs, run.labels.repeat(len(scored)))
    return {"rows": rows, "chart": reliability_chart(curves, run.comparison.chosen) if curves else None}
