"""What `prepare` says about a table and keeps of it."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from patient_tables import COSTS, HEADER, TINY, patient_rows, write_csv

from stakes.errors import StakesError, StakesWarning
from stakes.tables.prepare import PreparedTable, prepare
from stakes.tables.summary import ColumnSummary, DataSummary, collect_warnings
from stakes.tables.task import TableTask


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., TableTask]:
    """A task on 90 patients with some columns more, or others."""
    (tmp_path / "costs.csv").write_text(COSTS, encoding="utf-8")

    def task(name: str = "t.csv", costs: str = "costs.csv", **columns: object) -> TableTask:
        frame = pd.read_csv(write_csv(tmp_path / "raw.csv", HEADER, patient_rows(30))).assign(**columns)
        path = tmp_path / name
        frame.to_csv(path, index=False) if name.endswith("csv") else frame.to_parquet(path)
        return TableTask(path, "diagnosis", tmp_path / costs)

    return task


def prepared_with(task: TableTask) -> tuple[PreparedTable, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prepared = prepare(task)
    return prepared, [str(warning.message) for warning in caught]


def days(count: int) -> "pd.Series[pd.Timestamp]":
    return pd.Series(pd.date_range("2026-01-01", periods=count))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_what_was_read_is_said_and_kept(table: Callable[..., TableTask], suffix: str) -> None:
    rng = np.random.default_rng(1)
    task = table(
        f"t.{suffix}",
        price=[f"£{1000 + i % 17:,}" for i in range(90)],
        opened=days(90).dt.strftime("%Y-%m-%d") if suffix == "csv" else days(90),
        nothing=np.full(90, np.nan),
        number=rng.permutation(90),
    )
    prepared, messages = prepared_with(task)
    for words in (
        "read as numbers: 'price' ('£1,000' as 1000, though it could be 1: ",
        "read as dates: 'opened'",
        "left out, for they are empty: 'nothing'",
        "column 'number' looks like a row identifier",
    ):
        assert [words in message for message in messages].count(True) == 1, messages
    summary = prepared.data
    assert list(summary.notices) == messages
    assert (summary.file, summary.rows) == (f"t.{suffix}", 90)
    columns = {column.name: column for column in summary.columns}
    assert list(columns) == [*HEADER, "price", "opened", "nothing", "number"]
    assert columns["price"] == ColumnSummary("price", "feature", "number", 0, 17, "1000", "1016")
    assert columns["opened"] == ColumnSummary("opened", "feature", "date", 0, 90, "2026-01-01", "2026-03-31")
    assert columns["nothing"] == ColumnSummary("nothing", "empty", "other", 90, 0)
    assert (columns["ward"].kind, columns["ward"].distinct, columns["ward"].role) == ("text", 3, "feature")
    assert columns["age"].missing == 9
    assert columns["diagnosis"].role == "target"
    encoder = prepared.divisions[-1].encoder
    assert "nothing" not in encoder.names
    assert {"price", "opened", "opened (weekday)"} <= {column.name for column in encoder.columns}
    assert DataSummary.from_dict(json.loads(json.dumps(summary.to_dict()))) == summary


def test_all_problems_of_a_table_are_one_error(table: Callable[..., TableTask]) -> None:
    labels = ["Mild", "", *["Severe", "Healthy"] * 44]
    task = table(dose=["5%", "0.05"] * 45, rate=[np.inf, *range(89)], diagnosis=labels)
    with pytest.raises(StakesError) as caught:
        prepare(task)
    message = str(caught.value)
    assert message.startswith("3 columns cannot be used: (1) 'diagnosis': expected a label in every row")
    assert "(2) 'dose': " in message
    assert "(3) 'rate': expected finite" in message


def test_a_column_that_is_empty_where_models_learn_is_left_out(table: Callable[..., TableTask]) -> None:
    prepared, _ = prepared_with(table(rare=[1.5, *[np.nan] * 89]))
    (with_it,) = [division for division in prepared.divisions[:-1] if "rare" not in division.encoder.names]
    assert "rare" in prepared.divisions[-1].encoder.names
    assert with_it.test_x.shape[1] == with_it.encoder.width


def test_warnings_are_gathered_unless_the_block_fails() -> None:
    with pytest.warns(StakesWarning, match="first"), collect_warnings() as messages:
        warnings.warn("first", StakesWarning, stacklevel=1)
    assert messages == ["first"]

    def fail() -> None:
        with collect_warnings():
            warnings.warn("second", StakesWarning, stacklevel=1)
            raise StakesError("third")

    with pytest.raises(StakesError, match="third"):  # and no warning, which would be an error here
        fail()


def test_costs_that_depend_on_a_written_number(table: Callable[..., TableTask], tmp_path: Path) -> None:
    (tmp_path / "priced.csv").write_text("cost,Healthy,Mild,Severe\ntreat,=price,0,0\nwait,0,=2*price,5000\n")
    task = table(costs="priced.csv", price=[f"£{1000 + i:,}" for i in range(90)])
    for each in (task, TableTask(task.data, task.target, task.costs, drop=("price",))):
        prepared, _ = prepared_with(each)
        assert prepared.test_utility.costs[:2, 0, 0].tolist() == [1000, 1001]
        assert prepared.divisions[-1].encoder.formats.columns.keys() == {"price"}


# The command line


def test_labels_that_are_not_there(refused: Callable[..., str], patients: Path, costs: Path, tmp_path: Path) -> None:
    message = refused(
        *("fit", patients, "--target", "diagnosis", "--costs", costs, "--out", tmp_path / "out", *TINY),
        *("--labels", "Severe=Severe,Sever=Severe"),
    )
    assert "--labels: expected values of column 'diagnosis', which are 'Healthy', 'Mild', 'Severe'" in message
    assert "but got 'Sever'" in message


def test_several_problems_are_one_line(refused: Callable[..., str], costs: Path, tmp_path: Path) -> None:
    rows = [[*row[:2], "inf", "5%" if i else "0.5", *row[4:]] for i, row in enumerate(patient_rows(20))]
    data = write_csv(tmp_path / "t.csv", HEADER, rows)
    message = refused("fit", data, "--target", "diagnosis", "--costs", costs, "--out", tmp_path / "out", *TINY)
    assert "2 columns cannot be used: (1) 'test_2': " in message
    assert "(2) 'ward': " in message


def test_swapped_costs(
    refused: Callable[..., str], stakes: Callable[..., object], patients: Path, tmp_path: Path
) -> None:
    swapped = tmp_path / "swapped.csv"
    swapped.write_text("cost,wait,treat\nHealthy,0,5\nMild,4,2\nSevere,9,0\n")
    message = refused("fit", patients, "--target", "diagnosis", "--costs", swapped, "--out", tmp_path / "out", *TINY)
    assert "decisions and outcomes seem to be swapped: the data have 'Healthy', 'Mild', 'Severe'" in message
    for options in ((), ("--target", "diagnosis")):
        said = stakes("costs", "check", swapped, "--data", patients, *options)
        assert "warning: column 'diagnosis': decisions and outcomes seem to be swapped" in said.out  # type: ignore[attr-defined]
    assert "--data" in refused("costs", "check", swapped, "--target", "diagnosis")
    coded = tmp_path / "coded.csv"
    coded.write_text("x,ill\n1,0\n2,1\n")
    costs = tmp_path / "coded_costs.csv"
    costs.write_text("cost,wait,treat\nno,0,5\nyes,9,0\n")
    options = ("costs", "check", costs, "--data", coded, "--target", "ill")
    assert "warning: column 'ill' has '0', '1', but the outcomes" in stakes(*options).out
    assert "seem to be swapped" in stakes(*options, "--labels", "0=no,1=yes").out
    assert "--labels: expected the column" in refused(*options[:-2], "--labels", "0=no,1=yes")


def test_outcomes_are_compared_with_the_data(stakes: Callable[..., object], patients: Path, costs: Path) -> None:
    said = stakes("costs", "check", costs, "--data", patients, "--target", "diagnosis")
    assert "No warnings." in said.out  # type: ignore[attr-defined]
    said = stakes("costs", "check", costs, "--data", patients, "--target", "ward")
    assert "column 'ward' has 'east wing', 'north', 'south', but the outcomes" in said.out  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("default")
def test_a_model_decides_alike_from_csv_and_parquet(
    stakes: Callable[..., object], table: Callable[..., TableTask], tmp_path: Path
) -> None:
    columns = {"price": [f"£{1000 + 13 * i % 700:,}" for i in range(90)], "nothing": np.full(90, np.nan)}
    task = table("t.csv", opened=days(90).dt.strftime("%d/%m/%Y"), **columns)
    table("t.parquet", opened=days(90), **columns)
    out = tmp_path / "out"
    options = ("--target", "diagnosis", "--costs", task.costs, "--out", out, "--models", "logistic", "--folds", 2)
    said = stakes("fit", task.data, *options, "--test", 0.3, "--workers", 1)
    assert said.code == 0, said.err  # type: ignore[attr-defined]
    assert "stakes: warning: read as dates: 'opened' ('01/01/2026' as 1 January 2026" in said.err  # type: ignore[attr-defined]
    for name in ("t.csv", "t.parquet"):
        assert stakes("decide", out, tmp_path / name, "--out", tmp_path / f"{name}.out.csv").code == 0  # type: ignore[attr-defined]
    assert (tmp_path / "t.csv.out.csv").read_bytes() == (tmp_path / "t.parquet.out.csv").read_bytes()


def test_the_summary_is_saved_with_the_run(run_folder: Path) -> None:
    from stakes.tables.run import Run

    summary = Run.load(run_folder).data
    assert summary is not None
    assert (summary.file, summary.rows, len(summary.columns)) == ("patients.csv", 120, len(HEADER))
