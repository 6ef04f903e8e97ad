"""Figures in one style, readable in grey. They are drawn from saved results, never from a model."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from stakes._io.files import atomic
from stakes.evaluation.comparison import Comparison, Row
from stakes.evaluation.metrics import Counts, Interval, Reliability
from stakes.utility import Utility

# Told apart by marker and dash first, by colour second (Okabe and Ito's palette).
COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9")
MARKERS = ("o", "s", "D", "^", "v", "P")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "savefig.dpi": 150,
}


_PLACE = {name: place for place, name in enumerate(("standard", "weighted", "calibrated", "noise", "noise+calibrated"))}


def look(method: str) -> dict[str, Any]:
    """How a method is drawn, everywhere the same."""
    place = _PLACE[method]
    return {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": DASHES[place], "markersize": 4, "lw": 1.1}


@contextmanager
def figure(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure in the common style, written to ``path`` when the block ends."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # a script that the font has not
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn
        with atomic(path) as temporary:
            drawn.savefig(temporary, metadata={"Software": None})


def comparison_figure(path: Path, comparison: Comparison, utility: Utility) -> None:
    """Cost of each model under both rules, and the paired differences to the reference; both with intervals."""
    models = list(dict.fromkeys(row.model for row in comparison.rows))
    unit = f" [{_plain(utility.unit)}]" if utility.unit else ""
    with figure(path, 7.2, 1.2 + 0.42 * len(models)) as drawn:
        left, right = drawn.subplots(1, 2, sharey=True)
        for row in comparison.rows:
            place = models.index(row.model) + (0.13 if row.rule == "optimal" else -0.13)
            _interval(left, place, _as_cost(row.utility, utility), row)
            if row.difference is not None:
                scale = utility.scale
                saved = Interval(row.difference.mean * scale, row.difference.low * scale, row.difference.high * scale)
                _interval(right, place, saved, row)
        left.set_yticks(range(len(models)), models)
        left.invert_yaxis()
        left.set_title(f"mean cost per decision{unit}: less is better")
        right.axvline(0, color="0.5", linewidth=0.8)
        right.set_title(f"saved against {comparison.reference}, optimal{unit}")
        handles = [
            left.plot([], [], "o", color="black", label="optimal decisions")[0],
            left.plot([], [], "o", color="black", fillstyle="none", label="argmax")[0],
        ]
        drawn.legend(handles=handles, loc="outside lower center", ncols=2)


def confusion_figure(path: Path, counts: Counts, utility: Utility, title: str) -> None:
    """How often each decision met each outcome, and what that cost."""
    money = counts * utility.costs
    unit = f" [{_plain(utility.unit)}]" if utility.unit else ""
    height = 1.5 + 0.45 * len(utility.decisions)
    with figure(path, 2.4 + 1.3 * len(utility.outcomes), height) as drawn:
        left, right = drawn.subplots(1, 2, sharey=True)
        for axes, cells, heading in ((left, counts.astype(float), title), (right, money, f"total cost{unit}")):
            form = "{:,.0f}" if np.abs(cells).max() >= 1000 else "{:.4g}"
            draw_cells(axes, cells, utility.decisions, utility.outcomes, form)
            axes.set_xlabel("outcome")
            axes.set_title(heading)
        left.set_ylabel("decision")


def reliability_figure(path: Path, curves: Mapping[str, Reliability]) -> None:
    """Confidence against accuracy for each model; on the diagonal a model means what it says."""
    with figure(path, 4.2, 3.6) as drawn:
        axes = drawn.subplots()
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
        for place, (name, curve) in enumerate(curves.items()):
            axes.plot(
                curve.confidence,
                curve.accuracy,
                color=COLOURS[place % len(COLOURS)],
                marker=MARKERS[place % len(MARKERS)],
                linestyle=DASHES[place % len(DASHES)],
                markersize=3.5,
                linewidth=1,
                label=f"{name} (ECE {curve.ece:.3f})",
            )
        axes.set_xlabel("confidence in the most probable outcome")
        axes.set_ylabel("how often it was right")
        axes.set_xlim(min((float(curve.confidence.min()) for curve in curves.values()), default=0.0) - 0.02, 1.01)
        axes.legend(fontsize=8)


def _as_cost(worth: Interval, utility: Utility) -> Interval:
    return Interval(utility.cost_of(worth.mean), utility.cost_of(worth.high), utility.cost_of(worth.low))


def _interval(axes: Any, place: float, value: Interval, row: Row) -> None:
    bars = [[value.mean - value.low], [value.high - value.mean]]
    fill = "full" if row.rule == "optimal" else "none"
    axes.errorbar([value.mean], [place], xerr=np.abs(bars), fmt="o", color="black", fillstyle=fill, capsize=2, lw=1)


def draw_cells(
    axes: Any, cells: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str], form: str, aspect: str = "auto"
) -> None:
    """A table of numbers, the larger the darker, with names on both sides."""
    top = float(np.abs(cells).max()) or 1.0
    axes.imshow(cells, cmap="Greys", vmin=0, vmax=1.4 * top, aspect=aspect)
    for row, column in np.ndindex(cells.shape):
        value = cells[row, column]
        color = "white" if value > 0.8 * top else "black"
        axes.text(column, row, form.format(value), ha="center", va="center", color=color)
    axes.set_xticks(range(len(columns)), _short(columns))
    axes.set_yticks(range(len(rows)), _short(rows))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _short(names: Sequence[str]) -> list[str]:
    return [_plain(name if len(name) <= 16 else f"{name[:15]}…") for name in names]


def _plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")
