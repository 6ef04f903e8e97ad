"""What if too little cost more, or less, against too much? The cost of every model against the ratio of the two."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stakes.decisions import decide
from stakes.evaluation.amounts import AmountScored, select
from stakes.mixtures import Quantiles
from stakes.report.amounts import AmountFormat
from stakes.report.charts import line_chart
from stakes.report.explorer import kept_rows
from stakes.report.ratio import FACTORS, LEVEL, axis_words, other_models, ratio_text
from stakes.tables.amounts.run import AmountRun
from stakes.utility import Newsvendor

MOST_ROWS = 2_000
SHOWN = FACTORS[::2]  # of the ratio


def by_ratio(run: AmountRun) -> dict[str, Any] | None:
    """The chart and its words; None where no two costs are the same for all rows and above 0."""
    utility = run.utility
    if not isinstance(utility, Newsvendor) or utility.per_example or not 0 < float(utility.share) < 1:
        return None
    amounts, ratio = AmountFormat.of(utility), float(utility.share / (1 - utility.share))
    costs = mean_costs(run, utility)
    top = 1.05 * max(float(values.max()) for values in costs.values())
    chart = line_chart(
        list(ratio * SHOWN),
        {name: list(values) for name, values in costs.items()},
        thick=run.comparison.chosen,
        thin=["constant"] if run.comparison.chosen != "constant" else [],
        at=ratio,
        bottom=0.0,
        top=top,
        words=axis_words(amounts, ratio, 0.0, top, "ratio of too few to too many"),
    )
    sentences = [where_it_wins(costs, run.comparison.chosen, ratio), other_models(costs, run.comparison.chosen)]
    return {"chart": chart, "said": [sentence for sentence in sentences if sentence]}


def mean_costs(run: AmountRun, utility: Newsvendor) -> dict[str, NDArray[np.float64]]:
    """The mean cost of every model at each ratio, on the test rows; under + over stays the same."""
    rows = kept_rows(run, MOST_ROWS)
    return {model: _mean_costs(select(run.scored, model), run, utility, rows) for model in run.comparison.models}


def _mean_costs(
    scored: list[AmountScored], run: AmountRun, utility: Newsvendor, rows: torch.Tensor
) -> NDArray[np.float64]:
    of_seeds = [Quantiles(item.predictions.quantiles[rows]) for item in scored]
    costs = []
    for factor in SHOWN:
        other = with_ratio(utility, float(factor))
        means = [-other.realised(decide(each, other).choice, run.labels[rows]).mean() for each in of_seeds]
        costs.append(other.best + np.mean(means))
    return np.array(costs)


def with_ratio(utility: Newsvendor, factor: float) -> Newsvendor:
    """The ratio of the two costs times ``factor``, their sum as it was."""
    under, over = np.asarray(utility.under, dtype=np.float64), np.asarray(utility.over, dtype=np.float64)
    share = factor * under / (factor * under + over)
    return replace(utility, under=share * (under + over), over=(1 - share) * (under + over))


def where_it_wins(costs: dict[str, NDArray[np.float64]], chosen: str, ratio: float) -> str:
    """Over which of the ratios the chosen model costs less than the constant decision."""
    if chosen == "constant" or "constant" not in costs:
        return ""
    wins = costs[chosen] < costs["constant"] - LEVEL
    if wins.all():
        return "At all of these ratios the model costs less than the best decision that is the same every time."
    if not wins.any():
        return "At none of these ratios does the model cost less than the best decision that is the same every time."
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wins, [False]]).astype(int)))
    ranges = [
        f"from {ratio_text(ratio * SHOWN[start])} to {ratio_text(ratio * SHOWN[end - 1])}"
        for start, end in zip(edges[::2], edges[1::2], strict=True)
    ]
    return (
        f"The model costs less than the best decision that is the same every time {', and '.join(ranges)}; elsewhere "
        "it does not."
    )
