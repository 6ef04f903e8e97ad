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
from stakes.paper.digits.data import CLASSES, read_digits
from stakes.paper.protocols import (
    check_models,
    check_protocol,
    paper_model,
    redraw_uniformly,
    score_rows,
    seed_groups,
)
from stakes.paper.sweep import ALL_MODELS, Cell, Row
from stakes.tables.models import Recipe, predict, train_models
from stakes.training.config import Training
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
        check_protocol(self.protocol)

    def check(self) -> None:
        check_models(self.methods)
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
        training = Training(
            self.epochs,
            self.batch_size,
            self.learning_rate,
            patience=None,
            samples=self.test_samples,
            select="utility" if self.protocol == "fair" else "nll",
        )
        recipe = Recipe(
            hidden=(cell["units"],),
            dropout=self.dropout,
            posterior={"family": "dropout", "lengthscale": self.lengthscale},
            training=training,
            samples=self.test_samples,
            noise=cell["noise"],
        )
        weights = [1 / 0.7 if str(digit) in FAVOURED else 1.0 for digit in range(CLASSES)]
        model = paper_model(cell["method"], self.protocol, weights, self.decision_samples, self.warmup)
        utility = paper_utility()
        trained = train_models(model, recipe, noisy, [validation] * len(noisy), utility, cell.seeds)
        rows = []
        for seed, (posterior, history) in zip(cell.seeds, trained, strict=True):
            probs = predict(posterior, test.x, self.test_samples, seed)
            rows += score_rows(cell, seed, probs, test.labels, utility, best_epoch=history.best)
        return rows


def paper_utility() -> TableUtility:
    """1 for the right digit; 0.3 for a wrong 3 or 8; 0 for any other wrong digit."""
    utility = Utility.diagonal([str(digit) for digit in range(CLASSES)])
    for digit in FAVOURED:
        utility = utility.with_row(digit, 0.3)
    return utility


def noisy_digits(
    folder: str, noise: float, seeds_of: Sequence[int]
) -> tuple[list[TensorExamples], TensorExamples, TensorExamples]:
    """The training images with each seed's noisy labels; the clean validation and test images."""
    train, validation, test = _parts(folder)
    return [_with_noise(train, noise, seed) for seed in seeds_of], validation, test


def _with_noise(train: TensorExamples, noise: float, seed: int) -> TensorExamples:
    """The same images with a share of their labels redrawn uniformly."""
    generator = seeds.numpy_generator(seed, "label noise", str(noise))
    corrupted = np.sort(generator.permutation(len(train))[: round(noise * len(train))])
    labels = redraw_uniformly(train.labels.numpy(), corrupted, CLASSES, generator)
    return TensorExamples(train.x, torch.from_numpy(labels))


@lru_cache(maxsize=1)
def _parts(folder: str) -> tuple[TensorExamples, TensorExamples, TensorExamples]:
    """Training, validation and test images; read once in a process."""
    train = read_digits(Path(folder), "train")
    first, second = torch.arange(PART), torch.arange(PART, 2 * PART)
    return train.subset(first), train.subset(second), read_digits(Path(folder), "test")
