import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stakes import StakesError
from stakes.paper.digits import experiment as digits
from stakes.paper.digits.data import read_digits
from stakes.paper.digits.experiment import Digits, paper_utility
from stakes.paper.report import write_report
from stakes.paper.sweep import Cell, run

UTILITY = np.eye(10)
UTILITY[[3, 8]] = np.where(np.eye(10)[[3, 8]] == 1, 1.0, 0.3)


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
    file, tables, _ = write_report(result, tmp_path)
    assert 1000 < file.stat().st_size < 200_000
    loss = 1 - result.values("utility", method="calibrated", rule="optimal", noise=0.5, units=20)[0]
    assert f"{loss:.4f} ± 0.0000 [0.2168] |" in tables.read_text()
    assert json.loads((tmp_path / "config.json").read_text())["units"] == [10, 20]


@pytest.mark.parametrize("name", ["standard", "weighted", "noise+calibrated"])
def test_rows_of_a_trained_cell_are_those_of_its_decisions(
    name: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train for real, few epochs; recompute the scores with numpy from the probabilities that were scored."""
    scored: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    score_rows = digits.score_rows

    def spy(cell: Cell, seed: int, probs: Any, labels: Any, *rest: Any, **extra: Any) -> Any:
        scored[seed] = probs.double().numpy(), labels.numpy()
        return score_rows(cell, seed, probs, labels, *rest, **extra)

    monkeypatch.setattr(digits, "score_rows", spy)
    cell = Cell.of(0, 1, protocol="fair", noise=0.25, units=10, method=name)
    rows = Digits(str(stand_in), seeds=2, epochs=3, learning_rate=0.01).run_cell(cell, lambda event: None)
    assert [(row["seed"], row["rule"]) for row in rows] == [
        (seed, rule) for seed in (0, 1) for rule in ("argmax", "optimal")
    ]
    for row in rows:
        probs, labels = scored[row["seed"]]
        with gzip.open(stand_in / "t10k-labels-idx1-ubyte.gz") as file:
            np.testing.assert_array_equal(labels, np.frombuffer(file.read()[8:], dtype=np.uint8))
        choice = (probs @ (UTILITY.T if row["rule"] == "optimal" else np.eye(10))).argmax(1)
        assert row["utility"] == pytest.approx(UTILITY[choice, labels].mean(), abs=1e-6)
        assert row["accuracy"] == pytest.approx((choice == labels).mean(), abs=1e-6)
        assert row["nll"] == pytest.approx(-np.log(probs[np.arange(len(labels)), labels]).mean(), abs=1e-5)
        assert row["accuracy"] > 0.9, "it has learnt the digits in spite of the noise"
        assert 1 <= row["best_epoch"] <= 3


def test_the_digit_utility_is_the_papers() -> None:
    np.testing.assert_array_equal(paper_utility().values, UTILITY)


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
