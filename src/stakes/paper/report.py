"""What a saved Result of an experiment is shown as: figures, tables, and a summary for the terminal."""

from pathlib import Path

from stakes.paper.diagnosis.report import diagnosis_figures, diagnosis_tables
from stakes.paper.digits.report import digits_figures, digits_tables
from stakes.paper.roads.report import road_figures, road_tables
from stakes.paper.sweep import Result
from stakes.report.tables import signed


def draw(result: Result, folder: Path) -> list[Path]:
    """All figures and tables of a result; their files."""
    makers = {"diagnosis": diagnosis_figures, "digits": digits_figures, "roads": road_figures}
    return makers[result.config["experiment"]](result, folder)


def tables(result: Result) -> str:
    """What a result comes to in numbers, in Markdown."""
    makers = {"diagnosis": diagnosis_tables, "digits": digits_tables, "roads": road_tables}
    return makers[result.config["experiment"]](result)


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
                gap = signed(found)
            cells = [
                *(f"{value!s:>9}" for value in place),
                f"{method:>16}",
                f"{means[0]:.4f}",
                f" {means[1]:.4f}",
                f" {gap}",
            ]
            lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
