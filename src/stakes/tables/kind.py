"""What the outcomes of a table are, classes or amounts: all that `stakes fit` does differently for the two."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from stakes.decisions import Decisions
from stakes.evaluation.comparison import Choice
from stakes.tables.catalogue import Catalogue
from stakes.tables.mix import HeldOut, Solution
from stakes.tables.number_format import NumberFormat
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


class Kind(ABC):
    """One kind of outcomes."""

    catalogue: Catalogue
    held_out: type[HeldOut]

    @abstractmethod
    def usual(self, recipe: Recipe) -> tuple[str, ...]:
        """What is compared if nothing is named."""

    @abstractmethod
    def check(self, task: "TableTask") -> None:
        """Refuse options that belong to the other kind."""

    # The table ---------------------------------------------------------------------------------------

    @abstractmethod
    def read_utility(self, task: "TableTask") -> Utility:
        """The utility that the options and the cost file of a task state."""

    def target_format(self, target: "pd.Series[Any]", decimal: str) -> NumberFormat | None:
        """How the target of the table to learn from, whose decimal mark is given, is written, if it is a number and not
        written as programs do.
        """
        return None

    @abstractmethod
    def labels(
        self, values: "pd.Series[Any]", task: "TableTask", utility: Utility, *, first: bool
    ) -> NDArray[np.int64] | NDArray[np.float64]:
        """From the target's column, checked; ``first`` of the table to learn from."""

    @abstractmethod
    def check_labels(self, labels: NDArray[Any], utility: Utility, name: str) -> None:
        """Refuse labels that nothing can be learnt from."""

    @abstractmethod
    def strata(self, labels: NDArray[Any]) -> IntArray:
        """(N,) the stratum of each row; splits keep their proportions."""

    @abstractmethod
    def leaks(self, features: pd.DataFrame, labels: NDArray[Any], utility: Utility) -> list[str]:
        """Warnings of columns that give the outcome away."""

    @abstractmethod
    def few_rows_warning(self, labels: NDArray[Any], utility: Utility) -> str | None:
        """A warning, if the test rows are too few to tell."""

    # The models --------------------------------------------------------------------------------------

    @abstractmethod
    def decide(self, predictions: Tensor, utility: Utility) -> Decisions:
        """From what a model says of rows, (n, K)."""

    def solve(
        self, names: Sequence[str], problem: Problem, held_out: Mapping[str, Tensor], test: Mapping[str, Tensor]
    ) -> Solution:
        """Make the models to compare from what the trained ones predict for rows held out, and for test rows."""
        rows = self.held_out.of(problem, held_out)
        return Solution(rows, rows.mixes(names), test)

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
