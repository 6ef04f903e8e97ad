"""The committed results are complete, and their tables follow from their rows.

These tests read committed JSON: they check results and reports, and say nothing about training. Cells are trained in
test_diagnosis.py, test_digits.py, test_roads.py and test_amounts.py.
"""

import json
from pathlib import Path

import pytest

from stakes.paper.amounts.experiment import Amounts
from stakes.paper.amounts.intervals import Orders
from stakes.paper.amounts.orders import CHOSEN, PAST, SHARES, WEEKDAY
from stakes.paper.diagnosis.experiment import Diagnosis
from stakes.paper.digits.experiment import Digits
from stakes.paper.digits.report import PUBLISHED
from stakes.paper.report import summary, tables
from stakes.paper.roads.experiment import Roads
from stakes.paper.sweep import PAPER_MODELS, Experiment, Result

RESULTS = Path(__file__).parents[2] / "results"
EXPERIMENTS = {"diagnosis": Diagnosis, "digits": Digits, "roads": Roads, "amounts": Amounts}
# The smallest standard deviation over seeds in the authors' code, by noise; that of 0.1 lies between its neighbours.
PUBLISHED_SD = {0.0: 0.002, 0.1: 0.0032, 0.25: 0.005, 0.5: 0.01}
FOLDERS = ("diagnosis", "diagnosis-authors", "digits", "digits-authors", "digits-independent", "roads")


def experiment_of(result: Result) -> Experiment:
    settings = {key: value for key, value in result.config.items() if key not in ("experiment", "versions")}
    frozen = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    return EXPERIMENTS[result.config["experiment"]](**frozen)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_model_of_the_sweep_has_its_rows(name: str) -> None:
    result = Result.load(RESULTS / name)
    experiment = experiment_of(result)
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


@pytest.mark.parametrize("name", [*FOLDERS, "amounts"])
def test_tables_are_made_from_the_rows_and_figures_are_small(name: str) -> None:
    folder = RESULTS / name
    assert (folder / "tables.md").read_text(encoding="utf-8") == tables(Result.load(folder))
    figures = list(folder.glob("*.png"))
    assert figures
    assert all(figure.stat().st_size < 200_000 for figure in figures)
    assert "/" not in json.dumps(json.loads((folder / "config.json").read_text())), "no path of any machine"


@pytest.mark.parametrize("name", [*FOLDERS, "amounts"])
def test_rules_are_told_in_words(name: str) -> None:
    result = Result.load(RESULTS / name)
    told = tables(result) + summary(result)
    assert "argmax" not in told
    assert "optimal" not in told


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


def test_every_cell_of_the_amounts_has_its_rows() -> None:
    result = Result.load(RESULTS / "amounts")
    cells = experiment_of(result).cells()
    for cell in cells:
        for seed in cell.seeds:
            assert len(result.select(**dict(cell.axes), seed=seed)) == cell.rows
    assert len(result.rows) == sum(len(cell.seeds) * cell.rows for cell in cells)


def test_what_is_said_of_the_restaurants_orders_holds() -> None:
    result = Result.load(RESULTS / "amounts")
    steak = Orders(result, 0.75)
    assert [f"{2 * steak.of_product(method, 'steak'):.4f}" for method in (PAST, WEEKDAY)] == ["59.9479", "52.0573"]
    assert 2 * steak.of_product(CHOSEN, "steak") < 46.28, "the best that is published"
    for share in SHARES:
        orders = Orders(result, share)
        assert orders.prescriptiveness(CHOSEN).low > 0
        assert orders.difference(CHOSEN, orders.best_in_hindsight()).low < 0, "no dearer beyond chance"
