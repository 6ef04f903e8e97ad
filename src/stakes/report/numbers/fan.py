"""The fan chart: what the chosen model says of each outcome, what it decided, and what happened."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.evaluation.amounts import AmountScored, select
from stakes.mixtures import Quantiles
from stakes.report.charts import marker, path, round_numbers
from stakes.report.numbers.headline import amount
from stakes.tables.amounts.run import AmountRun
from stakes.utility import AmountUtility

MOST_SHOWN = 84  # rows: more cannot be told apart on a phone
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _ABOVE, _BELOW = 480, 290, 44, 12, 26, 40
_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
_DOT = 2.0


def fan(run: AmountRun) -> dict[str, Any] | None:
    """The chart, and which rows it shows; None where decisions are actions."""
    if not isinstance(run.utility, AmountUtility):
        return None
    item = saved_model(run, run.comparison.chosen)
    rows, in_time = shown_rows(run, item)
    count = len(run.labels)
    if in_time:
        which = "The test rows in time" if len(rows) == count else f"The latest {len(rows):,} of {count:,} test rows"
    else:
        which = "The test rows" if len(rows) == count else f"{len(rows):,} of {count:,} test rows, evenly spaced,"
        which = f"{which} in the order of their decisions"
    words = {
        "label": f"{which}: what {item.model} expects, what it decides, and what happened",
        "x": run.settings["time"] if in_time else "rows, from the lowest decision to the highest",
        "y": run.settings["target"],
    }
    ticks = _time_ticks(run, rows) if in_time else []
    quantiles = Quantiles(item.predictions.quantiles[rows]).quantiles(torch.tensor(_SHARES)).numpy()  # (n, 5)
    chart = _chart(quantiles, item.choice[rows].numpy(), run.labels[rows].numpy(), ticks, words)
    return {"chart": chart, "which": which, "model": item.model}


def saved_model(run: AmountRun, model: str) -> AmountScored:
    """The seed that is in model/: the one whose decisions cost least on held-out rows."""
    return min(
        select(run.scored, model),
        key=lambda item: np.inf if item.predictions.validation_cost is None else item.predictions.validation_cost,
    )


def shown_rows(run: AmountRun, item: AmountScored) -> tuple[Tensor, bool]:
    """The latest rows where each has a time of its own; else rows from the lowest to the highest decision."""
    count = len(run.labels)
    if run.times is not None and len(np.unique(run.times.numpy())) == count:
        return torch.argsort(run.times, stable=True)[-MOST_SHOWN:], True
    order = torch.argsort(item.choice, stable=True)
    return order[torch.linspace(0, count - 1, min(count, MOST_SHOWN)).round().long()], False


def _time_ticks(run: AmountRun, rows: Tensor) -> list[tuple[int, str]]:
    """The first, middle and last row, with their times as people read them."""
    places = sorted({0, len(rows) // 2, len(rows) - 1})
    dates = run.dates
    if dates is not None:
        days = [dates[int(rows[place])].item() for place in places]
        return [(place, f"{day.day} {day:%b %Y}") for place, day in zip(places, days, strict=True)]
    assert run.times is not None
    return [(place, amount(float(run.times[rows[place]]))) for place in places]


def _chart(
    quantiles: NDArray[np.float64],  # (n, 5)
    decided: NDArray[np.float64],
    happened: NDArray[np.float64],
    ticks: list[tuple[int, str]],
    words: dict[str, str],
) -> dict[str, Any]:
    count, everything = len(decided), np.concatenate([quantiles.ravel(), decided, happened])
    marks = round_numbers(float(everything.min()), float(everything.max()))
    low, high = min(marks[0], float(everything.min())), max(marks[-1], float(everything.max()))

    def x(place: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (place + 0.5) / count

    def y(value: float) -> float:
        return _HEIGHT - _BELOW - (_HEIGHT - _ABOVE - _BELOW) * (value - low) / (high - low or 1)

    def line(values: NDArray[np.float64], backwards: bool = False) -> list[tuple[float, float]]:
        points = [(x(place), y(float(value))) for place, value in enumerate(values)]
        return points[::-1] if backwards else points

    def band(lower: int, upper: int) -> str:
        return path(line(quantiles[:, upper]) + line(quantiles[:, lower], backwards=True)) + "Z"

    steps = [(x(place + side), y(float(value))) for place, value in enumerate(decided) for side in (-0.5, 0.5)]
    points = list(zip(line(happened), happened > decided, strict=True))
    short = [marker(*at, 3, 1.4 * _DOT) for at, is_short in points if is_short]
    enough = [marker(*at, 0, _DOT) for at, is_short in points if not is_short]
    foot = _HEIGHT - _BELOW
    anchors = {0: "start", count - 1: "end"}
    texts: list[tuple[float, float, str, str]] = [(_LEFT - 5, y(mark) + 4, "end", amount(mark)) for mark in marks]
    texts += [(x(place), foot + 15, anchors.get(place, "middle"), text) for place, text in ticks]
    texts += [((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 5, "middle", words["x"]), (0, 12, "start", words["y"])]
    return {
        "label": words["label"],
        "width": _WIDTH,
        "height": _HEIGHT,
        "lines": [(_LEFT, y(mark), _WIDTH - _RIGHT, y(mark), "grid") for mark in marks],
        "texts": texts,
        "curves": [
            ("band", "", band(0, 1) + band(3, 4), []),
            ("band inner", "", band(1, 3), []),
            ("median", "", path(line(quantiles[:, 2])), []),
            ("decided", "", path(steps), []),
            ("happened", "", "", enough),
            ("happened short", "", "", short),
        ],
        "legend": [
            ("the decision", ("decided", "", "M2 7L42 7", [])),
            ("what happened, covered by the decision", ("happened", "", "", [marker(22, 7, 0, 3)])),
            ("what happened, more than was decided", ("happened short", "", "", [marker(22, 7, 3, 3)])),
            ("half of all outcomes are expected here", ("band inner", "", "M2 2L42 2L42 12L2 12Z", [])),
            ("80 % of all outcomes are expected here", ("band", "", "M2 2L42 2L42 12L2 12Z", [])),
            ("the median that is expected", ("median", "", "M2 7L42 7", [])),
        ],
    }
