import numpy as np
import pytest
from stakes.paper.noise import redraw_uniformly

from stakes import StakesError, Utility
from stakes.paper.diagnosis import data as diagnosis


def test_patients_are_their_class_plus_noise() -> None:
    found = diagnosis.patients(2000, 0, seed=0, name="test")
    assert found.x.shape == (6000, 3)
    np.testing.assert_array_equal(found.observed, found.outcome)
    residual = found.x - np.eye(3)[found.outcome]
    assert residual.std() == pytest.approx(0.2, rel=0.02)
    assert abs(residual.mean()) < 0.01


def test_two_thirds_of_the_redrawn_labels_are_wrong() -> None:
    found = diagnosis.patients(3000, 1500, seed=0, name="train")
    assert (found.observed != found.outcome).mean() == pytest.approx(1 / 3, abs=0.02)
    by_class = [(found.observed != found.outcome)[found.outcome == c].mean() for c in range(3)]
    assert np.ptp(by_class) < 0.05


def test_a_seed_and_a_name_decide_the_patients() -> None:
    first, again = (diagnosis.patients(5, 2, seed=1, name="train") for _ in range(2))
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.observed, again.observed)
    assert not np.array_equal(first.x, diagnosis.patients(5, 2, seed=1, name="test").x)


def test_costs_are_the_papers_table_1() -> None:
    utility = Utility.from_costs(
        diagnosis.COSTS,
        diagnosis.CLASSES,
        diagnosis.CLASSES,
        best=diagnosis.UTILITY_OF_NO_COST,
        scale=diagnosis.COST_OF_ONE_UTILITY,
    )
    np.testing.assert_allclose(utility.values, [[2, 1, 0], [1.2, 2, 1.3], [1.1, 1.4, 2]])


def test_impossible_noise_is_refused() -> None:
    with pytest.raises(StakesError, match="0 to 5"):
        diagnosis.patients(5, 6, seed=0, name="train")
    with pytest.raises(StakesError, match="2 classes"):
        redraw_uniformly(np.zeros(3, dtype=np.int64), np.array([0]), 1, np.random.default_rng(0))
