"""Tables whose outcomes are classes: what decisions cost under each is a table."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from stakes.decisions import Decisions, decide
from stakes.errors import StakesError
from stakes.evaluation.comparison import Choice, Predictions, compare, score
from stakes.tables.class_mix import HeldOutClasses
from stakes.tables.kind import Kind, ModelPredictions
from stakes.tables.models import CLASS_MODELS, compared_names
from stakes.tables.problem import Recipe
from stakes.tables.run import Run
from stakes.tables.split import IntArray
from stakes.tables.suspects import leaks
from stakes.tables.values import check_classes, check_renames, encode_labels, text_codes
from stakes.utility import FormulaUtility, TableUtility, Utility
from stakes.utility.checks import swapped

if TYPE_CHECKING:
    from stakes.tables.prepare import PreparedTable
    from stakes.tables.task import TableTask

FEW_ROWS = 5
_FOR_AMOUNTS = ("under", "over", "step", "at_least", "at_most", "lags", "series")


class Classes(Kind):
    """Outcomes are named."""

    catalogue, held_out = CLASS_MODELS, HeldOutClasses

    def usual(self, recipe: Recipe) -> tuple[str, ...]:
        return compared_names(recipe.noise)

    def check(self, task: "TableTask") -> None:
        given = [f"--{name.replace('_', '-')}" for name in _FOR_AMOUNTS if getattr(task, name) not in (None, ())]
        if given:
            raise StakesError(
                f"{given[0]} is for outcomes that are numbers, with --under and --over, or --costs with cost curves; "
                f"{task.costs} has costs of named outcomes"
            )

    def read_utility(self, task: "TableTask") -> TableUtility | FormulaUtility:
        assert task.costs is not None  # which makes it a task about classes
        return _of_classes(Utility.from_csv(task.costs, unit=task.unit))

    def labels(
        self, values: "pd.Series[Any]", task: "TableTask", utility: Utility, *, first: bool
    ) -> NDArray[np.int64]:
        table = _of_classes(utility)
        if first and task.renames:
            check_renames(values, task.renames, task.target)
        try:
            return encode_labels(values, table.outcomes, renames=task.renames, name=task.target)
        except StakesError:
            texts = {task.renames.get(text, text) for text in text_codes(values)[1] if text is not None}
            if message := swapped(texts, table.decisions, table.outcomes):
                raise StakesError(f"column {task.target!r}: {message}") from None
            raise

    def check_labels(self, labels: NDArray[Any], utility: Utility, name: str) -> None:
        check_classes(labels, _of_classes(utility).outcomes, name)

    def strata(self, labels: NDArray[Any]) -> IntArray:
        return labels

    def leaks(self, features: pd.DataFrame, labels: NDArray[Any], utility: Utility) -> list[str]:
        return leaks(features, labels, _of_classes(utility).outcomes)

    def few_rows_warning(self, labels: NDArray[Any], utility: Utility) -> str | None:
        outcomes = _of_classes(utility).outcomes
        counts = zip(outcomes, np.bincount(labels, minlength=len(outcomes)), strict=True)
        few = [f"{name} {count}" for name, count in counts if count < FEW_ROWS]
        if not few:
            return None
        return f"the test rows have few cases of some outcomes ({', '.join(few)}): their results are uncertain"

    def decide(self, predictions: Tensor, utility: Utility) -> Decisions:
        return decide(predictions, utility)

    def run(
        self,
        shared: Mapping[str, Any],
        predictions: Sequence[ModelPredictions],
        choice: Choice,
        prepared: "PreparedTable",
        seed: int,
    ) -> Run:
        utility = prepared.test_utility
        assert isinstance(utility, TableUtility)
        of_models = [Predictions(*each) for each in predictions]
        scored = tuple(item for each in of_models for item in score(each, prepared.test_labels, utility))
        formulas = prepared.utility if isinstance(prepared.utility, FormulaUtility) else None
        return Run(
            **shared,
            utility=utility,
            scored=scored,
            comparison=compare(scored, choice, seed, prepared.test_groups, prepared.test_times),
            formulas=formulas,
        )


def _of_classes(utility: Utility) -> TableUtility | FormulaUtility:
    if not isinstance(utility, TableUtility | FormulaUtility):
        raise StakesError(
            "expected costs of named outcomes, but got costs of outcomes that are numbers: for a target that is a "
            "number, use --under and --over, or a file of cost curves"
        )
    return utility
