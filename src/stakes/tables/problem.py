"""What models for tables are trained for, and the contract of a model: one part for each fold."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.features import Features
from stakes.inputs import Inputs
from stakes.mixtures import LEVELS, Quantiles
from stakes.networks import mlp
from stakes.outcomes import Predictor
from stakes.tables.split import Fold, folds, forward_folds
from stakes.training.config import Epoch, Training
from stakes.training.examples import TensorExamples
from stakes.utility import TableUtility, Utility

Noise = float | Literal["learnt"] | None
LikelihoodName = Literal["gaussian", "log_normal", "student_t"]
Progress = Callable[[Epoch], None]
FAMILIES = {"tabm": "batch_ensemble", "mlp": "dropout"}  # of posteriors, if none is asked for
LEARNING_RATES = {"tabm": 4e-3, "mlp": 1e-3}
PATIENCE = 10
FIRST_SELECTION_SHARE = 0.5  # of rows in time: models of fewer say little about those of all
BLOCK_TIMES = 14  # at most: consecutive times that stay together in the folds that models are made of


@dataclass(frozen=True)
class Recipe:
    """How the models of a comparison are built, trained and drawn from."""

    network: Literal["tabm", "mlp"] = "tabm"
    tabm: Mapping[str, Any] = field(default_factory=dict)  # settings of a TabM: members, width, depth, ...
    hidden: tuple[int, ...] = mlp.HIDDEN  # of an MLP
    dropout: float = mlp.DROPOUT  # of an MLP
    posterior: Mapping[str, Any] = field(default_factory=lambda: {"family": FAMILIES["tabm"]})
    training: Training = field(
        default_factory=lambda: Training(learning_rate=LEARNING_RATES["tabm"], patience=PATIENCE, select="nll")
    )
    samples: int = 100  # draws at prediction
    noise: Noise = None
    likelihood: LikelihoodName = "gaussian"  # of amounts


@dataclass(frozen=True, eq=False)
class Problem:
    """What models are trained for: examples, the folds that they are divided into, and the utility."""

    examples: TensorExamples
    folds: tuple[Fold, ...]
    utility: Utility  # one for all examples, or one for each
    features: Features  # what the columns of the examples are
    judged: tuple[int, ...] = ()  # the folds whose held-out rows all choices are made by; none: all of them
    kept: tuple[int, ...] = ()  # the folds whose parts a model is made of; none: all of them
    groups: NDArray[np.int64] | None = None  # (N,) what the examples belong to, where they belong together
    times: NDArray[np.float64] | None = None  # (N,) where they are in time

    @property
    def table(self) -> TableUtility:
        """The utility, where outcomes are classes."""
        assert isinstance(self.utility, TableUtility)
        return self.utility

    @property
    def classes(self) -> int:
        return len(self.table.outcomes)

    @property
    def width(self) -> int:
        """How many numbers a model says of a row: see `predict_rows`."""
        return self.classes if isinstance(self.utility, TableUtility) else len(LEVELS)

    @property
    def selection_folds(self) -> tuple[int, ...]:
        return self.judged or tuple(range(len(self.folds)))

    @property
    def model_folds(self) -> tuple[int, ...]:
        return self.kept or tuple(range(len(self.folds)))

    @property
    def selection_rows(self) -> Tensor:
        """(n,) the rows that choices are made by, fold after fold."""
        return torch.from_numpy(np.concatenate([self.folds[fold].held for fold in self.selection_folds]))

    @property
    def selection_dependence(self) -> dict[str, Any]:
        """How these rows depend on each other, as `metrics.bootstrap` takes it."""
        rows = self.selection_rows.numpy()
        known = {"groups": self.groups, "times": self.times}
        return {key: None if values is None else values[rows] for key, values in known.items()}

    def in_time(self, times: NDArray[np.float64], count: int, seed: int) -> Self:
        """For rows of these times: choices by folds that go forward, models of folds of all rows, blocks held out.

        The parts of the former, trained on early rows, would make a worse model: see docs/design.md.
        """
        forward = forward_folds(times, count, FIRST_SELECTION_SHARE)
        distinct, time_index = np.unique(times, return_inverse=True)
        length = max(1, min(BLOCK_TIMES, len(distinct) // (2 * count)))
        whole = folds(np.zeros(len(times), dtype=np.int64), time_index // length, count, seed)
        return replace(
            self,
            times=times,
            folds=(*forward, *whole),
            judged=tuple(range(len(forward))),
            kept=tuple(range(len(forward), len(forward) + len(whole))),
        )

    def train_and_held_out(self, fold: int) -> tuple[TensorExamples, TensorExamples | None]:
        """The examples to train on, and those held out, to stop by; None where there are too few to hold some out."""
        train, held = (torch.from_numpy(rows) for rows in self.folds[fold])
        return self.examples.subset(train), self.examples.subset(held) if len(held) else None


def predict_rows(predictor: Predictor, x: Inputs) -> Tensor:
    """(n, K) what it says of rows: the probabilities of classes, or the quantiles of an amount at `LEVELS`."""
    outcomes = predictor(x).mixture()
    return Quantiles.of(outcomes).at_levels.float() if outcomes.numeric else outcomes.weights


@dataclass(frozen=True, eq=False)
class Part:
    """A model trained for one fold, what it says of the rows held out, and in JSON types what training came to."""

    predictor: Predictor
    held_out: Tensor  # (n, K): see `predict_rows`
    details: Mapping[str, Any]

    @classmethod
    def of(
        cls, problem: Problem, predictor: Predictor, held: TensorExamples | None, details: Mapping[str, Any]
    ) -> "Part":
        held_out = torch.empty(0, problem.width) if held is None else predict_rows(predictor, held.x)
        return cls(predictor, held_out, details)


@dataclass(frozen=True)
class Model(ABC):
    """A way to make predictors for a problem."""

    name: str
    after: str | None = None  # a model whose parts it starts from
    effort: int = 1  # relative training time of one fold
    keeps_rows: bool = False  # whether its parts, as they are saved, hold the training rows

    def check(self, recipe: Recipe) -> None:  # noqa: B027 (most take any recipe)
        """Refuse a recipe that the model cannot be trained by, before anything is read."""

    def together(self, problem: Problem, recipe: Recipe) -> bool:
        """Whether the parts of all folds are quickest trained in one go."""
        return True

    @abstractmethod
    def train(
        self,
        problem: Problem,
        recipe: Recipe,
        seed: int,
        folds: Sequence[int],
        *,
        before: Sequence[Predictor] = (),
        checkpoint: Path | None = None,
        progress: Progress = lambda epoch: None,
    ) -> list[Part]:
        """A part for each of some folds, stopped early on the rows held out; ``before`` are those of ``after``.

        Goes on from ``checkpoint`` if that file exists, which only a fold that is trained alone can.
        """
