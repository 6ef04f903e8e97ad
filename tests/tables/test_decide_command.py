"""`stakes decide`: a decision for every row, in order, always the same."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from patient_tables import ACTIONS, HEADER, patient_rows, write_csv

from stakes import SavedModel
from stakes.tables.decide import Decider, decide_table

DECISIONS = [line.split(",")[0] for line in ACTIONS.splitlines()[1:]]
PROBS = ["p_Healthy", "p_Mild", "p_Severe"]
AMOUNTS = ["expected_cost", "margin", *(f"cost_{name}" for name in DECISIONS)]
COLUMNS = ["decision", "expected_cost", "runner_up", *AMOUNTS[1:], "settled", *PROBS, "unusual"]


@pytest.fixture
def decide(stakes: Callable[..., Any], run_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    def run(data: Path, *options: object, name: str = "out.csv") -> Path:
        said = stakes("decide", run_folder, data, "--out", tmp_path / name, *options)
        assert said.code == 0, said.err
        assert said.out == ""
        assert said.err.startswith(f"{tmp_path / name}: {len(pd.read_csv(data))} decisions. ")
        return tmp_path / name

    return run


def test_rows_in_order_with_what_the_saved_model_says(
    decide: Callable[..., Path], run_folder: Path, patients: Path
) -> None:
    found = pd.read_csv(decide(patients))
    assert list(found.columns) == COLUMNS
    model = SavedModel.load(run_folder / "model")
    assert model.encoder is not None
    said = model.decide(torch.from_numpy(model.encoder.transform(pd.read_csv(patients))), settle=0.99)
    assert list(found["decision"]) == list(said.chosen_names)
    assert len(set(found["decision"])) > 1  # or the order would not have been tested
    probs = found[PROBS].to_numpy()
    np.testing.assert_allclose(probs, said.probs.numpy(), atol=1e-6)
    np.testing.assert_allclose(probs.sum(1), 1, atol=3e-6)
    costs = np.array([[float(cell) for cell in line.split(",")[1:]] for line in ACTIONS.splitlines()[1:]])
    ranked = np.sort(probs @ costs.T, axis=1)
    np.testing.assert_allclose(found["expected_cost"], ranked[:, 0], atol=2e-3)
    np.testing.assert_allclose(found["margin"], ranked[:, 1] - ranked[:, 0], atol=2e-3)
    assert list(found["decision"]) == [DECISIONS[place] for place in (probs @ costs.T).argmin(1)]


def test_same_bytes_twice_and_in_another_process(
    decide: Callable[..., Path], run_folder: Path, patients: Path, tmp_path: Path
) -> None:
    for suffix in (".csv", ".parquet"):
        first, second = decide(patients, name=f"first{suffix}"), decide(patients, name=f"second{suffix}")
        assert first.read_bytes() == second.read_bytes()
    third = tmp_path / "third.csv"
    command = [sys.executable, "-c", "from stakes.cli.main import main; main()"]
    subprocess.run(
        [*command, "decide", run_folder / "model", patients, "--out", third], check=True, capture_output=True
    )
    assert third.read_bytes() == (tmp_path / "first.csv").read_bytes()


def read(path: Path) -> pd.DataFrame:
    """Without a difference between the ways to say that nothing is unusual."""
    frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    return frame.assign(unusual=frame["unusual"].astype(object).fillna(""))


def test_csv_and_parquet_agree_on_both_sides(
    decide: Callable[..., Path], run_folder: Path, patients: Path, tmp_path: Path
) -> None:
    as_parquet = tmp_path / "patients.parquet"
    pd.read_csv(patients).to_parquet(as_parquet)
    from_csv = read(decide(patients))
    pd.testing.assert_frame_equal(read(decide(patients, name="out.pq")), from_csv, check_dtype=False)
    assert pq.read_schema(tmp_path / "out.pq").names == COLUMNS
    out = tmp_path / "both.PARQUET"
    decide_table(run_folder, as_parquet, out)
    pd.testing.assert_frame_equal(read(out), from_csv, check_dtype=False)


def test_the_size_of_the_blocks_does_not_matter(run_folder: Path, patients: Path, tmp_path: Path) -> None:
    frames = []
    for rows in (1, 7, 120, 1000):
        assert decide_table(run_folder, patients, tmp_path / "out.csv", keep=["ward", "age"], rows=rows).rows == 120
        frames.append(pd.read_csv(tmp_path / "out.csv"))
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0], atol=2e-3, rtol=0)


def test_needs_no_target_and_takes_levels_it_has_not_seen(decide: Callable[..., Path], tmp_path: Path) -> None:
    rows = [[*row[:3], "a new ward", "", "spare"] for row in patient_rows(4)]
    found = pd.read_csv(decide(write_csv(tmp_path / "new.csv", [*HEADER[:5], "extra"], rows)))
    assert len(found) == 12
    assert found[[*AMOUNTS, *PROBS]].notna().all().all()
    assert found["unusual"].str.startswith("ward 'a new ward' (never in training)").all()


def test_kept_columns_are_carried_over_as_they_were(decide: Callable[..., Path], tmp_path: Path) -> None:
    header = ["id", *HEADER[:5], 'note, "odd"']
    rows = [
        [f"00{number}", *row[:5], ("NA", "", " a\nb", "ü|<b>")[number % 4]]
        for number, row in enumerate(patient_rows(4))
    ]
    data = write_csv(tmp_path / "new.csv", header, rows)
    out = decide(data, "--keep", "id", "--keep", '"note, ""odd"""')
    found = pd.read_csv(out, dtype=str, keep_default_na=False)
    assert list(found.columns) == ["id", 'note, "odd"', *COLUMNS]
    assert list(found["id"]) == [row[0] for row in rows]
    assert [text.strip() for text in found['note, "odd"']] == [str(row[6]).strip() for row in rows]


def test_kept_columns_of_parquet_keep_their_type_over_blocks(run_folder: Path, patients: Path, tmp_path: Path) -> None:
    """A gap in one block only must not change the type, nor the text, in that block."""
    frame = pd.read_csv(patients)
    frame["id"] = pd.array([None if number in (3, 50) else 2**40 + number for number in range(120)], dtype="Int64")
    frame["late"] = [None] * 60 + ["x"] * 60
    frame["when"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(120), unit="D")
    frame.to_parquet(tmp_path / "in.parquet")
    for rows in (20, 1000):
        decide_table(
            run_folder, tmp_path / "in.parquet", tmp_path / "out.parquet", keep=["id", "late", "when"], rows=rows
        )
        found = pd.read_parquet(tmp_path / "out.parquet", dtype_backend="pyarrow")
        assert str(pq.read_schema(tmp_path / "out.parquet").field("id").type) == "int64"
        assert found["late"].isna().sum() == 60
        assert found["when"].iloc[-1] == frame["when"].iloc[-1]
        decide_table(run_folder, tmp_path / "in.parquet", tmp_path / "out.csv", keep=["id"], rows=rows)
        texts = pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)["id"]
        assert texts[3] == ""
        assert texts[4] == str(2**40 + 4)


MEASURE = """
import resource, sys
from pathlib import Path
from stakes.tables.decide import Decider, decide_table
decide_table(*map(Path, sys.argv[1:]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_memory_does_not_grow_with_the_table(run_folder: Path, tmp_path: Path, suffix: str) -> None:
    """Four times the rows, and not a tenth more memory (read whole, they would take 30 % more)."""
    block = "".join(",".join(row[:5]) + ",1,2,3,4,5\n" for row in patient_rows(1000))
    peaks, network = {}, run_folder / "parts" / "1" / "standard-0" / "0" / "model"  # quicker than the blend
    for copies in (30, 120):  # 90,000 and 360,000 rows, of more than one block
        data = tmp_path / "large.csv"
        data.write_text(",".join([*HEADER[:5], *"abcde"]) + "\n" + block * copies)
        command = [sys.executable, "-c", MEASURE, network, data, tmp_path / f"out{suffix}"]
        peaks[copies] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert peaks[120] < 1.1 * peaks[30]


def test_a_decider_can_be_pickled_and_decides_as_the_command(
    stakes: Callable[..., Any], run_folder: Path, patients: Path, tmp_path: Path
) -> None:
    """As Ray Data, Spark and Dask use it: built once, sent to workers, called with one frame after another."""
    stakes("decide", run_folder, patients, "--out", tmp_path / "decisions.parquet")
    decider, rows = Decider(run_folder), pd.read_csv(patients)
    first = decider(rows)
    again = pickle.loads(pickle.dumps(decider))
    parts = pd.concat([again(rows.iloc[50:]), again(rows.iloc[:50])]).loc[rows.index]
    written = pd.read_parquet(tmp_path / "decisions.parquet")
    assert list(written.columns) == list(first.columns) == decider.columns
    for other in (first, parts):
        assert other["decision"].tolist() == written["decision"].tolist()
        numbers = [*AMOUNTS, *PROBS]
        np.testing.assert_allclose(other[numbers], written[numbers], atol=2e-4)  # their last digit
