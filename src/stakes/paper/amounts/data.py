"""Regression sets with their published splits, a set made here whose truth is known, and a restaurant's demand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from stakes import seeds
from stakes.errors import StakesError, listing
from stakes.training.examples import TensorExamples

if TYPE_CHECKING:  # so that help comes soon
    import pandas as pd

Numbers = NDArray[np.float64]
FOLDERS = {
    "boston": "bostonHousing", "concrete": "concrete", "energy": "energy", "power": "power-plant",
    "wine": "wine-quality-red", "yacht": "yacht",
}  # fmt: skip
MADE = "waves"  # the set whose truth is known
MADE_ROWS = (1000, 2000)  # for training and testing
OUTLIERS, OUTLIER_SD = 0.1, 5.0  # the share of training labels, and how far they are moved, in standard deviations
PRODUCTS = ("calamari", "fish", "lamb", "steak")
DAYS, TEST_DAYS = 765, 192


@dataclass(frozen=True)
class Split:
    """The rows to learn from and those to test on, as they are."""

    x: Numbers  # (N, F)
    y: Numbers  # (N,)
    test_x: Numbers
    test_y: Numbers

    def before(self, share: float) -> "Split":
        """Of the training rows alone: the first ``share`` to learn from, the others to test on."""
        cut = int(len(self.y) * share)
        return Split(self.x[:cut], self.y[:cut], self.x[cut:], self.y[cut:])


@dataclass(frozen=True)
class Standardised:
    """A split in standard deviations of its training rows, for a network."""

    train: TensorExamples
    test: TensorExamples
    unit: float  # the standard deviation of the training labels, in theirs


def standardised(split: Split) -> Standardised:
    center, scale = split.x.mean(0), split.x.std(0)
    scale[scale == 0] = 1.0
    middle, unit = split.y.mean(), float(split.y.std())

    def examples(x: Numbers, y: Numbers) -> TensorExamples:
        return TensorExamples(
            torch.from_numpy((x - center) / scale).float(), torch.from_numpy((y - middle) / unit).float()
        )

    return Standardised(examples(split.x, split.y), examples(split.test_x, split.test_y), unit)


def with_outliers(examples: TensorExamples, seed: int) -> TensorExamples:
    """A tenth of the labels, drawn at random, moved by a normal error of five standard deviations."""
    generator = seeds.numpy_generator(seed, "outliers")
    rows = generator.permutation(len(examples))[: round(OUTLIERS * len(examples))]
    labels = examples.labels.clone()
    labels[rows] += torch.from_numpy(OUTLIER_SD * generator.standard_normal(len(rows))).to(labels)
    return TensorExamples(examples.x, labels)


def read_split(folder: Path, name: str, number: int) -> Split:
    """A published split of a set, or another draw of the one that is made here."""
    if name == MADE:
        return waves(number)
    if name not in FOLDERS:
        raise StakesError(f"expected sets of {listing([*FOLDERS, MADE])}, but got {name!r}")
    place = folder / "regression" / FOLDERS[name]
    table = _numbers(place / "data.txt", np.loadtxt)
    features, target = (_integers(place / f"index_{part}.txt") for part in ("features", "target"))
    train, test = (_integers(place / f"index_{part}_{number}.txt") for part in ("train", "test"))
    used = np.concatenate([features, target])
    if table.ndim != 2 or used.max() >= table.shape[1] or max(train.max(), test.max()) >= len(table):
        raise StakesError(f"{place}: expected indices of rows and columns of data.txt, but some are not in it")
    if set(train.tolist()) & set(test.tolist()):
        raise StakesError(f"{place}: expected a split {number} without rows on both of its sides, but it has some")
    x, y = table[:, features], table[:, target[0]]
    return Split(x[train], y[train], x[test], y[test])


def waves(number: int) -> Split:
    """One input in [-2, 2]; normal outcomes around sin(2 x), whose spread grows from 0.1 to 0.7."""
    generator = seeds.numpy_generator(number, "waves")
    x = generator.uniform(-2, 2, size=sum(MADE_ROWS))
    y = np.sin(2 * x) + waves_spread(x) * generator.standard_normal(len(x))
    cut = MADE_ROWS[0]
    return Split(x[:cut, None], y[:cut], x[cut:, None], y[cut:])


def waves_spread(x: Numbers) -> Numbers:
    return 0.1 + 0.15 * (x + 2)


def read_days(folder: Path) -> "pd.DataFrame":
    """The restaurant's days in order: date, calendar, weather, and the portions sold of four dishes."""
    import pandas as pd

    path = folder / "newsvendor" / "yaz.csv"
    if not path.is_file():
        raise StakesError(f"{path}: no such file; point --data or STAKES_DATA to the folder that has newsvendor/")
    days = pd.read_csv(path, parse_dates=["date"])
    missing = [name for name in PRODUCTS if name not in days]
    if missing or len(days) != DAYS or not days["date"].is_monotonic_increasing:
        raise StakesError(f"{path}: expected {DAYS} days in order with columns {listing(PRODUCTS)}, but it has others")
    return days


def _integers(path: Path) -> NDArray[np.int64]:
    return np.atleast_1d(_numbers(path, np.loadtxt)).astype(np.int64)


def _numbers(path: Path, read: Callable[[Path], Numbers]) -> Numbers:
    try:
        values = read(path)
    except OSError:
        raise StakesError(
            f"{path}: no such file; point --data or STAKES_DATA to the folder that has regression/"
        ) from None
    except ValueError as error:
        raise StakesError(f"{path}: expected numbers, but it has others ({error})") from None
    if not (values.size and np.isfinite(values).all()):
        raise StakesError(f"{path}: expected finite numbers, but some are not")
    return values


def require_data(folder: Path, sets: Sequence[str], splits: int, orders: bool) -> None:
    """Refuse missing or damaged files before anything is run."""
    for name in sets:
        for number in range(splits):
            read_split(folder, name, number)
    if orders:
        read_days(folder)
