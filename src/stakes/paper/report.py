"""The report of a saved Result: figures and tables of its experiment, one HTML page, a summary for the terminal."""

import base64
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from stakes._io.files import write_text
from stakes.decisions import RULES
from stakes.errors import StakesError, listing
from stakes.paper.amounts.charts import amounts_figures
from stakes.paper.amounts.report import amounts_tables
from stakes.paper.diagnosis.report import diagnosis_figures, diagnosis_tables
from stakes.paper.digits.report import digits_figures, digits_tables
from stakes.paper.findings import BEYOND_THE_PAPER, CAPTIONS, findings, gain, settings_of
from stakes.paper.roads.report import road_figures, road_tables
from stakes.paper.sweep import RULE_NAMES, Result
from stakes.report.page import render
from stakes.report.provenance import settings_text
from stakes.report.words import interval

_TABLES = {"diagnosis": diagnosis_tables, "digits": digits_tables, "roads": road_tables, "amounts": amounts_tables}
_FIGURES = {
    "diagnosis": diagnosis_figures, "digits": digits_figures, "roads": road_figures, "amounts": amounts_figures
}  # fmt: skip


def write_report(result: Result, folder: Path) -> list[Path]:
    """Write the figures (PNG), tables.md and report.html of a result; the files written."""
    tables_file = folder / "tables.md"
    write_text(tables_file, tables(result))
    files = [*_FIGURES[result.config["experiment"]](result, folder), tables_file]
    return [*files, write_experiment_page(result, folder, files)]


def tables(result: Result) -> str:
    """The tables of a result, in Markdown."""
    experiment = str(result.config.get("experiment"))
    if experiment not in _TABLES:
        raise StakesError(f"expected the result of an experiment of {listing(_TABLES)}, but got {experiment!r}")
    return _TABLES[experiment](result)


def summary(result: Result) -> str:
    """A line for each setting and model: mean utility under both rules, and the paired difference to standard."""
    if result.config["experiment"] == BEYOND_THE_PAPER:
        return "\n".join(findings(result))
    settings = settings_of(result)
    axes = list(settings[0])
    models = result.config["methods"]
    headings = [RULE_NAMES[rule] for rule in RULES]
    lines = ["  ".join([*(f"{name:>9}" for name in axes), f"{'model':>16}", *headings, "against standard (95 %)"])]
    for where in settings:
        for model in models:
            means = [result.values("utility", method=model, rule=rule, **where).mean() for rule in RULES]
            cells = [*(f"{value!s:>9}" for value in where.values()), f"{model:>16}"]
            cells += [f"{mean:{len(heading)}.4f}" for mean, heading in zip(means, headings, strict=True)]
            if model != "standard" and "standard" in models:
                cells.append(interval(gain(result, model, "standard", where), digits=4, sign=True))
            lines.append("  ".join(cells))
    return "\n".join(lines)


def write_experiment_page(result: Result, folder: Path, files: Sequence[Path]) -> Path:
    """Write report.html with the figures (PNG) and tables (Markdown) in ``files``, the config and the command."""
    config, path = result.config, folder / "report.html"
    whose = "" if config["experiment"] == BEYOND_THE_PAPER else "paper's "
    versions = ", ".join(f"{name} {number}" for name, number in config["versions"].items())
    page = render(
        "experiment.html",
        title=f"The {whose}{config['experiment']} experiment",
        found=findings(result),
        captions={stem.replace("_", " "): caption for stem, caption in CAPTIONS.items()},
        figures={
            file.stem.replace("_", " "): f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
            for file in files
            if file.suffix == ".png"
        },
        tables=[_rendered(file.read_text(encoding="utf-8")) for file in files if file.suffix == ".md"],
        made={
            "facts": {"Experiment": config["experiment"], "Versions": versions},
            "command": _command(config),
            "settings": settings_text(config),
        },
    )
    write_text(path, page)
    return path


def _rendered(markdown: str) -> Markup:
    """Markdown as HTML, its headings one level below those of the page; HTML inside it is shown as text."""
    rendered = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    rendered = re.sub(r"(</?h)(\d)>", lambda tag: f"{tag[1]}{int(tag[2]) + 1}>", rendered)
    for old, new in (
        ("<th>", '<th scope="col">'),
        ("<table>", '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>'),
        ("</table>", "</table></div>"),
    ):
        rendered = rendered.replace(old, new)
    return Markup(rendered)


def _command(config: Mapping[str, Any]) -> str:
    """The command that runs this sweep, with every setting as an option."""
    words = ["stakes", "reproduce", str(config["experiment"])]
    for name, value in config.items():
        if name not in ("experiment", "versions"):
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return shlex.join(words)
