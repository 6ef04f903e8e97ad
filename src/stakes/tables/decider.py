"""Decisions for data frames by a saved model: what to do, how clear that is, and which rows are unlike any before."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from stakes._io.files import read_json
from stakes.decisions import SETTLE, Decisions
from stakes.errors import StakesError, listing
from stakes.saved_model import SavedModel
from stakes.tables.encode import TableEncoder
from stakes.tables.profile import View
from stakes.tables.random_parts import RandomBlend
from stakes.tables.values import row_number, utility_of_rows
from stakes.tables.why import Explainer, top_columns
from stakes.utility import FormulaUtility, NumberUtility, PricedNewsvendor, TableUtility, Utility, utilities

PIECE_ROWS = 4096  # decided at once
DIGITS = 6  # of probabilities after the point; of amounts after the first of the largest one
ERRORS_WITHIN = 2  # a margin within so many Monte-Carlo standard errors is not settled by the draws
NAMED_ROWS = 3  # unusual rows that a refusal names
OnUnusual = Literal["note", "refer", "stop"]


class Decider:
    """Decisions for data frames: a callable that can be pickled, for Ray Data, Spark's mapInPandas and Dask.

    A row has the columns

    - decision, and expected_cost: what it is expected to cost;
    - runner_up, the second-best decision, and margin: how much more that is expected to cost;
    - cost_DECISION for every decision;
    - settled: whether more draws would hardly change the decision; always, where nothing in the model is random, as in
      trees and in ensembles, the default networks among them;
    - p_OUTCOME for every outcome;
    - unusual: what is unlike the rows that the model was trained on, in words; empty where nothing is;
    - why_1 to why_N, with ``why=N``: the columns that moved the decision most: see `stakes.tables.why`.

    Where the user gave utilities, it is expected_utility and utility_DECISION. ``path`` is a saved model, or the folder
    of a run. ``costs`` are others, a file or a utility, for the same outcomes and any decisions. ``on_unusual`` says
    what becomes of unusual rows: they are noted; decided by the decision ``refer`` (with no word on whether the draws
    settle it); or an error. ``settle`` is for a model whose predictor is the draws of one posterior: rows whose
    decision is clear take fewer draws (see `stakes.decide`), with less exact probabilities where they do not matter;
    with ``settle=1``, all of them. A blend, as `stakes fit` makes them, takes all draws of its parts for every row. A
    frame has the columns that the model was trained on, and those that its costs depend on.

    Of a model of outcomes that are numbers, it is an `AmountDecider`, with other columns.
    """

    remarks: tuple[str, ...] = ()  # on decisions by these costs

    def __init__(
        self,
        path: str | os.PathLike[str],
        settle: float = SETTLE,
        *,
        costs: str | os.PathLike[str] | Utility | None = None,
        on_unusual: OnUnusual = "note",
        refer: str | None = None,
        why: int = 0,
    ) -> None:
        model = SavedModel.load(model_folder(path))
        if model.encoder is None or not isinstance(model.utility, TableUtility | FormulaUtility):
            raise StakesError(f"{path}: the model has no preprocessing for tables: use it from Python")
        self.utility = model.utility if costs is None else _other_costs(costs, model.utility.outcomes)
        self._prepare(model, model.encoder, settle, on_unusual, refer, why)
        if why and len(self.utility.decisions) < 2:
            raise StakesError("--why tells why one decision was better than another, but there is only one")
        self.remarks = _remarks(model, self.utility)

    def __new__(cls, *arguments: Any, **options: Any) -> "Decider":
        """As of `pathlib.Path`, there are kinds of it: what the saved model decides about says which."""
        path = arguments[0] if arguments else options.get("path")  # there is none where it is unpickled
        if cls is Decider and path is not None and is_about_amounts(path):
            from stakes.tables.amounts.decider import AmountDecider

            return super().__new__(AmountDecider)
        return super().__new__(cls)

    def _prepare(
        self,
        model: SavedModel,
        encoder: TableEncoder,
        settle: float,
        on_unusual: OnUnusual,
        refer: str | None,
        why: int,
    ) -> None:
        self.model, self.encoder, self.settle, self.profile = model, encoder, settle, model.profile
        self.on_unusual, self.refer, self.why = on_unusual, self._referred(on_unusual, refer), why
        if why > len(encoder.names):
            raise StakesError(f"--why: expected at most {len(encoder.names)}, the columns of the model, but got {why}")
        self._explainer = Explainer(model) if why else None
        self._random = RandomBlend.of(model.predictor)

    @property
    def columns(self) -> list[str]:
        """The columns of the frame that a call returns, in their order."""
        given, decisions = self.utility.given, self.utility.decisions
        return [
            *("decision", f"expected_{given}", "runner_up", "margin", *(f"{given}_{name}" for name in decisions)),
            *("settled", *(f"p_{outcome}" for outcome in self.utility.outcomes), "unusual"),
            *(f"why_{number}" for number in range(1, self.why + 1)),
        ]

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        return self.decide(frame)[0]

    def decide(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, View | None]:
        """The decisions, and the rows against the training rows, if the model describes these."""
        frame, x, view, unusual, referred = self._encode_rows(frame)
        utility = utility_of_rows(self.utility, frame)
        # Allocated first and filled piece by piece: small results that are kept between large activations
        # fragment the memory, and take three times as much of it.
        count = len(utility.decisions)
        names, settled = np.full((2, len(x)), None, dtype=object), np.ones(len(x), dtype=bool)
        numbers = np.empty((len(x), 2 + count + len(utility.outcomes)))
        why = np.full((len(x), self.why), "", dtype=object)
        for first in range(0, len(x), PIECE_ROWS):
            rows = slice(first, first + PIECE_ROWS)
            row_utility = utility.rows(rows)
            decisions = self._take(x[rows], row_utility)
            if self.refer is not None:
                elsewhere = torch.from_numpy(referred[rows])
                decisions = replace(decisions, choice=torch.where(elsewhere, self.refer, decisions.choice))
            if self._explainer is not None:
                gaps = _gaps(row_utility, decisions)
                values = self._explainer.values(x[rows], gaps)
                why[rows] = top_columns(self._explainer.names, values, gaps, self.why)
            _write_block(names[:, rows], numbers[rows], decisions, row_utility)
            if decisions.margin_error is not None:  # there were draws
                settled[rows] = (decisions.margin > ERRORS_WITHIN * decisions.margin_error).numpy()
        why[referred] = ""
        _round(numbers, utility, 2 + count)
        return self._frame(frame.index, names, numbers, pd.array(settled, "boolean"), referred, unusual, why), view

    def _encode_rows(self, frame: pd.DataFrame) -> "_EncodedRows":
        """Rows cleaned and encoded, and which of them are unusual."""
        frame = self.encoder.formats.clean(frame)
        x = torch.from_numpy(self.encoder.encode(frame))
        view = None if self.profile is None else self.profile.view(frame)
        unusual = np.full(len(frame), "", dtype=object)
        if self.profile is not None and view is not None:
            unusual = self.profile.describe(frame, view, self.encoder.formats.dates)
        if self.on_unusual == "stop":
            _refuse_unusual(frame.index, unusual)
        return _EncodedRows(frame, x, view, unusual, (unusual != "") & (self.on_unusual == "refer"))

    def _take(self, x: torch.Tensor, utility: TableUtility) -> Decisions:
        if self._random is not None:
            return self._random.decide(x, utility)
        return self.model.decide(x, self.settle, utility)

    def _frame(
        self,
        index: "pd.Index[Any]",
        names: NDArray[np.object_],
        numbers: NDArray[np.float64],
        settled: Any,
        referred: NDArray[np.bool_],
        unusual: NDArray[np.object_],
        why: NDArray[np.object_],
    ) -> pd.DataFrame:
        settled[referred] = pd.NA
        amounts = len(self.utility.decisions)
        values = [names[0], numbers[:, 0], as_texts(names[1]), *numbers[:, 1 : 2 + amounts].T, settled]
        values += [*numbers[:, 2 + amounts :].T, *map(as_texts, (unusual, *why.T))]
        return pd.DataFrame(dict(zip(self.columns, values, strict=True)), index=index)

    def _referred(self, on_unusual: str, refer: str | None) -> int | None:
        """The number of the decision for unusual rows."""
        if on_unusual not in get_args(OnUnusual):
            raise StakesError(f"--on-unusual: expected note, refer or stop, but got {on_unusual!r}")
        if (on_unusual == "refer") != (refer is not None):
            raise StakesError("expected --on-unusual refer and --refer DECISION together, but got only one of them")
        if on_unusual != "note" and self.profile is None:
            raise StakesError(
                f"--on-unusual {on_unusual}: the saved model does not describe its training rows, as models of older "
                "versions do not: fit it again"
            )
        if refer is None:
            return None
        if refer not in self.utility.decisions:
            raise StakesError(f"--refer: expected one of {listing(self.utility.decisions)}, but got {refer!r}")
        return self.utility.decisions.index(refer)


def model_folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a saved model, from that folder or from its run's."""
    folder = Path(path)
    in_run = not (folder / "model.json").exists() and (folder / "model").is_dir()
    return folder / "model" if in_run else folder


def is_about_amounts(path: str | os.PathLike[str]) -> bool:
    """Whether a saved model decides about outcomes that are numbers; False where there is none to tell."""
    file = model_folder(path) / "model.json"
    description = read_json(file) if file.is_file() else None
    utility = description.get("utility") if isinstance(description, dict) else None
    kind = utility.get("kind", "table") if isinstance(utility, dict) else "table"
    return kind in utilities and issubclass(utilities[kind], NumberUtility | PricedNewsvendor)


def share_for_costs(notes: Mapping[str, Any]) -> float:
    """How much of a saved model is a network that was trained for the costs of its fit."""
    if notes.get("model") in ("weighted", "noise+calibrated"):
        return 1.0
    if not notes.get("strength"):
        return 0.0
    share: float = notes.get("weights", {}).get("calibrated", 1.0)
    return share


# Private -------------------------------------------------------------------------------------------


class _EncodedRows(NamedTuple):
    frame: pd.DataFrame  # cleaned
    x: torch.Tensor
    view: View | None
    unusual: NDArray[np.object_]  # (N,) in words
    referred: NDArray[np.bool_]


def _other_costs(costs: str | os.PathLike[str] | Utility, outcomes: Sequence[str]) -> TableUtility | FormulaUtility:
    utility = costs if isinstance(costs, Utility) else Utility.from_csv(costs)
    named = "" if isinstance(costs, Utility) else f"{os.fspath(costs)}: "
    if not isinstance(utility, TableUtility | FormulaUtility):
        raise StakesError(f"{named}expected costs of the outcomes {listing(outcomes)}, but got costs of a number")
    try:
        return utility.with_outcomes(outcomes)
    except StakesError as error:
        raise StakesError(f"{named}{error}; the model tells the former apart") from None


def _remarks(model: SavedModel, utility: TableUtility | FormulaUtility) -> tuple[str, ...]:
    """On decisions by other costs than those of the fit."""
    if utility == model.utility:
        return ()
    remarks = []
    if share := share_for_costs(model.notes):
        remarks.append(
            f"The model was fitted for other costs: a network trained for those is {100 * share:.0f} % of it; to "
            "decide by these costs for good, fit again with them."
        )
    units = utility.unit, model.utility.unit
    if all(units) and units[0] != units[1]:
        remarks.append(f"The costs are in {units[0]}, those that the model was made for in {units[1]}.")
    return tuple(remarks)


def _refuse_unusual(index: "pd.Index[Any]", unusual: NDArray[np.object_]) -> None:
    rows = np.flatnonzero(unusual != "")
    if len(rows):
        first = ", ".join(f"row {row_number(index, int(row))}: {unusual[row]}" for row in rows[:NAMED_ROWS])
        more = f", and {len(rows) - NAMED_ROWS:,} more" if len(rows) > NAMED_ROWS else ""
        raise StakesError(
            f"expected rows like those of training, but some are not ({first}{more}); correct them, or use "
            "--on-unusual note or refer"
        )


def _gaps(utility: TableUtility, decisions: Decisions) -> torch.Tensor:
    """``(B, C)``: how much better the decision is than the runner-up under each outcome, as the user gave amounts."""
    values = np.broadcast_to(utility.values, (len(decisions), *utility.values.shape[-2:]))
    rows = np.arange(len(decisions))
    gaps = values[rows, decisions.choice.numpy()] - values[rows, decisions.runner_up.numpy()]
    return torch.from_numpy(gaps * (utility.scale if utility.given == "cost" else 1.0))


def _write_block(
    names: NDArray[np.object_], numbers: NDArray[np.float64], decisions: Decisions, utility: TableUtility
) -> None:
    """Into (2, B) the decisions and the runners-up; into (B, 2 + D + C) expected, margin, amounts, probabilities."""
    decision_names = np.array(utility.decisions, dtype=object)
    names[0] = decision_names[decisions.choice.numpy()]
    if len(decision_names) > 1:
        names[1] = decision_names[decisions.runner_up.numpy()]
    numbers[:, 0] = utility.stated(decisions.expected_utility.numpy())
    numbers[:, 1] = decisions.margin.numpy() * (utility.scale if utility.given == "cost" else 1.0)
    numbers[:, 2 : 2 + len(decision_names)] = utility.stated(decisions.utilities.numpy())
    numbers[:, 2 + len(decision_names) :] = decisions.probs.numpy()


def _round(numbers: NDArray[np.float64], utility: TableUtility, amounts: int) -> None:
    """Costs may be in millions, or in millionths, also side by side."""
    largest = np.abs(utility.stated(utility.values)).max((-2, -1))
    numbers[:, :amounts] = significant(numbers[:, :amounts], np.broadcast_to(largest, len(numbers)))
    numbers[:, amounts:] = numbers[:, amounts:].round(DIGITS) + 0.0


def significant(numbers: NDArray[np.float64], sizes: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """(N, K) rounded, each row to the digits that suit its size: that of its largest number, if none is given."""
    sizes = np.abs(numbers).max(1, initial=0) if sizes is None else sizes
    decimals = np.maximum(0, DIGITS - np.floor(np.log10(np.where(sizes > 0, sizes, 1.0))).astype(int))  # (N,)
    rounded = np.empty_like(numbers)
    for digits in np.unique(decimals):
        rounded[decimals == digits] = numbers[decimals == digits].round(digits)
    return rounded + 0.0  # no -0


def as_texts(values: NDArray[np.object_]) -> Any:
    """Texts, of which empty ones are missing; of one type even if all are."""
    return pd.array([value or None for value in values], dtype="string")
