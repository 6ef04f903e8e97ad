"""Costs that depend on the row: a table whose cells are formulas over columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Self, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stakes.errors import StakesError, listing
from stakes.outcomes import Outcomes
from stakes.utility.base import Given, Utility, utilities
from stakes.utility.formula import Formula, parse_cell
from stakes.utility.table import FormulaCells, TableUtility, aligned, named_cells, outcome_order


class RowUtility(Utility):
    """Base of utilities that depend on the columns of a row: only `for_rows` works, everything else raises."""

    per_example = True

    def expected(self, outcomes: Outcomes) -> Tensor:
        self._refuse()

    def realised(self, choice: Tensor | ArrayLike, outcome: Tensor | ArrayLike) -> NDArray[np.float64]:
        self._refuse()

    @property
    def span(self) -> float:
        self._refuse()

    def bounded(self, margin: float) -> Self:
        self._refuse()

    def require_examples(self, count: int) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StakesError(
            f"the costs depend on the columns {listing(self.columns)} of each row: give them to `for_rows`, and use "
            "the utility that it returns for these rows"
        )


@utilities.register("formulas")
@dataclass(frozen=True)
class FormulaUtility(RowUtility):
    """What each decision costs under each outcome, as formulas over the columns of a row: ``best - cost / scale``.

    >>> costs = {"lend": {"repaid": 0, "lost": "=0.6 * amount"}, "refuse": {"repaid": "=0.1 * amount + 20", "lost": 0}}
    >>> utility = Utility.from_costs(costs, unit="£")
    >>> utility.columns, utility.for_rows({"amount": [100, 1000]}).costs.tolist()
    (('amount',), [[[0.0, 60.0], [30.0, 0.0]], [[0.0, 600.0], [120.0, 0.0]]])

    It cannot be evaluated directly: call `for_rows` with the columns of some rows, and use the utility it returns.
    """

    cells: tuple[tuple[str, ...], ...]  # (D, C) of numbers, and formulas that begin with =
    decisions: tuple[str, ...]
    outcomes: tuple[str, ...]
    unit: str = ""
    best: float = 0.0
    scale: float = 1.0
    given: Given = "cost"
    _formulas: tuple[tuple[Formula, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", tuple(tuple(str(cell) for cell in row) for row in self.cells))
        object.__setattr__(self, "decisions", tuple(map(str, self.decisions)))
        object.__setattr__(self, "outcomes", tuple(map(str, self.outcomes)))
        shape = (len(self.decisions), len(self.outcomes))
        if len(self.cells) != shape[0] or any(len(row) != shape[1] for row in self.cells):
            raise StakesError(f"expected cells for {shape[0]} decisions x {shape[1]} outcomes, but got another number")
        formulas = tuple(
            tuple(parse_cell(cell, name, outcome) for outcome, cell in zip(self.outcomes, row, strict=True))
            for name, row in zip(self.decisions, self.cells, strict=True)
        )
        object.__setattr__(self, "_formulas", formulas)
        if not self.columns:
            raise StakesError("expected a formula with a column in some cell, but got none: use Utility.from_costs")
        # Names and numbers have to be as those of any table.
        constants = np.array([[cell.constant for cell in row] for row in formulas])
        TableUtility(constants, self.decisions, self.outcomes, given=self.given)

    @classmethod
    def from_cells(
        cls, costs: FormulaCells, decisions: Sequence[str] | None, outcomes: Sequence[str] | None, **settings: Any
    ) -> Self:
        """From numbers and formulas by decision and outcome."""
        cells, rows, columns = named_cells(costs, decisions, outcomes)
        texts = tuple(
            tuple(cell if isinstance(cell, str) else str(cell).removesuffix(".0") for cell in row) for row in cells
        )
        return cls(texts, tuple(rows), tuple(columns), **settings)

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        names = [name for row in self._formulas for cell in row for name in cell.columns]
        return tuple(dict.fromkeys(names))

    def for_rows(  # type: ignore[override]
        self, columns: Mapping[str, ArrayLike], numbers: Sequence[int] | None = None
    ) -> TableUtility:
        """The table of each row. ``columns`` is a data frame, or anything with columns by name.

        ``numbers`` are those of the rows in messages; without them, the first one is 1.
        """
        column_values = numeric_columns(columns, self.columns)
        count = len(next(iter(column_values.values())))
        costs = np.empty((count, len(self.decisions), len(self.outcomes)))
        for row, formulas in enumerate(self._formulas):
            for column, formula in enumerate(formulas):
                costs[:, row, column] = values_by_row(formula, column_values, numbers)
        return TableUtility.of_costs(
            costs, self.decisions, self.outcomes, self.best, self.scale, unit=self.unit, given=self.given
        )

    def with_outcomes(self, names: Sequence[str]) -> Self:
        """The same formulas with the same outcomes in the order of ``names``."""
        columns = outcome_order(self.outcomes, names)
        cells = tuple(tuple(row[column] for column in columns) for row in self.cells)
        return replace(self, cells=cells, outcomes=tuple(names))

    def to_dict(self) -> dict[str, Any]:
        names = ("decisions", "outcomes")
        plain = {key: getattr(self, key) for key in ("unit", "best", "scale")}
        plain |= {"given": self.given} if self.given != "cost" else {}
        cells = [list(row) for row in self.cells]
        return {"kind": "formulas", "cells": cells, **{key: list(getattr(self, key)) for key in names}, **plain}

    def __str__(self) -> str:
        return aligned(self.cells, self.decisions, self.outcomes)


def numeric_columns(columns: Mapping[str, ArrayLike], names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """The columns that costs depend on, as numbers, all of one length."""
    absent = [name for name in names if name not in columns]
    if absent:
        raise StakesError(
            f"expected the columns {listing(absent)}, which the costs depend on, but the table has "
            f"{listing(columns)}; add them, or correct the formulas"
        )
    column_values: dict[str, NDArray[np.float64]] = {}
    for name in names:
        try:
            column_values[name] = np.atleast_1d(np.asarray(columns[name], dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise StakesError(
                f"expected numbers in column {name!r}, which the costs depend on, but got something else ({error})"
            ) from None
        if column_values[name].ndim != 1:
            raise StakesError(
                f"expected a number in every row of column {name!r}, but got {column_values[name].ndim} axes"
            )
        count = len(next(iter(column_values.values())))
        if len(column_values[name]) != count:
            raise StakesError(
                f"expected columns of one length, but {name!r} has {len(column_values[name])} rows, not {count}"
            )
    return column_values


def values_by_row(
    formula: Formula, column_values: Mapping[str, NDArray[np.float64]], numbers: Sequence[int] | None
) -> NDArray[np.float64]:
    """The formula's value in every row; raises with the row number if one is not finite."""
    for name in formula.columns:
        refuse_rows(
            column_values[name],
            ~np.isfinite(column_values[name]),
            f"a number in column {name!r}, which the costs depend on,",
            numbers,
        )
    count = len(next(iter(column_values.values())))
    values = np.broadcast_to(formula(column_values), count)
    refuse_rows(values, ~np.isfinite(values), f"a finite cost from {formula.text!r},", numbers)
    return values


def refuse_rows(
    values: NDArray[np.float64], bad: NDArray[np.bool_], expected: str, numbers: Sequence[int] | None
) -> None:
    """An error that names the first of the bad rows, if there are any."""
    if bad.any():
        first = int(np.argmax(bad))
        row = first + 1 if numbers is None else numbers[first]
        value = "none" if np.isnan(values[first]) else f"{values[first]:.15g}"
        raise StakesError(
            f"expected {expected} but row {row} has {value} ({int(bad.sum()):,} of {len(values):,} rows); fill in the "
            "number, or leave those rows out"
        )


def has_formulas(cells: object) -> TypeGuard[FormulaCells]:
    """Whether some cell of a nested mapping is a formula with columns; one without is a number."""
    if not isinstance(cells, Mapping):
        return False
    texts = ((name, *cell) for name, row in cells.items() if isinstance(row, Mapping) for cell in row.items())
    return any(parse_cell(cell, name, outcome).columns for name, outcome, cell in texts if isinstance(cell, str))


def negated(cells: FormulaCells) -> FormulaCells:
    """Utilities as costs."""
    return {
        name: {outcome: f"=-({str(cell).removeprefix('=')})" for outcome, cell in row.items()}
        for name, row in cells.items()
    }
