"""Costs of too few and of too many that depend on the row: formulas over its columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from stakes.errors import StakesError
from stakes.utility.amounts import Range
from stakes.utility.base import utilities
from stakes.utility.by_row import RowUtility, numeric_columns, refuse_rows, values_by_row
from stakes.utility.continuous import Newsvendor
from stakes.utility.formula import Formula


@utilities.register("priced_newsvendor")
@dataclass(frozen=True)
class PricedNewsvendor(RowUtility):
    """A `Newsvendor` whose costs are formulas over the columns of a row.

    >>> utility = PricedNewsvendor("=price - purchase", "=purchase", unit="€")
    >>> utility.for_rows({"price": [20, 30], "purchase": [5, 10]}).share.tolist()
    [0.75, 0.6666666666666666]

    It cannot be evaluated directly: call `for_rows` with the columns of some rows, and use the utility it returns.
    """

    under: str
    over: str
    unit: str = ""
    best: float = 0.0
    at_least: float = -math.inf
    at_most: float = math.inf
    step: float | None = None
    decisions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise StakesError("expected a formula with a column, but got none: use Newsvendor")
        self.range  # noqa: B018 (validates the bounds)

    @property
    def range(self) -> Range:
        return Range(self.at_least, self.at_most, self.step)

    @property
    def _formulas(self) -> dict[str, Formula]:
        return {name: Formula.parse(getattr(self, name)) for name in ("under", "over")}

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(name for formula in self._formulas.values() for name in formula.columns))

    def for_rows(  # type: ignore[override]
        self, columns: Mapping[str, ArrayLike], numbers: Sequence[int] | None = None
    ) -> Newsvendor:
        """The costs of each row; ``numbers`` are those of the rows in messages."""
        column_values = numeric_columns(columns, self.columns)
        costs = {name: values_by_row(formula, column_values, numbers) for name, formula in self._formulas.items()}
        for name, values in costs.items():
            refuse_rows(values, values < 0, f"costs of 0 or more for {name}, {self._formulas[name]},", numbers)
        both = costs["under"] + costs["over"]
        refuse_rows(both, both <= 0, "a cost above 0 of too few or of too many", numbers)
        under, over = costs["under"], costs["over"]
        return Newsvendor(under, over, unit=self.unit, best=self.best, **self.range.to_dict())

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("under", "over", "unit", "best")}
        return {"kind": "priced_newsvendor", **plain, **self.range.to_dict()}


def newsvendor(
    under: str,
    over: str,
    *,
    unit: str = "",
    at_least: float = -math.inf,
    at_most: float = math.inf,
    step: float | None = None,
) -> Newsvendor | PricedNewsvendor:
    """From texts: a number, the name of a column, or a formula, ``=0.4 * price + 2``."""
    short, left = _parsed("under", under), _parsed("over", over)
    for name, formula, what in (("under", short, "few"), ("over", left, "many")):
        if not formula.columns and not 0 <= formula.constant < math.inf:
            raise StakesError(
                f"--{name}: expected a cost of 0 or more of each unit too {what}, but got {formula.constant:g}; give "
                "what it costs, without a sign"
            )
    bounds = Range(at_least, at_most, step).to_dict()
    if short.columns or left.columns:
        return PricedNewsvendor(short.text, left.text, unit=unit, **bounds)
    return Newsvendor(short.constant, left.constant, unit=unit, **bounds)


def _parsed(name: str, text: str) -> Formula:
    try:
        return Formula.parse(text)
    except StakesError:
        if text.strip().startswith("="):
            raise
    try:
        return Formula.parse(f"={text}")  # the name of a column
    except StakesError as error:
        raise StakesError(f"--{name}: {error}") from None
