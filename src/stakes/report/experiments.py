"""The paper's figures, drawn from a saved Result."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stakes.data import diagnosis
from stakes.experiments.sweep import Result
from stakes.metrics import bootstrap
from stakes.report.figures import COLOURS, DASHES, MARKERS, draw_cells, figure
from stakes.report.roads import road_figures

_PLACE = {name: place for place, name in enumerate(("standard", "weighted", "calibrated", "noise", "noise+calibrated"))}


def draw(result: Result, folder: Path) -> list[Path]:
    """All figures of a result; their files."""
    makers = {"diagnosis": _diagnosis_figures, "digits": _digits_figures, "roads": road_figures}
    return makers[result.config["experiment"]](result, folder)


def look(method: str) -> dict[str, Any]:
    """How a method is drawn, everywhere the same."""
    place = _PLACE[method]
    return {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": DASHES[place], "markersize": 4, "lw": 1.1}


# Diagnosis -----------------------------------------------------------------------------------------


def _diagnosis_figures(result: Result, folder: Path) -> list[Path]:
    corrupted = result.config["corrupted"]
    middle = min(corrupted, key=lambda share: abs(share - 30))
    files = [folder / f"{name}.png" for name in ("patients", "corruption", "confusion", "transition", "sweep")]
    _patients(files[0])
    _corruption(files[1], middle)
    _confusion(files[2], result, middle)
    _transition(files[3], result, middle)
    _sweep(files[4], result)
    return files


def _patients(path: Path) -> None:
    """Figure 3: the blood tests of 15 patients."""
    found = diagnosis.patients(diagnosis.TRAIN_PER_CLASS, 0, 0, "train")
    with figure(path, 6.4, 3.6) as drawn:
        grid = drawn.subplots(3, 5, sharex=True, sharey=True)
        for row, name in enumerate(diagnosis.CLASSES):
            for column, patient in enumerate(found.x[found.outcome == row][:5]):
                axes = grid[row, column]
                axes.bar(range(3), patient, color="0.4")
                axes.axhline(0, color="black", linewidth=0.6)
                axes.set_xticks(range(3))
            grid[row, 0].set_ylabel(name)
        drawn.supxlabel("blood test", fontsize=9)


def _corruption(path: Path, corrupted: int) -> None:
    """Figure 8: what is true against what is on record, as shares of the 150 training patients."""
    found = diagnosis.patients(diagnosis.TRAIN_PER_CLASS, corrupted, 0, "train")
    shares = np.zeros((3, 3))
    np.add.at(shares, (found.outcome, found.observed), 1 / len(found.outcome))
    with figure(path, 3.4, 2.8) as drawn:
        axes = drawn.subplots()
        draw_cells(axes, shares, diagnosis.CLASSES, diagnosis.CLASSES, "{:.2f}", "equal")
        axes.set_xlabel("on record")
        axes.set_ylabel("true")
        axes.set_title(f"{corrupted} of 50 labels redrawn")


def _confusion(path: Path, result: Result, corrupted: int) -> None:
    """Figure 4: decisions against truth, mean over the seeds, in per cent of each true class."""
    methods = [name for name in ("standard", "weighted", "calibrated") if name in result.config["methods"]]
    with figure(path, 2.6 * len(methods), 2.9) as drawn:
        for axes, name in zip(np.atleast_1d(drawn.subplots(1, len(methods), sharey=True)), methods, strict=True):
            rows = result.select(method=name, rule="optimal", corrupted=corrupted)
            counts = np.mean([row["confusion"] for row in rows], axis=0)
            shares = 100 * (counts / counts.sum(0)).T
            draw_cells(axes, shares, diagnosis.CLASSES, diagnosis.CLASSES, "{:.1f}", "equal")
            axes.set_title(name)
            axes.set_xlabel("decision")
        drawn.axes[0].set_ylabel("true")


def _transition(path: Path, result: Result, corrupted: int) -> None:
    """Figure 2: probabilities and decisions on the way from a healthy to a mild patient."""
    methods = [name for name in ("weighted", "calibrated") if name in result.config["methods"]]
    with figure(path, 3.6 * len(methods), 3.0) as drawn:
        for axes, name in zip(np.atleast_1d(drawn.subplots(1, len(methods), sharey=True)), methods, strict=True):
            row = next(row for row in result.select(method=name, rule="optimal", corrupted=corrupted, seed=0))
            mean, sd = (np.array(row["transition"][key]) for key in ("mean", "sd"))
            share = np.linspace(0, 1, len(mean))
            for place, outcome in enumerate(diagnosis.CLASSES):
                axes.plot(share, mean[:, place], color=COLOURS[place], linestyle=DASHES[place], label=outcome)
                low, high = mean[:, place] - sd[:, place], mean[:, place] + sd[:, place]
                axes.fill_between(share, low, high, color=COLOURS[place], alpha=0.15, linewidth=0)
            choice = np.array(row["transition"]["choice"])
            changes = np.flatnonzero(np.diff(choice)).tolist()
            for place in changes:
                axes.axvline((share[place] + share[place + 1]) / 2, color="0.4", linewidth=0.8)
            starts = [0, *(place + 1 for place in changes)]
            for start in starts:
                label = f"{diagnosis.CLASSES[choice[start]]} →"
                axes.text(share[start] + 0.01, 0.96, label, fontsize=7, transform=axes.get_xaxis_transform())
            axes.set_title(f"{name}, and what it decides")
            axes.set_xlabel("from healthy (0) to mild (1)")
        drawn.axes[0].set_ylabel("probability, mean and sd over draws")
        drawn.axes[-1].legend(fontsize=7)


def _sweep(path: Path, result: Result) -> None:
    """Mean cost against the number of corrupted labels, with 95 % intervals over seeds."""
    levels = result.config["corrupted"]
    with figure(path, 7.4, 3.4) as drawn:
        for axes, rule in zip(drawn.subplots(1, 2, sharey=True), ("optimal", "argmax"), strict=True):
            for name in result.config["methods"]:
                _curve(
                    axes,
                    levels,
                    [2 - result.values("utility", method=name, rule=rule, corrupted=r) for r in levels],
                    name,
                )
            axes.set_title(f"{rule} decisions")
            axes.set_xlabel("labels redrawn, of 50 of a class")
            axes.set_ylim(bottom=0)
        drawn.axes[0].set_ylabel("mean loss of utility (2 - utility)")
        drawn.axes[1].legend(fontsize=7)


def _curve(axes: Any, places: Sequence[float], values: Sequence[Any], name: str) -> None:
    intervals = [bootstrap(found, seed=0) for found in values]
    means = np.array([interval.mean for interval in intervals])
    bars = np.abs([[i.mean - i.low for i in intervals], [i.high - i.mean for i in intervals]])
    axes.errorbar(places, means, yerr=bars, capsize=2, label=name, elinewidth=0.7, **look(name))


# Digits --------------------------------------------------------------------------------------------


def _digits_figures(result: Result, folder: Path) -> list[Path]:
    """Figures 5 and 9: utility against width, a panel for each noise level, one standard deviation over seeds."""
    path, levels, widths = folder / "utility.png", result.config["noise"], result.config["units"]
    with figure(path, 2.0 + 2.2 * len(levels), 3.2) as drawn:
        for axes, noise in zip(np.atleast_1d(drawn.subplots(1, len(levels))), levels, strict=True):
            for name in result.config["methods"]:
                found = [result.values("utility", method=name, rule="optimal", noise=noise, units=u) for u in widths]
                means, sds = np.array([f.mean() for f in found]), np.array([f.std() for f in found])
                axes.plot(widths, means, label=name, **look(name))
                axes.fill_between(widths, means - sds, means + sds, color=look(name)["color"], alpha=0.12, linewidth=0)
            axes.set_title(f"{round(100 * noise)} % of labels redrawn")
            axes.set_xlabel("hidden units")
        drawn.axes[0].set_ylabel("utility, optimal decisions")
        drawn.axes[0].legend(fontsize=7)
    return [path]


# Text ----------------------------------------------------------------------------------------------


def summary(result: Result) -> str:
    """A line for each place of the sweep and method: mean utility of both rules, and the paired difference."""
    axes = [name for name in ("corrupted", "noise", "units", "size", "width") if name in result.rows[0]]
    places = list(dict.fromkeys(tuple(row[name] for name in axes) for row in result.rows))
    lines = ["  ".join([*(f"{name:>9}" for name in axes), f"{'method':>16}  argmax  optimal  against standard (95 %)"])]
    for place in places:
        where = dict(zip(axes, place, strict=True))
        for method in result.config["methods"]:
            means = [
                result.values("utility", method=method, rule=rule, **where).mean() for rule in ("argmax", "optimal")
            ]
            gap = ""
            if method != "standard" and "standard" in result.config["methods"]:
                found = result.difference(method, "standard", rule="optimal", **where)
                gap = f"{found.mean:+.4f} ({found.low:+.4f} to {found.high:+.4f})"
            cells = [
                *(f"{value!s:>9}" for value in place),
                f"{method:>16}",
                f"{means[0]:.4f}",
                f" {means[1]:.4f}",
                f" {gap}",
            ]
            lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
