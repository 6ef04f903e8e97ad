"""Whether the rows of a file, taken together, are like the training rows: drift, column by column."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stakes.errors import listing
from stakes.tables.profile import TableProfile, View

LARGE_SHIFT = 0.25  # a population stability index that is usually called a major shift
FEW_ROWS = 30  # fewer cannot tell that nothing has shifted
DOUBT = 0.001  # probability of a false alarm in any column


@dataclass(frozen=True)
class ColumnDrift:
    """The distribution of a column in a file, against that of the training rows."""

    name: str
    psi: float  # population stability index
    chance: float  # what it may be by chance
    unusual: int  # values that are unlike those of training

    @property
    def drifted(self) -> bool:
        return self.psi > max(LARGE_SHIFT, self.chance)


@dataclass(frozen=True)
class Drift:
    """The rows of a file against the training rows."""

    rows: int
    unusual: int  # rows
    columns: tuple[ColumnDrift, ...]

    @property
    def drifted(self) -> list[ColumnDrift]:
        """Those columns that have, the most drifted first."""
        return sorted((column for column in self.columns if column.drifted), key=lambda column: -column.psi)

    def sentences(self) -> list[str]:
        """How many rows are unusual, and which columns have drifted."""
        by_column = sorted((column for column in self.columns if column.unusual), key=lambda column: -column.unusual)
        most = ", ".join(f"{column.name} in {column.unusual:,}" for column in by_column[:3])
        rows = (
            f"{self.unusual:,} of {self.rows:,} rows {'is' if self.unusual == 1 else 'are'} unlike the training rows"
            f"{most and f' ({most})'}"
            if self.unusual
            else f"No row of {self.rows:,} is unlike the training rows"
        )
        names = listing([column.name for column in self.drifted], limit=3)
        columns = f"The distribution has shifted in {names}" if names else "No column's distribution has shifted much"
        if not names and self.rows < FEW_ROWS:
            columns = f"Whether a column's distribution has shifted cannot be told from fewer than {FEW_ROWS} rows"
        return [f"{rows}.", f"{columns}."]

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "unusual_rows": self.unusual,
            "drifted": [column.name for column in self.drifted],
            "columns": [vars(column) | {"drifted": column.drifted} for column in self.columns],
        }


class DriftCount:
    """Counts values block by block; memory does not grow with the rows."""

    def __init__(self, profile: TableProfile) -> None:
        self._profile, self._rows, self._unusual = profile, 0, 0
        self._counts = [np.zeros(len(column.counts), dtype=np.int64) for column in profile.columns]
        self._odd = [0] * len(profile.columns)

    def add(self, view: View) -> None:
        self._rows += len(view.scores)
        self._unusual += int(view.unusual.sum())
        for number, column in enumerate(view.columns):
            self._counts[number] += column.counts
            self._odd[number] += int(column.unusual.sum())

    def result(self) -> Drift:
        from scipy.special import chdtri

        columns = []
        for profile, counts, odd in zip(self._profile.columns, self._counts, self._odd, strict=True):
            doubt = DOUBT / len(self._counts)
            # Without drift, the index times n N / (n + N) has about a chi-squared distribution; where rows that belong
            # together are alike, n and N are at the worst the numbers of groups.
            quantile = float(chdtri(len(counts) - 1, doubt))
            chance = quantile * (1 / self._rows + 1 / self._profile.rows) * self._profile.rows_together
            columns.append(ColumnDrift(profile.name, stability_index(profile.counts, counts), chance, odd))
        return Drift(self._rows, self._unusual, tuple(columns))


def stability_index(before: Sequence[int], after: npt.NDArray[np.int64]) -> float:
    """PSI, ``sum (q - p) log(q / p)``, of shares p before and q after; half a count is added to each bin."""
    shares = [(np.asarray(counts) + 0.5) / (np.sum(counts) + len(counts) / 2) for counts in (before, after)]
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())
