"""What the rows that a model was trained on look like, so that rows unlike them are noticed when it decides.

Of each column: the range, the levels, whether there were gaps. Of a row as a whole: how far its values lie from the
middle of the training rows, correlations taken into account. All of it is JSON, saved with the model.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stakes.errors import StakesError
from stakes.seeds import numpy_generator
from stakes.tables._profile_columns import (
    TOLERANCE,
    CategoricalProfile,
    ColumnProfile,
    ColumnView,
    NumericProfile,
    damaged,
    fit_column,
)
from stakes.tables.columns import NumericColumn
from stakes.tables.encode import TableEncoder
from stakes.tables.values import FloatArray, as_text, numbers

BACKGROUND_ROWS = 64
MOST_CORRELATED = 50  # columns: of more, correlations are not taken into account
QUANTILES = (0.5, 0.9, 0.99, 0.999)  # of the scores of training rows; a row far beyond the last is unusual as a whole
_KINDS: dict[str, type[NumericProfile] | type[CategoricalProfile]] = {
    "numeric": NumericProfile,
    "categorical": CategoricalProfile,
}


@dataclass(frozen=True, eq=False)
class View:
    """Some rows against the training rows."""

    columns: tuple[ColumnView, ...]
    scores: FloatArray  # (N,) 1 is typical
    beyond: npt.NDArray[np.bool_]  # (N,) whether the score is unusual

    @cached_property
    def unusual(self) -> npt.NDArray[np.bool_]:
        """(N,) whether a row is unlike the training rows in any way."""
        return np.asarray(np.stack([self.beyond, *(column.unusual for column in self.columns)]).any(0))


@dataclass(frozen=True, eq=False)
class TableProfile:
    """A description of training rows, and a few of them.

    The score of a row is ``sqrt(z' P z / K)``, where z has a number for each of K columns (a standardised value; of a
    category, its standardised surprise) and P is the inverse of their shrunk correlations. ``quantiles`` are those of
    training rows, each scored by correlations of the other half.
    """

    columns: tuple[ColumnProfile, ...]
    rows: int  # how many there were
    quantiles: tuple[float, ...]  # at QUANTILES
    precision: FloatArray | None  # (K, K); None: columns count as independent
    background: Mapping[str, Sequence[float | str | None]] = field(default_factory=dict)  # raw values of a few rows
    rows_together: float = 1.0  # rows of a group, on average, where rows belong together

    @classmethod
    def fit(
        cls, encoder: TableEncoder, frame: pd.DataFrame, seed: int = 0, groups: npt.NDArray[np.int64] | None = None
    ) -> "TableProfile":
        """Describe training rows: the columns that ``encoder`` takes; ``groups``, (N,), are what rows belong to."""
        columns = tuple(fit_column(column, frame[column.name]) for column in encoder.columns)
        parts = encoder.formats.sources  # months and weekdays: later rows have others, as is to be expected
        columns = tuple(
            replace(column, new=1.0) if isinstance(column, CategoricalProfile) and column.name in parts else column
            for column in columns
        )
        z = np.stack([column.view(frame[column.name]).score for column in columns], axis=1)  # (N, K)
        halves = z[::2], z[1::2]
        crossed = zip(halves, halves[::-1], strict=True)
        scores = np.concatenate([_distances(half, _precision(other)) for half, other in crossed])
        quantiles = tuple(float(value) for value in np.quantile(scores, QUANTILES))
        chosen = numpy_generator(seed, "background").permutation(len(frame))[:BACKGROUND_ROWS]
        sample = frame.iloc[np.sort(chosen)]
        background = {column.name: _plain(column, sample[column.name]) for column in encoder.columns}
        rows_together = 1.0 if groups is None else len(groups) / len(np.unique(groups))
        return cls(columns, len(frame), quantiles, _precision(z), background, rows_together)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def background_frame(self) -> pd.DataFrame | None:
        """A few training rows as a table, for the encoder; None where the model keeps none."""
        if not self.background:
            return None
        kinds = {column.name: float if isinstance(column, NumericProfile) else object for column in self.columns}
        return pd.DataFrame({name: np.array(self.background[name], dtype=kinds[name]) for name in self.names})

    def view(self, frame: pd.DataFrame) -> View:
        """Rows against the training rows."""
        columns = tuple(column.view(frame[column.name]) for column in self.columns)
        scores = _distances(np.stack([column.score for column in columns], axis=1), self.precision)
        return View(columns, scores, scores > (1 + TOLERANCE) * self.quantiles[-1])

    def describe(self, frame: pd.DataFrame, view: View, dates: Collection[str] = ()) -> npt.NDArray[np.object_]:
        """(N,) what is unusual about each row, in words; empty where nothing is. ``dates`` are columns of days."""
        reasons: dict[int, list[str]] = {row: [] for row in np.flatnonzero(view.unusual).tolist()}
        for profile, column in zip(self.columns, view.columns, strict=True):
            rows = np.flatnonzero(column.unusual).tolist()
            for row, reason in zip(rows, _reasons(profile, frame.iloc[rows], dates), strict=True):
                reasons[row].append(reason)
        usual = f"{100 * QUANTILES[-1]:g} % of the training rows have at most {self.quantiles[-1]:.2g}"
        for row in np.flatnonzero(view.beyond).tolist():
            reasons[row].append(f"the row as a whole (score {view.scores[row]:.2g}; {usual})")
        texts = np.full(len(frame), "", dtype=object)
        for row, each in reasons.items():
            texts[row] = "; ".join(each)
        return texts

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, for ``from_dict``."""
        names = {kind: name for name, kind in _KINDS.items()}
        return {
            "rows": self.rows,
            "rows_together": self.rows_together,
            "columns": [{"kind": names[type(column)], **asdict(column)} for column in self.columns],
            "quantiles": list(self.quantiles),
            "precision": None if self.precision is None else self.precision.tolist(),
            "background": {name: list(values) for name, values in self.background.items()},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "TableProfile":
        """Checked, for a saved model may have been edited by hand."""
        try:
            entries = [dict(entry) for entry in content["columns"]]
            columns = tuple(_KINDS[entry.pop("kind")](**entry) for entry in entries)
            quantiles = tuple(float(value) for value in content["quantiles"])
            precision = None if content["precision"] is None else np.array(content["precision"], dtype=np.float64)
            together = float(content.get("rows_together", 1))  # models that were saved before it was kept lack it
            profile = cls(columns, int(content["rows"]), quantiles, precision, dict(content["background"]), together)
            profile._check()
        except (KeyError, TypeError, ValueError) as error:
            raise error if isinstance(error, StakesError) else damaged(repr(error)) from None
        return profile

    def _check(self) -> None:
        count = len(self.columns)
        if not count or self.rows < 1 or len(self.quantiles) != len(QUANTILES) or not np.isfinite(self.quantiles).all():
            raise damaged("other columns, rows or quantiles")
        if not 1 <= self.rows_together <= self.rows:
            raise damaged(f"{self.rows_together} rows together")
        if self.precision is not None:
            matrix = self.precision
            if matrix.shape != (count, count) or not np.isfinite(matrix).all() or np.linalg.eigvalsh(matrix)[0] < 0:
                raise damaged(f"no matrix of {count} columns")
        lengths = {len(values) for values in self.background.values()}
        if self.background and (set(self.background) != set(self.names) or len(lengths) != 1 or 0 in lengths):
            raise damaged("training rows with other columns")
        kinds = {NumericProfile: float | int | None, CategoricalProfile: str | None}
        for column in self.columns:
            if not all(isinstance(value, kinds[type(column)]) for value in self.background.get(column.name, ())):
                raise damaged(f"training rows with other values in column {column.name!r}")


def _reasons(profile: ColumnProfile, frame: pd.DataFrame, dates: Collection[str]) -> list[str]:
    if isinstance(profile, NumericProfile) and profile.name in dates:
        return profile.describe(frame[profile.name], lambda days: f"{pd.Timestamp(days, unit='D'):%Y-%m-%d}")
    return profile.describe(frame[profile.name])


def _precision(z: FloatArray) -> FloatArray | None:
    """The inverse of the correlations, shrunk towards none, the more so the fewer rows there are."""
    rows, columns = z.shape
    if columns > MOST_CORRELATED or not rows:
        return None
    shrink = columns / (rows + columns)
    moments = (1 - shrink) * (z.T @ z) / rows + shrink * np.eye(columns)
    return np.asarray(np.linalg.inv(moments))


def _distances(z: FloatArray, precision: FloatArray | None) -> FloatArray:
    """``(N, K) -> (N,)``."""
    if precision is None:
        return np.asarray(np.sqrt((z**2).mean(1)))
    return np.asarray(np.sqrt(np.maximum(0, np.einsum("nk,kl,nl->n", z, precision, z, optimize=True)) / z.shape[1]))


def _plain(column: Any, series: "pd.Series[Any]") -> list[float | str | None]:
    """Raw values in JSON types, which the encoder takes for the same as before."""
    if isinstance(column, NumericColumn):
        return [None if np.isnan(value) else value for value in numbers(series).tolist()]
    return as_text(series).tolist()
