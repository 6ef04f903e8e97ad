"""Decisions that were taken earlier, joined with the rows whose outcomes are known by now."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stakes.errors import StakesError, listing
from stakes.tables.read import read_table
from stakes.tables.values import numbers
from stakes.utility import FormulaUtility, TableUtility


class TakenDecisions(NamedTuple):
    """Decisions as they were taken."""

    choice: Tensor  # (N,)
    probs: Tensor | None  # (N, C) what the model said; None if that is not known


def match_decisions(
    frame: pd.DataFrame, labelled: Path, decisions: Path, id_column: str
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, int]]:
    """The rows that a decision was taken for, the rows of these decisions, and how many of either lack the other."""
    table = read_table(decisions, untouched=(id_column, "decision"))
    absent = [name for name in (id_column, "decision") if name not in table.columns]
    if absent:
        raise StakesError(
            f"{decisions}: expected the columns {listing([id_column, 'decision'])}, as `stakes decide --id` writes "
            f"them, but it has {listing(table.columns)}"
        )
    ids, decision_ids = _ids(frame, labelled, id_column), _ids(table, decisions, id_column)
    matches = decision_ids.get_indexer(ids)
    if not (matches >= 0).any():
        raise StakesError(f"{decisions} and {labelled}: no value of {id_column!r} is in both; check the column")
    matched, table = frame[matches >= 0], table.iloc[matches[matches >= 0]]
    unmatched = {
        "outcomes without a decision": int((matches < 0).sum()),
        "decisions without an outcome": len(decision_ids) - int((matches >= 0).sum()),
    }
    return matched, table, unmatched


def join_decisions(
    frame: pd.DataFrame, labelled: Path, decisions: Path, id_column: str, utility: TableUtility | FormulaUtility
) -> tuple[pd.DataFrame, TakenDecisions, dict[str, int]]:
    """The rows that a decision was taken for, these decisions, and how many of either are without the other."""
    matched, table, unmatched = match_decisions(frame, labelled, decisions, id_column)
    choice = decision_indices(table, decisions, utility.decisions)
    return matched, TakenDecisions(choice, _probs(table, decisions, utility.outcomes)), unmatched


def decision_indices(table: pd.DataFrame, path: Path | None, decisions: Sequence[str]) -> Tensor:
    """(N,) from the names in a file of decisions."""
    indices = {name: index for index, name in enumerate(decisions)}
    texts = table["decision"].astype(str).str.strip()
    unknown = sorted(set(texts) - set(indices))
    if unknown:
        raise StakesError(
            f"{path}: expected the decisions {listing(indices)} of the costs, but got {listing(unknown)}; if other "
            "costs were decided by, give their file with --costs"
        )
    return torch.tensor([indices[text] for text in texts])


def _ids(frame: pd.DataFrame, path: Path, column: str) -> pd.Index:
    series = frame[column]
    ids = pd.Index(series.astype(str).str.strip().where(series.notna(), ""))
    twice = ids[ids.duplicated()]
    if len(twice):
        raise StakesError(f"{path}: expected each {column!r} once, but {listing(twice.unique())} stands more than once")
    return ids


def _probs(table: pd.DataFrame, path: Path, outcomes: tuple[str, ...]) -> Tensor | None:
    """Of the outcomes, where the file of decisions has them."""
    columns = [f"p_{outcome}" for outcome in outcomes]
    if not set(columns) <= set(table.columns):
        return None
    probs = torch.from_numpy(np.stack([numbers(table[column]) for column in columns], axis=1))
    if not bool(torch.isfinite(probs).all()) or not bool(((probs.sum(1) - 1).abs() < 1e-3).all()):
        raise StakesError(
            f"{path}: expected probabilities that sum to 1 in the columns {listing(columns)}, but some do not"
        )
    return probs / probs.sum(1, keepdim=True)
