"""Earlier amounts as features: what was sold a day, or a week, before; and the weekday and the month.

Times are counted in steps: days of daily rows, months of monthly ones, quarters of quarterly ones. An amount of the
row's own time, or of a later one, is never looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stakes.errors import StakesError
from stakes.tables.date_format import FORMATS, ISO
from stakes.tables.formats import decimal_mark, number_format, read_numbers
from stakes.tables.number_format import NumberFormat
from stakes.tables.times import MIXED, TimeFormat
from stakes.tables.values import as_text, holds_numbers, row_number

MONTHS = "months"  # in place of a number of seconds
_NEAR = 1e-6  # of a step: times are whole steps but for rounding
_DAY = 86_400.0

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Lags:
    """Which earlier amounts become features, and the last ones of each series, which new rows look back at."""

    target: str
    time: str
    lags: tuple[int, ...]
    series: str | None = None
    pattern: str | None = ISO  # of the times: see `TimeFormat`
    step: float | str = _DAY  # in seconds, or in the unit of the numbers; or MONTHS
    months: int = 1  # in a step, where the step is MONTHS
    start: float = 0.0  # a time from which steps are counted
    tail: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by series and step: the last amounts
    written: NumberFormat | None = None  # how amounts are written

    @classmethod
    def fit(
        cls,
        frame: pd.DataFrame,
        target: str,
        time: str,
        lags: Sequence[int],
        series: str | None = None,
        time_format: TimeFormat | None = None,
        written: NumberFormat | None = None,
    ) -> "Lags":
        """For the rows to learn from; a gap in time is an error. The format of times is found, if it is not given."""
        time_format = TimeFormat.of(frame[time]) if time_format is None else time_format
        times, groups = time_format.times(frame[time]), _groups(frame, series)
        monthly = time_format.pattern is not None and _same_day(times)
        distinct = np.unique(times)
        if len(distinct) < 2:
            raise StakesError(f"column {time!r}: expected rows of several times for --lags, but all have one")
        counted = _months(times) if monthly else times
        gaps = [np.diff(np.unique(counted[groups == group])) for group in np.unique(groups)]
        if not any(map(len, gaps)):
            raise StakesError(
                f"column {series!r}: expected several times of each series for --lags, but each has one row; check "
                "--series, or leave out --lags"
            )
        least = min(each.min() for each in gaps if len(each))
        step, months = (MONTHS, int(least)) if monthly else (float(least), 1)
        start = float(distinct[0])
        known = cls(target, time, tuple(lags), series, time_format.pattern, step, months, start, written=written)
        return known.extended(frame)

    def extended(self, frame: pd.DataFrame) -> "Lags":
        """With the amounts of these rows among the last ones of each series; a gap in time is an error."""
        steps, groups = self._steps(frame), _groups(frame, self.series)
        self._refuse_gaps(frame, steps, groups)
        known = {group: dict(last) for group, last in self.tail.items()}
        for group, step, amount in zip(groups, steps.tolist(), self._amounts(frame), strict=True):
            known.setdefault(group, {})[str(step)] = float(amount)
        tail = {
            group: {step: amounts[step] for step in sorted(amounts, key=int)[-max(self.lags) :]}
            for group, amounts in known.items()
        }
        return replace(self, tail=tail)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it makes."""
        calendar = () if self.pattern is None else ("weekday", "month")
        return (*(f"{self.target} {lag} before" for lag in self.lags), *(f"{self.time} {part}" for part in calendar))

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that every table must have."""
        return (self.time,) if self.series is None else (self.time, self.series)

    def add(self, frame: pd.DataFrame, *, first: bool = False) -> pd.DataFrame:
        """The table with the features of its rows, from the last amounts that are known, and those in the table.

        Of the rows to learn from, the ``first`` have nothing to look back at; of others, that is an error.
        """
        absent = [name for name in self.needed if name not in frame.columns]
        if absent:
            raise StakesError(f"expected the column {absent[0]!r}, by which earlier amounts are found; add it")
        steps, groups = self._steps(frame), _groups(frame, self.series)
        amount_at = {(group, int(step)): value for group, last in self.tail.items() for step, value in last.items()}
        if self.target in frame.columns:
            amounts = self._amounts(frame)
            given = np.isfinite(amounts)
            amount_at |= dict(zip(zip(groups[given], steps[given].tolist(), strict=True), amounts[given], strict=True))
        columns: dict[str, Any] = {}
        for lag, name in zip(self.lags, self.names, strict=False):
            keys = zip(groups, (steps - lag).tolist(), strict=True)
            columns[name] = np.array([amount_at.get(key, np.nan) for key in keys], dtype=np.float64)
            if not first:
                self._refuse_unknown(frame, columns[name], lag)
        if self.pattern is not None:
            dates = pd.to_datetime(pd.Series(self._times(frame), index=frame.index), unit="s")
            columns[f"{self.time} weekday"] = dates.dt.day_name().str[:3]
            columns[f"{self.time} month"] = dates.dt.month_name().str[:3]
        return frame.assign(**columns)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, for ``from_dict``."""
        return asdict(self) | {"lags": list(self.lags)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Lags":
        """Checked, for a saved model may have been edited by hand."""
        fields = dict(content) if isinstance(content, Mapping) else {}
        try:
            written = fields.get("written") and NumberFormat.from_dict(fields["written"])
            read = cls(**fields | {"lags": tuple(fields["lags"]), "written": written})
            texts = all(isinstance(each, str) for each in (read.target, read.time, read.series or ""))
            step = read.step == MONTHS or (isinstance(read.step, float | int) and read.step > 0)
            whole = read.lags and all(type(each) is int and each >= 1 for each in (*read.lags, read.months))
            tail = {name: {str(int(s)): float(v) for s, v in last.items()} for name, last in read.tail.items()}
            known = read.pattern in (None, MIXED, *FORMATS)
            if texts and known and step and whole and tail == read.tail and isinstance(read.start, float | int):
                return read
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
        raise StakesError("expected lags with their last amounts; the saved model is damaged")

    def _amounts(self, frame: pd.DataFrame) -> FloatArray:
        amounts, written = frame[self.target], self.written
        if written is None and not holds_numbers(amounts):  # a later file may have them in another format
            written = number_format(amounts, decimal_mark(frame))
        return read_numbers(amounts, written)

    def _times(self, frame: pd.DataFrame) -> FloatArray:
        return TimeFormat(self.pattern).times(frame[self.time])

    def _steps(self, frame: pd.DataFrame) -> NDArray[np.int64]:
        """(N,) of each row: how many steps after the start."""
        times = self._times(frame)
        if self.step == MONTHS:
            counted = (_months(times) - _months(np.array([self.start]))) / self.months
        else:
            counted = (times - self.start) / float(self.step)
        steps = np.rint(counted)
        off = np.abs(counted - steps) > _NEAR
        if off.any():
            row = int(np.argmax(off))
            raise StakesError(
                f"column {self.time!r}: expected times that are equally far apart for --lags, but that of row "
                f"{row_number(frame.index, row)}, {frame[self.time].iloc[row]}, is not; correct it, or leave out --lags"
            )
        return steps.astype(np.int64)

    def _refuse_gaps(self, frame: pd.DataFrame, steps: NDArray[np.int64], groups: NDArray[np.object_]) -> None:
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            rows = rows[np.argsort(steps[rows], kind="stable")]
            apart = np.diff(steps[rows])
            where = "" if self.series is None else f" of {self.series} {group!r}"
            times = frame[self.time].iloc[rows].astype(str).tolist()
            if (apart == 0).any():
                first = int(np.argmax(apart == 0))
                hint = "" if self.series else "; name the column that tells them apart with --series"
                raise StakesError(
                    f"column {self.time!r}: expected each time once{where} for --lags, but {times[first]} stands twice "
                    f"(again in row {row_number(frame.index, int(rows[first + 1]))}){hint or '; drop one of the rows'}"
                )
            if (apart > 1).any():
                first = int(np.argmax(apart > 1))
                raise StakesError(
                    f"column {self.time!r}: expected a row{where} for every time for --lags, but {times[first]} is "
                    f"followed by {times[first + 1]} (row {row_number(frame.index, int(rows[first + 1]))}); add the "
                    "rows that are missing, or leave out --lags"
                )

    def _refuse_unknown(self, frame: pd.DataFrame, values: FloatArray, lag: int) -> None:
        bad = np.isnan(values)
        if bad.any():
            row = int(np.argmax(bad))
            where = f"row {row_number(frame.index, row)} ({self.time} {frame[self.time].iloc[row]})"
            group, step = _groups(frame, self.series)[row], self._steps(frame)[row]
            if group in self.tail and step <= max(map(int, self.tail[group])):
                raise StakesError(
                    f"{where}: expected rows after those that the model was made from, of which only the last amounts "
                    "are kept: leave this row out"
                )
            raise StakesError(
                f"{where}: expected "
                f"{f'{self.target} {lag} before'!r}, but it is not known; add the rows since the training data with "
                f"their {self.target}, or decide later, or fit with larger --lags"
            )


def _groups(frame: pd.DataFrame, series: str | None) -> NDArray[np.object_]:
    """(N,) the series of each row."""
    if series is None:
        return np.full(len(frame), "", dtype=object)
    return as_text(frame[series]).fillna("").to_numpy(dtype=object)


def _months(times: FloatArray) -> NDArray[np.int64]:
    """Months since 1970, of seconds."""
    return np.asarray(times.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64))


def _same_day(times: FloatArray) -> bool:
    """Whether all are of one day of the month, of several months: then steps are months."""
    days = times.astype("datetime64[s]").astype("datetime64[D]")
    of_month = (days - days.astype("datetime64[M]")).astype(np.int64)
    return bool((of_month == of_month[0]).all() and (times % _DAY == 0).all())
