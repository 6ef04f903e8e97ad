"""``stakes decide``: decisions for a table of any length, block by block."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from stakes._io.files import atomic, existing_file, write_json
from stakes._io.parallel import one_thread
from stakes.errors import StakesError, listing
from stakes.tables.decider import Decider
from stakes.tables.drift import Drift, DriftCount
from stakes.tables.profile import View
from stakes.tables.read import BLOCK_ROWS, PARQUET_SUFFIXES, as_written, iter_table, read_table

SUFFIXES = {".csv", *PARQUET_SUFFIXES}
WHY_ROWS = 32  # in a block, where each row is explained, which takes about half a second


@dataclass(frozen=True)
class DecisionSummary:
    """What was decided about the rows of a file."""

    rows: int
    decisions: dict[str, int]  # how often each was taken, where they have names
    unsettled: int  # that more draws could change
    given: str  # cost or utility
    mean: float  # what a decision is expected to cost, or to be worth
    drift: Drift | None  # None if the model does not describe its training rows
    numbers: dict[str, float] = field(default_factory=dict)  # of decisions that are numbers: total, lowest, highest
    remarks: tuple[str, ...] = ()  # on the costs

    def sentences(self) -> list[str]:
        if self.drift is None:
            return [
                "The saved model does not describe its training rows (it was saved by an older version), so unusual "
                "rows cannot be flagged.",
                *self.remarks,
            ]
        return [*self.drift.sentences(), *self.remarks]

    def to_dict(self) -> dict[str, Any]:
        counts = {"rows": self.rows, "decisions": self.numbers or self.decisions, "unsettled": self.unsettled}
        drift = None if self.drift is None else self.drift.to_dict()
        return {**counts, f"mean_expected_{self.given}": self.mean, "drift": drift, "in_words": self.sentences()}


def decide_table(
    decider: Decider | Path,
    data: Path,
    out: Path,
    *,
    keep: Sequence[str] = (),
    rows: int = BLOCK_ROWS,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> DecisionSummary:
    """Write a decision for every row of ``data`` to ``out`` (CSV or Parquet, by its suffix), and a summary beside it.

    Memory does not grow with the table, unless the model has lags, whose rows are read at once. The same input and
    model give the same bytes. The summary, ``NAME.summary.json``, has counts of decisions and what has drifted.
    """
    decider = decider if isinstance(decider, Decider) else Decider(decider)
    _check_files(decider, data, out, keep)
    count = _SummaryCounter(decider)

    def decided() -> Iterator[pd.DataFrame]:
        for block in _one_dtype(data, _blocks(decider, data, rows, keep), keep):
            decisions, view = decider.decide(block)
            count.add(decisions, view)
            kept = [as_written(name) if as_written(name) in block else name for name in keep]
            yield pd.concat([block[kept].set_axis(list(keep), axis=1), decisions], axis=1)
            on_rows(len(block))

    write = _write_csv if out.suffix.lower() == ".csv" else _write_parquet
    with atomic(out) as temporary, one_thread():
        write(temporary, decided())
    summary = count.result()
    write_json(out.with_suffix(".summary.json"), summary.to_dict())
    return summary


# Private -------------------------------------------------------------------------------------------


def _blocks(decider: Decider, data: Path, rows: int, keep: Sequence[str]) -> Iterator[pd.DataFrame]:
    """The rows of a file, some after the others.

    Where rows look back at others, all are read first: these may stand anywhere in the file.
    """
    if decider.model.lags is None:
        return iter_table(data, decider.encoder, rows, keep, decider.utility.columns)
    frame = read_table(data, untouched=keep, written=decider.encoder.formats.columns)
    try:
        frame = decider.model.lags.add(frame)
    except StakesError as error:
        raise StakesError(f"{data}: {error}") from None
    return (frame.iloc[first : first + rows] for first in range(0, len(frame), rows))


class _SummaryCounter:
    """Counts for a `DecisionSummary`, block by block."""

    def __init__(self, decider: Decider) -> None:
        self._decider, self._rows, self._unsettled, self._total = decider, 0, 0, 0.0
        self._decisions = dict.fromkeys(decider.utility.decisions, 0)
        self._drift = None if decider.profile is None else DriftCount(decider.profile)
        self._numbers: dict[str, float] = {}

    def add(self, decisions: pd.DataFrame, view: View | None) -> None:
        self._rows += len(decisions)
        if "settled" in decisions:
            self._unsettled += int((~decisions["settled"].fillna(True)).sum())
        self._total += float(decisions[f"expected_{self._decider.utility.given}"].sum())
        if self._decisions:
            for name, count in decisions["decision"].value_counts().items():
                self._decisions[str(name)] += int(count)
        else:
            self._add_numbers(decisions["decision"])
        if self._drift is not None and view is not None:
            self._drift.add(view)

    def _add_numbers(self, chosen: "pd.Series[float]") -> None:
        before = self._numbers or {"total": 0.0, "lowest": math.inf, "highest": -math.inf}
        self._numbers = {
            "total": before["total"] + float(chosen.sum()),
            "lowest": min(before["lowest"], float(chosen.min())),
            "highest": max(before["highest"], float(chosen.max())),
        }

    def result(self) -> DecisionSummary:
        drift, given = None if self._drift is None else self._drift.result(), self._decider.utility.given
        mean = self._total / self._rows
        numbers = {name: float(f"{value:.9g}") for name, value in self._numbers.items()}
        counts = self._rows, self._decisions, self._unsettled
        return DecisionSummary(*counts, given, float(f"{mean:.9g}"), drift, numbers, self._decider.remarks)


def _check_files(decider: Decider, data: Path, out: Path, keep: Sequence[str]) -> None:
    existing_file(data)
    if out.suffix.lower() not in SUFFIXES:
        raise StakesError(f"{out}: expected a name that ends in .csv or .parquet, so that the form is known")
    if out.exists() and not out.is_file():
        raise StakesError(f"{out}: expected the name of a file to write, but it is something else")
    if out.exists() and out.samefile(data):
        raise StakesError(f"{out}: expected another file than the input to write to; choose another --out")
    clash = [name for name in keep if name in decider.columns]
    if clash:
        raise StakesError(
            f"cannot keep the columns {listing(clash)}: decisions are written under these names; rename them, or "
            "leave them out of --keep"
        )


def _one_dtype(data: Path, blocks: Iterator[pd.DataFrame], keep: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Kept columns of a Parquet file in one type, whatever each block holds: pandas makes 1.0 of 1 beside a gap."""
    if data.suffix.lower() not in PARQUET_SUFFIXES or not keep:
        yield from blocks
        return
    types = {name: field.type for field in pq.read_schema(data) if (name := field.name.strip()) in keep}
    for block in blocks:
        columns = {name: pa.array(block[name], kind, from_pandas=True) for name, kind in types.items()}
        yield block.assign(**{name: pd.arrays.ArrowExtensionArray(column) for name, column in columns.items()})


def _write_csv(path: Path, blocks: Iterator[pd.DataFrame]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        for number, frame in enumerate(blocks):
            frame.to_csv(file, index=False, header=number == 0, lineterminator="\n")


def _write_parquet(path: Path, blocks: Iterator[pd.DataFrame]) -> None:
    first = pa.Table.from_pandas(next(blocks), preserve_index=False)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for frame in blocks:
            writer.write_table(pa.Table.from_pandas(frame, schema=first.schema, preserve_index=False))
