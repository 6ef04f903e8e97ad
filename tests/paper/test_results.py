"""The committed results are whole, and their tables are what their rows say."""

import json
from pathlib import Path

import pytest

XX
from stakes.paper.diagnosis.experiment import Diagnosis
from stakes.paper.digits.experiment import Digits
from stakes.paper.report import tables
from stakes.paper.roads.experiment import Roads
from stakes.paper.sweep import PAPER_METHODS, Result

RESULTS = Path(__file__).parents[2] / "results"
EXPERIMENTS = {"diagnosis": Diagnosis, "digits": Digits, "roads": Roads}
FOLDERS = ("diagnosis", "diagnosis-authors", "digits", "digits-authors", "roads")


@pytest.mark.parametrize("name", FOLDERS)
def test_every_model_of_the_sweep_has_its_rows(name: str) -> None:
    result = Result.load(RESULTS / name)
    settings = {key: value for key, value in result.config.items() if key not in ("experiment", "versions")}
    frozen = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    experiment = EXPERIMENTS[result.config["experiment"]](**frozen)
    wanted = {
        (*(str(value) for _, value in cell.axes), seed, rule)
        for cell in experiment.cells()
        for seed in cell.seeds
        for rule in ("argmax", "optimal")
    }
    axes = [axis for axis, _ in experiment.cells()[0].axes]
    found = [(*(str(row[axis]) for axis in axes), row["seed"], row["rule"]) for row in result.rows]
    assert len(found) == len(set(found))
    assert set(found) == wanted
    assert all({"protocol", "method", "utility", "accuracy"} <= set(row) for row in result.rows)


@pytest.mark.parametrize("name", FOLDERS)
def test_tables_are_made_from_the_rows_and_figures_are_small(name: str) -> None:
    folder = RESULTS / name
    assert (folder / "tables.md").read_text(encoding="utf-8") == tables(Result.load(folder))
    figures = list(folder.glob("*.png"))
    assert figures
    assert all(figure.stat().st_size < 200_000 for figure in figures)
    assert "/" not in json.dumps(json.loads((folder / "config.json").read_text())), "no path of any machine"


def test_what_the_paper_claims_for_digits_holds() -> None:
    fair, authors = Result.load(RESULTS / "digits"), Result.load(RESULTS / "digits-authors")
    for noise in (0.1, 0.25, 0.5):
        assert fair.difference("calibrated", "standard", rule="optimal", noise=noise, units=50).low > 0
        assert authors.difference("calibrated", "standard", rule="optimal", noise=noise, units=50).low > 0
    losses = 1 - fair.values("utility", method="noise+calibrated", rule="optimal", noise=0.5, units=50)
    assert losses.mean() <= 0.125


@pytest.mark.parametrize("noise", published.DIGITS_SD)
def test_our_run_of_the_authors_protocol_gives_their_numbers(noise: float) -> None:
    authors = Result.load(RESULTS / "digits-authors")
    for method, theirs in zip(PAPER_METHODS, published.DIGITS[noise, 50], strict=True):
        ours = 1 - authors.values("utility", method=method, rule="optimal", noise=noise, units=50)
        assert ours.mean() == pytest.approx(theirs, abs=2 * published.DIGITS_SD[noise])
