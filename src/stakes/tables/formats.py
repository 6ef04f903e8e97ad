"""How the raw columns of a table become numbers and texts: written numbers and dates, found once and saved.

``clean`` comes before the encoder of ``stakes.tables.encode``, when a model is made and when it decides.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from stakes.errors import Refusals, StakesError, StakesWarning, quoted, typed
from stakes.tables.date_format import ISO, PARTS, DateFormat, guess_dates, part_of_days
from stakes.tables.number_format import PERCENT, NumberFormat, guess_numbers, is_written_number
from stakes.tables.values import MISSING_TEXTS, FloatArray, factorize, holds_dates, holds_numbers, numbers, row_number

CODES = 20  # more different numbers than this are amounts, not codes
RARE_DATES = 0.01  # of the rows: so many that are no dates count as missing
_MISSING = frozenset(MISSING_TEXTS)


@dataclass(frozen=True)
class Formats:
    """The columns of a table whose text, or whose dates, are read as numbers; all others are as they are."""

    columns: Mapping[str, NumberFormat | DateFormat] = field(default_factory=dict)

    @classmethod
    def fit(cls, frame: pd.DataFrame, *, categorical: Sequence[str] = (), decimal: str | None = None) -> "Formats":
        """Find written numbers and dates, and say so; columns that can be no features are refused, all at once.

        Where a number can be read in two ways, the mark ``decimal`` says in which; None: that of the other columns.
        """
        columns: dict[str, NumberFormat | DateFormat] = {}
        notes: dict[str, list[str]] = {"numbers": [], "dates": []}
        decimal = decimal or decimal_mark(frame.drop(columns=[name for name in categorical if name in frame]))
        refusals = Refusals()
        for name in frame.columns:
            if name in categorical:
                continue
            with refusals.gather():
                if (column_format := _format_of(frame[name], decimal, notes)) is not None:
                    columns[name] = column_format
                    _refuse_clash(name, column_format, frame)
        refusals.refuse()
        for kind, messages in notes.items():
            if messages:
                warnings.warn(f"read as {kind}: {'; '.join(messages)}", StakesWarning, stacklevel=3)
        return cls(columns)

    def clean(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table with numbers for written numbers and for dates, and columns for the parts of dates at its end."""
        columns: dict[str, Any] = {}
        refusals = Refusals()
        for name, column_format in self.columns.items():
            if name not in frame.columns:
                continue
            with refusals.gather():
                if isinstance(column_format, NumberFormat):
                    columns[name] = _read_numbers(frame[name], column_format)
                    continue
                days = _read_days(frame[name], column_format)
                columns |= {name: days} | {
                    _part_name(name, part): part_of_days(days, part) for part in column_format.parts
                }
        refusals.refuse()
        return frame.assign(**columns) if columns else frame

    def number(self, name: str) -> NumberFormat | None:
        """How the numbers of a column are written, if they have a format."""
        column_format = self.columns.get(name)
        return column_format if isinstance(column_format, NumberFormat) else None

    @property
    def dates(self) -> set[str]:
        """The columns that are read as days since 1970."""
        return {name for name, each in self.columns.items() if isinstance(each, DateFormat)}

    @cached_property
    def sources(self) -> dict[str, str]:
        """The raw column of each part of a date."""
        dates = {
            name: column_format for name, column_format in self.columns.items() if isinstance(column_format, DateFormat)
        }
        return {_part_name(name, part): name for name, column_format in dates.items() for part in column_format.parts}

    def to_dict(self) -> dict[str, Any]:
        return {
            name: {"kind": "number" if isinstance(column_format, NumberFormat) else "date", **column_format.to_dict()}
            for name, column_format in self.columns.items()
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Formats":
        kinds: dict[str, type[NumberFormat] | type[DateFormat]] = {"number": NumberFormat, "date": DateFormat}
        columns = {}
        for name, entry in content.items():
            fields = dict(entry) if isinstance(entry, Mapping) else {}
            kind = fields.pop("kind", None)
            if kind not in kinds:
                raise StakesError(f"expected a format of a column, but got {entry!r:.120}; the saved model is damaged")
            columns[name] = kinds[kind].from_dict(fields)
        return cls(columns)


def _part_name(name: str, part: str) -> str:
    return f"{name} ({part})"


def _refuse_clash(name: str, column_format: NumberFormat | DateFormat, frame: pd.DataFrame) -> None:
    for part in column_format.parts if isinstance(column_format, DateFormat) else ():
        if _part_name(name, part) in frame.columns:
            raise StakesError(
                f"column {_part_name(name, part)!r}: this is the name of the {part} of {name!r}; rename or drop it"
            )


def decimal_mark(frame: pd.DataFrame) -> str:
    """The decimal mark of the table: a comma, if all columns that leave no doubt about theirs have one."""
    marks = set()
    for name in frame.columns:
        if pd.api.types.is_float_dtype(frame[name].dtype):
            values = frame[name].to_numpy(dtype=np.float64, na_value=0.0)
            marks |= {"."} if (values[np.isfinite(values)] % 1).any() else set()
            continue
        with Refusals().gather():  # what is wrong with a column is said when its own format is looked for
            texts = _texts(frame[name])
            guess = guess_numbers(texts) if texts else None
            certain = guess is not None and not guess.odd and guess.other is None
            if guess is not None and certain and any(guess.format.decimal in text for text in texts):
                marks.add(guess.format.decimal)
    return "," if marks == {","} else "."


def _texts(series: "pd.Series[Any]") -> list[str]:
    """The different texts of a column, without gaps; none, if it holds anything else."""
    if holds_numbers(series) or holds_dates(series):
        return []
    _, uniques = factorize(series)
    return [text for text in uniques if not _is_gap(text)] if all(isinstance(text, str) for text in uniques) else []


def _format_of(
    series: "pd.Series[Any]", decimal: str, notes: Mapping[str, list[str]]
) -> NumberFormat | DateFormat | None:
    """The format of one column, if it needs one; adds what is to be said about it to ``notes``."""
    if holds_numbers(series):
        _refuse_infinite(series)
        return None
    if holds_dates(series):
        notes["dates"].append(f"{series.name!r}")
        return DateFormat(ISO, _varying_parts(DateFormat().days(series)))
    texts = _texts(series)
    if not texts:
        return None
    counts = {str(text): int(count) for text, count in series.value_counts().items()}
    return _numbers_of(series, texts, counts, decimal, notes) or _dates_of(series, texts, counts, notes)


def _numbers_of(
    series: "pd.Series[Any]",
    texts: Sequence[str],
    counts: Mapping[str, int],
    decimal: str,
    notes: Mapping[str, list[str]],
) -> NumberFormat | None:
    guess = guess_numbers(texts)
    if guess is not None and guess.other is not None:
        guess = guess_numbers(texts, decimal)
    if guess is None:
        return None
    odd = {*guess.odd}
    read = [text for text in texts if text not in odd]
    many = len(read) > CODES and _rows(read, counts) > _rows(guess.odd, counts)
    if guess.odd and (many or all(map(is_written_number, guess.odd))):
        raise StakesError(
            f"column {series.name!r}: {_rows(read, counts)} values are numbers such as {read[0]!r}, but "
            f"row {_row_of(series, guess.odd[0])} has {quoted(guess.odd[0])}: write all of them alike, leave such "
            f"cells empty, or, if the numbers are codes, use {typed('--categorical', series.name)}"
        )
    if guess.odd or (guess.format.plain and len(texts) <= CODES):
        return None
    example = max(texts, key=lambda text: sum(not mark.isdigit() for mark in text))
    doubt = ""
    if guess.other is not None:
        example = next(text for text in texts if guess.other.parse(text) != guess.format.parse(text))
        doubt = (
            f", though it could be {guess.other.parse(example):.15g}: if so, write it without marks between thousands "
            "and with a decimal point"
        )
    notes["numbers"].append(f"{series.name!r} ({example!r} as {guess.format.parse(example):.15g}{doubt})")
    return guess.format


def _dates_of(
    series: "pd.Series[Any]", texts: Sequence[str], counts: Mapping[str, int], notes: Mapping[str, list[str]]
) -> DateFormat | None:
    guess = guess_dates(texts)
    if guess is None:
        return None
    odd = {*guess.odd}
    read = [text for text in texts if text not in odd]
    if _rows(guess.odd, counts) > RARE_DATES * _rows(texts, counts):
        raise StakesError(
            f"column {series.name!r}: {_rows(read, counts)} values are dates such as {read[0]!r}, but row "
            f"{_row_of(series, guess.odd[0])} has {quoted(guess.odd[0])}: correct such cells or leave them empty, or "
            f"use {typed('--categorical', series.name)}"
        )
    note = f"{series.name!r} ({guess.reading_of(read[0])}"
    if guess.odd:
        note += f"; {_rows(guess.odd, counts)} rows with no date, such as {quoted(guess.odd[0])}, count as missing"
    notes["dates"].append(f"{note})")
    return DateFormat(guess.pattern, _varying_parts(DateFormat(guess.pattern).days(read)), guess.odd)


def number_format(series: "pd.Series[Any]", decimal: str = ".") -> NumberFormat | None:
    """How the numbers of a column are written, which is said; None if they are numbers already, or none can be read."""
    texts, notes = _texts(series), {"numbers": list[str]()}
    counts = {str(text): int(count) for text, count in series.value_counts().items()} if texts else {}
    written = _numbers_of(series, texts, counts, decimal, notes) if texts else None
    for note in notes["numbers"]:
        warnings.warn(f"read as numbers: {note}", StakesWarning, stacklevel=3)
    return written


def read_numbers(series: "pd.Series[Any]", written: NumberFormat | None) -> FloatArray:
    """A column as float64, from texts in a format, if there is one."""
    return numbers(series) if written is None else _read_numbers(series, written)


def _rows(texts: Sequence[str], counts: Mapping[str, int]) -> int:
    return sum(counts[text] for text in texts)


def _varying_parts(days: FloatArray) -> tuple[str, ...]:
    return tuple(part for part in PARTS if len(set(part_of_days(days[~np.isnan(days)], part))) > 1)


def _read_numbers(series: "pd.Series[Any]", written: NumberFormat) -> FloatArray:
    if holds_numbers(series):
        values = numbers(series)
        if written.symbol == PERCENT and np.nan_to_num(values).any():
            raise StakesError(
                f"column {series.name!r}: expected percentages such as '88.9%', but they have no sign: it is not known "
                "whether 0.5 is a half or half a hundredth; write them with the sign"
            )
        return values
    codes, uniques = factorize(series)
    parsed = [np.nan if _is_gap(value) else written.parse(str(value)) for value in uniques]
    _refuse_unread(series, uniques, parsed, f"a number such as {written.example!r}")
    return np.array([*parsed, np.nan], dtype=np.float64)[codes]


def _read_days(series: "pd.Series[Any]", written: DateFormat) -> FloatArray:
    if holds_dates(series):
        return written.days(series)
    codes, uniques = factorize(series)
    days = written.days([str(value) for value in uniques])
    parsed = [
        np.nan if _is_gap(value) or value in written.gaps else None if np.isnan(day) else day
        for value, day in zip(uniques, days, strict=True)
    ]
    _refuse_unread(series, uniques, parsed, f"a date such as {written.example!r}")
    return np.array([*parsed, np.nan], dtype=np.float64)[codes]


def _is_gap(value: Any) -> bool:
    return isinstance(value, str) and value.strip() in _MISSING


def _refuse_unread(series: "pd.Series[Any]", values: Sequence[Any], read: Sequence[Any], expected: str) -> None:
    for value in (value for value, number in zip(values, read, strict=True) if number is None):
        raise StakesError(
            f"column {series.name!r}: expected {expected}, but row {_row_of(series, value)} has {value!r}; correct it, "
            "or leave it empty if the value is missing"
        )


def _refuse_infinite(series: "pd.Series[Any]") -> None:
    values = numbers(series)
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise StakesError(
            f"column {series.name!r}: expected finite numbers, but {infinite} of {len(values)} are infinite; "
            f"leave them empty, or drop the column with {typed('--drop', series.name)}"
        )


def _row_of(series: "pd.Series[Any]", value: Any) -> int:
    return row_number(series.index, int(np.argmax((series == value).to_numpy(dtype=bool, na_value=False))))
