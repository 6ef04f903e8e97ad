"""The page at the widths of a phone, a tablet, a laptop and a desk: nothing is cut off, nothing overflows."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from finished_amounts import amount_run
from finished_runs import UTILITY, three_models

from stakes import Utility
from stakes.evaluation.metrics import Interval
from stakes.report.page import write_page
from stakes.tables.run import FinishedRun
from stakes.utility import Newsvendor, NumberUtility, TableUtility

CASES = 150
# By the page's own layout: what is wider than its box, or reaches beyond the page. Drawings are checked below.
TOO_WIDE = """() => [...document.querySelectorAll('body *')]
    .filter(e => !e.closest('svg, .unseen, .skip, textarea, thead') && e.clientWidth)
    .filter(e => e.scrollWidth > e.clientWidth + 1 || e.getBoundingClientRect().right > window.innerWidth + 1)
    .map(e => `${e.tagName}.${e.className}#${e.id} ${e.scrollWidth}>${e.clientWidth} ${e.textContent.slice(0, 40)}`)"""
CUT_OFF = """() => [...document.querySelectorAll('svg text')].filter(text => {
    const [own, svg] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
    return own.width && (own.left < svg.left - 1 || own.right > svg.right + 1 || own.top < svg.top - 2);
}).map(text => text.textContent)"""


def everything(names: list[str]) -> dict[str, Any]:
    """What a run may hold beside its decisions, under long names."""
    column = SimpleNamespace(role="feature", kind="text", missing=3, distinct=40, last="")
    return {
        "ids": tuple(f"patient-{place:06d}-of-the-second-department" for place in range(CASES)),
        "by": tuple(names[place % 3] for place in range(CASES)),
        "importance": {
            "columns": {name: Interval(12345.6, 12000, 13000) for name in names}, "rows": CASES, "not_measured": 2},
        "changes": {"id": "patient", "by": "the region of the first visit"},
        "data": SimpleNamespace(
            file="patients.csv", rows=520, notices=(f"column {names[0]!r} is empty: it is left out",),
            columns=[SimpleNamespace(name=name, first=names[1], **vars(column)) for name in names]),
    }  # fmt: skip


_WORDS = ("one", "two", "three", "four", "five", "six", "seven")
NAMES = [
    *(f"category {word}, as stated at the first visit" for word in _WORDS),
    *("inflammatorybowelsyndromewithcomplications", "Donaudampfschifffahrtsgesellschaftskapitän", "x"),
]


def classes(folder: Path, table: TableUtility) -> FinishedRun:
    fields = everything(NAMES)
    data = fields.pop("data")
    run = three_models(folder, table, cases=CASES, **fields)
    object.__setattr__(run, "data", data)
    return run


def ten_classes(folder: Path) -> FinishedRun:
    costs = np.random.default_rng(0).uniform(1, 900_000, (10, 10)).round(2) * (1 - np.eye(10))
    return classes(folder, Utility.from_costs(costs, NAMES, NAMES, unit="£"))


def amounts(folder: Path, utility: NumberUtility, **options: Any) -> FinishedRun:
    fields = everything(NAMES)
    data, settings = fields.pop("data"), fields.pop("changes") | {"target": NAMES[8], "time": NAMES[0]}
    run = amount_run(folder, days=CASES, utility=utility, settings=settings, **options, **fields)
    object.__setattr__(run, "data", data)
    return run


PAGES: dict[str, Callable[[Path], FinishedRun]] = {
    "ten classes": ten_classes,
    "three": lambda folder: classes(folder, UTILITY),
    "amounts": lambda folder: amounts(folder, Newsvendor(15_000.5, 5_000.25, unit="£", step=1.0)),
    "amounts without times": lambda folder: amounts(
        folder, Newsvendor(np.linspace(5, 20, CASES), 5.0, unit="minutes"), timed=False, seeds=2
    ),
    "actions": lambda folder: amounts(
        folder, Utility.from_curves({name: [(0, 0), (30, 0), (60, 300 + place)] for place, name in enumerate(NAMES)})
    ),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    files = {}
    for name, make in PAGES.items():
        folder = tmp_path_factory.mktemp("run")
        files[name] = folder / "report.html"
        write_page(make(folder), files[name])
    return files


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1024, 1440])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_off(browser: Any, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(pages[name].as_uri())
    for details in page.locator("details").all():
        details.evaluate("element => { element.open = true; }")
    if name != "actions":  # so that decisions change, and the page says what is of the original costs
        page.locator("#costs input, #under").first.fill("123456.75")
        assert page.locator(".original").first.is_visible()
        assert page.locator("#flips tbody tr, #decisions tbody tr").count() > 0 or name == "three"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate(CUT_OFF) == []
    page.close()


def test_an_edited_cost_is_told_everywhere(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page()
    page.goto(pages["three"].as_uri())
    notes = page.locator(".original")
    assert notes.count() >= 3
    assert not notes.first.is_visible()
    page.locator("#costs tbody tr").nth(0).locator("input").nth(2).fill("1")
    total = page.inner_text("#per-decision")
    assert notes.first.inner_text() == (
        "Costs have been edited in the explorer. This is of the original ones; at the edited ones the decisions of "
        f"this model cost {total} each."
    )
    assert notes.nth(1).inner_text() == "Costs have been edited in the explorer. This is of the original ones."
    assert page.locator("#flips tbody th").first.inner_text().startswith("patient-0")
    page.click("#reset")
    assert not notes.first.is_visible()
    page.close()


def test_utilities_are_edited_as_utilities(browser: Any, tmp_path: Path) -> None:
    lend = Utility.from_matrix({"lend": {"repaid": 20, "defaulted": -100}, "decline": {"repaid": 0, "defaulted": 0}})
    run = three_models(tmp_path, lend, cases=CASES)
    write_page(run, tmp_path / "report.html")
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "report.html").as_uri())
    worth = page.inner_text("#total")
    own = next(item for item in run.scored if (item.model, item.rule) == ("calibrated", "optimal"))
    assert float(worth.replace(",", "")) == own.utilities.sum()
    loss = page.locator("#costs tbody tr").nth(0).locator("input").nth(1)
    assert loss.input_value() == "-100"
    loss.fill("0")
    assert "is worth" not in errors
    assert page.inner_text("#flipped").split(" of ")[0] != "0"
    assert page.locator("#csv").input_value().startswith("utility,repaid,defaulted\nlend,20,0\n")
    assert errors == []
    page.close()
