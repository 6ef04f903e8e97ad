"""One self-contained HTML file: what comes from data is escaped, and a policy forbids every request."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

_DATA_ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}


class Html(str):
    """Text that is HTML already. Any other text is escaped where it is put in."""

    __slots__ = ()


class Cell(Html):
    """A whole cell of a table, with its own class."""

    __slots__ = ()


def html(text: str) -> Html:
    return text if isinstance(text, Html) else Html(escape(text))


def joined(parts: Iterable[str], between: str = "\n") -> Html:
    return Html(between.join(html(part) for part in parts))


def tag(name: str, *children: str, **attributes: str) -> Html:
    """``tag("td", "a<b", class_="name")``."""
    listed = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{listed}>{joined(children, '')}</{name}>")


def cell(text: str, kind: str) -> Cell:
    return Cell(tag("td", text, class_=kind))


def asset(name: str) -> str:
    return files("stakes.report").joinpath("assets", name).read_text(encoding="utf-8")


def fragment(name: str, **parts: str) -> Html:
    """An asset with its places filled."""
    return Html(Template(asset(name)).substitute({key: html(part) for key, part in parts.items()}))


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    names: int = 1,  # so many columns on the left are text
    foot: Sequence[str] = (),
    chosen: Iterable[int] = (),  # rows that stand out
    identity: str = "",
) -> Html:
    """A table in a box of its own that scrolls where the screen is too narrow for it."""
    marked = set(chosen)
    top = [tag("th", head, scope="col", **({"class_": "name"} if i < names else {})) for i, head in enumerate(heads)]
    body = [_row(row, names, place in marked) for place, row in enumerate(rows)]
    parts = [tag("caption", caption), tag("thead", tag("tr", *top)), tag("tbody", *body)]
    if foot:
        parts.append(tag("tfoot", _row(foot, 1, False)))
    whole = tag("table", *parts, **({"id": identity} if identity else {}))
    # Something that scrolls has to be reached by the keyboard.
    return tag("div", whole, class_="scroll", tabindex="0", role="group", aria_label=caption)


def _row(cells: Sequence[str], names: int, marked: bool) -> Html:
    first = tag("th", cells[0], scope="row")
    rest = [
        text if isinstance(text, Cell) else cell(text, "name") if place < names else tag("td", text)
        for place, text in enumerate(cells[1:], 1)
    ]
    return tag("tr", first, *rest, **({"class_": "chosen"} if marked else {}))


def page(title: str, body: Html, data: Mapping[str, Any] | None = None, scripts: Sequence[str] = ()) -> str:
    """The whole file. Scripts and style are named by their hashes; nothing else runs, nothing is fetched."""
    style, sources = asset("page.css"), [asset(name) for name in scripts]
    policy = (
        f"default-src 'none'; style-src {_hashes([style])}; script-src {_hashes(sources)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    blocks = [Html(f"<script>{source}</script>") for source in sources]
    if data is not None:
        blocks.insert(0, Html(f'<script type="application/json" id="data">{_json(data)}</script>'))
    return fragment("page.html", policy=policy, title=title, style=Html(style), body=body, scripts=joined(blocks))


def _json(data: Mapping[str, Any]) -> str:
    """JSON in which nothing can be taken for the end of the element it stands in."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_DATA_ESCAPES)


def _hashes(sources: Sequence[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in sources]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
