"""The columns of an encoder: what is learnt of one column of numbers or texts, and how it is saved."""

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from stakes.errors import StakesError
from stakes.tables.values import FloatArray, as_text, holds_numbers, numbers

USUAL_LEVELS, MOST_LEVELS = 50, 200  # texts of a column that are told apart; beyond the usual number, only
ENOUGH_ROWS = 10  # texts with so many rows to learn from


@dataclass(frozen=True)
class NumericColumn:
    """Standardised by the training mean and sd; a missing value becomes the training median."""

    name: str
    center: float
    scale: float
    fill: float
    has_missing: bool


@dataclass(frozen=True)
class CategoricalColumn:
    """One-hot over ``levels``, where None is the level "missing"; any other value is all zeros."""

    name: str
    levels: tuple[str | None, ...]


def fit_column(series: "pd.Series[Any]", categorical: bool) -> NumericColumn | CategoricalColumn | None:
    """What is learnt of a column; None if it has no values."""
    name = str(series.name)
    if categorical or not holds_numbers(series):
        texts = as_text(series)
        counts = Counter(texts.dropna())
        ranked = ranked_levels(counts)
        return CategoricalColumn(name, (*ranked, None) if texts.isna().any() else ranked) if ranked else None
    values = numbers(series)
    missing = np.isnan(values)
    if missing.all():
        return None
    fill = float(np.median(values[~missing]))
    center, scale = _center_and_scale(np.where(missing, fill, values))
    return NumericColumn(name, center, scale, fill, bool(missing.any()))


def ranked_levels(counts: Mapping[str, int]) -> tuple[str, ...]:
    """The texts that are told apart, the most frequent first."""
    ranked = sorted(counts, key=lambda level: (-counts[level], level))[:MOST_LEVELS]
    usual, others = ranked[:USUAL_LEVELS], ranked[USUAL_LEVELS:]
    return (*usual, *(level for level in others if counts[level] >= ENOUGH_ROWS))


def _center_and_scale(values: FloatArray) -> tuple[float, float]:
    """Mean and sd; computed on values within [-1, 1] so that the squares of huge ones do not overflow."""
    if values.min() == values.max():
        return float(values[0]), 1.0
    unit = float(np.abs(values).max())
    scaled = values / unit
    return float(scaled.mean()) * unit, (float(scaled.std()) * unit) or 1.0


def column_from_dict(entry: Any) -> NumericColumn | CategoricalColumn:
    """One column of ``TableEncoder.to_dict``, checked field by field: a saved model may have been edited by hand."""
    fields = dict(entry) if isinstance(entry, Mapping) else {}
    kind, name = fields.pop("kind", None), fields.get("name")
    if kind == "categorical" and isinstance(name, str) and set(fields) == {"name", "levels"}:
        levels = fields["levels"]
        texts = isinstance(levels, list) and all(level is None or isinstance(level, str) for level in levels)
        if texts and len(set(levels)) == len(levels):
            return CategoricalColumn(name, tuple(levels))
    elif kind == "numeric" and isinstance(name, str) and set(fields) == set(NumericColumn.__annotations__):
        reals = [fields[key] for key in ("center", "scale", "fill")]
        finite = all(isinstance(x, int | float) and abs(x) <= sys.float_info.max for x in reals)
        if finite and fields["scale"] > 0 and isinstance(fields["has_missing"], bool):
            return NumericColumn(**fields)
    raise StakesError(f"expected an encoder column, but got {entry!r:.120}; the saved model is damaged")
