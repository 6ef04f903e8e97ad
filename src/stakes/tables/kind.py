"""What the outcomes of a table are, classes or amounts: all that `stakes fit` does differently for the two."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from stakes.decisions import Decisions
from stakes.evaluation.comparison import Choice
from stakes.outcomes import Predictor
from stakes.tables.catalogue import Catalogue
from stakes.tables.problem import Problem, Recipe
from stakes.tables.run import FinishedRun
from stakes.tables.split import IntArray
from stakes.utility import Utility

if TYPE_CHECKING:
    from stakes.tables.prepare import PreparedTable
    from stakes.tables.task import TableTask


class ModelPredictions(NamedTuple):
    """What one model with one seed says of all test rows, and the utility on held-out rows that it is selected by."""

    model: str
    seed: int
    values: Tensor  # (N, K): see `stakes.tables.problem.predict_rows`
    validation: float
    details: Mapping[str, Any]


class Mixed(Protocol):
    """A model as it is compared and saved: trained models with weights, and a correction of what they say."""

    @property
    def weights(self) -> Mapping[str, float]:
        """By trained model; their sum is 1."""

    @property
    def details(self) -> Mapping[str, Any]: ...

    def predictor(self, parts: Mapping[str, Sequence[Predictor]]) -> Predictor:
        """From the parts of the trained models."""


@dataclass(frozen=True, eq=False)
class Solution(ABC):
    """The models to compare, made of trained ones, and what these say of the test rows."""

    mixes: Mapping[str, Mixed]
    test: Mapping[str, Tensor] = field(repr=False)  # by trained model, (n, K)

    @abstractmethod
    def on_test(self, model: str) -> Tensor:
        """(n, K) what a model says of the test rows."""

    @abstractmethod
    def validation(self, model: str) -> float:
        """The mean utility of its decisions on the rows held out."""

    @abstractmethod
    def choose(self, seed: int) -> Choice:
        """The model to keep, by the rows held out."""


class Kind(ABC):
    """One kind of outcomes."""

    catalogue: Catalogue

    @abstractmethod
    def usual(self, recipe: Recipe) -> tuple[str, ...]:
        """What is compared if nothing is named."""

    @abstractmethod
    def check(self, task: "TableTask") -> None:
        """Refuse options that belong to the other kind."""

    # The table ---------------------------------------------------------------------------------------

    @abstractmethod
    def stated(self, task: "TableTask") -> Utility:
        """The costs as they are stated."""

    @abstractmethod
    def labels(
        self, values: "pd.Series[Any]", task: "TableTask", stated: Utility, *, first: bool
    ) -> NDArray[np.int64] | NDArray[np.float64]:
        """From the target's column, checked; ``first`` of the table to learn from."""

    @abstractmethod
    def check_labels(self, labels: NDArray[Any], stated: Utility, name: str) -> None:
        """Refuse labels that nothing can be learnt from."""

    @abstractmethod
    def strata(self, labels: NDArray[Any]) -> IntArray:
        """(N,) what each side of a split has as many of."""

    @abstractmethod
    def leaks(self, features: pd.DataFrame, labels: NDArray[Any], stated: Utility) -> list[str]:
        """Warnings of columns that give the outcome away."""

    @abstractmethod
    def few(self, labels: NDArray[Any], stated: Utility) -> str | None:
        """A warning, if the test rows are too few to tell."""

    # The models --------------------------------------------------------------------------------------

    @abstractmethod
    def decide(self, predictions: Tensor, utility: Utility) -> Decisions:
        """From what a model says of rows, (n, K)."""

    @abstractmethod
    def solve(
        self, names: Sequence[str], problem: Problem, held_out: Mapping[str, Tensor], test: Mapping[str, Tensor]
    ) -> Solution:
        """Make the models to compare from what the trained ones say of rows held out, and of test rows."""

    @abstractmethod
    def run(
        self,
        shared: Mapping[str, Any],
        predictions: Sequence[ModelPredictions],
        choice: Choice,
        prepared: "PreparedTable",
        seed: int,
    ) -> FinishedRun:
        """Decide and score; ``shared`` are the fields of every run."""
