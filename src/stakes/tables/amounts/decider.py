"""Decisions about outcomes that are numbers, for data frames: how much, at what expected cost, and an interval."""

import os
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stakes.decisions import SETTLE, Decisions
from stakes.errors import StakesError
from stakes.outcomes import Outcomes
from stakes.saved_model import SavedModel
from stakes.tables.amounts.other_costs import made_for_others, read_other_costs, warn_beyond_levels
from stakes.tables.decider import PIECE_ROWS, Decider, OnUnusual, as_texts, model_folder, significant
from stakes.tables.profile import View
from stakes.tables.values import utility_of_rows
from stakes.tables.why import Measure, top_columns
from stakes.utility import NumberUtility, PricedNewsvendor, Utility

INTERVAL_SHARE = 0.9  # of the outcomes lie between low and high, as the model sees it


class AmountDecider(Decider):
    """Decisions for data frames: see `Decider`. A row has the columns

    - decision, a number or the name of an action, and expected_cost: what it is expected to cost;
    - low and high: the outcome lies between them with a probability of 90 %;
    - where decisions are actions, cost_ACTION for every one;
    - unusual: what is unlike the rows that the model was trained on, in words; empty where nothing is;
    - why_1 to why_N, with ``why=N``: the columns that moved the decision most, ``weekday +4.2``: so much it adds to the
      decision, against training rows; where decisions are actions, to how much more the next best would cost.

    ``costs`` are others to decide by: a file of cost curves, or a utility of numbers, `Newsvendor(20, 5)`; ``remarks``
    then says what in the model was made for those of its fit. Where a model has lags, rows have their time, and the
    target of rows that are past is used where it is there.
    """

    utility: Utility  # type: ignore[assignment]  # of numbers

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
        if model.encoder is None or not isinstance(model.utility, NumberUtility | PricedNewsvendor):
            raise StakesError(f"{path}: the model has no preprocessing for tables: use it from Python")
        self.utility = model.utility if costs is None else read_other_costs(costs)
        if settle not in (SETTLE, 1):
            raise StakesError("--settle is for named outcomes; decisions about numbers take all draws: leave it out")
        if on_unusual == "refer" and not self.utility.decisions:
            raise StakesError("--on-unusual refer: decisions are numbers, of which none stands for asking somebody")
        self._prepare(model, model.encoder, settle, on_unusual, refer, why)
        remark = None if costs is None else made_for_others(model, self.utility)
        self.remarks = () if remark is None else (remark,)

    @property
    def columns(self) -> list[str]:
        actions = [f"cost_{name}" for name in self.utility.decisions]
        whys = [f"why_{number}" for number in range(1, self.why + 1)]
        return ["decision", "expected_cost", "low", "high", *actions, "unusual", *whys]

    def decide(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, View | None]:
        lags = self.model.lags
        if lags is not None and not set(lags.names) <= set(frame.columns):
            frame = lags.add(frame)
        frame, x, view, unusual, referred = self._encode_rows(frame)
        utility, count = utility_of_rows(self.utility, frame), len(self.utility.decisions)
        warn_beyond_levels(utility, len(x))
        numbers = np.empty((len(x), 4 + count))  # the decision, what it costs, low, high, what each action costs
        why = np.full((len(x), self.why), "", dtype=object)
        for first in range(0, len(x), PIECE_ROWS):
            rows = slice(first, first + PIECE_ROWS)
            row_utility = utility.rows(rows)
            decisions = self.model.decide(x[rows], utility=row_utility)
            choice = decisions.choice.double()
            if self.refer is not None:
                choice = torch.where(torch.from_numpy(referred[rows]), self.refer, choice)
            numbers[rows, 0] = choice.numpy()
            numbers[rows, 2], numbers[rows, 3] = (each.numpy() for each in decisions.interval(INTERVAL_SHARE))
            numbers[rows, 4:] = row_utility.cost_of(decisions.utilities.numpy())[:, :count]
            expected = row_utility.expected_of(decisions.outcomes, choice.long() if count else choice)
            numbers[rows, 1] = row_utility.cost_of(expected.numpy())
            if self._explainer is not None:
                why[rows] = self._why(x[rows], decisions, row_utility)
        why[referred] = ""
        return self._as_frame(frame.index, numbers, unusual, why), view

    def _why(self, x: Tensor, decisions: Decisions, utility: Utility) -> Any:
        """(n, why) the columns that moved each decision most."""
        assert self._explainer is not None
        measures: list[Measure] = []
        for row in range(len(x)):
            row_utility = utility.rows(slice(row, row + 1))
            if self.utility.decisions:
                measures.append(partial(_lead, row_utility, int(decisions.choice[row]), int(decisions.runner_up[row])))
            else:
                measures.append(partial(_decision, row_utility))
        values = self._explainer.values_of(x, measures)
        return top_columns(self._explainer.names, values, torch.from_numpy(np.abs(values)), self.why)

    def _as_frame(self, index: "pd.Index[Any]", numbers: Any, unusual: Any, why: Any) -> pd.DataFrame:
        actions, rounded = self.utility.decisions, numbers.copy()
        for columns in ([0, 2, 3][bool(actions) :], [1, *range(4, numbers.shape[1])]):  # amounts, and what they cost
            rounded[:, columns] = significant(numbers[:, columns])
        step = getattr(self.utility, "step", None)
        if step is not None:
            rounded[:, :1] = significant(numbers[:, :1], np.full(len(numbers), step))
        decision = np.array(actions, dtype=object)[numbers[:, 0].astype(int)] if actions else rounded[:, 0]
        values = [decision, *rounded[:, 1:].T, *map(as_texts, (unusual, *why.T))]
        return pd.DataFrame(dict(zip(self.columns, values, strict=True)), index=index)


def _decision(utility: Utility, outcomes: Outcomes) -> Tensor:
    """(n,) what is decided, at the costs of one row."""
    return _for_all(utility, len(outcomes.weights)).best_choice(outcomes).double()


def _lead(utility: Utility, choice: int, rival: int, outcomes: Outcomes) -> Tensor:
    """(n,) how much more the next best action is expected to cost, at the costs of one row."""
    expected = utility.expected(outcomes)
    return expected[..., choice] - expected[..., rival]


def _for_all(utility: Utility, count: int) -> Utility:
    """The costs of one row, for as many rows."""
    return utility.rows(torch.zeros(count, dtype=torch.long))
