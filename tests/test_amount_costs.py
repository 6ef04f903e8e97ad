"""Costs of amounts as they are stated: for each unit, by the row, and as curves in a file."""

from pathlib import Path

import numpy as np
import pytest
import torch

from stakes import Newsvendor, StakesError, Utility
from stakes.utility import CurveUtility, PricedNewsvendor
from stakes.utility.csv import holds_curves
from stakes.utility.priced import newsvendor


def test_numbers_columns_and_formulas() -> None:
    assert newsvendor("15", "=10 / 2", unit="€", step=1.0) == Newsvendor(15, 5, unit="€", step=1.0)
    priced = newsvendor("price", '="bought for" / 2', at_most=80)
    assert isinstance(priced, PricedNewsvendor)
    assert priced.columns == ("price", "bought for")
    rows = priced.for_rows({"price": [10, 30], "bought for": [20, 20]})
    assert rows == Newsvendor(np.array([10.0, 30]), np.array([10.0, 10]), at_most=80)
    assert Utility.from_dict(priced.to_dict()) == priced
    mixed = newsvendor("=price", "5").for_rows({"price": [5, 15]})
    assert mixed.share.tolist() == [0.5, 0.75]


def test_costs_by_row_are_checked_by_row() -> None:
    priced = newsvendor("=price - 5", "1")
    with pytest.raises(StakesError, match="costs of 0 or more for under, =price - 5, but row 12 has -2"):
        priced.for_rows({"price": [9, 3]}, numbers=[11, 12])
    with pytest.raises(StakesError, match="'price', which the costs depend on, but row 2 has none"):
        priced.for_rows({"price": [9, np.nan]})
    with pytest.raises(StakesError, match="expected a cost above 0 of too few or of too many but row 1 has 0"):
        newsvendor("=price", "0").for_rows({"price": [0]})
    with pytest.raises(StakesError, match="give them to `for_rows`"):
        priced.realised(torch.zeros(1), torch.zeros(1))
    with pytest.raises(StakesError, match="--under: expected"):
        newsvendor("a b", "1")
    with pytest.raises(StakesError, match="use Newsvendor"):
        PricedNewsvendor("1", "2")


def test_curves_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "menu.csv"
    path.write_text("cost curve [€],0,30,30,60\nservice now,400,,,\nrun on,2000,2000,0,0\nlater,,100,,700\n")
    utility = Utility.from_csv(path)
    assert isinstance(utility, CurveUtility)
    assert (utility.unit, utility.decisions) == ("€", ("service now", "run on", "later"))
    costs = utility.costs(torch.tensor([0.0, 30.0, 31.0, 45.0, 99.0]))
    assert costs.tolist() == [[400, 2000, 100], [400, 2000, 100], [400, 0, 120], [400, 0, 400], [400, 0, 700]]
    points, at_points = utility.at_points()
    assert points.tolist() == [0, 30, 30, 60]
    assert at_points[1].tolist() == [2000, 2000, 0, 0]
    assert Utility.from_csv(path, unit="$").unit == "$"
    table = tmp_path / "table.csv"
    table.write_text("cost [€],0,1\na,1,2\nb,2,1\n")
    assert [holds_curves(each) for each in (path, table, tmp_path / "none.csv")] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cost curve,0\n", "no cells"),
        ("cost curve,0,x\na,1,2\n", "an outcome in the header as a number, but got 'x'"),
        ("cost curve,0,1\na,1,much\n", "the cost of 'a' at 1 as a number, but got 'much'"),
        ("cost curve,0,1\na,,\n", "at least one cost for action 'a'"),
        ("cost curve,0,1\na,1,2\na,1,2\n", "'a' more than once"),
        ("cost curve,5,1\na,1,2\n", "in the order of their outcomes"),
        ("cost curve,0,1\na,1\n", "expected 2 cells for action 'a', but got 1"),
    ],
)
def test_bad_curves(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "menu.csv"
    path.write_text(text)
    with pytest.raises(StakesError, match=reason) as error:
        Utility.from_csv(path)
    assert str(error.value).startswith(f"{path}: ")
