"""Table columns as numbers: the encoder that is fitted on the training part and saved with the model.

Files are read in ``stakes.tables.read``; single values are interpreted in ``stakes.tables.values``.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stakes.errors import StakesError, StakesWarning, listing
from stakes.features import Features
from stakes.tables.values import FloatArray, as_text, is_number, numbers, row_number, text_codes

MAX_LEVELS = 50
CLIP = 10.0  # standard deviations: an outlier at prediction must not decide alone
IDENTIFIER_ROWS = 50
CODES = 20  # more different numbers than this are amounts, not codes
RARE_SHARE = 0.3


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


@dataclass(frozen=True)
class TableEncoder:
    """The features of a table: standardised numbers, then missing-value indicators, then one-hot levels."""

    columns: tuple[NumericColumn | CategoricalColumn, ...]

    @classmethod
    def fit(cls, frame: pd.DataFrame, *, categorical: Sequence[str] = ()) -> "TableEncoder":
        """Learn centres, scales, medians and levels from the training rows; ``categorical`` forces levels."""
        _check_frame(frame, categorical)
        return cls(tuple(_fit_column(frame[name], name in categorical) for name in frame.columns))

    def transform(self, frame: pd.DataFrame) -> npt.NDArray[np.float32]:
        """The features of every row, (N, F)."""
        absent = [name for name in self.names if name not in frame.columns]
        if absent:
            names = listing(absent, limit=len(absent))
            raise StakesError(
                f"expected the columns the encoder was fitted on, but these are missing: {names}; add them to the table"
            )
        features = np.zeros((len(frame), self.width), dtype=np.float32)
        if self._numeric:
            self._write_numeric(frame, features)
        start = len(self._numeric) + len(self._indicators)
        for column in self._categorical:
            _write_levels(frame[column.name], column, features[:, start:])
            start += len(column.levels)
        return features

    @property
    def names(self) -> tuple[str, ...]:
        """The input columns, in the order of the training table."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        numeric = [column.name for column in self._numeric]
        indicators = [f"{numeric[i]} is missing" for i in self._indicators]
        levels = [
            f"{column.name} is missing" if level is None else f"{column.name}={level}"
            for column in self._categorical
            for level in column.levels
        ]
        return (*numeric, *indicators, *levels)

    @property
    def width(self) -> int:
        return len(self.feature_names)

    @property
    def features(self) -> Features:
        """What the columns of `transform` are."""
        levels = tuple(len(column.levels) for column in self._categorical)
        return Features(len(self._numeric), self._indicators, levels)

    @property
    def sources(self) -> npt.NDArray[np.intp]:
        """(F,) for each feature, which of ``names`` it is made of."""
        place = {name: number for number, name in enumerate(self.names)}
        numeric = [place[column.name] for column in self._numeric]
        levels = [place[column.name] for column in self._categorical for _ in column.levels]
        return np.array([*numeric, *(numeric[i] for i in self._indicators), *levels], dtype=np.intp)

    @property
    def dtypes(self) -> dict[str, str]:
        """The type each column has however it is read, so that it cannot depend on the rows seen."""
        return {column.name: "float64" if isinstance(column, NumericColumn) else "str" for column in self.columns}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, for ``from_dict``."""
        kinds = {NumericColumn: "numeric", CategoricalColumn: "categorical"}
        columns = [{"kind": kinds[type(column)], **asdict(column)} for column in self.columns]
        return {"columns": [{**c, "levels": list(c["levels"])} if "levels" in c else c for c in columns]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "TableEncoder":
        entries = content.get("columns") if isinstance(content, Mapping) else None
        if not isinstance(entries, list) or not entries:
            raise StakesError("expected a table encoder with a list of columns; the saved model is damaged")
        columns = tuple(_column_from_dict(entry) for entry in entries)
        if len({column.name for column in columns}) != len(columns):
            raise StakesError("expected every encoder column once; the saved model is damaged")
        return cls(columns)

    @cached_property
    def _numeric(self) -> tuple[NumericColumn, ...]:
        return tuple(column for column in self.columns if isinstance(column, NumericColumn))

    @cached_property
    def _categorical(self) -> tuple[CategoricalColumn, ...]:
        return tuple(column for column in self.columns if isinstance(column, CategoricalColumn))

    @cached_property
    def _indicators(self) -> tuple[int, ...]:
        return tuple(i for i, column in enumerate(self._numeric) if column.has_missing)

    def _write_numeric(self, frame: pd.DataFrame, features: npt.NDArray[np.float32]) -> None:
        count = len(self._numeric)
        numeric = frame[[column.name for column in self._numeric]]
        if all(isinstance(dtype, np.dtype) and dtype.kind in "fiub" for dtype in numeric.dtypes):
            values = np.ascontiguousarray(numeric.to_numpy(dtype=np.float64, copy=True).T)  # (K, N), ours to overwrite
        else:
            values = np.array([numbers(numeric[name]) for name in numeric.columns], dtype=np.float64)
        if not np.isfinite(values).all():
            missing = np.isnan(values)
            infinite = np.argwhere(np.isinf(values))
            if len(infinite):
                column, position = infinite[0]
                raise StakesError(
                    f"column {self._numeric[column].name!r}: expected finite numbers, but row "
                    f"{row_number(frame.index, int(position))} is infinite; leave it empty if the value is missing"
                )
            fill = np.array([column.fill for column in self._numeric])
            np.copyto(values, fill[:, None], where=missing)
            features[:, count : count + len(self._indicators)] = missing[list(self._indicators)].T
        values -= np.array([[column.center] for column in self._numeric])
        values /= np.array([[column.scale] for column in self._numeric])
        np.clip(values, -CLIP, CLIP, out=values)
        features[:, :count] = values.T


def _check_frame(frame: pd.DataFrame, categorical: Sequence[str]) -> None:
    names = list(frame.columns)
    if not names:
        raise StakesError("expected at least one feature column, but none is left; drop fewer columns")
    if not len(frame):
        raise StakesError("expected rows to fit the table encoder on, but there are none")
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise StakesError(f"expected different texts as column names, but got {listing(names)}; rename them")
    unknown = [name for name in categorical if name not in names]
    if unknown:
        raise StakesError(
            f"expected categorical columns among {listing(names)}, but got {listing(unknown)}; check the spelling"
        )


def _fit_column(series: "pd.Series[Any]", categorical: bool) -> NumericColumn | CategoricalColumn:
    name = str(series.name)
    if series.isna().all():
        raise StakesError(f"column {name!r} has no values at all; drop it with --drop {name}")
    if categorical or not _holds_numbers(series):
        return _fit_levels(series, name, forced=categorical)
    return _fit_numeric(series, name)


def _holds_numbers(series: "pd.Series[Any]") -> bool:
    if isinstance(series.dtype, pd.CategoricalDtype):
        return False
    if pd.api.types.is_numeric_dtype(series.dtype):
        return True
    inferred = pd.api.types.infer_dtype(series, skipna=True)
    return inferred in {"boolean", "integer", "floating", "mixed-integer-float", "decimal"}


def _fit_numeric(series: "pd.Series[Any]", name: str) -> NumericColumn:
    values = numbers(series)
    missing = np.isnan(values)
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise StakesError(
            f"column {name!r}: expected finite numbers, but {infinite} of {len(values)} are infinite; "
            f"leave them empty, or drop the column with --drop {name}"
        )
    has_missing = bool(missing.any())
    if not has_missing and _counts_up(values):
        _warn_identifier(name, "its whole numbers are all different and in sequence")
    fill = float(np.median(values[~missing]))
    center, scale = _center_and_scale(np.where(missing, fill, values))
    return NumericColumn(name, center, scale, fill, has_missing)


def _center_and_scale(values: FloatArray) -> tuple[float, float]:
    """Mean and sd; computed on values within [-1, 1] so that the squares of huge ones do not overflow."""
    if values.min() == values.max():
        return float(values[0]), 1.0
    unit = float(np.abs(values).max())
    scaled = values / unit
    return float(scaled.mean()) * unit, (float(scaled.std()) * unit) or 1.0


def _counts_up(values: FloatArray) -> bool:
    if len(values) < IDENTIFIER_ROWS or (values != np.floor(values)).any():
        return False
    steps = np.diff(values)
    return bool((steps > 0).all() or (np.diff(np.sort(values)) == 1).all())


def _fit_levels(series: "pd.Series[Any]", name: str, forced: bool) -> CategoricalColumn:
    texts = as_text(series)
    present = texts.dropna()
    counts = Counter(present)
    if not forced:
        _refuse_text_among_numbers(name, texts, counts)
    ranked = sorted(counts, key=lambda level: (-counts[level], level))[:MAX_LEVELS]
    lost = 1 - sum(counts[level] for level in ranked) / max(1, len(present))
    if len(present) >= IDENTIFIER_ROWS and len(counts) == len(present):
        _warn_identifier(name, "its values are all different")
    elif lost > RARE_SHARE:
        warnings.warn(
            f"column {name!r} has {len(counts)} different texts, of which the {MAX_LEVELS} most frequent are told "
            f"apart; {lost:.0%} of the rows have others: derive numbers or groups from it, or leave it out with "
            f"--drop {name}",
            StakesWarning,
            stacklevel=5,
        )
    return CategoricalColumn(name, (*ranked, None) if len(present) < len(texts) else tuple(ranked))


def _refuse_text_among_numbers(name: str, texts: "pd.Series[Any]", counts: Counter[str]) -> None:
    """A column of numbers with a few texts in it was meant as numbers, not as so many categories."""
    numeric = [text for text in counts if is_number(text)]
    if len(numeric) > CODES and sum(counts[text] for text in numeric) > sum(counts.values()) / 2:
        odd = texts.notna() & ~texts.isin(numeric)
        position = int(odd.to_numpy().argmax())
        raise StakesError(
            f"column {name!r}: {sum(counts[text] for text in numeric)} values are numbers, but row "
            f"{row_number(texts.index, position)} has {texts.iloc[position]!r}: leave such cells empty, or, if the "
            f"numbers are codes, use --categorical {name}"
        )


def _warn_identifier(name: str, reason: str) -> None:
    warnings.warn(
        f"column {name!r} looks like a row identifier ({reason}), which says nothing about new rows; "
        f"drop it with --drop {name}",
        StakesWarning,
        stacklevel=6,
    )


def _write_levels(series: "pd.Series[Any]", column: CategoricalColumn, features: npt.NDArray[np.float32]) -> None:
    index = {level: i for i, level in enumerate(column.levels)}
    codes, texts = text_codes(series)
    levels = np.array([index.get(text, -1) for text in [*texts, None]])[codes]
    rows = np.flatnonzero(levels >= 0)
    features[rows, levels[rows]] = 1.0


def _column_from_dict(entry: Any) -> NumericColumn | CategoricalColumn:
    """One column of ``to_dict``, checked field by field: a saved model may have been edited by hand."""
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
