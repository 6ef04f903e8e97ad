"""``report.html``: a run as one file that can be mailed to those who own the costs."""

from stakes._io.files import write_text
from stakes.report.alternatives import alternatives
from stakes.report.answer import answer
from stakes.report.explorer import SCRIPTS, explorer
from stakes.report.html import Html, joined, page, tag
from stakes.report.outcomes import claims, confusions
from stakes.report.provenance import how_it_was_made
from stakes.tables.folder import RunFolder
from stakes.tables.run import TableResult

_FOOTER = "Made by stakes. This file needs no network, asks for nothing and sends nothing."


def write_page(folder: RunFolder, result: TableResult) -> None:
    """Write report.html."""
    title = f"What decisions about {result.settings['target']} cost"
    parts = {
        "alternatives": ("The alternatives", alternatives(result)),
        "decisions": ("Decision by decision", confusions(result)),
        "claims": ("Can it be believed?", claims(result)),
    }
    made = ("How it was made", how_it_was_made(result))
    explorer_section, data = explorer(result)
    names = {key: name for key, (name, _) in parts.items()}
    names |= {"explorer": "The decision explorer", "second": "A second opinion", "made": made[0]}
    sections = [*(section(key, *part) for key, part in parts.items()), explorer_section, section("made", *made)]
    main = [tag("div", answer(result), class_="answer"), *sections]
    body = whole_body(title, names, main)
    write_text(folder.page, page(title, body, data, SCRIPTS))


def section(key: str, title: str, content: Html) -> Html:
    return tag("section", tag("h2", title, id=f"{key}-title"), content, id=key, aria_labelledby=f"{key}-title")


def whole_body(title: str, names: dict[str, str], main: list[Html]) -> Html:
    """Title, links to the sections by their keys, the sections, and a last word."""
    links = [tag("li", tag("a", name, href=f"#{key}")) for key, name in names.items()]
    return joined(
        [
            tag("header", tag("h1", title)),
            tag("nav", tag("ul", *links), aria_label="Parts of this report"),
            tag("main", joined(main), id="main"),
            tag("footer", tag("p", _FOOTER)),
        ]
    )
