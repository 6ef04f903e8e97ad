"""report.html in a real browser: edited, reset, copied, in the dark, on a phone; it asks for nothing."""

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finished_runs import (
    NUMBERS_START,
    UTILITY,
    finished_run,
    python_says,
    random_probs,
    seconds_of_edits,
    three_models,
    write_report,
)

from stakes import Utility

CASES = 200


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    three_models(path, cases=CASES)
    return write_report(path)


def amount(value: float) -> str:
    """As the page shows money."""
    if abs(value) >= 999.995 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 0.995 else f"{value:.3g}"


def cells(page: Any, table: str) -> list[list[str]]:
    rows = page.locator(f"#{table} tbody tr").all()
    return [row.locator("td").all_text_contents() for row in rows]


def cost(page: Any, decision: int, outcome: int) -> Any:
    return page.locator("#costs tbody tr").nth(decision).locator("input").nth(outcome)


def shows(page: Any, utility: Utility) -> None:
    """The page's decisions, confusion and totals are the library's at these costs."""
    probs, labels = random_probs(CASES, 3, seed=1)
    said = python_says(probs, labels, utility)
    for table, values in (("counts", said["counts"]), ("money", said["money"])):
        assert cells(page, table) == [[amount(cell) for cell in (*row, sum(row))] for row in values], table
    assert page.inner_text("#total") == f"£{amount(said['total'])}"
    for tile, value in (("per-decision", said["total"] / CASES), ("claimed", said["claimed"] / CASES)):
        # Half a penny is rounded by its decimals in the browser, by its bits in Python.
        assert float(page.inner_text(f"#{tile}").removeprefix("£")) == pytest.approx(value, abs=0.0051)


def edited(decision: int, outcome: int, value: float) -> Utility:
    costs = UTILITY.costs.copy()
    costs[decision, outcome] = value
    return Utility.from_costs(costs, UTILITY.decisions, UTILITY.outcomes, unit=UTILITY.unit)


def test_a_cost_is_edited_and_all_follows_as_in_python(opened: Callable[..., Any], report: Path) -> None:
    page = opened(report)
    shows(page, UTILITY)
    assert page.inner_text("#outcome") == "These are the original costs. Change one to see what follows."
    cost(page, 0, 2).fill("37.5")
    other = edited(0, 2, 37.5)
    shows(page, other)
    probs, labels = random_probs(CASES, 3, seed=1)
    before, after = (np.array(python_says(probs, labels, table)["choice"]) for table in (UTILITY, other))
    flipped = np.flatnonzero(before != after)
    assert len(flipped) > 3
    assert page.inner_text("#flipped") == f"{len(flipped)} of {CASES}"
    true = labels.numpy()[flipped]
    was, now = other.costs[before[flipped], true], other.costs[after[flipped], true]
    order = sorted(range(len(flipped)), key=lambda i: (-now[i], was[i] - now[i], flipped[i]))
    rows = page.locator("#flips tbody tr").all()
    assert len(rows) == min(25, len(flipped))
    for row, place in zip(rows, order, strict=False):
        shown = [row.locator("th").inner_text(), *row.locator("td").all_text_contents()]
        change = now[place] - was[place]
        assert shown == [
            str(flipped[place] + NUMBERS_START), UTILITY.outcomes[true[place]],
            UTILITY.decisions[before[flipped[place]]], UTILITY.decisions[after[flipped[place]]],
            amount(was[place]), amount(now[place]), ("+" if change > 0 else "") + amount(change),
        ]  # fmt: skip
    assert page.inner_text("#outcome").startswith(f"{len(flipped)} of {CASES} cases are decided differently.")


def test_reset_and_what_is_no_number(opened: Callable[..., Any], report: Path) -> None:
    page = opened(report)
    assert page.locator("#reset").is_disabled()
    cost(page, 0, 2).fill("10")
    cost(page, 1, 0).fill("")
    assert cost(page, 1, 0).get_attribute("aria-invalid") == "true"
    assert "the last one that was is used" in page.inner_text("#invalid")
    shows(page, edited(0, 2, 10))
    page.click("#reset")
    assert cost(page, 0, 2).input_value() == "500"
    assert cost(page, 1, 2).input_value() == "35.5"
    assert page.inner_text("#invalid") == ""
    assert page.locator("#no-flips").is_visible()
    shows(page, UTILITY)


@pytest.mark.parametrize("clipboard", [True, False])
def test_the_table_is_copied_for_costs(
    opened: Callable[..., Any], report: Path, tmp_path: Path, clipboard: bool
) -> None:
    page = opened(report, permissions=["clipboard-read", "clipboard-write"])
    cost(page, 2, 1).fill("12.25")
    if not clipboard:
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")
    page.click("#copy")
    page.wait_for_function("document.getElementById('copied').textContent === 'Copied.'")
    file = tmp_path / "costs.csv"
    file.write_text(page.evaluate("navigator.clipboard.readText()"), encoding="utf-8")
    assert Utility.from_csv(file) == edited(2, 1, 12.25)


def test_break_even_points(opened: Callable[..., Any], report: Path) -> None:
    page = opened(report)
    page.select_option("#vary-cell", "0,1")
    page.locator("#vary").fill("400")  # of 1000: 20 of 50 £
    assert page.inner_text("#vary-value") == "£20"
    probs, labels = random_probs(CASES, 3, seed=1)
    now, there = (python_says(probs, labels, table) for table in (UTILITY, edited(0, 1, 20)))
    changed = int(np.sum(np.array(now["choice"]) != there["choice"]))
    taken = there["choice"].count(0)
    assert page.inner_text("#vary-now") == (
        f"At £20, {changed} of {CASES} cases are decided differently, send home is decided in {taken}, "
        f"and the total cost is £{amount(there['total'])}."
    )
    # Just above the first break-even point nothing has changed yet; just below it one case has.
    said = page.inner_text("#vary-says")
    first = float(re.search(r"begin to change at £([\d.]+\d)", said)[1])  # type: ignore[index]
    counts = [
        int(np.sum(np.array(now["choice"]) != python_says(probs, labels, edited(0, 1, first + step))["choice"]))
        for step in (0.01, -0.01)
    ]
    assert counts == [0, 1]
    assert page.locator("#vary-chart svg path").get_attribute("d").count("L") > 100
    page.click("#vary-use")
    assert cost(page, 0, 1).input_value() == "20"
    shows(page, edited(0, 1, 20))
    page.select_option("#vary-cell", "0,0")
    assert page.locator("#vary").is_disabled(), "a cost of 0 has no way to go"


def test_break_even_points_where_decisions_tie(opened: Callable[..., Any], report: Path) -> None:
    """The sentence, the numbers below it and the chart agree where one decision costs the same as another."""
    page = opened(report)
    for outcome, value in enumerate(UTILITY.costs[1]):
        cost(page, 2, outcome).fill(str(value))
    for row, taken_now in ((1, False), (2, True)):  # of equal decisions the first is taken
        page.select_option("#vary-cell", f"{row},0")
        assert page.inner_text("#vary-now").startswith(f"At £40, 0 of {CASES} cases are decided differently")
        page.locator("#vary").fill("999")
        changed = int(page.inner_text("#vary-now").split(", ")[1].split(" of ")[0])
        said = page.inner_text("#vary-says")
        assert (changed > 20) == taken_now
        assert ("begin to change at £40" in said) == taken_now, said


def test_going_back_finds_page_and_numbers_in_agreement(
    opened: Callable[..., Any], report: Path, tmp_path: Path
) -> None:
    page = opened(report)
    cost(page, 0, 2).fill("999")
    page.locator("#refer-cost").fill("77")
    page.goto("about:blank")
    page.go_back()
    typed = float(cost(page, 0, 2).input_value())
    shows(page, UTILITY if typed == UTILITY.costs[0, 2] else edited(0, 2, typed))
    assert f"At £{amount(float(page.input_value('#refer-cost')))}" in page.inner_text("#refer-says")


def test_the_keyboard_is_never_left_without_a_place(opened: Callable[..., Any], report: Path) -> None:
    page = opened(report)
    where = "document.activeElement.closest('.scroll, input')?.querySelector('table')?.id ?? document.activeElement.id"
    page.locator("#vary").fill("500")
    page.locator("#vary-use").press("Enter")
    assert page.evaluate(where) == "vary"
    page.locator("#reset").press("Enter")
    assert page.evaluate(where) == "costs"


def test_what_was_said_of_an_earlier_table_is_taken_back(opened: Callable[..., Any], report: Path) -> None:
    page = opened(report, permissions=["clipboard-read", "clipboard-write"])
    page.click("#copy")
    page.wait_for_function("document.getElementById('copied').textContent === 'Copied.'")
    cost(page, 0, 2).fill("-3")
    assert page.inner_text("#copied") == ""
    assert not any("-0" in row for row in cells(page, "money"))
    page.locator("#refer-cost").fill("")
    assert page.get_attribute("#refer-cost", "aria-invalid") == "true"
    page.locator("#refer-cost").fill("5")
    assert page.get_attribute("#refer-cost", "aria-invalid") is None


def test_long_names_leave_room_for_the_costs_on_a_phone(opened: Callable[..., Any], tmp_path: Path) -> None:
    names = tuple(f"{name}, after the second opinion of another department" for name in ("treat", "wait", "operate"))
    utility = Utility.from_costs(UTILITY.costs, names, UTILITY.outcomes, unit="£")
    probs, labels = random_probs(60, 3, seed=1)
    finished_run(tmp_path, {"standard": [probs], "calibrated": [probs], "boosting": [probs]}, labels, utility)
    page = opened(write_report(tmp_path), viewport={"width": 390, "height": 800})
    cost(page, 0, 0).focus()
    boxes = "es => es.map(e => e.getBoundingClientRect().toJSON())"  # at once: the page may be scrolling
    name, cell = page.locator("#costs tbody tr:first-child :is(th, td:first-of-type input)").evaluate_all(boxes)
    assert name["y"] + name["height"] <= cell["y"] + 1, "the name stands above"
    assert cell["x"] + cell["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_second_opinion(opened: Callable[..., Any], report: Path) -> None:
    page = opened(report)
    probs, labels = random_probs(CASES, 3, seed=1)
    for price in (0, 7.5, 1000):
        page.fill("#refer-cost", str(price))
        costs = np.vstack([UTILITY.costs, np.full(3, price)])
        choice = (probs.double().numpy() @ costs.T).argmin(1)
        referred = int((choice == 3).sum())
        assert page.inner_text("#refer-share") == f"{100 * referred / CASES:.1f} % ({referred} of {CASES})"
        assert page.inner_text("#refer-total") == f"£{amount(costs[choice, labels.numpy()].sum())}"
    assert "no case is worth a second opinion" in page.inner_text("#refer-says")
    page.locator("#refer").fill("0")
    assert page.input_value("#refer-cost") == "0"


def test_dark_and_narrow_and_by_keyboard(opened: Callable[..., Any], report: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = opened(report, color_scheme="light"), opened(report, color_scheme="dark")
    assert light.evaluate(colour) == "rgb(255, 255, 255)"
    assert max(map(int, re.findall(r"\d+", dark.evaluate(colour)))) < 60
    phone = opened(report, viewport={"width": 360, "height": 700})
    assert phone.evaluate("document.documentElement.scrollWidth") == 360, "only tables scroll sideways"
    light.keyboard.press("Tab")
    assert light.evaluate("document.activeElement.textContent") == "Skip to the answer"
    cost(light, 0, 2).focus()
    assert light.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    light.keyboard.press("ArrowDown")
    assert cost(light, 0, 2).input_value() == "499"
    shows(light, edited(0, 2, 499))


def test_print_hides_what_only_a_screen_can_do(opened: Callable[..., Any], report: Path) -> None:
    page = opened(report, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for hidden in ("nav", "#reset", "#vary"):
        assert not page.locator(hidden).is_visible(), hidden
    assert page.locator("#money").is_visible()


def test_the_policy_forbids_what_is_put_into_the_page(browser: Any, report: Path) -> None:
    """Should a script ever get in: it may not run, and nothing may be asked for."""
    page = browser.new_page()
    refused: list[tuple[str, str]] = []
    answered: list[str] = []
    page.on("requestfailed", lambda request: refused.append((request.url, request.failure)))
    page.on("response", lambda response: answered.append(response.url))
    page.goto(report.as_uri())
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(script);
        const image = document.createElement("img");
        image.src = "https://example.org/x.png";
        document.body.append(image);
    }""")
    assert page.evaluate("fetch('https://example.org/').then(() => 'fetched', () => 'refused')") == "refused"
    assert page.evaluate("window.ran") is None
    assert refused == [("https://example.org/x.png", "csp")]
    assert answered == [report.as_uri()]
    page.close()


@pytest.mark.filterwarnings("ignore::stakes.errors.StakesWarning")
def test_a_class_named_like_markup_shows_as_text(opened: Callable[..., Any], tmp_path: Path) -> None:
    name = "</script><b>"
    table = np.array([[0.0, 50, 500], [40, 0, 35.5], [200, 90, 0]])
    utility = Utility.from_costs(table, (name, "b", "c"), (name, "x", "y"), unit="£")
    three_models(tmp_path, utility)
    page = opened(write_report(tmp_path))
    assert page.locator("#costs thead th").all_text_contents()[1] == name
    assert page.locator("#vary-cell option").first.text_content() == f"{name}, when it is {name} (£0)"
    cost(page, 0, 2).fill("1")
    assert name in page.locator("#flips tbody td").all_text_contents()
    assert page.locator("#explorer b, #flips b").count() == 0


def test_an_edit_of_ten_thousand_rows_is_drawn_within_a_tenth_of_a_second(
    opened: Callable[..., Any], tmp_path: Path
) -> None:
    probs, labels = random_probs(10_000, 10, seed=0)
    generator = np.random.default_rng(0)
    utility = Utility.from_costs(generator.uniform(10, 500, (10, 10)) * (1 - np.eye(10)), unit="£")
    finished_run(tmp_path, {"calibrated": [probs], "boosting": [probs]}, labels, utility)
    page = opened(write_report(tmp_path))
    before = page.inner_text("#total")
    times = seconds_of_edits(page, "#costs tbody input:not([value='0'])")
    assert page.inner_text("#total") != before
    assert min(times) < 0.1, times


def test_a_file_of_an_experiment_opens_as_well(opened: Callable[..., Any], tmp_path: Path) -> None:
    from stakes.paper.report import write_experiment_page
    from stakes.paper.sweep import Result

    dot = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGD4DwABBAEAX+XDSwAAAABJRU5ErkJggg=="
    )
    (tmp_path / "sweep.png").write_bytes(dot)
    (tmp_path / "tables.md").write_text("## Table <1>\n\n| a | b |\n| --- | --- |\n| <b>x</b> | 2 |\n")
    result = Result({"experiment": "diagnosis", "seeds": 2, "versions": {"stakes": "0"}}, ())
    files = [tmp_path / "sweep.png", tmp_path / "tables.md"]
    page = opened(write_experiment_page(result, tmp_path, files))
    assert page.evaluate("document.querySelector('img').naturalWidth") == 1
    assert page.inner_text("h3 >> nth=0") == "Table <1>"
    assert page.locator("td").all_text_contents() == ["<b>x</b>", "2"]
    assert page.inner_text("pre >> nth=0") == "stakes reproduce diagnosis --seeds 2"


def test_probabilities_are_those_of_the_run(opened: Callable[..., Any], report: Path) -> None:
    """What JavaScript unpacks is what was saved, to the last bit."""
    page = opened(report)
    text = page.evaluate("JSON.parse(document.getElementById('data').textContent).probs")
    values = page.evaluate(
        "text => Array.from(new Float32Array(Uint8Array.from(atob(text), m => m.charCodeAt(0)).buffer))", text
    )
    probs, _ = random_probs(CASES, 3, seed=1)
    assert torch.equal(torch.tensor(values, dtype=torch.float64).float().reshape(CASES, 3), probs)
