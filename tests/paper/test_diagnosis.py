from pathlib import Path

import numpy as np
import pytest

from stakes import StakesError
from stakes.paper.diagnosis import data as diagnosis
from stakes.paper.diagnosis.experiment import Diagnosis, paper_utility
from stakes.paper.report import summary, write_report
from stakes.paper.sweep import Cell, Result, run

TABLE_1 = np.array([[2, 1, 0], [1.2, 2, 1.3], [1.1, 1.4, 2]])


def test_patients_are_their_class_plus_noise() -> None:
    patients = diagnosis.patients(2000, 0, seed=0, name="test")
    assert patients.x.shape == (6000, 3)
    np.testing.assert_array_equal(patients.observed, patients.outcome)
    residual = patients.x - np.eye(3)[patients.outcome]
    assert residual.std() == pytest.approx(0.2, rel=0.02)
    assert abs(residual.mean()) < 0.01


def test_two_thirds_of_the_redrawn_labels_are_wrong() -> None:
    patients = diagnosis.patients(3000, 1500, seed=0, name="train")
    assert (patients.observed != patients.outcome).mean() == pytest.approx(1 / 3, abs=0.02)
    by_class = [(patients.observed != patients.outcome)[patients.outcome == c].mean() for c in range(3)]
    assert np.ptp(by_class) < 0.05


def test_a_seed_and_a_name_decide_the_patients() -> None:
    first, again = (diagnosis.patients(5, 2, seed=1, name="train") for _ in range(2))
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.observed, again.observed)
    assert not np.array_equal(first.x, diagnosis.patients(5, 2, seed=1, name="test").x)


def test_the_utility_is_the_papers_table_1() -> None:
    np.testing.assert_allclose(paper_utility().values, TABLE_1)


def test_impossible_noise_is_refused() -> None:
    with pytest.raises(StakesError, match="0 to 5"):
        diagnosis.patients(5, 6, seed=0, name="train")


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(StakesError, match="'mine'"):
        Diagnosis(protocol="mine")


@pytest.mark.parametrize("name", ["standard", "weighted", "noise+calibrated"])
def test_rows_of_a_trained_cell_are_those_of_its_decisions(name: str) -> None:
    """Train for real, few epochs; recompute the scores with numpy from the counts and the mean probabilities."""
    cell = Cell.of(0, 1, protocol="fair", corrupted=10, method=name)
    rows = Diagnosis(seeds=2, epochs=40, learning_rate=0.01, test_samples=20).run_cell(cell, lambda event: None)
    assert [(row["seed"], row["rule"]) for row in rows] == [
        (seed, rule) for seed in (0, 1) for rule in ("argmax", "optimal")
    ]
    for row in rows:
        counts = np.array(row["confusion"])
        np.testing.assert_array_equal(counts.sum(0), [100, 100, 100])
        assert row["utility"] == pytest.approx((counts * TABLE_1).sum() / 300, abs=1e-6)
        assert row["accuracy"] == pytest.approx(np.trace(counts) / 300, abs=1e-6)
        assert row["nll"] < np.log(3) - 0.1, "it has learnt something"
        assert row["utility"] > 1.7
    first = rows[0]["transition"]
    probs = np.array(first["mean"])  # (steps, 3), rounded
    np.testing.assert_allclose(probs.sum(1), 1, atol=2e-4)
    expected = np.sort(probs @ TABLE_1.T, axis=1)
    clear = expected[:, -1] - expected[:, -2] > 1e-3
    assert clear.mean() > 0.8
    np.testing.assert_array_equal(np.array(first["choice"])[clear], (probs @ TABLE_1.T).argmax(1)[clear])
    assert not any("transition" in row for row in rows if row["seed"] == 1)


@pytest.mark.parametrize("protocol", ["fair", "authors"])
def test_diagnosis_from_end_to_end_at_a_toy_size(tmp_path: Path, protocol: str) -> None:
    experiment = Diagnosis(protocol=protocol, corrupted=(5, 25), seeds=2, epochs=4, test_samples=10)
    result = run(experiment, tmp_path)
    assert len(result.rows) == 2 * 2 * 5 * 2
    needed = {"protocol", "method", "rule", "seed", "utility", "accuracy", "corrupted"}
    assert all(needed <= set(row) for row in result.rows)
    *files, page = write_report(Result.load(tmp_path), tmp_path)
    assert [file.stem for file in files] == ["patients", "corruption", "confusion", "transition", "sweep", "tables"]
    assert all(1000 < file.stat().st_size < 200_000 for file in files)
    assert "| 25 | " in files[-1].read_text()
    assert page.name == "report.html"
    assert len(summary(result).splitlines()) == 1 + 2 * 5
