"""Dates as people write them, and as numbers: days since 1970, the day of the week and the month.

A format is found once, from all the texts of a column, and saved with the model.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stakes.errors import StakesError
from stakes.tables.values import holds_dates

FloatArray = npt.NDArray[np.float64]
ISO = "ISO8601"
EPOCH = pd.Timestamp(0, tz="UTC")
PARTS = {
    "weekday": ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    "month": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
}
_SAMPLE = 100  # texts by which most patterns are ruled out
# In the order of preference: where a day could be a month, the day comes first.
_DAYS = (
    *("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d"),
    *("%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%B %d, %Y"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
FORMATS = (ISO, *(day + time for day, time in product(_DAYS, _TIMES)))
_ISO_DATE = r"\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?"
_LOOKS_LIKE = re.compile(
    rf"{_ISO_DATE}|\d{{1,4}}([./-])\d{{1,2}}\2\d{{1,4}}( .*)?|\d{{1,2}}[ -][A-Za-z]{{3,9}}[ -]\d{{2,4}}( .*)?"
    r"|[A-Za-z]{3,9} \d{1,2}, \d{4}( .*)?"
)


@dataclass(frozen=True)
class DateFormat:
    """How the dates of a column are written, which parts of them are features, and texts that stand for no date."""

    pattern: str = ISO
    parts: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()

    @property
    def example(self) -> str:
        return "2026-01-31" if self.pattern == ISO else f"{pd.Timestamp(2026, 1, 31):{self.pattern}}"

    def timestamps(self, values: "Sequence[str] | pd.Series[Any]") -> "pd.Series[Any]":
        """Of texts in this format or of a column of dates, NaT for no date; in UTC where a zone is stated."""
        if isinstance(values, pd.Series) and holds_dates(values):
            return pd.to_datetime(values, errors="coerce", utc=True)
        clean = [text.strip() for text in values]
        if self.pattern == ISO:  # pandas takes 2026 and 20260131 for dates as well
            clean = [text if re.fullmatch(_ISO_DATE, text) else "" for text in clean]
        return pd.to_datetime(pd.Series(clean, dtype=object), format=self.pattern, errors="coerce", utc=True)

    def days(self, values: "Sequence[str] | pd.Series[Any]") -> FloatArray:
        """Days since 1970-01-01."""
        return np.asarray((self.timestamps(values) - EPOCH) / pd.Timedelta(days=1), dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        return {"pattern": self.pattern, "parts": list(self.parts), "gaps": list(self.gaps)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "DateFormat":
        lists = [content.get("parts"), content.get("gaps")]
        texts = all(isinstance(each, list) and all(isinstance(text, str) for text in each) for each in lists)
        if not texts or content.get("pattern") not in FORMATS or not set(content["parts"]) <= set(PARTS):
            raise StakesError(f"expected a format of dates, but got {content!r:.120}; the saved model is damaged")
        return cls(content["pattern"], tuple(content["parts"]), tuple(content["gaps"]))


def part_of_days(days: FloatArray, part: str) -> npt.NDArray[np.object_]:
    """``Mon`` or ``Jan`` of every day; None where there is none."""
    dates = pd.Series(pd.to_datetime(np.floor(days), unit="D", errors="coerce"))
    index = dates.dt.day_of_week if part == "weekday" else dates.dt.month - 1
    names = np.array([*PARTS[part], None], dtype=object)
    return names[index.fillna(-1).to_numpy(dtype=np.int64)]


@dataclass(frozen=True)
class DateGuess:
    """The pattern that reads most of some texts, those that it does not read, and an alternative that reads as many."""

    pattern: str
    odd: tuple[str, ...]
    other: str | None

    def reading_of(self, text: str) -> str:
        """How one of the texts is read, and what else it could be."""
        date = DateFormat(self.pattern).timestamps([text])[0]
        doubt = ", though the day could be the month: if so, write dates as 2026-01-31" if self.other else ""
        return f"{text!r} as {date.day} {date:%B %Y}{doubt}"


def guess_dates(texts: Sequence[str]) -> DateGuess | None:
    """How texts are to be read as dates; None if fewer than half look like one."""
    looks = [text for text in texts if _LOOKS_LIKE.fullmatch(text.strip())]
    if 2 * len(looks) <= len(texts):
        return None
    sample = looks[:_SAMPLE]
    able = [pattern for pattern in FORMATS if 2 * np.isnan(DateFormat(pattern).days(sample)).sum() <= len(sample)]
    if not able:
        return None
    read = {pattern: DateFormat(pattern).days(looks) for pattern in able}
    failures = {pattern: int(np.isnan(days).sum()) for pattern, days in read.items()}
    best = min(able, key=lambda pattern: failures[pattern])  # the first of equals
    if 2 * (len(looks) - failures[best]) <= len(texts):
        return None
    missed = {text for text, day in zip(looks, read[best], strict=True) if np.isnan(day)} | {*texts} - {*looks}
    odd = tuple(text for text in texts if text in missed)
    same = [p for p in able if failures[p] == failures[best] and not np.array_equal(read[p], read[best], True)]
    return DateGuess(best, odd, same[0] if same else None)
