"""One column of a profile: what its training values were like, and how new values compare."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from stakes.errors import StakesError
from stakes.tables.columns import CategoricalColumn, NumericColumn
from stakes.tables.values import FloatArray, numbers, text_codes

TOLERANCE = 0.1  # share of the training range (or score) that a value may exceed before it is unusual
LARGEST_SCORE = 5.0  # standard deviations: a column with rare huge values must not drown the others
MOST_LEVELS = 1000  # of more, it is not known which were seen
OFTEN_NEW = 0.05  # a share of rows with new levels that is nothing unusual
BINNED_LEVELS = 20  # the most frequent levels have a bin of their own


class ColumnView(NamedTuple):
    """The values of some rows against those of the training rows."""

    unusual: npt.NDArray[np.bool_]  # (N,)
    score: FloatArray  # (N,) standardised; 0 is typical
    counts: npt.NDArray[np.int64]  # (bins,) how many values fall into each


@dataclass(frozen=True)
class NumericProfile:
    """Range and distribution of numbers. Bins: below the range, between ``edges``, above the range, missing."""

    name: str
    low: float
    high: float
    center: float
    scale: float
    edges: Sequence[float]  # inner ones: deciles, each once
    counts: Sequence[int]  # of the training values in the bins

    def __post_init__(self) -> None:
        reals = (self.low, self.high, self.center, self.scale, *self.edges)
        if not (all(_is_number(each) for each in reals) and self.scale > 0 and self.low <= self.high):
            raise damaged(f"other numbers for column {self.name!r}")
        _check_counts(self.name, self.counts, len(self.edges) + 4)

    @classmethod
    def fit(cls, name: str, values: FloatArray) -> "NumericProfile":
        present = values[~np.isnan(values)]
        edges = np.unique(np.quantile(present, np.arange(1, 10) / 10, method="lower"))
        low, high = float(present.min()), float(present.max())
        size = max(abs(low), abs(high)) or 1.0  # squares of huge numbers overflow
        center, scale = float((present / size).mean()) * size, float((present / size).std()) * size
        bins = _bins(values, low, high, edges)
        counts = np.bincount(bins, minlength=len(edges) + 4).tolist()
        return cls(name, low, high, center, scale or 1.0, edges.tolist(), counts)

    def view(self, series: "pd.Series[Any]") -> ColumnView:
        values = numbers(series)
        missing = np.isnan(values)
        slack = TOLERANCE * (self.high - self.low)
        # However wide the range: where no value was below 0, one that is may turn the sign of a cost.
        lowest = max(0.0, self.low - slack) if self.low >= 0 else self.low - slack
        outside = (values < lowest) | (values > self.high + slack)
        with np.errstate(over="ignore"):
            score = np.clip((values - self.center) / self.scale, -LARGEST_SCORE, LARGEST_SCORE)
        bins = _bins(values, self.low, self.high, np.asarray(self.edges))
        unusual = outside | missing if self.counts[-1] == 0 else outside
        return ColumnView(unusual, np.where(missing, 0.0, score), np.bincount(bins, minlength=len(self.counts)))

    def describe(self, series: "pd.Series[Any]", text: Callable[[float], str] = "{:.6g}".format) -> list[str]:
        """Why each of some unusual values is unusual; ``text`` writes a value."""
        usual = f"(in training {text(self.low)} to {text(self.high)})"
        return [
            _gap(self.name) if math.isnan(value) else f"{self.name} {text(value)} {usual}" for value in numbers(series)
        ]


@dataclass(frozen=True)
class CategoricalProfile:
    """The levels that were seen, by frequency. Bins: each of the first levels, all others, missing."""

    name: str
    levels: Sequence[str]
    counts: Sequence[int]  # of the training values in the bins
    level_counts: Sequence[int]
    center: float  # of the surprise, -log(share), of the training values
    scale: float
    new: float  # the share of rows with a new level to be expected: of training rows whose level nobody else has

    def __post_init__(self) -> None:
        if not all(isinstance(level, str) for level in self.levels) or len(set(self.levels)) != len(self.levels):
            raise damaged(f"other levels for column {self.name!r}")
        if not all(_is_number(each) for each in (self.center, self.scale, self.new)) or self.scale <= 0:
            raise damaged(f"other numbers for column {self.name!r}")
        _check_counts(self.name, self.counts, min(len(self.levels), BINNED_LEVELS) + 2)
        _check_counts(self.name, self.level_counts, len(self.levels))

    @classmethod
    def fit(cls, name: str, series: "pd.Series[Any]") -> "CategoricalProfile":
        codes, texts = text_codes(series)
        level_counts = Counter([*texts, None][code] for code in codes)
        missing = level_counts.pop(None, 0)
        ranked = sorted(level_counts, key=lambda level: (-level_counts[level], str(level)))
        kept, first = ranked[:MOST_LEVELS], ranked[:BINNED_LEVELS]
        binned = [level_counts[level] for level in first]
        alone = sum(count == 1 for count in level_counts.values()) / len(series)
        blank = cls(
            name,
            [str(level) for level in kept],
            [*binned, len(series) - missing - sum(binned), missing],
            [level_counts[level] for level in kept],
            0.0,
            1.0,
            1.0 if len(kept) < len(ranked) else alone,
        )
        surprise = blank.view(series).score
        scale = float(surprise.std()) or 1.0
        return replace(blank, center=float(surprise.mean()), scale=scale)

    def view(self, series: "pd.Series[Any]") -> ColumnView:
        index: dict[str | None, int] = {level: number for number, level in enumerate(self.levels)}
        unseen, gap = len(self.levels), len(self.levels) + 1
        index[None] = gap
        codes, texts = text_codes(series)
        numbers_of = np.array([index.get(text, unseen) for text in [*texts, None]], dtype=np.intp)[codes]  # (N,)
        total, missing = sum(self.counts), self.counts[-1]
        shares = (np.array([*self.level_counts, 0, missing], dtype=np.float64) + 0.5) / (total + 1)
        scores = np.clip((-np.log(shares) - self.center) / self.scale, -LARGEST_SCORE, LARGEST_SCORE)
        if self.new > OFTEN_NEW:  # a new level is what is to be expected
            scores[unseen] = 0.0
        odd = np.zeros(len(self.levels) + 2, dtype=bool)
        odd[unseen], odd[gap] = self.new <= OFTEN_NEW, missing == 0
        others = len(self.counts) - 2
        bins = np.minimum(np.arange(len(self.levels) + 2), others)
        bins[gap] = others + 1
        return ColumnView(
            odd[numbers_of], scores[numbers_of], np.bincount(bins[numbers_of], minlength=len(self.counts))
        )

    def describe(self, series: "pd.Series[Any]") -> list[str]:
        """Why each of some unusual values is unusual."""
        codes, texts = text_codes(series)
        reasons = [_gap(self.name) if text is None else f"{self.name} {text!r} (never in training)" for text in texts]
        return [[*reasons, _gap(self.name)][code] for code in codes]


ColumnProfile = NumericProfile | CategoricalProfile


def fit_column(column: NumericColumn | CategoricalColumn, series: "pd.Series[Any]") -> ColumnProfile:
    """The profile of training values."""
    if isinstance(column, NumericColumn):
        return NumericProfile.fit(column.name, numbers(series))
    return CategoricalProfile.fit(column.name, series)


def damaged(what: str) -> StakesError:
    return StakesError(f"expected a description of training rows, but got {what}; the saved model is damaged")


def _bins(values: FloatArray, low: float, high: float, edges: FloatArray) -> npt.NDArray[np.intp]:
    """(N,) the bin of each number: see `NumericProfile`."""
    bins = 1 + np.searchsorted(edges, values)
    bins[values < low] = 0
    bins[values > high] = len(edges) + 2
    bins[np.isnan(values)] = len(edges) + 3
    return bins


def _gap(name: str) -> str:
    return f"{name} is missing (never in training)"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _check_counts(name: str, counts: Sequence[int], bins: int) -> None:
    if len(counts) != bins or not all(type(count) is int and count >= 0 for count in counts):
        raise damaged(f"other counts for column {name!r}")
