"""The figures and tables of the diagnosis experiment, from a saved Result."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stakes._io.files import write_text
from stakes.evaluation.metrics import bootstrap
from stakes.paper import published
from stakes.paper.diagnosis import data as diagnosis
from stakes.paper.figures import COLOURS, DASHES, draw_cells, figure, look
from stakes.paper.sweep import Result
from stakes.report.tables import markdown_table, shown, signed


def diagnosis_figures(result: Result, folder: Path) -> list[Path]:
    """Figures 2, 3, 4 and 8, the sweep over corrupted labels, and tables; the files written."""
    corrupted = result.config["corrupted"]
    middle = min(corrupted, key=lambda share: abs(share - 30))
    files = [folder / f"{name}.png" for name in ("patients", "corruption", "confusion", "transition", "sweep")]
    _patients(files[0])
    _corruption(files[1], middle)
    _confusion(files[2], result, middle)
    _transition(files[3], result, middle)
    _sweep(files[4], result)
    tables = folder / "tables.md"
    write_text(tables, diagnosis_tables(result))
    return [*files, tables]


def _patients(path: Path) -> None:
    """Figure 2: the blood tests of 15 patients."""
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
    """Figure 3: decisions against truth, mean over the seeds, in per cent of each true class."""
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
    """Figure 4: probabilities and decisions on the way from a healthy to a mild patient."""
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
            for step, start in enumerate(starts):  # each a line lower, for changes may be close together
                label = f"{diagnosis.CLASSES[choice[start]]} →"
                height = 0.96 - 0.06 * step
                where = {"transform": axes.get_xaxis_transform(), "fontsize": 7}
                plain = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the line of the next change
                axes.text(share[start] + 0.02, height, label, bbox=plain, **where)
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


def diagnosis_tables(result: Result) -> str:
    """The sweep in numbers: mean over seeds with 95 % intervals."""
    methods, levels = result.config["methods"], result.config["corrupted"]
    parts = ["## Table 1: what a decision costs (pounds; rows decide, columns are true)"]
    costs = [[name, *map(str, row)] for name, row in zip(diagnosis.CLASSES, diagnosis.COSTS, strict=True)]
    parts.append(markdown_table(["", *diagnosis.CLASSES], costs))
    for rule in ("optimal", "argmax"):
        parts.append(f"## Loss of utility (2 - utility), {rule} decisions: mean over seeds (95 % interval)")
        rows = []
        for level in levels:
            values = [2 - result.values("utility", method=name, rule=rule, corrupted=level) for name in methods]
            theirs = published.DIAGNOSIS.get(level) if rule == "optimal" else None
            rows.append([str(level), *(shown(bootstrap(v, seed=0), 4) for v in values), _number(theirs)])
        parts.append(markdown_table(["redrawn, of 50", *methods, "authors' code: calibrated"], rows))
    others = [name for name in methods if name != "standard"]
    if "standard" in methods and others:
        parts.append("## Utility gained on standard, optimal decisions: paired by seed (95 % interval)")
        rows = [
            [str(level)]
            + [signed(result.difference(name, "standard", rule="optimal", corrupted=level)) for name in others]
            for level in levels
        ]
        parts.append(markdown_table(["redrawn, of 50", *others], rows))
    return "\n\n".join(parts) + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
