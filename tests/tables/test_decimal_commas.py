"""Tables with decimal commas: a point stands between thousands then, in every column and every later file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stakes import Decider
from stakes.tables.amounts.run import AmountRun
from stakes.tables.read import read_table


def german(number: float, digits: int = 0) -> str:
    """1.234,5"""
    return f"{number:,.{digits}f}".translate(str.maketrans(",.", ".,"))


@pytest.fixture(scope="module")
def sales() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    warmth = generator.normal(15, 5, 150).round(1)
    before = (2_000 + 500 * generator.normal(size=150)).round()
    return pd.DataFrame({"warmth": warmth, "before": before, "sold": (0.9 * before + 10 * warmth).round()})


def write(path: Path, table: pd.DataFrame, digits: int = 0) -> Path:
    texts = pd.DataFrame({
        "warmth": [german(each, 1) for each in table["warmth"]],
        "before": [german(each) for each in table["before"]],
        "sold": [german(each, digits) for each in table["sold"]],
    })  # fmt: skip
    texts.to_csv(path, index=False, sep=";")
    return path


@pytest.mark.parametrize("digits", [0, 2])
@pytest.mark.filterwarnings("ignore:read as numbers")
def test_a_point_is_the_same_in_the_target_in_features_and_later(
    stakes: Callable[..., Any], sales: pd.DataFrame, tmp_path: Path, digits: int
) -> None:
    first = write(tmp_path / "first.csv", sales[:100], digits)
    said = stakes(
        *("fit", first, "--target", "sold", "--under", 3, "--over", 1, "--models", "linear", "--folds", 2),
        *("--workers", 1, "--out", tmp_path / "run"),
    )
    assert said.code == 0, said.err
    assert AmountRun.load(tmp_path / "run").comparison.row("linear").cost.mean < 20  # of sales around 2,000
    # No number of the later file shows that a comma is its decimal mark.
    later = write(tmp_path / "later.csv", sales[100:].assign(warmth=sales["warmth"].round()))
    later.write_text(later.read_text().replace(",0;", ";"))
    decided = Decider(tmp_path / "run")(pd.read_csv(later, sep=";", dtype=str))
    assert np.abs(decided["decision"] - sales["sold"][100:].to_numpy()).max() < 40
    said = stakes("evaluate", tmp_path / "run", later)
    assert said.code == 0, said.err
    cost = float(said.out.split("decisions cost ")[1].split()[0])
    assert cost < 40


@pytest.mark.filterwarnings("ignore:read as numbers")
def test_categories_do_not_say_what_a_point_is(stakes: Callable[..., Any], sales: pd.DataFrame, tmp_path: Path) -> None:
    path = write(tmp_path / "first.csv", sales)
    table = pd.read_csv(path, sep=";", dtype=str).assign(code=["1.5", "2.5", "3.25"] * 50)
    table.to_csv(path, sep=";", index=False)
    said = stakes(
        *("fit", path, "--target", "sold", "--under", 3, "--over", 1, "--models", "linear,constant", "--folds", 2),
        *("--categorical", "code", "--workers", 1, "--out", tmp_path / "run"),
    )
    assert said.code == 0, said.err
    comparison = AmountRun.load(tmp_path / "run").comparison
    assert comparison.row("linear").cost.mean < 20
    assert comparison.row("constant").cost.mean > 200  # of sales around 2,000, not of some around 2


def test_points_are_left_alone_where_they_may_be_decimal_marks(tmp_path: Path) -> None:
    def read(*columns: list[str]) -> list[str]:
        rows = [";".join(cells) for cells in zip(*columns, strict=True)]
        (tmp_path / "table.csv").write_text("\n".join([";".join("ab"[: len(columns)]), *rows]))
        return read_table(tmp_path / "table.csv")["a"].tolist()

    commas = ["1,5", "2,25", "3,5"]
    assert read(["6.737", "997", "22.882"], commas) == ["6.737", "997", "22.882"]
    assert read(["6.737", "997", "22.882"], ["1.5", "2.25", "3.5"]) == [6.737, 997, 22.882]
    assert read(["0.125", "0.250", "22.882"], commas) == [0.125, 0.25, 22.882]
    assert read(["6.73", "997", "22.882"], commas) == [6.73, 997, 22.882]
    assert read(["6737", "997", "22882"], commas) == [6737, 997, 22882]
