"""From a file to problems: how rows are divided, and that what is learnt comes from rows that are not tested on."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stakes import StakesError
from stakes.tables.prepare import Division, PreparedTable, prepare
from stakes.tables.split import duplicate_groups
from stakes.tables.task import TableTask, check

pytestmark = pytest.mark.filterwarnings("ignore:.*few cases:stakes.errors.StakesWarning")


def write_table(folder: Path, rows: int = 90) -> pd.DataFrame:
    """Patients of several rows each, over time; the first feature is the row, so that rows can be known again."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "number": np.arange(rows) + 0.5,
            "value": generator.normal(size=rows),
            "patient": generator.integers(0, rows // 3, rows),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(generator.permutation(rows) // 2, unit="D"),
            "state": generator.choice(["ill", "well"], rows),
        }
    )
    frame.to_csv(folder / "data.csv", index=False)
    (folder / "costs.csv").write_text("cost,ill,well\ntreat,0,4\nwait,9,0\n")
    return frame


def prepared(folder: Path, **options: Any) -> PreparedTable:
    task = TableTask(folder / "data.csv", "state", folder / "costs.csv", **options)
    check(task)
    return prepare(task)


def rows_of(division: Division, frame: pd.DataFrame) -> np.ndarray:
    """Which rows of the file the examples of a division are, by their first feature."""
    x = division.problem.examples.x.numpy()[:, 0]
    found = np.abs(division.encoder.transform(frame)[:, :1] - x).argmin(0)
    assert len(set(found)) == len(x)
    return found


DROPPED = {"drop": ("patient", "day")}


def test_every_row_is_tested_once_and_the_last_division_has_all_rows(tmp_path: Path) -> None:
    frame = write_table(tmp_path)
    table = prepared(tmp_path, test="cv", **DROPPED)
    *tested, everything = table.divisions
    assert table.rows == {"train": 90, "test": 90, "folds": 5, "tested": "cv"}
    assert [division.name for division in table.divisions] == ["1", "2", "3", "4", "5", "all"]
    assert sorted(np.concatenate([division.tested for division in tested])) == list(range(90))
    assert (len(everything.tested), len(everything.test_x)) == (0, 0)
    assert sorted(rows_of(everything, frame)) == list(range(90))
    np.testing.assert_array_equal(table.test_row_index, np.arange(90))
    for division in tested:
        kept = rows_of(division, frame)
        assert sorted([*kept, *table.test_row_index[division.tested]]) == list(range(90))
        # Folds inside folds: all of them are of the rows that are kept.
        held = np.concatenate([fold.held for fold in division.problem.folds])
        assert sorted(held) == list(range(len(kept)))
        # Standardised by the rows that are kept alone.
        assert division.problem.examples.x[:, 0].mean() == pytest.approx(0, abs=1e-5)
        labels = [table.utility.outcomes[label] for label in division.problem.examples.labels]
        assert labels == frame["state"].iloc[kept].tolist()
        assert division.encoder.transform(frame.iloc[table.test_row_index[division.tested]]) == pytest.approx(
            division.test_x.numpy()
        )


def test_small_tables_are_tested_on_every_row_and_larger_ones_on_a_share(tmp_path: Path) -> None:
    write_table(tmp_path, 999)
    assert prepared(tmp_path, **DROPPED).rows["tested"] == "cv"
    write_table(tmp_path, 1000)
    assert prepared(tmp_path, **DROPPED).rows == {"train": 800, "test": 200, "folds": 5, "tested": "share"}
    assert prepared(tmp_path, test=0.3, folds=3, **DROPPED).rows["folds"] == 3


@pytest.mark.parametrize("test", ["cv", 0.25])
def test_no_group_is_on_both_sides(tmp_path: Path, test: Any) -> None:
    frame = write_table(tmp_path)
    table = prepared(tmp_path, test=test, group="patient", drop=("day",))
    patients = frame["patient"].to_numpy()
    for division in table.divisions:
        assert list(division.encoder.names) == ["number", "value"]  # not the patient
        kept = rows_of(division, frame)
        assert not set(patients[kept]) & set(patients[table.test_row_index[division.tested]])
        for fold in division.problem.folds:
            assert not set(patients[kept][fold.train]) & set(patients[kept][fold.held])


def test_copies_and_groups_are_kept_together_by_chains(tmp_path: Path) -> None:
    """Row 0 is a copy of row 1, which has the patient of row 2: all three stay together."""
    frame = write_table(tmp_path)
    frame["patient"] = np.arange(90)
    frame.loc[1, ["number", "value"]] = frame.loc[0, ["number", "value"]]
    frame.loc[2, "patient"] = 1
    frame.to_csv(tmp_path / "data.csv", index=False)
    for seed in range(6):
        table = prepared(tmp_path, test=0.5, group="patient", drop=("day",), seed=seed)
        assert len({0, 1, 2} & set(table.test_row_index)) in (0, 3)
        assert table.repeated == 1
    assert len(set(duplicate_groups(frame[["number", "value"]]))) == 89


@pytest.mark.filterwarnings("ignore:read as times:stakes.errors.StakesWarning")
@pytest.mark.parametrize("column", ["dates", "numbers", "texts"])
def test_the_latest_rows_are_tested_on_and_folds_go_forward(tmp_path: Path, column: str) -> None:
    frame = write_table(tmp_path)
    days = (pd.to_datetime(frame["day"]) - pd.Timestamp("2024-01-01")).dt.days.to_numpy()
    if column != "dates":
        frame["day"] = days if column == "numbers" else pd.to_datetime(frame["day"]).dt.strftime("%d %B %Y")
        frame.to_csv(tmp_path / "data.csv", index=False)
    table = prepared(tmp_path, time="day", drop=("patient",))
    (division,) = table.divisions
    assert table.rows["tested"] == "latest"
    assert table.rows["test"] == 18
    kept = rows_of(division, frame)
    assert days[kept].max() < days[table.test_row_index].min()
    problem = division.problem
    assert len(problem.selection_folds) == 5
    for number in problem.selection_folds:
        fold = problem.folds[number]
        assert days[kept][fold.train].max() < days[kept][fold.held].min()
    assert table.rows["folds"] == len(problem.model_folds) == 5
    held = np.concatenate([problem.folds[number].held for number in problem.model_folds])
    assert sorted(held) == list(range(len(kept))), "models are made of all rows"


def test_time_and_groups_exclude_each_other(tmp_path: Path) -> None:
    write_table(tmp_path)
    with pytest.raises(StakesError, match="--group or --time, but got both"):
        prepared(tmp_path, time="day", group="patient")
    with pytest.raises(StakesError, match="earlier than those learnt from"):
        prepared(tmp_path, time="day", test="cv")


def test_a_test_file_is_tested_on_whole(tmp_path: Path) -> None:
    frame = write_table(tmp_path)
    frame.iloc[:20].drop(columns=["patient", "day"]).to_csv(tmp_path / "test.csv", index=False)
    table = prepared(tmp_path, test=tmp_path / "test.csv", **DROPPED)
    assert table.rows == {"train": 90, "test": 20, "folds": 5, "tested": "file"}
    (division,) = table.divisions
    assert division.tested.tolist() == list(range(20))
    # The column of groups is asked of the rows that are divided, not of those that are tested on.
    grouped = prepared(tmp_path, test=tmp_path / "test.csv", group="patient", drop=("day",))
    assert grouped.rows["test"] == 20
