"""Tables whose outcome is a number: decisions are numbers, or actions of a menu with a cost curve each."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from stakes.decisions import Decisions, decide
from stakes.errors import StakesError, typed
from stakes.evaluation.amounts import AmountPredictions, compare, score
from stakes.evaluation.comparison import Choice
from stakes.mixtures import Quantiles
from stakes.tables.amounts.mix import HeldOutAmounts
from stakes.tables.amounts.models import AMOUNT_MODELS, USUAL
from stakes.tables.amounts.run import AmountRun
from stakes.tables.formats import number_format
from stakes.tables.kind import Kind, ModelPredictions
from stakes.tables.number_format import NumberFormat
from stakes.tables.problem import Recipe
from stakes.tables.split import IntArray
from stakes.tables.values import holds_numbers, numbers, row_number
from stakes.utility import NumberUtility, PricedNewsvendor, Utility
from stakes.utility.priced import newsvendor

if TYPE_CHECKING:
    from stakes.tables.prepare import PreparedTable
    from stakes.tables.task import TableTask

FEW_ROWS = 30
STRATA = 5  # of about as many rows, by the amounts, which every fold has its share of
LEAK = 0.999  # the correlation of ranks, beyond which a column gives the outcome away


class Amounts(Kind):
    """The outcome is a number."""

    catalogue, held_out = AMOUNT_MODELS, HeldOutAmounts

    def usual(self, recipe: Recipe) -> tuple[str, ...]:
        return USUAL

    def check(self, task: "TableTask") -> None:
        if task.costs is None and (task.under is None or task.over is None):
            given, other = ("under", "over") if task.over is None else ("over", "under")
            raise StakesError(
                f"expected --under and --over together, the costs of each unit too few and too many, but got only "
                f"--{given}; add --{other}, which may be 0"
            )
        bounds = [name for name in ("step", "at_least", "at_most") if getattr(task, name) is not None]
        if task.costs is not None and bounds:
            raise StakesError(
                f"--{bounds[0].replace('_', '-')} is for decisions that are numbers, but those of {task.costs} are "
                "actions; leave it out"
            )
        if task.renames:
            raise StakesError("--labels names classes, but the outcome is a number, with --under and --over")
        if task.recipe.noise is not None:
            raise StakesError("--label-noise is for classes, but the outcome is a number: use --likelihood student_t")
        if task.lags and task.time is None:
            raise StakesError("--lags: expected --time, the column that says what is earlier")
        if task.series is not None and not task.lags:
            raise StakesError("--series says within which rows --lags looks back: give --lags, or leave it out")
        self.read_utility(task)

    def read_utility(self, task: "TableTask") -> Utility:
        if task.costs is not None:
            return Utility.from_csv(task.costs, unit=task.unit)
        assert task.under is not None
        assert task.over is not None
        bounds = {name: getattr(task, name) for name in ("at_least", "at_most") if getattr(task, name) is not None}
        return newsvendor(task.under, task.over, unit=task.unit or "", step=task.step, **bounds)

    def target_format(self, target: "pd.Series[Any]", decimal: str) -> NumberFormat | None:
        with _naming_the_alternative(target):
            return number_format(target, decimal)

    def labels(
        self, values: "pd.Series[Any]", task: "TableTask", utility: Utility, *, first: bool
    ) -> NDArray[np.float64]:
        with _naming_the_alternative(values):
            amounts = numbers(values)
        bad = ~np.isfinite(amounts)
        if bad.any():
            raise StakesError(
                f"column {task.target!r}: expected a finite number in every row, but {int(bad.sum())} of {len(bad)} "
                f"have none, first in row {row_number(values.index, int(np.argmax(bad)))}; fill them in, or drop those "
                "rows"
            )
        if task.recipe.likelihood == "log_normal" and (amounts <= 0).any():
            row = int(np.argmax(amounts <= 0))
            raise StakesError(
                f"column {task.target!r}: expected amounts above 0 with --likelihood log_normal, but row "
                f"{row_number(values.index, row)} has {amounts[row]:g}; use gaussian or student_t"
            )
        return amounts

    def check_labels(self, labels: NDArray[Any], utility: Utility, name: str) -> None:
        if len(labels) and labels.min() == labels.max():
            raise StakesError(
                f"column {name!r}: expected amounts that differ, but every row has {labels[0]:g}; there is nothing to "
                "decide, so check the column and the rows"
            )

    def strata(self, labels: NDArray[Any]) -> IntArray:
        edges = np.quantile(labels, np.arange(1, STRATA) / STRATA)
        return np.searchsorted(np.unique(edges), labels).astype(np.int64)

    def leaks(self, features: pd.DataFrame, labels: NDArray[Any], utility: Utility) -> list[str]:
        amounts = pd.Series(labels).rank()
        messages = []
        for name in features.columns:
            if not holds_numbers(features[name]) or features[name].nunique() < 2:
                continue
            ranks = pd.Series(numbers(features[name])).rank()
            if abs(ranks.corr(amounts)) > LEAK:
                messages.append(
                    f"column {name!r} gives the outcome away (the two have the same order), which is suspicious: "
                    f"if it is not known when a decision is taken, drop it with {typed('--drop', name)}"
                )
        return messages

    def few_rows_warning(self, labels: NDArray[Any], utility: Utility) -> str | None:
        if len(labels) >= FEW_ROWS:
            return None
        return f"there are only {len(labels)} test rows: results are uncertain"

    def decide(self, predictions: Tensor, utility: Utility) -> Decisions:
        return decide(Quantiles(predictions), utility)

    def run(
        self,
        shared: Mapping[str, Any],
        predictions: Sequence[ModelPredictions],
        choice: Choice,
        prepared: "PreparedTable",
        seed: int,
    ) -> AmountRun:
        utility, times = prepared.test_utility, prepared.test_times
        assert isinstance(utility, NumberUtility)
        of_models = [
            AmountPredictions(model, model_seed, q, -worth, notes) for model, model_seed, q, worth, notes in predictions
        ]
        scored = tuple(score(each, prepared.test_labels, utility) for each in of_models)
        return AmountRun(
            **shared,
            utility=utility,
            scored=scored,
            comparison=compare(scored, choice, seed, times, prepared.test_groups),
            formulas=prepared.utility if isinstance(prepared.utility, PricedNewsvendor) else None,
            time_texts=prepared.test_texts.get(shared["settings"]["time"] or ""),
        )


@contextmanager
def _naming_the_alternative(target: "pd.Series[Any]") -> Iterator[None]:
    """Say of a target that is no number that there are tables of costs for classes."""
    try:
        yield
    except StakesError as error:
        if holds_numbers(target):
            raise
        raise StakesError(
            f"{error}; --under, --over and cost curves are for a target that is a number, a table of costs is for "
            "classes"
        ) from None
