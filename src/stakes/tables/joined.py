"""Decisions that were taken earlier, joined with the rows whose outcomes are known by now."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from stakes.errors import StakesError, listing
from stakes.tables.formats import number_format, read_numbers
from stakes.tables.read import read_table
from stakes.utility import FormulaUtility, TableUtility


class TakenDecisions(NamedTuple):
    """Decisions as they were taken."""

    choice: Tensor  # (N,)
    probs: Tensor | None  # (N, C) what the model said; None if that is not known


def match_decisions(
    frame: pd.DataFrame, labelled: Path, decisions: Path, id_columns: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, int]]:
    """The rows that a decision was taken for, the rows of these decisions, and how many of either lack the other.

    Ids are compared as they are written in the two files; ``frame`` holds some of the rows of ``labelled``.
    """
    table = read_table(decisions, untouched=(*id_columns, "decision"))
    absent = [name for name in (*id_columns, "decision") if name not in table.columns]
    if absent:
        raise StakesError(
            f"{decisions}: expected the columns {listing([*id_columns, 'decision'])}, as `stakes decide --id` writes "
            f"them, but it has {listing(table.columns)}"
        )
    written = read_table(labelled, untouched=id_columns).loc[frame.index]
    ids, decision_ids = _ids(written, labelled, id_columns), _ids(table, decisions, id_columns)
    matches = decision_ids.get_indexer(ids)
    if not (matches >= 0).any():
        first = " and ".join(repr(", ".join(map(str, each[0]))) for each in (decision_ids, ids) if len(each))
        raise StakesError(
            f"{decisions} and {labelled}: no value of {listing(id_columns)} is in both (the first ones are {first}); "
            "check the column, and how it is written"
        )
    matched, table = frame[matches >= 0], table.iloc[matches[matches >= 0]]
    unmatched = {
        "outcomes without a decision": int((matches < 0).sum()),
        "decisions without an outcome": len(decision_ids) - int((matches >= 0).sum()),
    }
    return matched, table, unmatched


def join_decisions(
    frame: pd.DataFrame,
    labelled: Path,
    decisions: Path,
    id_columns: Sequence[str],
    utility: TableUtility | FormulaUtility,
) -> tuple[pd.DataFrame, TakenDecisions, dict[str, int]]:
    """The rows that a decision was taken for, these decisions, and how many of either are without the other."""
    matched, table, unmatched = match_decisions(frame, labelled, decisions, id_columns)
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


def _ids(frame: pd.DataFrame, path: Path, columns: Sequence[str]) -> pd.MultiIndex:
    texts = (
        frame[list(columns)].astype(str).apply(lambda text: text.str.strip()).where(frame[list(columns)].notna(), "")
    )
    ids = pd.MultiIndex.from_frame(texts)
    twice = ids[ids.duplicated()].unique()
    if len(twice):
        also = "" if len(columns) > 1 else "; several columns can name a row together: --id day,shop"
        raise StakesError(
            f"{path}: expected each {' and '.join(map(repr, columns))} once, but {listing(map(', '.join, twice))} "
            f"stands more than once{also}"
        )
    return ids


def _probs(table: pd.DataFrame, path: Path, outcomes: tuple[str, ...]) -> Tensor | None:
    """Of the outcomes, where the file of decisions has them."""
    columns = [f"p_{outcome}" for outcome in outcomes]
    if not set(columns) <= set(table.columns):
        return None
    probs = torch.from_numpy(
        np.stack([read_numbers(table[name], number_format(table[name])) for name in columns], axis=1)
    )
    if not bool(torch.isfinite(probs).all()) or not bool(((probs.sum(1) - 1).abs() < 1e-3).all()):
        raise StakesError(
            f"{path}: expected probabilities that sum to 1 in the columns {listing(columns)}, but some do not"
        )
    return probs / probs.sum(1, keepdim=True)
