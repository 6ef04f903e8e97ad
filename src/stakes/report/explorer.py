"""The decision explorer: the numbers it computes with, and the empty tables it fills."""

import base64
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stakes.evaluation.comparison import Run, best_run
from stakes.report.html import Html, cell, fragment, joined, table, tag
from stakes.report.words import bracketed
from stakes.seeds import numpy_generator
from stakes.tables.run import Cases, TableResult

SCRIPTS = ("decisions.js", "dom.js", "explorer.js", "sliders.js")
MOST_ROWS, MOST_NUMBERS = 10_000, 100_000  # what a page holds: beyond, it would be slow to mail and to redraw


def explorer_data(run: Run, cases: Cases, seed: int) -> dict[str, Any]:
    """The run's mean probabilities, exactly as saved, with what happened and which row of the file it was."""
    kept = kept_cases(cases, seed)
    utility = cases.utility
    return {
        "unit": utility.unit,
        "decisions": list(utility.decisions),
        "outcomes": list(utility.outcomes),
        "costs": [[_rounded(cost) for cost in row] for row in utility.costs.tolist()],
        "probs": _packed(run.probs[kept], "<f4"),
        "labels": _packed(cases.labels[kept], "<i4"),
        "rows": _packed(cases.numbers[kept], "<i4"),
    }


def kept_cases(cases: Cases, seed: int) -> torch.Tensor:
    """The places of the cases that are embedded, in order: all, or a random sample."""
    most = max(1, min(MOST_ROWS, MOST_NUMBERS // len(cases.utility.outcomes)))
    if len(cases.labels) <= most:
        return torch.arange(len(cases.labels))
    places = numpy_generator(seed, "explorer").choice(len(cases.labels), most, replace=False)
    return torch.from_numpy(np.sort(places))


def explorer(result: TableResult) -> tuple[Html, dict[str, Any]]:
    """The section of the page, and the numbers it computes with."""
    cases, utility = result.cases, result.cases.utility
    run = best_run(result.runs, result.comparison.chosen)
    data = explorer_data(run, cases, result.settings["seed"])
    empty = [[name, *[""] * len(utility.outcomes), cell("", "sum")] for name in utility.decisions]
    heads, foot = ["decision / outcome", *utility.outcomes, "sum"], ["sum", *[""] * (len(utility.outcomes) + 1)]
    flips = [
        "row",
        "outcome",
        "decision before",
        "decision now",
        "cost of the one before",
        "cost of the one now",
        "change",
    ]
    money = bracketed(utility)
    section = fragment(
        "explorer.html",
        scope=_scope(result, run),
        costs=_inputs(cases),
        csv_rows=str(len(utility.decisions) + 2),
        counts=table("Cases", heads, empty, foot=foot, identity="counts"),
        money=table(f"Cost{money}", heads, empty, foot=foot, identity="money"),
        flips=table(
            f"Cases that flip, the most costly first; costs as entered{money}", flips, [], names=4, identity="flips"
        ),
        cells=_cells(cases),
        bracketed_unit=money,
    )
    return section, data


def _scope(result: TableResult, run: Run) -> str:
    cases = result.cases
    kept, all_cases = len(kept_cases(cases, result.settings["seed"])), len(cases.labels)
    which = f"the {all_cases:,} test rows"
    if kept < all_cases:
        which = f"{kept:,} of {which}, drawn at random (seed {result.settings['seed']}) to keep this page small"
    seed = f" (seed {run.seed}, the one in model/)" if result.settings["seeds"] > 1 else ""
    file = PurePath(
        result.settings["test"] if isinstance(result.settings["test"], str) else result.settings["data"]
    ).name
    return (
        f"Computed in this page from the mean probabilities of the saved {run.model} model{seed} for {which}. "
        f"A case is known by its row in {file}, the first row under the header being 1."
    )


def _inputs(cases: Cases) -> Html:
    utility = cases.utility
    rows = []
    for name, row in zip(utility.decisions, utility.costs, strict=True):
        cells = [
            _input(cost, f"Cost of {name}, when it is {outcome}")
            for outcome, cost in zip(utility.outcomes, row, strict=True)
        ]
        rows.append([name, *cells])
    heads = ["decision / outcome", *utility.outcomes]
    return table(f"What each decision costs under each outcome{bracketed(utility)}", heads, rows, identity="costs")


def _input(cost: float, label: str) -> Html:
    settings = {"type": "number", "step": "any", "inputmode": "decimal", "value": _plain(_rounded(cost))}
    # A browser that goes back would fill in what was typed before, beside numbers that are of the original costs.
    whole = tag("input", **settings, autocomplete="off", aria_label=label, aria_describedby="invalid")
    return Html(whole.removesuffix("</input>"))


def _cells(cases: Cases) -> Html:
    """The costs to choose from; the largest is chosen at first."""
    utility = cases.utility
    largest = divmod(int(utility.costs.argmax()), len(utility.outcomes))
    options = [
        tag(
            "option",
            f"{name}, when it is {outcome}",
            value=f"{d},{c}",
            **({"selected": ""} if (d, c) == largest else {}),
        )
        for d, name in enumerate(utility.decisions)
        for c, outcome in enumerate(utility.outcomes)
    ]
    return joined(options, "")


def _rounded(cost: float) -> float:
    """Without the noise of a conversion from utilities: 0.1, and not 0.09999999999999998."""
    return float(f"{cost:.15g}")


def _plain(cost: float) -> str:
    return str(int(cost)) if cost == int(cost) else repr(float(cost))


def _packed(values: torch.Tensor, kind: str) -> str:
    array: NDArray[Any] = values.numpy().astype(kind)
    return base64.b64encode(array.tobytes()).decode()
