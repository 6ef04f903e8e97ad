"""The data as they were read: rows, columns, types, gaps, what was left out, and what was said about it."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from stakes.errors import StakesError, StakesWarning
from stakes.tables.date_format import DateFormat
from stakes.tables.formats import Formats
from stakes.tables.values import holds_numbers, text_codes


@dataclass(frozen=True)
class ColumnSummary:
    """One column of a file."""

    name: str
    role: str  # feature, target, group, time, dropped, or empty
    kind: str  # number, text, date, or other
    missing: int
    distinct: int
    first: str = ""  # the least number or date, or the most frequent text
    last: str = ""  # the greatest number or date


@dataclass(frozen=True)
class DataSummary:
    """A table as it was read."""

    file: str
    rows: int
    columns: tuple[ColumnSummary, ...]
    notices: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        file: str,
        frame: pd.DataFrame,
        formats: Formats,
        roles: Mapping[str, str],
        categorical: Sequence[str] = (),
        notices: Sequence[str] = (),
    ) -> "DataSummary":
        """Of raw columns; those without a role in ``roles`` are features."""
        clean = formats.clean(frame)
        columns = []
        for name in frame.columns:
            date = isinstance(formats.columns.get(name), DateFormat)
            columns.append(_summary(clean[name], roles.get(name, "feature"), date, name in categorical))
        return cls(file, len(frame), tuple(columns), tuple(notices))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, for ``from_dict``."""
        return asdict(self) | {"columns": [asdict(column) for column in self.columns], "notices": list(self.notices)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "DataSummary":
        columns = tuple(ColumnSummary(**column) for column in content["columns"])
        return cls(content["file"], content["rows"], columns, tuple(content["notices"]))


def _summary(series: "pd.Series[Any]", role: str, date: bool, categorical: bool) -> ColumnSummary:
    name, present, missing = str(series.name), series.dropna(), int(series.isna().sum())
    if present.empty:
        return ColumnSummary(name, "empty" if role == "feature" else role, "other", missing, 0)
    if date or (holds_numbers(series) and not categorical):
        ends = [float(present.min()), float(present.max())]
        shown = [f"{pd.Timestamp(end, unit='D'):%Y-%m-%d}" if date else f"{end:.6g}" for end in ends]
        return ColumnSummary(name, role, "date" if date else "number", missing, int(present.nunique()), *shown)
    try:
        codes, texts = text_codes(present)
    except StakesError:  # lists, records or times, in a column that was dropped
        return ColumnSummary(name, role, "other", missing, 0)
    return ColumnSummary(name, role, "text", missing, len(texts), str(texts[int(np.bincount(codes).argmax())]))


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Gather what stakes warns of in a list, and warn of it when the block has ended well.

    Where the block ends in an error, that is all there is to say.
    """
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    for warning in caught:
        if issubclass(warning.category, StakesWarning):
            messages.append(str(warning.message))
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
