"""The paper's illustrative example: three blood tests, three diagnoses, and what a wrong one costs (section 4)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stakes import seeds
from stakes.errors import StakesError
from stakes.paper.protocols import redraw_uniformly

CLASSES = ("Healthy", "Mild", "Severe")
TESTS = ("test_0", "test_1", "test_2")
COSTS = ((0.0, 50.0, 100.0), (40.0, 0.0, 35.0), (45.0, 30.0, 0.0))  # pounds; rows: diagnosis, columns: truth
COST_OF_ONE_UTILITY, UTILITY_OF_NO_COST = 50.0, 2.0  # utility = 2 - cost / 50, the paper's table 1
TRAIN_PER_CLASS, TEST_PER_CLASS = 50, 100
SPREAD = 0.2


@dataclass(frozen=True, eq=False)
class Patients:
    """Blood tests ``x`` (N, 3), the diagnosis on the record ``observed`` (N,), and the true one ``outcome`` (N,)."""

    x: NDArray[np.float64]
    observed: NDArray[np.int64]
    outcome: NDArray[np.int64]


def patients(per_class: int, corrupted: int, seed: int, name: str) -> Patients:
    """``per_class`` patients of each class, ``corrupted`` of whom have their diagnosis redrawn uniformly."""
    if not 0 <= corrupted <= per_class:
        raise StakesError(f"expected 0 to {per_class} corrupted patients of each class, but got {corrupted}")
    generator = seeds.numpy_generator(seed, "patients", name)
    outcome = np.repeat(np.arange(len(CLASSES)), per_class)
    x = np.eye(len(CLASSES))[outcome] + SPREAD * generator.standard_normal((len(outcome), len(TESTS)))
    firsts = np.arange(len(CLASSES)) * per_class
    rows = (firsts[:, None] + np.arange(corrupted)).ravel()
    return Patients(x, redraw_uniformly(outcome, rows, len(CLASSES), generator), outcome)
