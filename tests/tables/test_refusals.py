"""Bad input: one line on stderr, a non-zero exit, and nothing left behind."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from patient_tables import COSTS, HEADER, TINY, patient_rows, write_csv

Refused = Callable[..., str]
BAD_OPTIONS = {
    "--models best": "'best'",
    "--models standard,standard": "each model once",
    "--models noise": "rate of label noise",
    "--posterior swag": "'swag'",
    "--label-noise some": "--label-noise",
    "--label-noise 1": "--label-noise",
    "--label-noise nan": "--label-noise",
    "--hidden four": "--hidden",
    "--hidden 0": "--hidden",
    "--hidden=-3": "--hidden",
    "--labels Healthy": "--labels",
    "--labels a=b,a=c": "--labels",
    "--test 0": "test share",
    "--test 1.0": "test share",
    "--test nan": "test share",
    "--test nowhere.csv": "nowhere.csv",
    "--test cv --time age": "earlier",
    "--folds 1": "--folds",
    "--group weight": "'weight'",
    "--time weight": "'weight'",
    "--time ward": "expected a date or a number in every row to order them by, but row 1 has 'north'",
    "--time age": "row 1 has none",
    "--group ward --time age": "--group or --time",
    "--network lstm": "expected the network to be one of",
    "--network tabm --posterior ensemble": "together",
    "--posterior batch_ensemble": "together",
    "--dropout 0": "dropout",
    "--dropout 1": "dropout",
    "--dropout nan": "dropout",
    "--learning-rate 0": "learning rate",
    "--epochs 0": "--epochs",
    "--epochs many": "--epochs",
    "--batch-size 0": "--batch-size",
    "--samples 0": "--samples",
    "--members 1": "--members",
    "--seeds 0": "--seeds",
    "--seed=-1": "--seed",
    "--workers 0": "--workers",
    "--drop weight": "'weight'",
    "--drop diagnosis": "target",
    "--categorical weight": "'weight'",
    "--force --resume": "--resume",
    "--colour red": "--colour",
}
BAD_COSTS = {
    "an empty file": ("", "empty"),
    "only empty rows": (",,,\n,,,\n", "empty"),
    "no cells": ("cost,Healthy,Mild,Severe\n", "no cells"),
    "NaN": (COSTS.replace("100", "nan"), "finite"),
    "infinite": (COSTS.replace("100", "inf"), "finite"),
    "text": (COSTS.replace("100", "a lot"), "'a lot'"),
    "an empty cell": (COSTS.replace("100", ""), "empty cell"),
    "a decision twice": (COSTS.replace("\nMild,", "\nHealthy,"), "'Healthy' more than once"),
    "an outcome twice": (COSTS.replace(",Mild,", ",Healthy,"), "'Healthy' more than once"),
    "a ragged row": (COSTS.replace("40,0,35", "40,0"), "3 numbers"),
    "a long ragged row": (COSTS.replace("40,0,35", "40,0,35,1"), "3 numbers"),
    "a missing class": ("cost,Healthy,Mild\nHealthy,0,50\nMild,40,0\n", "'Severe'"),
    "a class too many": ("cost,Healthy,Mild,Severe,Dead\na,0,5,6,1\nb,5,0,3,2\nc,6,3,0,9\n", "'Dead'"),
    "a cell twice, long": ("decision,outcome,cost\na,Healthy,1\na,Healthy,2\n", "twice"),
    "a cell missing, long": ("decision,outcome,cost\na,Healthy,1\na,Mild,1\nb,Healthy,2\n", "every cell"),
    "no quantity, long": ("decision,outcome,price\na,Healthy,1\n", "cost (or utility)"),
    "two quantities, long": ("decision,outcome,cost,utility\na,Healthy,1,2\n", "cost (or utility)"),
    "a ragged row, long": ("decision,outcome,cost\na,Healthy\n", "3 fields"),
    "unknown sign": (COSTS.replace("cost [£]", "profit"), "'profit'"),
}  # fmt: skip


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """Where a run would be written; after the test there must be nothing there, and nothing temporary beside it."""
    folder = tmp_path / "results"
    folder.mkdir()
    yield folder / "out"
    assert list(folder.iterdir()) == []


@pytest.fixture
def fit(refused: Refused, patients: Path, costs: Path, out: Path) -> Refused:
    """`stakes fit` with something wrong about it."""

    def run(*options: object, data: Path = patients, costs: Path = costs, target: str = "diagnosis") -> str:
        return refused("fit", data, "--target", target, "--costs", costs, "--out", out, *TINY, *options)

    return run


@pytest.mark.parametrize("options", BAD_OPTIONS)
def test_bad_options(fit: Refused, options: str) -> None:
    assert BAD_OPTIONS[options] in fit(*options.split())


@pytest.mark.parametrize("case", BAD_COSTS)
def test_bad_costs(fit: Refused, refused: Refused, tmp_path: Path, case: str) -> None:
    text, reason = BAD_COSTS[case]
    path = tmp_path / "bad_costs.csv"
    path.write_text(text, encoding="utf-8")
    message = fit(costs=path)
    assert reason in message
    if "class" not in case:  # which only the data can tell
        assert message.count("bad_costs.csv") == 1
        assert reason in refused("costs", "check", path)


def test_files_that_are_missing_or_of_another_kind(fit: Refused, refused: Refused, tmp_path: Path) -> None:
    absent = tmp_path / "absent.csv"
    for message in (fit(data=absent), fit(costs=absent), fit("--test", absent), refused("costs", "check", absent)):
        assert message.count("absent.csv") == 1
        assert "o such file" in message
    for message in (fit(data=tmp_path), fit(costs=tmp_path), fit("--test", tmp_path)):
        assert "directory" in message
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\x81\x8d\x8f" * 9)
    for message in (fit(data=picture), fit(costs=picture), refused("costs", "check", picture)):
        assert "picture.png" in message


def edited(tmp_path: Path, edit: Callable[[list[list[str]]], object], header: list[str] = HEADER) -> Path:
    rows = patient_rows(20)
    edit(rows)
    return write_csv(tmp_path / "edited.csv", header, rows)


def set_column(column: int, value: str) -> Callable[[list[list[str]]], object]:
    return lambda rows: [row.__setitem__(column, value) for row in rows]


def test_tables_that_cannot_be_learnt_from(fit: Refused, tmp_path: Path) -> None:
    assert "'weight'" in fit(target="weight")
    assert "'Dead'" in fit(data=edited(tmp_path, lambda rows: rows[7].__setitem__(5, "Dead")))
    assert "'Severe' never does" in fit(
        data=edited(tmp_path, lambda rows: rows.__setitem__(slice(None), [r for r in rows if r[5] != "Severe"]))
    )
    assert "two classes" in fit(data=edited(tmp_path, set_column(5, "Mild")))
    missing = fit(data=edited(tmp_path, lambda rows: rows[41].__setitem__(5, "")))
    assert "'diagnosis'" in missing
    assert "row 42" in missing
    for text in ("inf", "-inf"):
        assert "'test_1': expected finite" in fit(data=edited(tmp_path, lambda rows: rows[3].__setitem__(1, text)))  # noqa: B023
    assert "no such" not in fit(data=edited(tmp_path, list.clear))  # a header and nothing below it
    assert "none" in fit(data=edited(tmp_path, list.clear))
    empty = tmp_path / "empty.csv"
    empty.touch()
    assert "empty" in fit(data=empty)
    assert "none is left" in fit("--drop", ",".join(HEADER[:-1]))
    few = edited(tmp_path, lambda rows: rows.__setitem__(slice(None), rows[:3]))
    assert "edited.csv" in fit(data=few) or "rows" in fit(data=few)


def test_test_files_that_do_not_fit(fit: Refused, tmp_path: Path) -> None:
    columns = [name for name in HEADER if name != "age"]
    without = write_csv(tmp_path / "t.csv", columns, [[*row[:4], row[5]] for row in patient_rows(5)])
    assert "'age'" in fit("--test", without)
    without = write_csv(tmp_path / "t.csv", HEADER[:-1], [row[:-1] for row in patient_rows(5)])
    assert "'diagnosis'" in fit("--test", without)
    assert "'old'" in fit("--test", edited(tmp_path, lambda rows: rows[7].__setitem__(4, "old")))
    assert "'Dead'" in fit("--test", edited(tmp_path, lambda rows: rows[7].__setitem__(5, "Dead")))


def test_an_out_that_cannot_be_one(
    stakes: Callable[..., object], refused: Refused, patients: Path, costs: Path
) -> None:
    start = ("fit", patients, "--target", "diagnosis", "--costs", costs, *TINY, "--out")
    assert "is a file" in refused(*start, costs)
    for place in (costs / "below", "/proc/nothing"):  # where not even root can write
        stakes_said = stakes(*start, place)
        last = stakes_said.err.splitlines()[-1]  # type: ignore[attr-defined]
        assert last.startswith("stakes: error: ")
        assert stakes_said.code == 1  # type: ignore[attr-defined]
    assert costs.read_text(encoding="utf-8") == COSTS


def test_a_folder_that_is_taken(
    refused: Refused, run_folder: Path, patients: Path, costs: Path, tmp_path: Path
) -> None:
    taken = shutil.copytree(run_folder, tmp_path / "taken")
    before = {path: path.read_bytes() for path in taken.rglob("*") if path.is_file()}
    start = ("fit", patients, "--target", "diagnosis", "--costs", costs, "--out", taken, *TINY)
    message = refused(*start)
    assert "--force" in message
    assert "--resume" in message
    message = refused(*start, "--resume")
    assert "different: costs, costs_sha256, models, recipe" in message
    assert {path: path.read_bytes() for path in taken.rglob("*") if path.is_file()} == before
    (taken / "run.json").write_text("[1]")
    assert "damaged" in refused(*start, "--resume")


def test_what_is_not_from_a_run_is_not_replaced_even_by_force(
    refused: Refused, patients: Path, costs: Path, tmp_path: Path
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "mine.png").touch()
    start = ("fit", patients, "--target", "diagnosis", "--costs", costs, "--out", tmp_path, *TINY)
    for options in ((), ("--force",), ("--resume",)):
        assert "parts" in refused(*start, *options)
    assert (tmp_path / "parts" / "mine.png").exists()


def test_bad_demos(refused: Refused, tmp_path: Path, run_folder: Path) -> None:
    for options in (("--workers", 0), ("--resume", "--force")):
        refused("demo", "--out", tmp_path / "demo", *options)
        assert not (tmp_path / "demo").exists()
    taken = shutil.copytree(run_folder, tmp_path / "taken")
    assert "--force" in refused("demo", "--out", taken)
    assert not (taken / "data").exists()


def test_bad_templates(refused: Refused, tmp_path: Path) -> None:
    out = tmp_path / "folder" / "costs.csv"
    for options in ("--outcomes a", "--outcomes ,", "--outcomes a,a", "--outcomes a,b --decisions c,c"):
        refused("costs", "new", *options.split(), "--out", out)
    refused("costs", "new", "--outcomes", "a,b", "--unit", "£ [2020]", "--out", out)
    assert list(tmp_path.iterdir()) == []
    out.parent.mkdir()
    out.write_text("mine")
    assert "exists" in refused("costs", "new", "--outcomes", "a,b", "--out", out)
    assert out.read_text() == "mine"


# Deciding ------------------------------------------------------------------------------------------


@pytest.fixture
def decide(refused: Refused, run_folder: Path, patients: Path, out: Path) -> Refused:
    def run(*options: object, model: Path = run_folder, data: Path = patients, name: str = "new/out.csv") -> str:
        return refused("decide", model, data, "--out", out.parent / name, *options)

    return run


def test_bad_inputs_to_decide(decide: Refused, tmp_path: Path) -> None:
    assert "absent.csv" in decide(data=tmp_path / "absent.csv")
    assert "'age'" in decide(data=write_csv(tmp_path / "d.csv", HEADER[:4], [row[:4] for row in patient_rows(5)]))
    assert "'id'" in decide("--keep", "id")
    clash = write_csv(tmp_path / "d.csv", [*HEADER, "margin"], [[*row, 1] for row in patient_rows(5)])
    assert "'margin'" in decide("--keep", "margin", data=clash)
    assert "none" in decide(data=edited(tmp_path, list.clear))
    assert "none" in decide(data=edited(tmp_path, list.clear), name="out.parquet")
    assert "row 12 is infinite" in decide(data=edited(tmp_path, lambda rows: rows[11].__setitem__(0, "inf")))
    for name in ("out", "out.xlsx", "out.csv.gz", "out.json"):
        assert ".csv or .parquet" in decide(name=name)


@pytest.mark.parametrize("name", ["new/out.csv", "out.csv", "out.parquet"])
def test_a_text_half_way_through_a_large_file(decide: Refused, tmp_path: Path, name: str) -> None:
    rows = patient_rows(20) * 1500
    rows[77_777] = [*rows[77_777][:1], "high", *rows[77_777][2:]]
    message = decide(data=write_csv(tmp_path / "large.csv", HEADER, rows), name=name)
    assert "'test_1'" in message
    assert "row 77778 has 'high'" in message


def test_an_existing_out_is_left_as_it_is_by_a_failure(
    refused: Refused, run_folder: Path, patients: Path, tmp_path: Path
) -> None:
    data = shutil.copy(patients, tmp_path / "data.csv")
    before = Path(data).read_bytes()
    assert "another file" in refused("decide", run_folder, data, "--out", data)
    (tmp_path / "link.csv").symlink_to(data)
    assert "another file" in refused("decide", run_folder, data, "--out", tmp_path / "link.csv")
    assert Path(data).read_bytes() == before
    broken = edited(tmp_path, lambda rows: rows[50].__setitem__(0, "text"))
    refused("decide", run_folder, broken, "--out", data)
    assert Path(data).read_bytes() == before
    (tmp_path / "folder.csv").mkdir()
    assert "something else" in refused("decide", run_folder, data, "--out", tmp_path / "folder.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "edited.csv", "folder.csv", "link.csv"]


def test_bad_models(decide: Refused, run_folder: Path, tmp_path: Path) -> None:
    assert "saved model" in decide(model=tmp_path / "absent")
    assert "saved model" in decide(model=tmp_path)
    assert "saved model" in decide(model=run_folder / "summary.json")
    newer = shutil.copytree(run_folder / "model", tmp_path / "newer")
    described = json.loads((newer / "model.json").read_text())
    (newer / "model.json").write_text(json.dumps(described | {"format": described["format"] + 1}))
    assert "newer" in decide(model=newer)
    truncated = shutil.copytree(run_folder, tmp_path / "truncated")
    weights = truncated / "model" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert "damaged" in decide(model=truncated)


def test_parquet_that_is_none(decide: Refused, fit: Refused, patients: Path, tmp_path: Path) -> None:
    named = shutil.copy(patients, tmp_path / "data.parquet")
    assert "Parquet" in decide(data=Path(named))
    assert "Parquet" in fit(data=Path(named))
    pd.DataFrame({"test_0": []}).to_parquet(named)
    assert "'diagnosis'" in fit(data=Path(named)) or "rows" in fit(data=Path(named))
