"""Table columns as numbers: the encoder that is fitted on the training part and saved with the model.

Files are read in ``stakes.tables.read``; written numbers and dates are understood in ``stakes.tables.formats``; what is
learnt of a column is in ``stakes.tables.columns``.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stakes.errors import Refusals, StakesError, StakesWarning, listing
from stakes.features import Features
from stakes.tables.columns import CategoricalColumn, NumericColumn, column_from_dict, fit_column
from stakes.tables.formats import Formats
from stakes.tables.values import numbers, row_number, text_codes

CLIP = 10.0  # standard deviations: an outlier at prediction must not decide alone


@dataclass(frozen=True)
class TableEncoder:
    """The features of a table: standardised numbers, then missing-value indicators, then one-hot levels."""

    columns: tuple[NumericColumn | CategoricalColumn, ...]
    formats: Formats = field(default_factory=Formats)

    @classmethod
    def fit(cls, frame: pd.DataFrame, *, categorical: Sequence[str] = ()) -> "TableEncoder":
        """Learn formats, centres, scales, medians and levels from the training rows; ``categorical`` forces levels."""
        check_frame(frame, categorical)
        formats = Formats.fit(frame, categorical=categorical)
        return cls.fit_clean(formats.clean(frame), formats, categorical=categorical)

    @classmethod
    def fit_clean(cls, clean: pd.DataFrame, formats: Formats, *, categorical: Sequence[str] = ()) -> "TableEncoder":
        """As `fit`, from rows that ``formats`` has cleaned already. A column without values is left out."""
        refusals = Refusals()
        columns, empty = [], []
        for name in clean.columns:
            with refusals.gather():
                column = fit_column(clean[name], name in categorical)
                columns.append(column) if column is not None else empty.append(name)
        refusals.refuse()
        if not columns:
            raise StakesError(f"expected columns with values to learn from, but {listing(empty)} have none")
        if empty:
            warnings.warn(f"left out, for they are empty: {listing(empty, len(empty))}", StakesWarning, stacklevel=3)
        return cls(tuple(columns), formats)

    def transform(self, frame: pd.DataFrame) -> npt.NDArray[np.float32]:
        """The features of every row, (N, F)."""
        return self.encode(self.formats.clean(frame))

    def encode(self, frame: pd.DataFrame) -> npt.NDArray[np.float32]:
        """As `transform`, of rows that the formats have cleaned already."""
        absent = [column.name for column in self.columns if column.name not in frame.columns]
        if absent:
            raw = dict.fromkeys(self.formats.sources.get(name, name) for name in absent)
            names = listing(raw, limit=len(raw))
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
        """The input columns, as they are in a file, in the order of the training table."""
        return tuple(dict.fromkeys(self.formats.sources.get(column.name, column.name) for column in self.columns))

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
        column_index = {name: number for number, name in enumerate(self.names)}
        column_index |= {
            part: column_index[name] for part, name in self.formats.sources.items() if name in column_index
        }
        numeric = [column_index[column.name] for column in self._numeric]
        levels = [column_index[column.name] for column in self._categorical for _ in column.levels]
        return np.array([*numeric, *(numeric[i] for i in self._indicators), *levels], dtype=np.intp)

    @property
    def dtypes(self) -> dict[str, str]:
        """The type each input column is read with, so that it cannot depend on the rows seen."""
        numeric = {column.name for column in self._numeric} - set(self.formats.columns)
        return {name: "float64" if name in numeric else "str" for name in self.names}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, for ``from_dict``."""
        kinds = {NumericColumn: "numeric", CategoricalColumn: "categorical"}
        columns = [{"kind": kinds[type(column)], **asdict(column)} for column in self.columns]
        content: dict[str, Any] = {
            "columns": [{**c, "levels": list(c["levels"])} if "levels" in c else c for c in columns]
        }
        return content | ({"formats": self.formats.to_dict()} if self.formats.columns else {})

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "TableEncoder":
        entries = content.get("columns") if isinstance(content, Mapping) else None
        if not isinstance(entries, list) or not entries:
            raise StakesError("expected a table encoder with a list of columns; the saved model is damaged")
        columns = tuple(column_from_dict(entry) for entry in entries)
        if len({column.name for column in columns}) != len(columns):
            raise StakesError("expected every encoder column once; the saved model is damaged")
        formats = content.get("formats", {})
        if not isinstance(formats, Mapping):
            raise StakesError("expected the formats of a table encoder by column; the saved model is damaged")
        return cls(columns, Formats.from_dict(formats))

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
            values = _numbers_of_all(numeric)
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


def check_frame(frame: pd.DataFrame, categorical: Sequence[str]) -> None:
    """Refuse a table that has no features, or not the columns that were named."""
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


def _numbers_of_all(frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """(K, N); all columns that are no numbers are named at once."""
    refusals = Refusals()
    values = np.full((len(frame.columns), len(frame)), np.nan)
    for row, name in zip(values, frame.columns, strict=True):
        with refusals.gather():
            row[:] = numbers(frame[name])
    refusals.refuse()
    return values


def _write_levels(series: "pd.Series[Any]", column: CategoricalColumn, features: npt.NDArray[np.float32]) -> None:
    index = {level: i for i, level in enumerate(column.levels)}
    codes, texts = text_codes(series)
    levels = np.array([index.get(text, -1) for text in [*texts, None]])[codes]
    rows = np.flatnonzero(levels >= 0)
    features[rows, levels[rows]] = 1.0
