"""Costs that depend on the row: formulas over columns, and a table for each example."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from stakes import FormulaUtility, LossCalibrated, Objective, StakesError, Standard, TableUtility, Utility, decide
from stakes.evaluation.comparison import Predictions, score
from stakes.objectives import Weighted
from stakes.posteriors import Ensemble

CELLS = {
    "lend": {"repaid": 0, "lost": "=0.6 * amount"},
    "refuse": {"repaid": "=0.1 * amount + 20", "lost": 0},
    "call": {"repaid": 15, "lost": "=15 + 0.05 * amount"},
}
LOANS = Utility.from_costs(CELLS, unit="£")
AMOUNTS = np.array([100.0, 1000.0, 1e6])


def by_hand(amount: float) -> np.ndarray:
    return np.array([[0, 0.6 * amount], [0.1 * amount + 20, 0], [15, 15 + 0.05 * amount]])


# The formulas of a table ---------------------------------------------------------------------------


def test_the_table_of_each_row_is_the_one_that_a_hand_calculation_gives() -> None:
    assert isinstance(LOANS, FormulaUtility)
    assert LOANS.columns == ("amount",)
    tables = LOANS.for_rows({"amount": AMOUNTS, "name": ["a", "b", "c"]})
    assert isinstance(tables, TableUtility)
    assert tables.per_example
    np.testing.assert_allclose(tables.costs, [by_hand(amount) for amount in AMOUNTS], rtol=1e-14)
    scaled = Utility.from_costs(CELLS, best=2, scale=50).for_rows({"amount": AMOUNTS})
    np.testing.assert_allclose(scaled.values, [2 - by_hand(amount) / 50 for amount in AMOUNTS], rtol=1e-14)
    assert scaled.cost_of(scaled.values[0, 0, 1]) == pytest.approx(60)


def test_expected_costs_by_enumeration() -> None:
    probs = np.array([[0.9, 0.1], [0.6, 0.4], [0.97, 0.03]])
    decisions = decide(probs, LOANS.for_rows({"amount": AMOUNTS}))
    expected = [[row @ p for row in by_hand(amount)] for amount, p in zip(AMOUNTS, probs, strict=True)]
    np.testing.assert_allclose(-decisions.utilities, expected, rtol=1e-9)
    assert decisions.choice.tolist() == np.argmin(expected, 1).tolist() == [0, 2, 2]


def test_it_is_saved_as_its_texts() -> None:
    fields = LOANS.to_dict()
    assert fields["kind"] == "formulas"
    assert fields["cells"][1] == ["=0.1 * amount + 20", "0"]
    assert Utility.from_dict(fields) == LOANS
    with pytest.raises(StakesError, match=r"'lend' under outcome 'repaid': .*at character 13"):
        Utility.from_dict(fields | {"cells": [["=__import__('os')", "0"]] * 3})
    versioned = Utility.from_costs({"x": {"a": "=v1.0", "b": 2.0}, "y": {"a": 1.5, "b": 0}})
    assert versioned.to_dict()["cells"] == [["=v1.0", "2"], ["1.5", "0"]]
    with pytest.raises(StakesError, match="3 decisions x 2 outcomes"):
        Utility.from_dict(fields | {"cells": [["0"]]})
    with pytest.raises(StakesError, match="none: use"):
        Utility.from_dict(fields | {"cells": [["0", "1"]] * 3})


WIDE = 'cost [£],repaid,lost\nlend,0,=0.6 * [credit amount]\nrefuse,"=0.1 * ""credit amount"" + 20",0\n'
LONG = (
    "decision,outcome,cost [£]\nlend,repaid,0\nlend,lost,=0.6 * [credit amount]\n"
    "refuse,repaid,=20 + [credit amount] / 10\nrefuse,lost,=0\n"
)


@pytest.mark.parametrize("text", [WIDE, LONG, WIDE.replace(",", ";")], ids=["wide", "long", "semicolons"])
def test_both_forms_of_a_cost_file_may_have_formulas(tmp_path: Path, text: str) -> None:
    file = tmp_path / "costs.csv"
    file.write_text(text)
    utility = Utility.from_csv(file)
    assert isinstance(utility, FormulaUtility)
    assert (utility.columns, utility.unit) == (("credit amount",), "£")
    np.testing.assert_allclose(utility.for_rows({"credit amount": [1000]}).costs, [[[0, 600], [120, 0]]])


def test_formulas_without_columns_are_numbers(tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"
    file.write_text("cost,a,b\nx,0,=2 * 3\ny,=4 - 1,0\n")
    for utility in (Utility.from_csv(file), Utility.from_costs({"x": {"a": 0, "b": "=2 * 3"}, "y": {"a": 3, "b": 0}})):
        assert isinstance(utility, TableUtility)
        np.testing.assert_array_equal(utility.costs, [[0, 6], [3, 0]])


def test_formulas_of_utilities_cost_what_they_lose(tmp_path: Path) -> None:
    file = tmp_path / "u.csv"
    file.write_text("utility,repaid,lost\nlend,=0.1 * amount,=-0.6 * amount\nrefuse,0,0\n")
    tables = Utility.from_csv(file).for_rows({"amount": [100, 200]})
    np.testing.assert_allclose(tables.values, [[[10, -60], [0, 0]], [[20, -120], [0, 0]]])
    np.testing.assert_allclose(tables.costs[1], [[-20, 120], [0, 0]])
    with pytest.raises(StakesError, match=r"use Utility\.from_costs"):
        Utility.from_matrix({"x": {"a": "=amount"}, "y": {"a": 0}})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"income": [1.0]}, "expected the columns 'amount', .* the table has 'income'"),
        ({"amount": [1.0, np.nan, np.nan]}, r"column 'amount', .* row 2 has none \(2 of 3 rows\)"),
        ({"amount": [1.0, np.inf]}, "row 2 has inf"),
        ({"amount": ["much"]}, "expected numbers in column 'amount'"),
        ({"amount": [[1.0, 2.0]]}, "2 axes"),
    ],
)
def test_columns_that_cannot_be_used_are_refused(columns: dict[str, list[object]], words: str) -> None:
    with pytest.raises(StakesError, match=words):
        LOANS.for_rows(columns)


def test_what_is_too_large_is_refused_with_its_row_and_formula() -> None:
    squares = Utility.from_costs({"x": {"a": "=amount * other", "b": 0}, "y": {"a": 0, "b": 1}})
    with pytest.raises(StakesError, match=r"finite cost from '=amount \* other', but row 7 has inf"):
        squares.for_rows({"amount": [1, 1e200], "other": [1, 1e200]}, [4, 7])
    with pytest.raises(StakesError, match="one length"):
        squares.for_rows({"amount": [1, 2], "other": [1]})


def test_without_its_rows_it_says_what_to_do() -> None:
    posterior = Ensemble([nn.Linear(1, 2), nn.Linear(1, 2)])
    for use in (
        lambda: decide([[0.5, 0.5]], LOANS),
        lambda: decide(posterior.draw(1, seed=0)(torch.ones(1, 1)), LOANS),
        lambda: LossCalibrated(LOANS),
        lambda: LOANS.realised([0], [0]),
        lambda: LOANS.bounded(1.0),
    ):
        with pytest.raises(StakesError, match="for_rows"):
            use()


# A table for each example --------------------------------------------------------------------------


def random_tables(count: int = 40, seed: int = 0) -> TableUtility:
    values = np.random.default_rng(seed).normal(size=(count, 3, 2))
    return TableUtility(values, ("x", "y", "z"), ("a", "b"))


def test_the_scale_of_one_row_does_not_change_its_decision() -> None:
    generator = np.random.default_rng(1)
    utility, probs = random_tables(), generator.dirichlet([1, 1], size=40)
    factors = 10.0 ** generator.uniform(-6, 6, size=40)
    shifts = generator.normal(size=40)
    scaled = TableUtility(
        utility.values * factors[:, None, None] + shifts[:, None, None], utility.decisions, utility.outcomes
    )
    assert decide(probs, scaled).choice.tolist() == decide(probs, utility).choice.tolist()


def test_what_is_learnt_from_a_row_depends_on_what_can_be_lost_in_it() -> None:
    """Another unit changes nothing; a row in which little can be lost hardly calibrates the network."""
    torch.manual_seed(0)
    posterior = Ensemble([nn.Linear(3, 2).double() for _ in range(2)])
    x, labels, index = torch.randn(40, 3).double(), torch.randint(2, (40,)), torch.arange(40)
    utility, small = random_tables(), np.where(np.arange(40) < 20, 1e-4, 1.0)[:, None, None]
    gradients = []
    for factor in (1.0, 1e5, small, np.nan):
        posterior.zero_grad()
        objective: Objective = Standard()
        if not np.isnan(factor).any():
            objective = LossCalibrated(TableUtility(utility.values * factor, utility.decisions, utility.outcomes))
        objective(posterior, x[:20], labels[:20], index=index[:20]).backward()
        gradients.append(torch.cat([each.grad.flatten() for each in posterior.parameters() if each.grad is not None]))
    ours, in_pence, of_small_rows, plain = gradients
    torch.testing.assert_close(ours, in_pence, rtol=1e-9, atol=1e-12)
    assert (of_small_rows - plain).norm() < 1e-3 * (ours - plain).norm()


def test_the_tables_of_rows_share_one_shift() -> None:
    tables = LOANS.for_rows({"amount": [*AMOUNTS, 0.0]})
    bounded = tables.bounded(1e-3).values
    regrets = tables.values.max(1, keepdims=True) - tables.values
    kept = bounded > bounded.min()  # but for the worst, and what is worse than that and never taken
    np.testing.assert_allclose((bounded.max() - bounded)[kept], regrets[kept], rtol=1e-9, atol=1e-6)
    assert bounded.min() == pytest.approx(1e-3 / 1.001 * bounded.max())


def test_class_weights_are_the_mean_regret_over_rows() -> None:
    tables = LOANS.for_rows({"amount": AMOUNTS[:2]})
    regrets = np.zeros(2)
    for amount in AMOUNTS[:2]:
        costs = by_hand(amount)
        regrets += (costs - costs.min(0)).mean(0)
    np.testing.assert_allclose(Weighted.from_utility(tables).class_weights, regrets / regrets.mean(), rtol=1e-6)


def test_the_response_to_the_most_probable_outcome_is_that_of_the_row() -> None:
    tables = LOANS.for_rows({"amount": [10.0, 1000.0]})  # calling costs more than what a small loan can lose
    probs = [[0.4, 0.6], [0.4, 0.6]]
    assert decide(probs, tables, "argmax").chosen_names.tolist() == ["refuse", "refuse"]
    cheap = Utility.from_costs(CELLS | {"refuse": {"repaid": "=amount", "lost": 20}}).for_rows({"amount": [10, 1000]})
    assert decide(probs, cheap, "argmax").chosen_names.tolist() == ["lend", "refuse"]
    with pytest.raises(StakesError, match="one per example"):
        _ = tables.best_response


def test_what_decisions_came_to_is_summed_row_by_row() -> None:
    generator = np.random.default_rng(3)
    amounts, labels = generator.uniform(10, 1e4, size=60), generator.integers(2, size=60)
    probs = generator.dirichlet([1, 1], size=60)
    tables = LOANS.for_rows({"amount": amounts})
    optimal = score(Predictions("any", 0, torch.tensor(probs)), torch.tensor(labels), tables)[1]
    choice = [int(np.argmin(by_hand(amount) @ p)) for amount, p in zip(amounts, probs, strict=True)]
    costs = [by_hand(amount)[c, y] for amount, c, y in zip(amounts, choice, labels, strict=True)]
    least = [by_hand(amount)[:, y].min() for amount, y in zip(amounts, labels, strict=True)]
    assert optimal.choice.tolist() == choice
    np.testing.assert_allclose(-optimal.utilities, costs)
    assert optimal.scores["cost"] == pytest.approx(np.mean(costs))
    assert optimal.scores["regret"] == pytest.approx(np.mean(costs) - np.mean(least))
    assert optimal.scores["accuracy"] == pytest.approx(np.mean(np.array(costs) == np.array(least)))
    assert optimal.counts.sum() == 60
