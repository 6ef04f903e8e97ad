"""Section 5: MNIST with few examples, noisy labels and small networks (figures 5 and 9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch

from stakes import seeds
from stakes._io.parallel import Report
from stakes.paper import protocols
from stakes.paper.digits.data import CLASSES, read_digits
from stakes.paper.protocols import score_rows, seed_groups, train_cell
from stakes.paper.sweep import ALL_MODELS, Cell, Row
from stakes.training.examples import TensorExamples
from stakes.utility import TableUtility, Utility

PART = 2_500  # images for training, and as many after them (clean) for validation
FAVOURED = ("3", "8")


@dataclass(frozen=True)
class Digits:
    """The settings of the experiment.

    The protocol ``authors`` keeps the epoch with the lowest validation NLL and takes the decisions once an
    epoch; ``fair`` keeps the one with the highest validation utility and takes decisions at every step.
    """

    name: ClassVar[str] = "digits"

    data: str = ""
    protocol: str = "fair"
    noise: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5)
    units: tuple[int, ...] = (20, 30, 40, 50, 60, 70, 80, 90, 100)
    seeds: int = 10
    methods: tuple[str, ...] = ALL_MODELS
    dropout: float = 0.2
    lengthscale: float = 0.01
    epochs: int = 50
    batch_size: int = 50
    learning_rate: float = 1e-3
    decision_samples: int = 10
    warmup: int = 200  # steps over which the gain is ramped up, in the fair protocol
    test_samples: int = 10
    together: int = 10  # seeds whose networks are trained in one stack

    @classmethod
    def preset(cls, name: str) -> Self:
        return cls() if name == "paper" else cls(noise=(0.0, 0.5), units=(50,), seeds=3)

    def __post_init__(self) -> None:
        protocols.check_protocol(self.protocol)

    def check(self) -> None:
        protocols.check_models(self.methods)
        _parts(self.data)

    def cells(self) -> list[Cell]:
        return [
            Cell.of(*group, protocol=self.protocol, noise=noise, units=units, method=name)
            for noise in self.noise
            for units in self.units
            for group in seed_groups(self.seeds, self.together)
            for name in self.methods
        ]

    def run_cell(self, cell: Cell, report: Report) -> list[Row]:
        noisy, validation, test = noisy_digits(self.data, cell["noise"], cell.seeds)
        utility, validations = paper_utility(), [validation] * len(noisy)
        weights = [1 / 0.7 if str(digit) in FAVOURED else 1.0 for digit in range(CLASSES)]
        selection = {"samples": self.test_samples, "select": "utility" if self.protocol == "fair" else "nll"}
        trained = train_cell(
            self, cell, noisy, validations, utility, weights, cell["units"], cell["noise"], **selection
        )
        rows = []
        for seed, draws, history in trained:
            probs = draws(test.x).mean_probs()
            rows += score_rows(cell, seed, probs, test.labels, utility, best_epoch=history.best)
        return rows


def paper_utility() -> TableUtility:
    """1 for the right digit; 0.3 for a wrong 3 or 8; 0 for any other wrong digit."""
    utility = Utility.diagonal([str(digit) for digit in range(CLASSES)])
    for digit in FAVOURED:
        utility = utility.with_row(digit, 0.3)
    return utility


def noisy_digits(
    folder: str, noise: float, model_seeds: Sequence[int]
) -> tuple[list[TensorExamples], TensorExamples, TensorExamples]:
    """The training images with each seed's noisy labels; the clean validation and test images."""
    train, validation, test = _parts(folder)
    noisy = []
    for seed in model_seeds:
        generator = seeds.numpy_generator(seed, "label noise", str(noise))
        redrawn = np.sort(generator.permutation(len(train))[: round(noise * len(train))])
        labels = protocols.redraw_uniformly(train.labels.numpy(), redrawn, CLASSES, generator)
        noisy.append(TensorExamples(train.x, torch.from_numpy(labels)))
    return noisy, validation, test


@lru_cache(maxsize=1)
def _parts(folder: str) -> tuple[TensorExamples, TensorExamples, TensorExamples]:
    """Training, validation and test images; read once in a process."""
    train = read_digits(Path(folder), "train")
    first, second = torch.arange(PART), torch.arange(PART, 2 * PART)
    return train.subset(first), train.subset(second), read_digits(Path(folder), "test")
