"""`stakes` with costs that depend on the row, from the cost file to the decisions and the report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from patient_tables import TINY

from stakes import Decider, FormulaUtility
from stakes.report.page import write_page
from stakes.saved_model import SavedModel
from stakes.tables.run import Run

COSTS = (
    'cost [£],repaid,lost\nlend,0,=0.6 * "credit amount"\nrefuse,=0.1 * [credit amount] + 20,0\n'
    "call,15,=15 + 0.05 * [credit amount]\n"
)
MODELS = ("--models", "calibrated,weighted,boosting,blend")


def by_hand(amount: float) -> np.ndarray:
    return np.array([[0, 0.6 * amount], [0.1 * amount + 20, 0], [15, 15 + 0.05 * amount]])


def loan_table(count: int, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    income, amount = generator.normal(size=count), np.round(10 ** generator.uniform(1, 5, size=count), 2)
    lost = generator.random(count) < 1 / (1 + np.exp(2 * income))
    place = generator.choice(["north", "south"], size=count)
    labels = np.where(lost, "lost", "repaid")
    return pd.DataFrame({"income": income, "credit amount": amount, "place": place, "outcome": labels})


@pytest.fixture(scope="module")
def loans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loans")
    (folder / "costs.csv").write_text(COSTS, encoding="utf-8")
    loan_table(160).to_csv(folder / "loans.csv", index=False)
    loan_table(30, seed=1).to_csv(folder / "new.csv", index=False)
    return folder / "loans.csv"


@pytest.fixture(scope="module")
def run_folder(loans: Path) -> Path:
    """A finished run in which the amount is no feature, and costs depend on it all the same."""
    from stakes.tables.fit import fit_table
    from stakes.tables.problem import Recipe
    from stakes.tables.run_folder import RunFolder
    from stakes.tables.task import TableTask
    from stakes.training.config import Training

    training = Training(epochs=3, batch_size=32, learning_rate=0.03, select="nll")
    task = TableTask(
        loans,
        "outcome",
        loans.parent / "costs.csv",
        test=0.2,
        folds=2,
        drop=("credit amount",),
        models=("logistic", "weighted", "calibrated", "blend"),
        recipe=Recipe(tabm={"members": 2, "width": 8}, training=training),
    )
    out = loans.parent / "out"
    fit_table(task, RunFolder(out))
    return out


def test_a_run_scores_each_row_by_its_own_costs(run_folder: Path, loans: Path) -> None:
    run, frame = Run.load(run_folder), pd.read_csv(loans)
    assert run.utility.per_example
    assert run.formulas is not None
    amounts = frame["credit amount"].to_numpy()[run.row_numbers.numpy() - 1]
    np.testing.assert_allclose(run.utility.costs, [by_hand(amount) for amount in amounts])
    for item in run.scored:
        costs = [by_hand(a)[c, y] for a, c, y in zip(amounts, item.choice, run.labels, strict=True)]
        np.testing.assert_allclose(-item.utilities, costs)
        assert item.scores["cost"] == pytest.approx(np.mean(costs))
        if item.rule == "optimal":
            probs = item.predictions.probs.double().numpy()
            expected = [by_hand(a) @ p for a, p in zip(amounts, probs, strict=True)]
            assert item.choice.tolist() == np.argmin(expected, 1).tolist()


def test_decisions_are_those_of_a_hand_calculation(
    stakes: Callable[..., Any], run_folder: Path, loans: Path, tmp_path: Path
) -> None:
    out = tmp_path / "decided.csv"
    said = stakes("decide", run_folder / "model", loans.parent / "new.csv", "--out", out, "--keep", "credit amount")
    assert said.code == 0, said.err
    decided, frame = pd.read_csv(out), pd.read_csv(loans.parent / "new.csv")
    np.testing.assert_array_equal(decided["credit amount"], frame["credit amount"])
    for row in decided.itertuples(index=False):
        costs = by_hand(row[0]) @ [row.p_repaid, row.p_lost]
        size = by_hand(row[0]).max()
        assert row.decision == ("lend", "refuse", "call")[int(np.argmin(costs))]
        assert row.expected_cost == pytest.approx(costs.min(), abs=3e-6 * size)
        assert row.margin == pytest.approx(np.sort(costs)[1] - costs.min(), abs=3e-6 * size)


def test_the_saved_model_keeps_the_formulas_and_decides_frames(run_folder: Path, loans: Path) -> None:
    model = SavedModel.load(run_folder / "model")
    assert isinstance(model.utility, FormulaUtility)
    assert model.utility.columns == ("credit amount",)
    assert "credit amount" not in model.encoder.names
    decider, frame = Decider(run_folder), loan_table(9, seed=2)
    whole = decider(frame)
    parts = pd.concat([decider(frame.iloc[:4]), decider(frame.iloc[4:])])
    pd.testing.assert_frame_equal(whole, parts)


def test_blocks_and_parquet_give_the_same_decisions(run_folder: Path, loans: Path, tmp_path: Path) -> None:
    from stakes.tables.decide import decide_table

    frame = loan_table(30, seed=1)
    frame.to_parquet(tmp_path / "new.parquet")
    decide_table(run_folder, loans.parent / "new.csv", tmp_path / "a.csv")
    decide_table(run_folder, tmp_path / "new.parquet", tmp_path / "b.csv", rows=7)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv"), pd.read_csv(tmp_path / "b.csv"))


def test_the_page_shows_formulas_in_place_of_the_explorer(run_folder: Path, tmp_path: Path) -> None:
    run = Run.load(run_folder)
    write_page(run, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The costs differ from row to row" in page
    assert "=0.6 * &#34;credit amount&#34;" in page
    assert "<script" not in page
    assert 'href="#explorer"' not in page
    assert 'href="#costs"' in page


def test_fit_from_the_command_line(stakes: Callable[..., Any], loans: Path, tmp_path: Path) -> None:
    new = loans.parent / "new.csv"
    options = ("--target", "outcome", "--costs", loans.parent / "costs.csv", "--out", tmp_path / "run", "--test", new)
    said = stakes("fit", loans, *TINY, *MODELS, *options)
    assert said.code == 0, said.err
    costs = Run.load(tmp_path / "run").utility.costs
    np.testing.assert_allclose(costs, [by_hand(amount) for amount in pd.read_csv(new)["credit amount"]])
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.filterwarnings("default::stakes.StakesWarning")
def test_a_decision_that_is_never_best_in_any_row_is_told(loans: Path, tmp_path: Path, stakes: Any) -> None:
    flipped = "cost,repaid,lost\ngrant,=0.06 * credit amount,=0.45 * credit amount\nrefuse,0,0\n"
    (tmp_path / "flipped.csv").write_text(flipped.replace("credit amount", "[credit amount]"), encoding="utf-8")
    never = (
        "decision 'grant' can never be the best one: 'refuse' is worth at least as much under every outcome, in every"
    )
    assert f"warning: {never} row" in stakes("costs", "check", tmp_path / "flipped.csv", "--data", loans).out
    options = ("--target", "outcome", "--costs", tmp_path / "flipped.csv", "--models", "constant")
    assert f"warning: {never} row" in stakes("fit", loans, *options, "--out", tmp_path / "run").err


def test_costs_check_shows_what_formulas_come_to(stakes: Callable[..., Any], loans: Path) -> None:
    costs = loans.parent / "costs.csv"
    said = stakes("costs", "check", costs)
    assert said.code == 0
    assert "columns 'credit amount'" in said.out
    assert "--data" in said.out
    said = stakes("costs", "check", costs, "--data", loans)
    amounts = pd.read_csv(loans)["credit amount"]
    assert f"{0.6 * amounts.min():.6g} to {0.6 * amounts.max():.6g}" in said.out
    assert f"Row 1: credit amount {amounts[0]}" in said.out
    assert f"{0.6 * amounts[2]:.6g}" in said.out


def test_what_cannot_be_used_is_refused_with_row_and_column(
    refused: Callable[..., str], loans: Path, run_folder: Path, tmp_path: Path
) -> None:
    frame = pd.read_csv(loans)
    costs, options = loans.parent / "costs.csv", ("--target", "outcome", "--out", tmp_path / "run", *TINY)
    gaps, text, without = tmp_path / "gaps.csv", tmp_path / "text.csv", tmp_path / "without.csv"
    frame.assign(**{"credit amount": frame["credit amount"].where(frame.index != 4)}).to_csv(gaps, index=False)
    frame.assign(**{"credit amount": "much"}).to_csv(text, index=False)
    frame.drop(columns="credit amount").to_csv(without, index=False)
    for command in (
        lambda data: ("fit", data, "--costs", costs, *options),
        lambda data: ("costs", "check", costs, "--data", data),
        lambda data: ("decide", run_folder, data, "--out", tmp_path / "d.csv"),
    ):
        line = refused(*command(gaps))
        assert "'credit amount'" in line
        assert "row 5" in line
        assert "row 1 has 'much'" in refused(*command(text))
        assert "'credit amount'" in refused(*command(without))
    bad = tmp_path / "bad.csv"
    bad.write_text("cost,repaid,lost\nlend,0,=__import__('os')\nrefuse,1,0\n")
    assert "decision 'lend' under outcome 'lost'" in refused("fit", loans, "--costs", bad, *options)
    bad.write_text("cost,repaid,lost\nlend,0,=outcome\nrefuse,1,0\n")
    assert "not known when a decision is taken" in refused("fit", loans, "--costs", bad, *options)


@pytest.mark.filterwarnings("ignore:read as numbers")
def test_costs_check_reads_numbers_as_people_write_them(stakes: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text('amount,y\n"€3,018.59",a\n"€1,200.00",b\n')
    (tmp_path / "c.csv").write_text("cost [€],a,b\nlend,0,=amount\nrefuse,10,0\n")
    said = stakes("costs", "check", tmp_path / "c.csv", "--data", tmp_path / "d.csv")
    assert said.code == 0, said.err
    assert "amount 3018.59" in said.out
