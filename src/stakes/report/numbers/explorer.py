"""The explorer of amounts: the quantiles that the browser decides by, and which test rows they are of."""

from math import isfinite
from typing import Any

import numpy as np
import torch

from stakes.evaluation.amounts import best_seed
from stakes.mixtures import Quantiles
from stakes.report.explorer import kept_rows, packed, scope, shared_data
from stakes.tables.amounts.run import AmountRun
from stakes.utility import Newsvendor

SCRIPTS = ("amounts.js", "dom.js", "amounts_explorer.js")
MOST_ROWS = 3_000  # of 99 quantiles each, in one page: more would be slow to mail and to redraw


def explorer(run: AmountRun) -> dict[str, Any] | None:
    """What the browser computes with, exactly as it is saved; None where there are no two costs to weigh.

    Where no model was chosen, it is about the best of the models on the test rows.
    """
    utility, model = run.utility, run.comparison.chosen
    if model == "constant":
        model = run.comparison.row(model).rival or model
    if not isinstance(utility, Newsvendor) or model == "constant" or "constant" not in run.comparison.models:
        return None
    kept = kept_rows(run, MOST_ROWS)
    item, constant = best_seed(run.scored, model), best_seed(run.scored, "constant")
    # The past is the same for all rows that a part was tested on: each such row of quantiles is told once.
    past, rows = torch.unique(Quantiles(constant.predictions.quantiles[kept]).at_levels, dim=0, return_inverse=True)
    per_row = utility.per_example
    under, over = (np.broadcast_to(costs, len(run.labels)) for costs in (utility.under, utility.over))
    data = {
        **shared_data(run, kept),
        "costs": [1.0, 1.0] if per_row else [float(under[0]), float(over[0])],
        "perRow": [packed(torch.tensor(costs)[kept], "<f8") for costs in (under, over)] if per_row else None,
        "range": {
            "atLeast": utility.at_least if isfinite(utility.at_least) else None,
            "top": utility.range.top if isfinite(utility.range.top) else None,
            "step": utility.step,
        },
        "quantiles": packed(Quantiles(item.predictions.quantiles[kept]).at_levels, "<f4"),
        "past": packed(past, "<f4"),
        "pastRows": packed(rows, "<i4"),
        "labels": packed(run.labels[kept], "<f8"),
        **({} if run.time_texts is None else {"times": [run.time_texts[row] for row in kept.tolist()]}),
    }
    name = run.settings["id"] or (run.settings["time"] if run.time_texts else None)
    return {
        "data": data,
        "per_row": per_row,
        "inputs": [_input(value) for value in data["costs"]],
        "name": name or "row",
        "model": model,
        "scope": scope(run, f"99 quantiles of the {model} model", item.seed, len(kept), name),
    }


def _input(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
