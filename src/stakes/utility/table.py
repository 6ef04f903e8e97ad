"""Utility: what each decision is worth under each outcome."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from stakes.errors import StakesError, StakesWarning, listing
from stakes.utility.checks import table_concerns
from stakes.utility.csv import read_cost_file, refuse_repeats

Table = ArrayLike | Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class Utility:
    """A frozen, named and validated table, decisions x outcomes; higher is better.

    >>> utility = Utility.from_costs(
    ...     {"treat": {"ill": 0, "well": 40}, "send home": {"ill": 500, "well": 0}}, unit="£"
    ... )
    >>> utility.costs
    array([[  0.,  40.],
           [500.,   0.]])

    ``values`` is ``(D, C)``, or ``(B, D, C)`` with a table per example. A cost and a utility are two
    faces of one number, ``utility = best - cost / scale``: ``best`` is the utility of a cost of
    nothing, ``scale`` the cost of one unit of utility. Costs are in ``unit``.
    """

    values: NDArray[np.float64]
    decisions: tuple[str, ...]
    outcomes: tuple[str, ...]
    unit: str = ""
    best: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        values.setflags(write=False)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "decisions", tuple(map(str, self.decisions)))
        object.__setattr__(self, "outcomes", tuple(map(str, self.outcomes)))
        self._validate()

    # Ways to make one ------------------------------------------------------------------------------

    @classmethod
    def from_costs(
        cls,
        costs: Table,
        decisions: Sequence[str] | None = None,
        outcomes: Sequence[str] | None = None,
        *,
        unit: str = "",
        best: float = 0.0,
        scale: float = 1.0,
    ) -> Self:
        """From what a decision costs under an outcome, in any unit: ``utility = best - cost / scale``."""
        if not scale > 0:
            raise StakesError(f"expected a scale above 0, the cost of one unit of utility, but got {scale}")
        table, decisions, outcomes = _named(costs, decisions, outcomes)
        return cls(best - table / scale, tuple(decisions), tuple(outcomes), unit, best, scale)._warned()

    @classmethod
    def from_matrix(
        cls,
        values: Table,
        decisions: Sequence[str] | None = None,
        outcomes: Sequence[str] | None = None,
        *,
        unit: str = "",
    ) -> Self:
        """From utilities, higher is better. A cost is then the distance to the best cell."""
        table, decisions, outcomes = _named(values, decisions, outcomes)
        best = float(table.max()) if table.size else 0.0
        return cls(table, tuple(decisions), tuple(outcomes), unit, best)._warned()

    @classmethod
    def from_csv(cls, path: str | PathLike[str], *, unit: str | None = None) -> Self:
        """From a file in one of the forms of `stakes.utility.csv`; ``unit`` overrides the one it states."""
        try:
            kind, stated_unit, cells = read_cost_file(path)
            build = cls.from_costs if kind == "cost" else cls.from_matrix
            return build(cells, unit=stated_unit if unit is None else unit)
        except StakesError as error:
            raise StakesError(f"{path}: {error}") from None

    @classmethod
    def diagonal(cls, names: Sequence[str], right: float = 1.0, wrong: float = 0.0) -> Self:
        """Decisions are the outcomes' names; ``right`` where they agree, ``wrong`` elsewhere."""
        table = np.where(np.eye(len(names), dtype=bool), right, wrong)
        return cls(table, tuple(names), tuple(names), best=max(right, wrong))

    def with_row(self, decision: str, wrong: float) -> Self:
        """The same table, but ``decision`` is worth ``wrong`` under every outcome it does not name."""
        others = np.array([outcome != decision for outcome in self.outcomes])
        return self._edited(self._decision(decision), others, wrong)

    def with_cell(self, decision: str, outcome: str, value: float) -> Self:
        """The same table, but for one cell."""
        return self._edited(self._decision(decision), self._outcome(outcome), value)

    # What it says ----------------------------------------------------------------------------------

    @property
    def costs(self) -> NDArray[np.float64]:
        """The same table as costs in ``unit``."""
        return np.asarray(self.cost_of(self.values))

    def cost_of(self, utility: Any) -> Any:
        """The cost, in ``unit``, that a utility (a number or an array) stands for."""
        return (self.best - utility) * self.scale

    @property
    def span(self) -> float:
        """The distance from the worst to the best cell; 1 for a constant table, which has none."""
        return float(np.ptp(self.values)) or 1.0

    @property
    def best_response(self) -> NDArray[np.int64]:
        """(C,) the decision for an outcome known for certain: the one of its name, else the best one."""
        self._require_one_table("best_response")
        index = {name: row for row, name in enumerate(self.decisions)}
        best = self.values.argmax(0)
        return np.array([index.get(name, best[column]) for column, name in enumerate(self.outcomes)])

    def bounded(self, margin: float) -> Self:
        """``u - min(u) + margin``: the strictly positive table that the calibrated bound needs.

        Decisions do not change, and neither do the costs the table stands for. The logarithm of the
        gain does: the smaller the margin, the harder the worst cell is punished.
        """
        if not (margin > 0 and np.isfinite(margin)):
            raise StakesError(f"expected a margin above 0, but got {margin}")
        shift = margin - float(self.values.min())
        return replace(self, values=self.values + shift, best=self.best + shift)

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        """The values, on the device and in the precision of ``like``."""
        return torch.tensor(self.values, dtype=like.dtype, device=like.device)

    def rows(self, index: Any) -> Self:
        """The tables of these examples; itself, if there is one table for all examples."""
        return self if self.values.ndim == 2 else replace(self, values=self.values[index])

    def concerns(self) -> list[str]:
        """What is probably a mistake in the table, in words; empty for a per-example table."""
        return table_concerns(self.values, self.decisions, self.outcomes) if self.values.ndim == 2 else []

    def to_dict(self) -> dict[str, Any]:
        return {
            "values": self.values.tolist(),
            "decisions": list(self.decisions),
            "outcomes": list(self.outcomes),
            "unit": self.unit,
            "best": self.best,
            "scale": self.scale,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        try:
            return cls(**fields)
        except (TypeError, ValueError) as error:
            raise StakesError(f"expected the fields of a utility, but got {sorted(fields)} ({error})") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Utility) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.values.tobytes(), self.decisions, self.outcomes, self.unit, self.best, self.scale))

    def __str__(self) -> str:
        return self.format(self.values)

    def format(self, table: NDArray[np.float64]) -> str:
        """Any table over the same decisions and outcomes (the values, the costs, counts) as text."""
        if table.ndim != 2:
            return f"{table.shape[0]} tables of {table.shape[1]} decisions x {table.shape[2]} outcomes"
        body = [["", *self.outcomes]]
        body += [[name, *(f"{cell:.6g}" for cell in row)] for name, row in zip(self.decisions, table, strict=True)]
        widths = [max(map(len, column)) for column in zip(*body, strict=True)]
        lines = [
            [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))] for row in body
        ]
        return "\n".join("  ".join(cells).rstrip() for cells in lines)

    # Within ----------------------------------------------------------------------------------------

    def _validate(self) -> None:
        expected = (len(self.decisions), len(self.outcomes))
        if self.values.ndim not in (2, 3) or self.values.shape[-2:] != expected:
            raise StakesError(
                f"expected a table of {expected[0]} decisions x {expected[1]} outcomes (or one per example), "
                f"but got the shape {self.values.shape}"
            )
        if 0 in self.values.shape:
            raise StakesError("expected at least one decision and one outcome, but the table is empty")
        for kind, names in (("decision", self.decisions), ("outcome", self.outcomes)):
            refuse_repeats(names, kind)
            if not all(name.strip() for name in names):
                raise StakesError(f"expected a name for every {kind}, but got an empty one")
        bad = np.argwhere(~np.isfinite(self.values))
        if len(bad):
            row, column = bad[0][-2:]
            raise StakesError(
                f"expected finite numbers, but got {self.values[tuple(bad[0])]} for decision "
                f"{self.decisions[row]!r} under outcome {self.outcomes[column]!r}"
            )

    def _warned(self) -> Self:
        for concern in self.concerns():
            warnings.warn(concern, StakesWarning, stacklevel=3)
        return self

    def _edited(self, row: int, columns: Any, value: float) -> Self:
        values = self.values.copy()
        values[..., row, columns] = value
        return replace(self, values=values, best=max(self.best, float(values.max())))

    def _decision(self, name: str) -> int:
        return _position(name, self.decisions, "decision")

    def _outcome(self, name: str) -> int:
        return _position(name, self.outcomes, "outcome")

    def _require_one_table(self, what: str) -> None:
        if self.values.ndim != 2:
            raise StakesError(f"{what} needs one table for all examples, but this utility has one per example")


def _position(name: str, names: Sequence[str], kind: str) -> int:
    if name not in names:
        raise StakesError(f"expected one of the {kind}s {listing(names)}, but got {name!r}")
    return names.index(name)


def _named(
    table: Table, decisions: Sequence[str] | None, outcomes: Sequence[str] | None
) -> tuple[NDArray[np.float64], Sequence[str], Sequence[str]]:
    """A table as an array, with names: those given, those of a nested mapping, or 0, 1, 2, ..."""
    if isinstance(table, Mapping):
        rows = list(table) if decisions is None else list(decisions)
        columns = (
            list(dict.fromkeys(key for row in table.values() for key in row)) if outcomes is None else list(outcomes)
        )
        absent = [(row, column) for row in rows for column in columns if column not in table.get(row, {})]
        if absent:
            raise StakesError(f"expected a value for every cell, but {listing(absent)} (decision, outcome) is missing")
        table, decisions, outcomes = (
            [[table[row][column] for column in columns] for row in rows],
            rows,
            columns,
        )
    try:
        array = np.asarray(table, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise StakesError(f"expected a table of numbers, but got something else ({error})") from None
    if array.ndim not in (2, 3):
        raise StakesError(f"expected a table of decisions x outcomes, but got {array.ndim} axes")
    if decisions is None:  # only a square table is about decisions that are the outcomes themselves
        square = array.shape[-2] == array.shape[-1] and outcomes is None
        decisions = [str(row) if square else f"decision {row}" for row in range(array.shape[-2])]
    outcomes = [str(column) for column in range(array.shape[-1])] if outcomes is None else outcomes
    return array, decisions, outcomes
