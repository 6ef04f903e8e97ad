"""The figures and tables of the diagnosis experiment, from a saved Result."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stakes.evaluation.metrics import bootstrap
from stakes.paper.diagnosis import data as diagnosis
from stakes.paper.figures import COLOURS, DASHES, figure, line_style
from stakes.paper.sweep import RULE_NAMES, Result
from stakes.report.words import interval, markdown_table

# The authors' code: 2 - utility of `calibrated`, by labels redrawn of 50; 10 seeds. Its "standard" is not one: see
# docs/REPRODUCTION.md.
PUBLISHED = {10: 0.0024, 20: 0.0065, 30: 0.173, 40: 0.30}


def diagnosis_figures(result: Result, folder: Path) -> list[Path]:
    """Figures 2, 3, 4 and 8, and the sweep over corrupted labels; the files written."""
    middle = min(result.config["corrupted"], key=lambda level: abs(level - 30))
    files = [folder / f"{name}.png" for name in ("patients", "corruption", "confusion", "transition", "sweep")]
    _patients(files[0])
    _corruption(files[1], middle)
    _confusion(files[2], result, middle)
    _transition(files[3], result, middle)
    _sweep(files[4], result)
    return files


def _patients(path: Path) -> None:
    """Figure 2: the blood tests of 15 patients."""
    patients = diagnosis.patients(diagnosis.TRAIN_PER_CLASS, 0, 0, "train")
    with figure(path, 6.4, 3.6) as canvas:
        grid = canvas.subplots(3, 5, sharex=True, sharey=True)
        for row, name in enumerate(diagnosis.CLASSES):
            for column, tests in enumerate(patients.x[patients.outcome == row][:5]):
                axes = grid[row, column]
                axes.bar(range(3), tests, color="0.4")
                axes.axhline(0, color="black", linewidth=0.6)
                axes.set_xticks(range(3))
            grid[row, 0].set_ylabel(name)
        canvas.supxlabel("blood test", fontsize=9)


def _corruption(path: Path, corrupted: int) -> None:
    """Figure 8: the true class against the recorded label, as shares of the 150 training patients."""
    patients = diagnosis.patients(diagnosis.TRAIN_PER_CLASS, corrupted, 0, "train")
    shares = np.zeros((3, 3))
    np.add.at(shares, (patients.outcome, patients.observed), 1 / len(patients.outcome))
    with figure(path, 3.4, 2.8) as canvas:
        axes = canvas.subplots()
        _draw_matrix(axes, shares, "{:.2f}")
        axes.set_xlabel("on record")
        axes.set_ylabel("true")
        axes.set_title(f"{corrupted} of 50 labels redrawn")


def _confusion(path: Path, result: Result, corrupted: int) -> None:
    """Figure 3: decisions against truth, mean over the seeds, in per cent of each true class."""
    models = [name for name in ("standard", "weighted", "calibrated") if name in result.config["methods"]]
    with figure(path, 2.6 * len(models), 2.9) as canvas:
        for axes, name in zip(np.atleast_1d(canvas.subplots(1, len(models), sharey=True)), models, strict=True):
            rows = result.select(method=name, rule="optimal", corrupted=corrupted)
            counts = np.mean([row["confusion"] for row in rows], axis=0)
            shares = 100 * (counts / counts.sum(0)).T
            _draw_matrix(axes, shares, "{:.1f}")
            axes.set_title(name)
            axes.set_xlabel("decision")
        canvas.axes[0].set_ylabel("true")


def _transition(path: Path, result: Result, corrupted: int) -> None:
    """Figure 4: probabilities and decisions on the line from a healthy to a mild patient."""
    models = [name for name in ("weighted", "calibrated") if name in result.config["methods"]]
    with figure(path, 3.6 * len(models), 3.0) as canvas:
        for axes, name in zip(np.atleast_1d(canvas.subplots(1, len(models), sharey=True)), models, strict=True):
            (row,) = result.select(method=name, rule="optimal", corrupted=corrupted, seed=0)
            mean, sd, choice = (np.array(row["transition"][key]) for key in ("mean", "sd", "choice"))
            share = np.linspace(0, 1, len(mean))
            for index, outcome in enumerate(diagnosis.CLASSES):
                axes.plot(share, mean[:, index], color=COLOURS[index], linestyle=DASHES[index], label=outcome)
                low, high = mean[:, index] - sd[:, index], mean[:, index] + sd[:, index]
                axes.fill_between(share, low, high, color=COLOURS[index], alpha=0.15, linewidth=0)
            _mark_decisions(axes, share, choice)
            axes.set_title(f"{name}, and what it decides")
            axes.set_xlabel("from healthy (0) to mild (1)")
        canvas.axes[0].set_ylabel("probability, mean and sd over draws")
        canvas.axes[-1].legend(fontsize=7)


def _mark_decisions(axes: Any, share: NDArray[np.float64], choice: NDArray[np.int64]) -> None:
    """A vertical line where the decision changes, and the name of each decision where it begins."""
    changes = np.flatnonzero(np.diff(choice)).tolist()
    for step in changes:
        axes.axvline((share[step] + share[step + 1]) / 2, color="0.4", linewidth=0.8)
    background = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # hides the line of the next change
    for line, start in enumerate([0, *(step + 1 for step in changes)]):  # each lower, as changes may be close together
        axes.text(
            share[start] + 0.02,
            0.96 - 0.06 * line,
            f"{diagnosis.CLASSES[choice[start]]} →",
            bbox=background,
            transform=axes.get_xaxis_transform(),
            fontsize=7,
        )


def _sweep(path: Path, result: Result) -> None:
    """Mean cost against the number of corrupted labels, with 95 % intervals over seeds."""
    levels = result.config["corrupted"]
    with figure(path, 7.4, 3.4) as canvas:
        for axes, rule in zip(canvas.subplots(1, 2, sharey=True), ("optimal", "argmax"), strict=True):
            for name in result.config["methods"]:
                losses = [2 - result.values("utility", method=name, rule=rule, corrupted=level) for level in levels]
                intervals = [bootstrap(values, seed=0) for values in losses]
                means = [interval.mean for interval in intervals]
                bars = np.abs([[i.mean - i.low for i in intervals], [i.high - i.mean for i in intervals]])
                axes.errorbar(levels, means, yerr=bars, capsize=2, label=name, elinewidth=0.7, **line_style(name))
            axes.set_title(RULE_NAMES[rule])
            axes.set_xlabel("labels redrawn, of 50 of a class")
            axes.set_ylim(bottom=0)
        canvas.axes[0].set_ylabel("mean loss of utility (2 - utility)")
        canvas.axes[1].legend(fontsize=7)


def _draw_matrix(axes: Any, cells: NDArray[np.float64], form: str) -> None:
    """A matrix over classes: numbers on a grey background, the larger the darker."""
    top = float(np.abs(cells).max()) or 1.0
    axes.imshow(cells, cmap="Greys", vmin=0, vmax=1.4 * top, aspect="equal")
    for row, column in np.ndindex(cells.shape):
        value = cells[row, column]
        color = "white" if value > 0.8 * top else "black"
        axes.text(column, row, form.format(value), ha="center", va="center", color=color)
    axes.set_xticks(range(len(diagnosis.CLASSES)), diagnosis.CLASSES)
    axes.set_yticks(range(len(diagnosis.CLASSES)), diagnosis.CLASSES)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def diagnosis_tables(result: Result) -> str:
    """The sweep in numbers: mean over seeds with 95 % intervals."""
    models, levels = result.config["methods"], result.config["corrupted"]
    parts = ["## Table 1: what a decision costs (pounds; rows decide, columns are true)"]
    costs = [[name, *map(str, row)] for name, row in zip(diagnosis.CLASSES, diagnosis.COSTS, strict=True)]
    parts.append(markdown_table(["", *diagnosis.CLASSES], costs))
    for rule in ("optimal", "argmax"):
        title = f"## Loss of utility (2 - utility), deciding by {RULE_NAMES[rule]}"
        parts.append(f"{title}: mean over seeds (95 % interval)")
        rows = []
        for level in levels:
            values = [2 - result.values("utility", method=name, rule=rule, corrupted=level) for name in models]
            theirs = f"{PUBLISHED[level]:.4f}" if rule == "optimal" and level in PUBLISHED else ""
            rows.append([str(level), *(interval(bootstrap(v, seed=0), digits=4) for v in values), theirs])
        parts.append(markdown_table(["redrawn, of 50", *models, "authors' code: calibrated"], rows))
    others = [name for name in models if name != "standard"]
    if "standard" in models and others:
        parts.append(f"## Utility gained on standard by {RULE_NAMES['optimal']}: paired by seed (95 % interval)")
        rows = [[str(n), *(result.gain(name, "standard", corrupted=n) for name in others)] for n in levels]
        parts.append(markdown_table(["redrawn, of 50", *others], rows))
    return "\n\n".join(parts) + "\n"
