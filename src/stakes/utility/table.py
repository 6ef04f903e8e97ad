"""Utility tables: decisions x named outcomes. All arithmetic with a table happens here."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from stakes.errors import StakesError, StakesWarning, listing
from stakes.outcomes import Outcomes
from stakes.utility.base import Given, Utility, utilities
from stakes.utility.checks import ever_best, never_best, refuse_repeats, require_choices, table_warnings
from stakes.utility.formula import Formula

Table = ArrayLike | Mapping[str, Mapping[str, float]]
FormulaCells = Mapping[str, Mapping[str, float | str]]
TINY = 1e-12  # of the largest value: rounding
Counts = NDArray[np.int64]  # (D, C): how often each decision met each outcome


@utilities.register("table")
@dataclass(frozen=True, eq=False)
class TableUtility(Utility):
    """A frozen, named and validated table, decisions x outcomes.

    >>> Utility.from_costs({"treat": {"ill": 0, "well": 40}, "send home": {"ill": 500, "well": 0}}).costs
    array([[  0.,  40.],
           [500.,   0.]])

    ``values`` is ``(D, C)``, or ``(B, D, C)`` with a table for each example; with ``per_label`` it is ``(L, D, C)``, a
    table for each label of decisions ``(B, L, ...)``.
    """

    values: NDArray[np.float64]
    decisions: tuple[str, ...]
    outcomes: tuple[str, ...]
    unit: str = ""
    best: float = 0.0
    scale: float = 1.0
    per_label: bool = False
    given: Given = "cost"
    _tensors: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        values.setflags(write=False)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "decisions", tuple(map(str, self.decisions)))
        object.__setattr__(self, "outcomes", tuple(map(str, self.outcomes)))
        self._validate()

    def with_warnings(self) -> Self:
        """Itself; warns of what is probably a mistake in it."""
        for message in self.warnings():
            warnings.warn(message, StakesWarning, stacklevel=3)
        return self

    @classmethod
    def of_costs(
        cls,
        costs: NDArray[np.float64],
        decisions: Sequence[str],
        outcomes: Sequence[str],
        best: float,
        scale: float,
        **settings: Any,
    ) -> Self:
        """From costs ``(D, C)`` or ``(B, D, C)``: see `Utility.from_costs`."""
        return cls(best - costs / scale, tuple(decisions), tuple(outcomes), best=best, scale=scale, **settings)

    def with_row(self, decision: str, wrong: float) -> Self:
        """The same table, but ``decision`` is worth ``wrong`` under every outcome it does not name."""
        others = np.array([outcome != decision for outcome in self.outcomes])
        return self._edited(_index(decision, self.decisions, "decision"), others, wrong)

    def with_cell(self, decision: str, outcome: str, value: float) -> Self:
        """The same table, but for one cell."""
        row, column = _index(decision, self.decisions, "decision"), _index(outcome, self.outcomes, "outcome")
        return self._edited(row, column, value)

    def with_outcomes(self, names: Sequence[str]) -> Self:
        """The same table with the same outcomes in the order of ``names``."""
        columns = outcome_order(self.outcomes, names)
        return replace(self, values=self.values[..., columns], outcomes=tuple(names))

    # For deciding and training -----------------------------------------------------------------------

    def expected(self, outcomes: Outcomes) -> Tensor:
        """``(..., C) -> (..., D)``; several tables need as many examples, or labels, as there are tables."""
        probs = self._probs(outcomes)
        table = self.tensor(probs)
        if table.ndim == 2:
            return probs @ table.T
        self.require_axes(probs.shape[:-1])
        if self.per_label:
            return torch.einsum("bl...c,ldc->bl...d", probs, table)
        return (self._spread(table, probs.ndim - 1) @ probs.unsqueeze(-1)).squeeze(-1)

    def expected_of(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        probs = self._probs(outcomes)
        return (probs * self._chosen_rows(self.tensor(probs), choice)).sum(-1)

    def foreseen(self, outcomes: Outcomes) -> Tensor:
        probs = self._probs(outcomes)
        best = self.tensor(probs).amax(-2, keepdim=True)  # (1, C), or one for each example or label
        if best.ndim == 2:
            return probs @ best[0]
        self.require_axes(probs.shape[:-1])
        return (probs * self._spread(best, probs.ndim - 1).squeeze(-2)).sum(-1)

    def worth_under(self, choice: Tensor) -> NDArray[np.float64]:
        """``(B, ...) -> (B, ..., C)`` what each choice is worth under every outcome."""
        return np.asarray(self._chosen_rows(torch.tensor(self.values), choice))

    def advantage(self, outcomes: Outcomes, choice: Tensor, rival: Tensor) -> Tensor:
        return torch.einsum("s...c,...c->s...", outcomes.weights, self._gap(choice, rival, outcomes.weights))

    def least_advantages(self, choice: Tensor, like: Tensor) -> Tensor:
        table = self.tensor(like)
        least = (table.unsqueeze(-2) - table.unsqueeze(-3)).amin(-1)  # (..., D, D)
        return self._chosen_rows(least, choice)

    def log_gain(self, outcomes: Outcomes, choice: Tensor) -> Tensor:
        """log sum_c u(h, c) p(c), in log space."""
        return torch.logsumexp(
            self._chosen_rows(self.tensor(outcomes.log_weights, log=True), choice) + outcomes.log_weights, -1
        )

    @property
    def per_example(self) -> bool:  # type: ignore[override]
        return self.values.ndim == 3 and not self.per_label

    @property
    def span(self) -> float:
        """The distance from the worst to the best cell; 1 for a constant table, which has none. Of several tables, it
        is the widest one's.
        """
        return float(np.ptp(self.values, axis=(-2, -1)).max()) or 1.0

    def bounded(self, margin: float) -> Self:
        """The strictly positive table that the calibrated bound needs: see `Utility.bounded`.

        Its worst cell is that of the decisions that are best for some probabilities of the outcomes (`ever_best`); all
        others are as bad as that whatever happens, so that none of them is ever taken. Where the best cells of all
        columns are alike, nothing is subtracted. The smaller the margin, the harder the worst cell is punished.

        The tables of examples share one shift, so that an example counts for what can be lost in it; those of labels
        are problems of their own, and each is shifted by itself. The result has no costs (``best`` is NaN).
        """
        if not (margin > 0 and np.isfinite(margin)):
            raise StakesError(f"expected a margin above 0, but got {margin}")
        axes = (0, 1, 2) if self.per_example else (-2, -1)
        best = self.values.max(-2, keepdims=True)
        highest = best.max(axes, keepdims=True)
        level = self.values - (best - highest)
        taken = ever_best(level, exact=not self.per_example)[..., None]
        worst = np.where(taken, level, np.inf).min(axes, keepdims=True)
        rounding = TINY * np.abs(self.values).max(axes, keepdims=True)
        least = margin * np.where(highest - worst > rounding, highest - worst, 1.0)
        return replace(self, values=np.where(taken, level + (least - worst), least), best=float("nan"))

    def tensor(self, like: Tensor, log: bool = False) -> Tensor:
        """The values, or their logarithms, on the device and in the precision of ``like``; cast once."""
        key = like.dtype, like.device, log
        if key not in self._tensors:
            with torch.inference_mode(False):  # what is cast now may be needed for a gradient later
                values = torch.tensor(self.values)
                self._tensors[key] = (values.log() if log else values).to(like.device, like.dtype)
        return self._tensors[key]

    def rows(self, index: Any) -> Self:
        """The tables of these examples; itself, if examples have none of their own."""
        if not self.per_example:
            return self
        return replace(self, values=self.values[index.cpu().numpy() if isinstance(index, Tensor) else index])

    def require_examples(self, count: int) -> None:
        if self.per_example and len(self.values) != count:
            raise StakesError(
                f"expected {len(self.values)} examples, one for each table of the utility, but got {count}"
            )

    def require_axes(self, shape: Sequence[int]) -> None:
        """Refuse decisions ``(B, ...)`` that are not as many as the tables, along the axis of the tables."""
        if not self.per_label:
            self.require_examples(shape[0])
        elif len(shape) < 2 or shape[1] != len(self.values):
            raise StakesError(
                f"expected decisions of shape (B, {len(self.values)}, ...), with a table of the utility for each "
                f"label, but got {tuple(shape)}"
            )

    # For evaluation ----------------------------------------------------------------------------------

    def realised(self, choice: Tensor | ArrayLike, outcome: Tensor | ArrayLike) -> NDArray[np.float64]:
        choices, outcomes = np.asarray(choice), self._class_numbers(outcome)
        require_choices(choices, outcomes.shape, len(self.decisions))
        return self.values[(*self._tables_of(choices.shape), choices, outcomes)]  # type: ignore[no-any-return]

    def regrets(self, choice: Tensor | ArrayLike, outcome: Tensor | ArrayLike) -> NDArray[np.float64]:
        """``(B, ...)``: how much less each decision was worth than the best one for what happened."""
        outcomes = self._class_numbers(outcome)
        best = self.values.max(-2)[(*self._tables_of(outcomes.shape), outcomes)]
        return best - self.realised(choice, outcomes)  # type: ignore[no-any-return]

    def response_to(self, outcome: Tensor) -> Tensor:
        """``(B, ...)``: the decision for each outcome, were it known for certain (`best_response`)."""
        outcomes = self._class_numbers(outcome.cpu())
        response = self._responses()[(*self._tables_of(outcomes.shape), outcomes)]
        return torch.as_tensor(response, device=outcome.device)

    def mean_utility(self, counts: Counts) -> float:
        """The mean utility of the decisions, from how often each met each outcome (for each label, if they differ)."""
        return float((counts * self._one_table("counts").values).sum() / counts.sum())

    def mean_regret(self, counts: Counts) -> float:
        """How much less the decisions were worth, on average, than those of an oracle that knows the outcome."""
        oracle = (counts.sum(-2) * self._one_table("counts").values.max(-2)).sum() / counts.sum()
        return float(oracle) - self.mean_utility(counts)

    @property
    def costs(self) -> NDArray[np.float64]:
        """The same table as costs in ``unit``."""
        return np.asarray(self.cost_of(self.values))

    @property
    def cost_limits(self) -> tuple[float, float] | None:
        """The lowest and the highest cell; None where examples have tables of their own, for the next may be dearer."""
        return None if self.per_example else (float(self.costs.min()), float(self.costs.max()))

    @property
    def best_response(self) -> NDArray[np.int64]:
        """(C,), or (L, C), the decision for an outcome known for certain: the one of its name, else the best one."""
        return self._one_table("best_response")._responses()

    @property
    def class_weights(self) -> NDArray[np.float64]:
        """(C,), or (L, C) for labels, what a mistake about each outcome costs: the mean regret of its column (Ting
        2002), over all examples if each has its own table, scaled to mean 1.
        """
        regret = (self.values.max(-2, keepdims=True) - self.values).mean(-2)
        regret = regret.mean(0) if self.per_example else regret
        return regret / regret.mean() if regret.any() else np.ones_like(regret)

    def warnings(self) -> list[str]:
        """What is probably a mistake in the table, in words; of the tables of several rows, what is so in all."""
        if self.per_label:
            return []
        if self.per_example:
            every_row = np.moveaxis(self.values, 0, 1).reshape(len(self.decisions), -1)  # (D, B C)
            return [f"{message}, in every row" for message in never_best(every_row, self.decisions)]
        messages = table_warnings(self.values, self.decisions, self.outcomes)
        if (self.costs <= 0).all() and np.ptp(self.costs) > 0:
            messages.append(
                "no cost is above zero: the sign seems to be flipped; a cost above zero is a loss, and a file of "
                "gains begins with 'utility'"
            )
        elif self.given == "cost" and (self.costs < 0).sum() == 1 and -self.costs.min() >= self.costs.max():
            row, column = np.unravel_index(self.costs.argmin(), self.costs.shape)
            messages.append(
                f"{self.decisions[row]!r} under {self.outcomes[column]!r} alone costs less than nothing, "
                f"{self.costs.min():g}, and no other cost is as large: is its sign flipped?"
            )
        return messages

    # As data and text --------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "table",
            "values": self.values.tolist(),
            "decisions": list(self.decisions),
            "outcomes": list(self.outcomes),
            "unit": self.unit,
            "best": self.best,
            "scale": self.scale,
            **({"per_label": True} if self.per_label else {}),
            **({"given": self.given} if self.given != "cost" else {}),
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableUtility) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.values.tobytes(), self.decisions, self.outcomes, self.unit, self.best, self.scale))

    def __str__(self) -> str:
        return self.format(self.values)

    def format(self, table: NDArray[np.float64]) -> str:
        """Any table over the same decisions and outcomes (the values, the costs, counts) as text."""
        if table.ndim != 2:
            return f"{table.shape[0]} tables of {table.shape[1]} decisions x {table.shape[2]} outcomes"
        return aligned([[f"{cell:.6g}" for cell in row] for row in table], self.decisions, self.outcomes)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_tensors": {}}  # what was cast for a device is no part of the table

    # Private -----------------------------------------------------------------------------------------

    def _validate(self) -> None:
        expected = (len(self.decisions), len(self.outcomes))
        if self.values.ndim not in (2, 3) or self.values.shape[-2:] != expected:
            raise StakesError(
                f"expected a table of {expected[0]} decisions x {expected[1]} outcomes (or one per example), "
                f"but got the shape {self.values.shape}"
            )
        if self.per_label and self.values.ndim != 3:
            raise StakesError(f"expected a table for each label, but got the shape {self.values.shape}")
        if self.given not in ("cost", "utility"):
            raise StakesError(f"expected given to be 'cost' or 'utility', but got {self.given!r}")
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

    def _probs(self, outcomes: Outcomes) -> Tensor:
        probs = outcomes.weights
        if probs.shape[-1] != len(self.outcomes):
            raise StakesError(
                f"expected probabilities of the {len(self.outcomes)} outcomes {listing(self.outcomes)} on the last "
                f"axis, but got the shape {tuple(probs.shape)}"
            )
        # In double precision: costs may be large and the differences between decisions small.
        return probs if probs.device.type == "mps" else probs.double()

    def _edited(self, row: int, columns: Any, value: float) -> Self:
        values = self.values.copy()
        values[..., row, columns] = value
        return replace(self, values=values, best=max(self.best, float(values.max())))

    def _gap(self, choice: Tensor, rival: Tensor, like: Tensor) -> Tensor:
        """``(B, ..., C)``: what the choice is worth more than its rival, for each outcome."""
        table = self.tensor(like if like.device.type == "mps" else like.new_empty((), dtype=torch.float64))
        return (self._chosen_rows(table, choice) - self._chosen_rows(table, rival)).to(like)

    def _one_table(self, what: str) -> Self:
        if self.per_example:
            raise StakesError(f"{what} needs one table for all examples, but this utility has one per example")
        return self

    def _responses(self) -> NDArray[np.int64]:
        """``(C,)``, or ``(B, C)`` or ``(L, C)`` for several tables."""
        best: NDArray[np.int64] = self.values.argmax(-2)
        for column, name in enumerate(self.outcomes):
            if name in self.decisions:
                best[..., column] = self.decisions.index(name)
        return best

    def _tables_of(self, shape: Sequence[int]) -> tuple[NDArray[np.int64], ...]:
        """The index of the tables of ``(B, ...)`` decisions, in a shape that broadcasts; none if there is one table."""
        if self.values.ndim == 2:
            return ()
        self.require_axes(shape)
        axis = 1 if self.per_label else 0
        return (np.arange(len(self.values)).reshape([-1 if number == axis else 1 for number in range(len(shape))]),)

    def _class_numbers(self, outcome: Tensor | ArrayLike) -> NDArray[np.int64]:
        """Outcomes as numbers of the columns; 0.0 and 1.0 will do."""
        given = np.asarray(outcome)
        with np.errstate(invalid="ignore"):
            numbers = given.astype(np.int64, copy=False)
        exact = numbers is given or bool((numbers == given).all())
        if numbers.size and not (exact and numbers.min() >= 0 and numbers.max() < len(self.outcomes)):
            raise StakesError(
                f"expected outcomes from 0 to {len(self.outcomes) - 1}, but got {given.dtype} from {given.min()} to "
                f"{given.max()}: leave out labels that are ignored"
            )
        return numbers

    def _chosen_rows(self, table: Tensor, choice: Tensor) -> Tensor:
        """``(B, ..., C)``: what each choice is worth under each outcome, from the table or tables as a tensor."""
        if table.ndim == 2:
            return table[choice]
        self.require_axes(choice.shape)
        spread = self._spread(table, choice.ndim)
        return torch.take_along_dim(spread, choice[..., None, None], dim=-2).squeeze(-2)

    def _spread(self, table: Tensor, axes: int) -> Tensor:
        """``(B, 1, ..., D, C)``, or ``(1, L, 1, ..., D, C)`` for labels: ``axes`` before the last two."""
        leading = (1, len(table)) if self.per_label else (len(table),)
        return table.reshape(*leading, *[1] * (axes - len(leading)), *table.shape[1:])


def aligned(cells: Sequence[Sequence[str]], decisions: Sequence[str], outcomes: Sequence[str]) -> str:
    """Cells as text, with the names of the decisions before and of the outcomes above them."""
    body = [["", *outcomes], *([name, *row] for name, row in zip(decisions, cells, strict=True))]
    widths = [max(map(len, column)) for column in zip(*body, strict=True)]
    lines = [[row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))] for row in body]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def outcome_order(outcomes: Sequence[str], names: Sequence[str]) -> list[int]:
    """Where each of ``names`` stands among the outcomes, which have to be the same."""
    if sorted(outcomes) != sorted(names):
        raise StakesError(f"expected costs for the outcomes {listing(names)}, but got them for {listing(outcomes)}")
    return [list(outcomes).index(name) for name in names]


def entry_by_label(row: Tensor, numbers: Tensor) -> Tensor:
    """``row[numbers]`` of a row ``(C,)``; of rows ``(L, C)``, numbers ``(B, L, ...)`` have the row of their label."""
    if row.ndim == 1:
        return row[numbers]
    if numbers.ndim < 2 or numbers.shape[1] != len(row):
        raise StakesError(f"expected {len(row)} labels on axis 1, but got the shape {tuple(numbers.shape)}")
    labels = torch.arange(len(row), device=row.device).reshape(-1, *[1] * (numbers.ndim - 2))
    return row[labels, numbers]


def _index(name: str, names: Sequence[str], kind: str) -> int:
    if name not in names:
        raise StakesError(f"expected one of the {kind}s {listing(names)}, but got {name!r}")
    return names.index(name)


def with_names(
    table: Table | FormulaCells, decisions: Sequence[str] | None, outcomes: Sequence[str] | None
) -> tuple[NDArray[np.float64], tuple[str, ...], tuple[str, ...]]:
    """A table as an array, with names: those given, those of a nested mapping, or 0, 1, 2, ..."""
    if isinstance(table, Mapping):
        cells, decisions, outcomes = named_cells(table, decisions, outcomes)
        table = [[_number(cell) for cell in row] for row in cells]
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
    return array, tuple(decisions), tuple(outcomes)


def _number(cell: Any) -> Any:
    """A cell whose text is a number, or a formula that comes to one; others as they are."""
    formula = Formula.parse(cell) if isinstance(cell, str) else None
    if formula is not None and formula.columns:
        raise StakesError(f"expected numbers, but got the formula {cell!r}: for costs by row, use Utility.from_costs")
    return cell if formula is None else formula.constant


def named_cells(
    table: Mapping[str, Mapping[str, Any]], decisions: Sequence[str] | None, outcomes: Sequence[str] | None
) -> tuple[list[list[Any]], list[str], list[str]]:
    """The cells of a nested mapping in the order of the names: those given, or its own."""
    rows = list(table) if decisions is None else list(decisions)
    columns = list(dict.fromkeys(key for row in table.values() for key in row)) if outcomes is None else list(outcomes)
    absent = [(row, column) for row in rows for column in columns if column not in table.get(row, {})]
    if absent:
        raise StakesError(f"expected a value for every cell, but {listing(absent)} (decision, outcome) is missing")
    return [[table[row][column] for column in columns] for row in rows], rows, columns
