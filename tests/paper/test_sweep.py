import gzip
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from stakes import StakesError
from stakes.paper.diagnosis.experiment import Diagnosis
from stakes.paper.digits.data import read_digits
from stakes.paper.digits.experiment import Digits, paper_utility
from stakes.paper.report import draw, summary
from stakes.paper.sweep import Cell, Result, run


@dataclass(frozen=True)
class Counting:
    """An experiment that leaves a file behind for every cell it runs, and knows the answer."""

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
        place = Path(self.folder) / f"{cell['method']}-{seed}"
        place.write_text(place.read_text() + "x" if place.exists() else "x")
        utility = seed + (0.5 if cell["method"] == "weighted" else 0.0)
        return [
            {**dict(cell.axes), "seed": seed, "rule": rule, "utility": utility, "accuracy": 1.0}
            for rule in ("argmax", "optimal")
        ]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path, workers: int) -> None:
    marks, out = tmp_path / "marks", tmp_path / "out"
    marks.mkdir()
    with pytest.raises(RuntimeError, match="plug"):
        run(Counting(str(marks), fail_at=2), out)
    lines = (out / "rows.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 8
    (out / "rows.jsonl").write_text("".join(lines[:-1]) + lines[-1][:20])  # the kill tore the last line
    (out / "config.json").write_text((out / "config.json").read_text().replace('"fail_at": 2', '"fail_at": -1'))
    result = run(Counting(str(marks)), out, workers=workers)
    assert len(result.rows) == 12
    assert {place.name: place.read_text() for place in marks.iterdir()} == {
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
    found = result.difference("weighted", "standard", rule="optimal")
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
    np.testing.assert_array_equal(result.values("utility", method="standard", rule="argmax"), range(6))
    with pytest.raises(StakesError, match="there are none"):
        result.difference("calibrated", "standard", rule="optimal")


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    run(Counting(str(tmp_path)), tmp_path / "out")
    file = tmp_path / "out" / "rows.jsonl"
    file.write_text("{broken\n" + file.read_text())
    with pytest.raises(StakesError, match="line 1 is damaged"):
        Result.load(tmp_path / "out")


@pytest.mark.parametrize("protocol", ["fair", "authors"])
def test_diagnosis_from_end_to_end_at_a_toy_size(tmp_path: Path, protocol: str) -> None:
    experiment = Diagnosis(protocol=protocol, corrupted=(5, 25), seeds=2, epochs=4, test_samples=10)
    result = run(experiment, tmp_path)
    assert len(result.rows) == 2 * 2 * 5 * 2
    needed = {"protocol", "method", "rule", "seed", "utility", "accuracy", "corrupted"}
    assert all(needed <= set(row) for row in result.rows)
    files = draw(Result.load(tmp_path), tmp_path)
    assert [file.stem for file in files] == ["patients", "corruption", "confusion", "transition", "sweep", "tables"]
    assert all(1000 < file.stat().st_size < 200_000 for file in files)
    assert "| 25 | " in files[-1].read_text()
    assert len(summary(result).splitlines()) == 1 + 2 * 5


def write_idx(path: Path, values: np.ndarray) -> None:
    header = struct.pack(f">{1 + values.ndim}i", 0x0800 + values.ndim, *values.shape)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header + values.astype(np.uint8).tobytes())


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of MNIST's form: a digit is a bright row of pixels."""
    folder = tmp_path_factory.mktemp("mnist")
    generator = np.random.default_rng(0)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        labels = generator.integers(10, size=count)
        images = np.zeros((count, 28, 28), dtype=np.uint8)
        images[np.arange(count), 2 * labels + 3] = 200
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    return folder


def test_digits_from_end_to_end_on_stand_ins(stand_in: Path, tmp_path: Path) -> None:
    experiment = Digits(
        str(stand_in), noise=(0.0, 0.5), units=(10, 20), seeds=1, epochs=2, methods=("standard", "calibrated")
    )
    result = run(experiment, tmp_path)
    assert len(result.rows) == 2 * 2 * 2 * 2
    assert {"noise", "units", "utility", "accuracy", "protocol"} <= set(result.rows[0])
    file, tables = draw(result, tmp_path)
    assert 1000 < file.stat().st_size < 200_000
    loss = 1 - result.values("utility", method="calibrated", rule="optimal", noise=0.5, units=20)[0]
    assert f"{loss:.4f} ± 0.0000 [0.2168] |" in tables.read_text()
    assert json.loads((tmp_path / "config.json").read_text())["units"] == [10, 20]


def test_the_digit_utility_is_the_papers() -> None:
    expected = np.eye(10)
    expected[[3, 8]] = np.where(np.eye(10)[[3, 8]] == 1, 1.0, 0.3)
    np.testing.assert_array_equal(paper_utility().values, expected)


def test_real_mnist_is_read_as_published(data_folder: Path) -> None:
    test = read_digits(data_folder, "test")
    assert test.x.shape == (10_000, 784)
    assert np.bincount(test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert float(test.x.max()) == 1.0


def test_mnist_that_is_missing_or_damaged(tmp_path: Path, stand_in: Path) -> None:
    with pytest.raises(StakesError, match="train-images-idx3-ubyte"):
        read_digits(tmp_path, "train")
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        (tmp_path / name).write_bytes((stand_in / name).read_bytes())
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes((stand_in / "t10k-labels-idx1-ubyte.gz").read_bytes()[:500])
    with pytest.raises(StakesError, match="damaged"):
        read_digits(tmp_path, "test")
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.full(10_000, 11))
    with pytest.raises(StakesError, match="0 to 9"):
        read_digits(tmp_path, "test")
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.zeros(7))
    with pytest.raises(StakesError, match="expected 10000 test images"):
        read_digits(tmp_path, "test")


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(StakesError, match="'mine'"):
        Diagnosis(protocol="mine")


@pytest.mark.filterwarnings("ignore")
def test_a_sweep_on_ray(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    experiment = Diagnosis(corrupted=(5,), seeds=2, epochs=2, methods=("standard", "weighted"))
    try:
        assert len(run(experiment, tmp_path, workers=2, backend="ray").rows) == 8
    finally:
        ray.shutdown()
