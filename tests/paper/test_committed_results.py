"""The committed results are complete, and their tables follow from their rows.

These tests read committed JSON: they check results and reports, and say nothing about training. Cells are trained in
test_diagnosis.py, test_digits.py and test_roads.py.
"""

import json
from pathlib import Path

import pytest

from stakes.paper.diagnosis.experiment import Diagnosis
from stakes.paper.digits.experiment import Digits
from stakes.paper.digits.report import PUBLISHED
from stakes.paper.report import tables
from stakes.paper.roads.experiment import Roads
from stakes.paper.sweep import PAPER_MODELS, Result

RESULTS = Path(__file__).parents[2] / "results"
EXPERIMENTS = {"diagnosis": Diagnosis, "digits": Digits, "roads": Roads}
# The smallest standard deviation over seeds in the authors' code, by noise; that of 0.1 lies between its neighbours.
PUBLISHED_SD = {0.0: 0.002, 0.1: 0.0032, 0.25: 0.005, 0.5: 0.01}
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
    keys = [(*(str(row[axis]) for axis in axes), row["seed"], row["rule"]) for row in result.rows]
    assert len(keys) == len(set(keys))
    assert set(keys) == wanted
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


@pytest.mark.parametrize("noise", PUBLISHED_SD)
def test_our_run_of_the_authors_protocol_gives_their_numbers(noise: float) -> None:
    authors = Result.load(RESULTS / "digits-authors")
    for model, theirs in zip(PAPER_MODELS, PUBLISHED[noise, 50], strict=True):
        ours = 1 - authors.values("utility", method=model, rule="optimal", noise=noise, units=50)
        assert ours.mean() == pytest.approx(theirs, abs=2 * PUBLISHED_SD[noise])
