"""The report of a saved Result: figures and tables of its experiment, one HTML page, a summary for the terminal."""

import base64
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from stakes._io.files import write_text
from stakes.decisions import RULES
from stakes.errors import StakesError, listing
from stakes.paper.diagnosis.report import diagnosis_figures, diagnosis_tables
from stakes.paper.digits.report import digits_figures, digits_tables
from stakes.paper.roads.report import road_figures, road_tables
from stakes.paper.sweep import Result
from stakes.report.html import Html, joined, page, tag
from stakes.report.page import section, whole_body
from stakes.report.provenance import everything, facts
from stakes.report.tables import signed

_TABLES = {"diagnosis": diagnosis_tables, "digits": digits_tables, "roads": road_tables}
_FIGURES = {"diagnosis": diagnosis_figures, "digits": digits_figures, "roads": road_figures}


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
    axes = [name for name in ("corrupted", "noise", "units", "size", "width") if name in result.rows[0]]
    settings = list(dict.fromkeys(tuple(row[name] for name in axes) for row in result.rows))
    models = result.config["methods"]
    lines = ["  ".join([*(f"{name:>9}" for name in axes), f"{'model':>16}  argmax  optimal  against standard (95 %)"])]
    for setting in settings:
        where = dict(zip(axes, setting, strict=True))
        for model in models:
            argmax, optimal = (result.values("utility", method=model, rule=rule, **where).mean() for rule in RULES)
            cells = [*(f"{value!s:>9}" for value in setting), f"{model:>16}", f"{argmax:.4f}", f" {optimal:.4f}"]
            if model != "standard" and "standard" in models:
                cells.append(f" {signed(result.difference(model, 'standard', rule='optimal', **where))}")
            lines.append("  ".join(cells))
    return "\n".join(lines)


def write_experiment_page(result: Result, folder: Path, files: Sequence[Path]) -> Path:
    """Write report.html with the figures (PNG) and tables (Markdown) in ``files``, the config and the command."""
    title = f"The paper's {result.config['experiment']} experiment"
    figures = [_figure(file) for file in files if file.suffix == ".png"]
    markdown = [_render(file.read_text(encoding="utf-8")) for file in files if file.suffix == ".md"]
    parts = {
        "figures": ("Figures", joined(figures)),
        "tables": ("Tables", joined(markdown)),
        "made": ("How it was made", _made(result.config)),
    }
    sections = [section(key, *part) for key, part in parts.items()]
    body = whole_body(title, {key: name for key, (name, _) in parts.items()}, sections)
    path = folder / "report.html"
    write_text(path, page(title, body))
    return path


def _figure(file: Path) -> Html:
    name = file.stem.replace("_", " ")
    source = f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
    image = Html(tag("img", src=source, alt=f"Figure: {name}").removesuffix("</img>"))
    return tag("figure", image, tag("figcaption", name))


def _render(markdown: str) -> Html:
    """Markdown as HTML, its headings one level below those of the page; HTML inside it is shown as text."""
    rendered = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    for old, new in (
        ("<h3>", "<h4>"),
        ("</h3>", "</h4>"),
        ("<h2>", "<h3>"),
        ("</h2>", "</h3>"),
        ("<th>", '<th scope="col">'),
        ("<table>", '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>'),
        ("</table>", "</table></div>"),
    ):
        rendered = rendered.replace(old, new)
    return Html(rendered)


def _made(config: Mapping[str, Any]) -> Html:
    versions = ", ".join(f"{name} {number}" for name, number in config["versions"].items())
    return joined(
        [
            facts({"Experiment": config["experiment"], "Versions": versions}),
            tag("h3", "The command"),
            tag("pre", tag("code", _command(config))),
            everything(config),
        ]
    )


def _command(config: Mapping[str, Any]) -> str:
    """The command that runs this sweep, with every setting as an option."""
    words = ["stakes", "reproduce", str(config["experiment"])]
    for name, value in config.items():
        if name not in ("experiment", "versions"):
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return shlex.join(words)
