"""The column of --time: how it is written, found once, and its values as numbers that grow with time."""

import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from stakes.errors import StakesError, StakesWarning, quoted
from stakes.tables.date_format import EPOCH, ISO, DateFormat, FloatArray, guess_dates
from stakes.tables.values import as_text, holds_dates, numbers, row_number

LONGEST = 100  # characters of a time
MIXED = "mixed"  # as pandas reads texts that we have no pattern for, such as 2026-01 or Jan 2026
_DAY_OR_MONTH_FIRST = re.compile(r"\s*\d{1,2}[./-]\d{1,2}[./-]\d")


@dataclass(frozen=True)
class TimeFormat:
    """How times are written: the pattern of dates, or None for numbers."""

    pattern: str | None

    @classmethod
    def of(cls, series: "pd.Series[Any]") -> "TimeFormat":
        """Found from a whole column; where dates are not written as 2026-01-31, how they are read is said."""
        if is_numeric_dtype(series.dtype):
            return cls(None)
        if holds_dates(series):
            return cls(ISO)
        texts = list(dict.fromkeys(as_text(series).dropna()))
        guess = guess_dates(texts)
        if guess is not None and guess.pattern != ISO:
            example = next(text for text in texts if text not in guess.odd)
            warnings.warn(f"read as times: {series.name!r} ({guess.reading_of(example)})", StakesWarning, stacklevel=3)
        elif guess is None:
            unclear = [text for text in texts if _DAY_OR_MONTH_FIRST.match(text)]
            if unclear:
                raise StakesError(
                    f"column {series.name!r}: expected dates to order rows by, but it is not clear which part of "
                    f"{unclear[0]!r} is the day; write dates as 2026-01-31"
                )
        return cls(MIXED if guess is None else guess.pattern)

    def times(self, series: "pd.Series[Any]") -> FloatArray:
        """(N,) the numbers, or the seconds since 1970; a row without one is an error."""
        if self.pattern is None:
            values = numbers(series)
        elif is_numeric_dtype(series.dtype):
            values = np.full(len(series), np.nan)
        elif self.pattern == MIXED:
            short = series.where(series.astype(str).str.len() <= LONGEST)  # a long text takes pandas very long
            values = _seconds(pd.to_datetime(short, errors="coerce", format=MIXED, utc=True))
        else:
            dated = holds_dates(series)
            values = _seconds(DateFormat(self.pattern).timestamps(series if dated else series.fillna("").astype(str)))
        if np.isnan(values).any():
            row = int(np.argmax(np.isnan(values)))
            text = "none" if pd.isna(series.iloc[row]) else quoted(str(series.iloc[row]))
            raise StakesError(
                f"column {series.name!r}: expected {self._expected} in every row to order them by, but row "
                f"{row_number(series.index, row)} has {text}; correct it, or drop the row"
            )
        return values

    @property
    def _expected(self) -> str:
        if self.pattern is None:
            return "a number"
        return "a date or a number" if self.pattern == MIXED else f"a date such as {DateFormat(self.pattern).example!r}"


def _seconds(timestamps: "pd.Series[Any]") -> FloatArray:
    return np.asarray((timestamps - EPOCH).dt.total_seconds(), dtype=np.float64)
