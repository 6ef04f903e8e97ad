"""The fan chart: what the chosen model says of each outcome, what it decided, and what happened."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.evaluation.amounts import best_seed
from stakes.mixtures import Quantiles
from stakes.report.charts import marker, path, round_numbers
from stakes.report.numbers.headline import amount
from stakes.tables.amounts.run import AmountRun
from stakes.utility import AmountUtility

MOST_SHOWN = 84  # rows: more cannot be told apart on a phone
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _ABOVE, _BELOW = 480, 290, 44, 12, 26, 40
_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
_DOT = 2.0
_BANDS = ("band", "band inner")
_PATCH = "M2 2L42 2L42 12L2 12Z"  # of a legend
BY_DECISION = "rows, from the lowest decision to the highest"

FloatArray = NDArray[np.float64]


def fan(run: AmountRun) -> dict[str, Any] | None:
    """The chart, and which rows it shows; None where decisions are actions."""
    if not isinstance(run.utility, AmountUtility):
        return None
    item = best_seed(run.scored, run.comparison.chosen)
    rows, in_time = shown_rows(None if run.times is None else run.times.numpy(), item.choice)
    which = which_rows(len(rows), len(run.labels), "test rows", in_time=in_time)
    words = {
        "label": f"{which}: what {item.model} expects, what it decides, and what happened",
        "x": run.settings["time"] if in_time else BY_DECISION,
        "y": run.settings["target"],
    }
    ticks = [] if run.times is None or not in_time else time_ticks(run.times[rows].numpy(), dates=run.dates is not None)
    quantiles = Quantiles(item.predictions.quantiles[rows]).quantiles(torch.tensor(_SHARES)).numpy()  # (n, 5)
    bands = {
        "80 % of all outcomes are expected here": (quantiles[:, 0], quantiles[:, 4]),
        "half of all outcomes are expected here": (quantiles[:, 1], quantiles[:, 3]),
    }
    chart = fan_chart(bands, quantiles[:, 2], item.choice[rows].numpy(), run.labels[rows].numpy(), ticks, words)
    return {"chart": chart, "which": which, "model": item.model}


def shown_rows(times: FloatArray | None, choice: Tensor) -> tuple[Tensor, bool]:
    """The latest rows where each has a time of its own; else rows from the lowest to the highest decision."""
    count = len(choice)
    if times is not None and len(np.unique(times)) == count:
        return torch.from_numpy(np.argsort(times, kind="stable")[-MOST_SHOWN:]), True
    order = torch.argsort(choice, stable=True)
    return order[torch.linspace(0, count - 1, min(count, MOST_SHOWN)).round().long()], False


def which_rows(shown: int, count: int, noun: str, *, in_time: bool) -> str:
    """``The latest 84 of 192 test rows``."""
    if in_time:
        return f"The {noun} in time" if shown == count else f"The latest {shown:,} of {count:,} {noun}"
    which = f"The {noun}" if shown == count else f"{shown:,} of {count:,} {noun}, evenly spaced,"
    return f"{which} in the order of their decisions"


def time_ticks(times: FloatArray, *, dates: bool) -> list[tuple[int, str]]:
    """The first, middle and last row, with their times as people read them; dates are seconds since 1970."""
    indices = sorted({0, len(times) // 2, len(times) - 1})
    if dates:
        days = [times[index].astype("datetime64[s]").item() for index in indices]
        return [(index, f"{day.day} {day:%b %Y}") for index, day in zip(indices, days, strict=True)]
    return [(index, amount(float(times[index]))) for index in indices]


def fan_chart(
    bands: Mapping[str, tuple[FloatArray, FloatArray]],  # what they mean: low and high, the widest first, at most two
    median: FloatArray | None,
    decided: FloatArray,
    happened: FloatArray,
    ticks: Sequence[tuple[int, str]],
    words: Mapping[str, str],  # label, x, y
) -> dict[str, Any]:
    """Bands in which outcomes are expected, decisions and outcomes, row by row."""
    ends = [end for band in bands.values() for end in band]
    count, everything = len(decided), np.concatenate([*ends, decided, happened])
    marks = round_numbers(float(everything.min()), float(everything.max()))
    low, high = min(marks[0], float(everything.min())), max(marks[-1], float(everything.max()))

    def x(index: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (index + 0.5) / count

    def y(value: float) -> float:
        return _HEIGHT - _BELOW - (_HEIGHT - _ABOVE - _BELOW) * (value - low) / (high - low or 1)

    def line(values: FloatArray, backwards: bool = False) -> list[tuple[float, float]]:
        points = [(x(index), y(float(value))) for index, value in enumerate(values)]
        return points[::-1] if backwards else points

    def between(lower: FloatArray, upper: FloatArray) -> str:
        return path(line(upper) + line(lower, backwards=True)) + "Z"

    steps = [(x(index + side), y(float(value))) for index, value in enumerate(decided) for side in (-0.5, 0.5)]
    points = list(zip(line(happened), happened > decided, strict=True))
    short = [marker(*at, 3, 1.4 * _DOT) for at, is_short in points if is_short]
    enough = [marker(*at, 0, _DOT) for at, is_short in points if not is_short]
    foot = _HEIGHT - _BELOW
    anchors = {0: "start", count - 1: "end"}
    texts: list[tuple[float, float, str, str]] = [(_LEFT - 5, y(mark) + 4, "end", amount(mark)) for mark in marks]
    texts += [(x(index), foot + 15, anchors.get(index, "middle"), text) for index, text in ticks]
    texts += [((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 5, "middle", words["x"]), (0, 12, "start", words["y"])]
    return {
        "label": words["label"],
        "width": _WIDTH,
        "height": _HEIGHT,
        "lines": [(_LEFT, y(mark), _WIDTH - _RIGHT, y(mark), "grid") for mark in marks],
        "texts": texts,
        "curves": [
            *(
                (kind, "", drawn, [])
                for kind, drawn in zip(_BANDS, _strips(list(bands.values()), between), strict=False)
            ),
            *([] if median is None else [("median", "", path(line(median)), [])]),
            ("decided", "", path(steps), []),
            ("happened", "", "", enough),
            ("happened short", "", "", short),
        ],
        "legend": [
            ("the decision", ("decided", "", "M2 7L42 7", [])),
            ("what happened, covered by the decision", ("happened", "", "", [marker(22, 7, 0, 3)])),
            ("what happened, more than was decided", ("happened short", "", "", [marker(22, 7, 3, 3)])),
            *reversed([(name, (kind, "", _PATCH, [])) for kind, name in zip(_BANDS, bands, strict=False)]),
            *([] if median is None else [("the median that is expected", ("median", "", "M2 7L42 7", []))]),
        ],
    }


def _strips(
    bands: Sequence[tuple[FloatArray, FloatArray]], between: Callable[[FloatArray, FloatArray], str]
) -> list[str]:
    """A band around another is drawn as what lies below and above that, so that colours do not add up."""
    if len(bands) < 2:
        return [between(*band) for band in bands]
    (lowest, highest), (low, high) = bands
    return [between(lowest, low) + between(high, highest), between(low, high)]
