"""Label noise, put in on purpose."""

import numpy as np
from numpy.typing import NDArray

from stakes.errors import StakesError


def redraw_uniformly(
    labels: NDArray[np.int64], rows: NDArray[np.int64], classes: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """A copy of ``labels`` in which those at ``rows`` are drawn anew, each class equally likely (its own too)."""
    if classes < 2:
        raise StakesError(f"expected at least 2 classes to draw from, but got {classes}")
    noisy = labels.copy()
    noisy[rows] = generator.integers(classes, size=len(rows))
    return noisy
