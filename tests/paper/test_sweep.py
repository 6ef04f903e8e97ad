from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from stakes import StakesError
from stakes.paper.diagnosis.experiment import Diagnosis
from stakes.paper.report import tables
from stakes.paper.sweep import Cell, Result, run


@dataclass(frozen=True)
class Counting:
    """An experiment with known rows that marks every cell it runs with a file."""

    name: ClassVar[str] = "counting"
    folder: str
    seeds: int = 3
    fail_at: int = -1

    def check(self) -> None:
        pass

    def cells(self) -> list[Cell]:
        return [
            Cell.of(seed, protocol="fair", method=m) for seed in range(self.seeds) for m in ("standard", "weighted")
        ]

    def run_cell(self, cell: Cell, report: object) -> list[dict]:
        (seed,) = cell.seeds
        if seed == self.fail_at:
            raise RuntimeError("pulled the plug")
        mark = Path(self.folder) / f"{cell['method']}-{seed}"
        mark.write_text(mark.read_text() + "x" if mark.exists() else "x")
        utility = seed + (0.5 if cell["method"] == "weighted" else 0.0)
        return [
            {**dict(cell.axes), "seed": seed, "rule": rule, "utility": utility, "accuracy": 1.0}
            for rule in ("argmax", "optimal")
        ]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_sweep_resumes_where_it_stopped(tmp_path: Path, workers: int) -> None:
    marks, out = tmp_path / "marks", tmp_path / "out"
    marks.mkdir()
    with pytest.raises(RuntimeError, match="plug"):
        run(Counting(str(marks), fail_at=2), out)
    lines = (out / "rows.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 8
    (out / "rows.jsonl").write_text("".join(lines[:-1]) + lines[-1][:20])  # a kill cut the last line short
    (out / "config.json").write_text((out / "config.json").read_text().replace('"fail_at": 2', '"fail_at": -1'))
    result = run(Counting(str(marks)), out, workers=workers)
    assert len(result.rows) == 12
    assert {mark.name: mark.read_text() for mark in marks.iterdir()} == {
        "standard-0": "x", "weighted-0": "x", "standard-1": "x", "weighted-1": "xx",
        "standard-2": "x", "weighted-2": "x",
    }  # fmt: skip
    assert [(row["seed"], row["method"]) for row in result.rows[::2]] == [
        (seed, method) for seed in range(3) for method in ("standard", "weighted")
    ]


def test_a_folder_with_another_sweep_is_refused(tmp_path: Path) -> None:
    run(Counting(str(tmp_path)), tmp_path / "out")
    with pytest.raises(StakesError, match="different: seeds"):
        run(Counting(str(tmp_path), seeds=2), tmp_path / "out")
    assert len(run(Counting(str(tmp_path), seeds=2), tmp_path / "out", force=True).rows) == 8


def test_differences_are_paired_over_seeds(tmp_path: Path) -> None:
    result = run(Counting(str(tmp_path), seeds=6), tmp_path / "out")
    gain = result.difference("weighted", "standard", rule="optimal")
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.5, 0.5, 0.5))
    np.testing.assert_array_equal(result.values("utility", method="standard", rule="argmax"), range(6))
    with pytest.raises(StakesError, match="there are none"):
        result.difference("calibrated", "standard", rule="optimal")


def test_rows_that_are_missing_are_an_error(tmp_path: Path) -> None:
    """An unfinished sweep has no mean, instead of a mean that is NaN."""
    result = run(Counting(str(tmp_path)), tmp_path / "out")
    with pytest.raises(StakesError, match="run the sweep to its end"):
        result.values("utility", method="calibrated", rule="optimal")


def test_a_config_of_no_experiment_is_refused() -> None:
    with pytest.raises(StakesError, match="'diagnosis', 'digits', 'roads', 'amounts', but got 'counting'"):
        tables(Result({"experiment": "counting"}, ()))


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    run(Counting(str(tmp_path)), tmp_path / "out")
    file = tmp_path / "out" / "rows.jsonl"
    file.write_text("{broken\n" + file.read_text())
    with pytest.raises(StakesError, match="line 1 is damaged"):
        Result.load(tmp_path / "out")


@pytest.mark.filterwarnings("ignore")
def test_a_sweep_on_ray(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    experiment = Diagnosis(corrupted=(5,), seeds=2, epochs=2, methods=("standard", "weighted"))
    try:
        assert len(run(experiment, tmp_path, workers=2, backend="ray").rows) == 8
    finally:
        ray.shutdown()


def test_a_cell_is_done_when_it_has_all_its_rows(tmp_path: Path) -> None:
    """Where an experiment has other rows than one for each rule."""

    @dataclass(frozen=True)
    class ThreeCosts:
        name: ClassVar[str] = "three costs"

        def check(self) -> None:
            pass

        def cells(self) -> list[Cell]:
            return [Cell((("protocol", "fair"),), (0, 1), rows=3)]

        def run_cell(self, cell: Cell, report: object) -> list[dict]:
            ran = tmp_path / "ran"
            ran.write_text(ran.read_text() + "x" if ran.exists() else "x")
            return [{"protocol": "fair", "seed": seed, "cost": cost} for seed in cell.seeds for cost in range(3)]

    for _ in range(2):
        assert len(run(ThreeCosts(), tmp_path / "out").rows) == 6
    file = tmp_path / "out" / "rows.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert len(run(ThreeCosts(), tmp_path / "out").rows) == 6
    assert (tmp_path / "ran").read_text() == "xx", "once at first, and once more when a row was missing"
