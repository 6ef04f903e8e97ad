"""``report.html`` of an experiment of the paper: its figures and tables, its config and command, in one file."""

import base64
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from stakes._io.files import write_text
from stakes.paper.sweep import Result
from stakes.report.html import Html, joined, page, tag
from stakes.report.page import section, whole_body
from stakes.report.provenance import everything, facts

_NOT_OPTIONS = ("experiment", "versions")


def write_experiment_page(result: Result, folder: Path, files: Sequence[Path]) -> Path:
    """Write report.html beside the figures (PNG) and tables (Markdown) that were drawn of a result."""
    title = f"The paper's {result.config['experiment']} experiment"
    figures = [_figure(file) for file in files if file.suffix == ".png"]
    tables = [_tables(file.read_text(encoding="utf-8")) for file in files if file.suffix == ".md"]
    parts = {
        "figures": ("Figures", joined(figures)),
        "tables": ("Tables", joined(tables)),
        "made": ("How it was made", _made(result.config)),
    }
    sections = [section(key, *part) for key, part in parts.items()]
    body = whole_body(title, {key: name for key, (name, _) in parts.items()}, sections)
    path = folder / "report.html"
    write_text(path, page(title, body))
    return path


def command(config: Mapping[str, Any]) -> str:
    """What one would type to get this sweep: every setting as its option."""
    words = ["stakes", "reproduce", str(config["experiment"])]
    for name, value in config.items():
        if name not in _NOT_OPTIONS:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return shlex.join(words)


def _figure(file: Path) -> Html:
    name = file.stem.replace("_", " ")
    source = f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
    image = Html(tag("img", src=source, alt=f"Figure: {name}").removesuffix("</img>"))
    return tag("figure", image, tag("figcaption", name))


def _tables(markdown: str) -> Html:
    """Markdown of our own, its headings below those of the page; what it says in HTML stays text."""
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
            tag("pre", tag("code", command(config))),
            everything(config),
        ]
    )
