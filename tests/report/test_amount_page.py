"""report.html of a run about amounts: the numbers it computes with, and its explorer in a real browser."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finished_amounts import UTILITY, amount_run, menu_run
from finished_runs import seconds_of_edits, write_report
from test_page import ODD, Page, unpacked

from stakes.decisions import decide
from stakes.evaluation.amounts import best_seed
from stakes.mixtures import Quantiles
from stakes.report.numbers import explorer
from stakes.tables.amounts.run import AmountRun
from stakes.utility import Newsvendor


def python_says(run: AmountRun, utility: Newsvendor, model: str = "blend") -> dict[str, float]:
    """What the decisions of a model come to at other costs, by the library."""
    decisions = decide(Quantiles(best_seed(run.scored, model).predictions.quantiles), utility)
    costs = -utility.realised(decisions.choice, run.labels)
    return {
        "total": costs.sum(),
        "per-decision": costs.mean(),
        "claimed": -float(decisions.expected_utility.mean()),
        "decided": float(decisions.choice.mean()),
        "covered": 100 * float((run.labels <= decisions.choice).double().mean()),
    }


def shown(page: Any, tile: str) -> float:
    return float(re.sub(r"[^\d.]", "", page.inner_text(f"#{tile}")))


def shows(page: Any, run: AmountRun, utility: Newsvendor) -> None:
    """The tiles of the page are what the library says at these costs."""
    expected = python_says(run, utility) | {"without": python_says(run, utility, "constant")["per-decision"]}
    for tile, value in expected.items():
        digits = 0.51 if value >= 1000 else 0.051 if tile == "covered" else 0.0051
        assert shown(page, tile) == pytest.approx(value, abs=digits), tile


# The numbers it computes with ----------------------------------------------------------------------


def test_the_explorer_has_the_saved_model_exactly(tmp_path: Path) -> None:
    run = amount_run(tmp_path, seeds=2)
    page = Page(write_report(tmp_path))
    said = best_seed(run.scored, "blend").predictions.quantiles.numpy()
    assert np.array_equal(unpacked(page.data["quantiles"], "<f4").reshape(140, 99), said)
    assert np.array_equal(unpacked(page.data["labels"], "<f8"), run.labels.numpy())
    past = unpacked(page.data["past"], "<f4").reshape(-1, 99)
    assert len(past) == 1, "one row for all"
    assert np.array_equal(past[0], best_seed(run.scored, "constant").predictions.quantiles[0].numpy())
    assert page.data["costs"] == [15, 5]
    assert page.data["range"] == {"atLeast": 0, "top": None, "step": 1}
    assert page.data["times"][0] == "2015-05-01"
    assert "from the 99 quantiles of the blend model (seed 0, the one in model/) for the 140 test rows." in page.text
    assert "Cases are named by the column date." in page.text


def test_a_large_test_set_is_sampled_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "MOST_ROWS", 50)
    run = amount_run(tmp_path)
    page = Page(write_report(tmp_path))
    places = unpacked(page.data["rows"], "<i4") - 574
    assert len(places) == 50
    assert list(places) == sorted(set(places))
    assert np.array_equal(unpacked(page.data["labels"], "<f8"), run.labels.numpy()[places])
    assert "50 of the 140 test rows, drawn at random (seed 0)" in page.text


def test_three_thousand_rows_stay_below_three_megabytes(tmp_path: Path) -> None:
    amount_run(tmp_path, days=explorer.MOST_ROWS)
    assert write_report(tmp_path).stat().st_size < 3_000_000


def test_a_menu_has_actions_instead_of_a_fan_and_an_explorer(tmp_path: Path) -> None:
    menu_run(tmp_path)
    page = Page(write_report(tmp_path))
    identities = {attributes.get("id") for _, attributes in page.elements}
    assert {"actions", "claims", "alternatives"} <= identities
    assert not {"fan", "mistakes", "ratio", "explorer"} & identities
    assert not page.all("script")
    assert "cost if always taken" in page.text


def test_names_from_data_are_text(tmp_path: Path) -> None:
    settings = {"target": ODD[0], "time": ODD[1], "drop": list(ODD), "by": ODD[2]}
    amount_run(tmp_path, settings=settings, by=ODD[:1] * 70 + ODD[1:2] * 70, utility=replace(UTILITY, unit="</style>"))
    page = Page(write_report(tmp_path))
    assert not {tag for tag, _ in page.elements} & {"i", "img"}
    assert page.source.count("</script>") == len(page.all("script"))
    assert page.source.count("</style>") == 1
    assert all(name in page.text for name in ODD[:2])


# In a browser --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[AmountRun, Path]:
    path = tmp_path_factory.mktemp("run")
    return amount_run(path), write_report(path)


def test_costs_are_edited_and_all_follows_as_in_python(opened: Callable[..., Any], run: tuple[AmountRun, Path]) -> None:
    finished, report = run
    page = opened(report)
    shows(page, finished, UTILITY)
    assert shown(page, "per-decision") == pytest.approx(finished.comparison.row("blend").cost.mean, abs=0.0051)
    assert page.inner_text("#share-value") == "75 % (3 : 1)"
    assert not page.locator(".original").first.is_visible()
    page.fill("#under", "2.5")
    other = replace(UTILITY, under=2.5)
    shows(page, finished, other)
    assert page.inner_text("#share-value") == "33.30 % (0.5 : 1)"
    assert page.locator(".original").first.inner_text() == (
        "Costs have been edited in the explorer. This is of the original ones; at the edited ones the decisions of "
        f"this model cost {page.inner_text('#per-decision')} each."
    )
    before, after = (
        decide(Quantiles(best_seed(finished.scored, "blend").predictions.quantiles), each).choice.numpy()
        for each in (UTILITY, other)
    )
    first = page.locator("#decisions tbody tr").first
    largest = np.abs(after - before).max()
    cells = [float(text) for text in first.locator("td").all_text_contents()]
    assert abs(cells[2] - cells[1]) == largest
    assert page.inner_text("#outcome").startswith(f"{(before != after).sum()} of 140 decisions change.")
    page.click("#reset")
    shows(page, finished, UTILITY)
    assert page.input_value("#under") == "15"


def test_the_slider_keeps_the_sum_of_the_costs(opened: Callable[..., Any], run: tuple[AmountRun, Path]) -> None:
    finished, report = run
    page = opened(report)
    page.locator("#share").fill("90")
    assert [float(page.input_value(f"#{name}")) for name in ("under", "over")] == [18, 2]
    shows(page, finished, replace(UTILITY, under=18.0, over=2.0))
    page.locator("#share").press("ArrowRight")
    assert float(page.input_value("#under")) > 18


def test_break_even_points_are_where_the_library_has_them(
    opened: Callable[..., Any], run: tuple[AmountRun, Path]
) -> None:
    finished, report = run
    said = opened(report).inner_text("#break-even")
    points = [float(text) / 100 for text in re.findall(r"[\d.]+(?= %)", said.partition("Break-even: ")[2])]
    assert points

    def saved(share: float) -> float:
        utility = replace(UTILITY, under=share, over=1 - share)
        with_model, without = (python_says(finished, utility, model)["total"] for model in ("blend", "constant"))
        return without - with_model

    for point in points:
        assert np.sign(saved(point - 0.001)) != np.sign(saved(point + 0.001))
    assert saved(0.75) > 0


def test_what_is_no_cost_is_refused(opened: Callable[..., Any], run: tuple[AmountRun, Path]) -> None:
    finished, report = run
    page = opened(report)
    page.fill("#under", "-3")
    assert page.get_attribute("#under", "aria-invalid") == "true"
    assert "A cost is a number of 0 or more" in page.inner_text("#invalid")
    shows(page, finished, UTILITY)
    page.fill("#under", "0")
    shows(page, finished, replace(UTILITY, under=0.0))
    page.fill("#over", "0")
    assert "One of the two has to be above 0" in page.inner_text("#invalid")
    page.fill("#over", "1")
    assert page.inner_text("#invalid") == ""


def test_costs_of_each_row_are_weighed(opened: Callable[..., Any], tmp_path: Path) -> None:
    own = replace(UTILITY, under=np.linspace(5, 20, 140), step=None)
    finished = amount_run(tmp_path, utility=own)
    page = opened(write_report(tmp_path))
    shows(page, finished, own)
    page.fill("#under", "3")
    shows(page, finished, replace(own, under=3 * np.asarray(own.under)))


def test_rows_are_shown_on_demand_and_without_scripts_the_rest_is_there(
    opened: Callable[..., Any], run: tuple[AmountRun, Path]
) -> None:
    page = opened(run[1])
    while page.locator("#more-rows").is_visible():
        page.click("#more-rows")
    assert page.locator("#decisions tbody tr").count() == 140
    still = opened(run[1], java_script_enabled=False)
    assert still.locator("#fan svg").first.is_visible()
    assert not still.locator("#explorer-body").is_visible()


def test_an_edit_of_three_thousand_rows_is_drawn_within_a_tenth_of_a_second(
    opened: Callable[..., Any], tmp_path: Path
) -> None:
    amount_run(tmp_path, days=explorer.MOST_ROWS)
    page = opened(write_report(tmp_path))
    times = seconds_of_edits(page, "#under")
    assert min(times) < 0.1, times
