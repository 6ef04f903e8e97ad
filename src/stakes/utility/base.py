"""The contract of a utility: what a decision is worth, whatever decisions and outcomes are."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stakes.errors import StakesError, listing
from stakes.outcomes import Outcomes
from stakes.registry import Registry

if TYPE_CHECKING:
    from stakes.utility.amounts import Range
    from stakes.utility.by_row import FormulaUtility
    from stakes.utility.curves import CurveUtility, Points
    from stakes.utility.function import FunctionMenu, FunctionUtility
    from stakes.utility.table import FormulaCells, Table, TableUtility

Given = Literal["cost", "utility"]
utilities: Registry["Utility"] = Registry("utility")

ROUNDING = 1e-5  # of the span: sums of probabilities in single precision are exacter


class Utility(ABC):
    """What each decision is worth under each outcome; higher is better.

    >>> utility = Utility.from_costs(
    ...     {"treat": {"ill": 0, "well": 40}, "send home": {"ill": 500, "well": 0}}, unit="£"
    ... )

    A cost and a utility are two faces of one number, ``utility = best - cost / scale``: ``best`` is the utility of a
    cost of nothing, ``scale`` the cost of one unit of utility. Costs are in ``unit``.
    """

    decisions: tuple[str, ...]
    unit: str = ""
    best: float = 0.0
    scale: float = 1.0
    per_example: bool = False  # whether each example has its own utility
    given: Given = "cost"  # whether the user stated costs or utilities; reports use the same
    columns: tuple[str, ...] = ()  # table columns that the costs depend on: see `for_rows`

    # Tables over named outcomes: see `TableUtility` ---------------------------------------------------

    @overload
    @staticmethod
    def from_costs(
        costs: "Table",
        decisions: Sequence[str] | None = None,
        outcomes: Sequence[str] | None = None,
        *,
        unit: str = "",
        best: float = 0.0,
        scale: float = 1.0,
    ) -> "TableUtility": ...

    @overload
    @staticmethod
    def from_costs(
        costs: "FormulaCells",
        decisions: Sequence[str] | None = None,
        outcomes: Sequence[str] | None = None,
        *,
        unit: str = "",
        best: float = 0.0,
        scale: float = 1.0,
    ) -> "TableUtility | FormulaUtility": ...

    @staticmethod
    def from_costs(
        costs: "Table | FormulaCells",
        decisions: Sequence[str] | None = None,
        outcomes: Sequence[str] | None = None,
        *,
        unit: str = "",
        best: float = 0.0,
        scale: float = 1.0,
    ) -> "TableUtility | FormulaUtility":
        """From what a decision costs under an outcome, in any unit: ``utility = best - cost / scale``.

        A cell of a nested mapping may be a formula over columns, ``"=0.45 * amount + 20"``: see `FormulaUtility`.
        """
        from stakes.utility.by_row import FormulaUtility, has_formulas
        from stakes.utility.table import TableUtility, with_names

        if not scale > 0:
            raise StakesError(f"expected a scale above 0, the cost of one unit of utility, but got {scale}")
        if has_formulas(costs):
            return FormulaUtility.from_cells(costs, decisions, outcomes, unit=unit, best=best, scale=scale)
        table, decisions, outcomes = with_names(costs, decisions, outcomes)
        return TableUtility.of_costs(table, decisions, outcomes, best, scale, unit=unit).with_warnings()

    @staticmethod
    def from_matrix(
        values: "Table | FormulaCells",
        decisions: Sequence[str] | None = None,
        outcomes: Sequence[str] | None = None,
        *,
        unit: str = "",
    ) -> "TableUtility":
        """From utilities, higher is better. A cost is then the distance to the best cell."""
        from stakes.utility.table import TableUtility, with_names

        table, decisions, outcomes = with_names(values, decisions, outcomes)
        best = float(table.max()) if table.size else 0.0
        return TableUtility(table, decisions, outcomes, unit, best, given="utility").with_warnings()

    @staticmethod
    def from_csv(
        path: str | PathLike[str], *, unit: str | None = None
    ) -> "TableUtility | FormulaUtility | CurveUtility":
        """From a file in one of the forms of `stakes.utility.csv`; ``unit`` overrides the one it states.

        Formulas over columns give a `FormulaUtility`; for utility formulas the cost is the negated utility. Cost curves
        give a `CurveUtility`.
        """
        from stakes.utility.by_row import has_formulas, negated
        from stakes.utility.csv import holds_curves, read_cost_file, read_curve_file

        try:
            if holds_curves(path):
                stated_unit, curves = read_curve_file(path)
                return Utility.from_curves(curves, unit=stated_unit if unit is None else unit)
            kind, stated_unit, cells = read_cost_file(path)
            unit = stated_unit if unit is None else unit
            if kind == "cost":
                return Utility.from_costs(cells, unit=unit)
            if has_formulas(cells):
                return replace(Utility.from_costs(negated(cells), unit=unit), given="utility")
            return Utility.from_matrix(cells, unit=unit)
        except StakesError as error:
            raise StakesError(f"{path}: {error}") from None

    @staticmethod
    def diagonal(names: Sequence[str], right: float = 1.0, wrong: float = 0.0) -> "TableUtility":
        """Decisions are the outcomes' names; ``right`` where they agree, ``wrong`` elsewhere."""
        from stakes.utility.table import TableUtility

        table = np.where(np.eye(len(names), dtype=bool), right, wrong)
        return TableUtility(table, tuple(names), tuple(names), best=max(right, wrong), given="utility")

    @staticmethod
    def for_labels(tables: Sequence["TableUtility"]) -> "TableUtility":
        """A table for each of L labels that are decided on side by side, ``(B, L, ...)``: see `Bernoulli`.

        Each label is a decision problem of its own, also in training; the costs of all are in one unit.
        """
        from stakes.utility.table import TableUtility

        shared = ("decisions", "outcomes", "unit", "best", "scale")
        for number, table in enumerate(tables):
            if not isinstance(table, TableUtility) or table.values.ndim != 2:
                raise StakesError(f"expected one table of utilities for each label, but number {number} is not one")
            differ = [name for name in shared if getattr(table, name) != getattr(tables[0], name)]
            if differ:
                raise StakesError(
                    f"expected the same {listing(shared)} for every label, but number {number} has another "
                    f"{listing(differ)}: make all of them with Utility.from_costs and the same settings"
                )
        if not tables:
            raise StakesError("expected a table of utilities for each label, but got none")
        return replace(tables[0], values=np.stack([table.values for table in tables]), per_label=True)

    # Outcomes that are numbers: see also `Newsvendor`, `Squared` and `Linex` ---------------------------------

    @staticmethod
    def from_function(
        cost: Callable[[Any, Tensor], Tensor], decisions: "Range | Sequence[str]", *, unit: str = ""
    ) -> "FunctionUtility | FunctionMenu":
        """From a function of tensors, ``cost(decision, outcome)``, for outcomes that are numbers.

        ``decisions`` are numbers in a `Range`, and the function gets a tensor of them that broadcasts with the
        outcomes; or names, and it gets one name at a time. It cannot be saved: see `from_curves`.

        Expectations are sums over the atoms of the outcomes. Under a likelihood these are a quarter of a standard
        deviation apart, in each draw: of a cost with a kink that is right to about 0.5 %; a jump is seen to within
        that distance, and has no gradient, so jumps belong into `from_curves`, which is exact.
        """
        from stakes.utility.amounts import Range
        from stakes.utility.function import FunctionMenu, FunctionUtility

        if isinstance(decisions, Range):
            return FunctionUtility(cost, **asdict(decisions), unit=unit)
        return FunctionMenu(cost, tuple(decisions), unit=unit)

    @staticmethod
    def from_curves(curves: "Mapping[str, float | Points]", *, unit: str = "") -> "CurveUtility":
        """From a cost curve for each named decision, over outcomes that are numbers.

        A curve is a number, or points ``(outcome, cost)``, joined by straight lines, with a jump where an outcome is
        given twice, and constant before the first and after the last.

        >>> Utility.from_curves({"service now": 400, "run on": [(0, 2000), (30, 2000), (30, 0)]}, unit="€").decisions
        ('service now', 'run on')
        """
        from stakes.utility.curves import CurveUtility

        return CurveUtility(curves, unit=unit)

    # What every kind answers -------------------------------------------------------------------------

    @abstractmethod
    def expected(self, outcomes: Outcomes) -> Tensor:
        """``(..., K) -> (..., D)``: the expected utility of every decision."""

    def best_choice(self, outcomes: Outcomes) -> Tensor:
        """``(..., K) -> (...)``: the decision with the highest expected utility, an integer into ``decisions``, or a
        number where decisions are numbers.
        """
        return self.expected(outcomes).argmax(-1)

    def expected_of(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        """``(S, B, ..., K), (B, ...) -> (S, B, ...)``: the expected utility of one decision for each input."""
        values = self.expected(outcomes)
        return values.gather(-1, choice.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def advantage(self, outcomes: Outcomes, choice: Tensor, rival: Tensor) -> Tensor:
        """``(S, B, ...)``: how much more the choice is expected to be worth than its rival, draw by draw."""
        return self.expected_of(outcomes, choice) - self.expected_of(outcomes, rival)

    def least_advantages(self, choice: Tensor, like: Tensor) -> Tensor:
        """``(B, ..., D)``: a lower bound of the `advantage` over each decision, whatever the outcomes; in the precision
        of ``like``.
        """
        return like.new_full((*choice.shape, len(self.decisions)), -self.span)

    def is_certain(self, outcomes: Outcomes, share: float) -> Tensor:
        """``(B, ..., K) -> (B, ...)``: whether the best decision under ``outcomes``, a mixture of this ``share`` of all
        draws, is the best under all of them, whatever the other draws say.
        """
        values = self.expected(outcomes)  # (B, ..., D)
        best = values.argmax(-1, keepdim=True)
        lead = values.gather(-1, best) - values
        least = self.least_advantages(best.squeeze(-1), values)
        turned = share * lead + (1 - share) * least <= ROUNDING * self.span
        return ~turned.scatter(-1, best, False).any(-1)

    def log_gain(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        """The logarithm of `expected_of`, for training: of the utility that `bounded` returns."""
        return self.expected_of(outcomes, choice).log()

    def foreseen(self, outcomes: Outcomes) -> Tensor:
        """``(..., K) -> (...)``: the expected utility of deciding with the outcome known."""
        raise StakesError(f"what foresight is worth is not known of a {type(self).__name__}: define `foreseen`")

    def mean_cost(self, choice: Tensor | ArrayLike, outcome: Tensor | ArrayLike) -> float:
        """What decisions ``(B, ...)`` cost on average under the outcomes that followed."""
        return float(np.mean(self.cost_of(self.realised(choice, outcome))))

    @abstractmethod
    def realised(self, choice: Tensor | ArrayLike, outcome: Tensor | ArrayLike) -> NDArray[np.float64]:
        """``(B, ...), (B, ...) -> (B, ...)``: what each decision turned out to be worth."""

    @property
    @abstractmethod
    def span(self) -> float:
        """The distance from the worst to the best that can happen: the scale of a margin."""

    @abstractmethod
    def bounded(self, margin: float) -> Self:
        """The utility that training takes the `log_gain` of: positive, and without what no decision can change.

        That is the regret ``u(h, c) - max_h u(h, c)``, shifted so that its worst is ``margin``, a share of its span.
        The same decisions are best, for the maximum depends on the outcome alone; but a gain with it in it would
        reward a network for wishing outcomes away that are dear whatever is decided.
        """

    @property
    def cost_limits(self) -> tuple[float, float] | None:
        """The lowest and highest cost of any decision under any outcome; None if there is no bound."""
        return None

    def rows(self, index: Any) -> Self:
        """The utility of these examples; itself, if it is one for all examples."""
        return self

    def for_rows(self, columns: Mapping[str, ArrayLike], numbers: Sequence[int] | None = None) -> Self:
        """The utility of the rows of a table; itself, if it does not depend on its columns."""
        return self

    def stated(self, utility: Any) -> Any:
        """A utility (a number or an array) as the user states such amounts: as a cost, or as it is."""
        return self.cost_of(utility) if self.given == "cost" else utility

    def require_examples(self, count: int) -> None:  # noqa: B027 (most have none)
        """Raise unless the utility has ``count`` examples; a utility that all examples share accepts any count."""

    def cost_of(self, utility: Any) -> Any:
        """The cost, in ``unit``, that a utility (a number or an array) stands for."""
        return (self.best - utility) * self.scale

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Its settings in JSON types, with its kind; `from_dict` builds it again."""

    def digest(self) -> str:
        """A short text by which a checkpoint tells it from others."""
        try:
            return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]
        except StakesError:  # of a function, which cannot be told from another one
            return type(self).__name__

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> "Utility":
        settings = dict(fields)
        kind = settings.pop("kind", "table")
        try:
            return utilities[kind](**settings)
        except (TypeError, ValueError) as error:
            if isinstance(error, StakesError):
                raise
            raise StakesError(f"expected the fields of a utility, but got {sorted(fields)} ({error})") from None
