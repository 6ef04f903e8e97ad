"""The figure and tables of the digits experiment, from a saved Result."""

from pathlib import Path

import numpy as np

from stakes._io.files import write_text
from stakes.paper import published
from stakes.paper.figures import figure, look
from stakes.paper.sweep import PAPER_METHODS, Result
from stakes.report.tables import markdown_table, signed

PAIRS = (("weighted", "standard"), ("calibrated", "standard"), ("noise", "standard"), ("noise+calibrated", "noise"))


def digits_figures(result: Result, folder: Path) -> list[Path]:
    """Figures 5 and 9: utility against width, a panel for each noise level, one standard deviation over seeds."""
    path, levels, widths = folder / "utility.png", result.config["noise"], result.config["units"]
    with figure(path, 1.4 + 1.9 * len(levels), 2.9) as drawn:
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
    tables = folder / "tables.md"
    write_text(tables, digits_tables(result))
    return [path, tables]


def digits_tables(result: Result) -> str:
    """Loss of utility by noise and width beside the authors' numbers, and the paired gains."""
    methods, widths = result.config["methods"], result.config["units"]
    pairs = [pair for pair in PAIRS if set(pair) <= set(methods)]
    parts = ["## Loss of utility (1 - utility) on the test digits, optimal decisions"]
    for noise in result.config["noise"]:
        parts.append(f"### {round(100 * noise)} % of labels redrawn: mean over seeds ± sd [authors' code]")
        rows = []
        for units in widths:
            cells = [_cell(result, name, noise, units) for name in methods]
            rows.append([str(units), *cells])
        parts.append(markdown_table(["units", *methods], rows))
    parts.append("## Utility gained, paired by seed (95 % interval)")
    for noise in result.config["noise"]:
        parts.append(f"### {round(100 * noise)} % of labels redrawn")
        rows = [
            [str(units)] + [signed(result.difference(a, b, rule="optimal", noise=noise, units=units)) for a, b in pairs]
            for units in widths
        ]
        parts.append(markdown_table(["units", *(f"{ours} on {theirs}" for ours, theirs in pairs)], rows))
    return "\n\n".join(parts) + "\n"


def _cell(result: Result, method: str, noise: float, units: int) -> str:
    values = 1 - result.values("utility", method=method, rule="optimal", noise=noise, units=units)
    theirs = published.DIGITS.get((noise, units))
    known = theirs is not None and method in PAPER_METHODS
    beside = f" [{theirs[PAPER_METHODS.index(method)]:.4f}]" if known and theirs is not None else ""
    return f"{values.mean():.4f} ± {values.std(ddof=1) if len(values) > 1 else 0:.4f}{beside}"
