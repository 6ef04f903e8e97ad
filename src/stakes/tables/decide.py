"""``stakes decide``: decisions for a table of any length, block by block."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from stakes._io.files import atomic, existing_file
from stakes._io.parallel import one_thread
from stakes.decisions import SETTLE
from stakes.errors import StakesError, listing
from stakes.saved_model import SavedModel
from stakes.tables.read import BLOCK_ROWS, PARQUET_SUFFIXES, iter_table
from stakes.tables.values import utility_of_rows
from stakes.utility import FormulaUtility, TableUtility

PIECE_ROWS = 4096  # decided at once
SUFFIXES = {".csv", *PARQUET_SUFFIXES}
DIGITS = 6  # of probabilities after the point; of utilities after the first of the largest one


class Decider:
    """Decisions for data frames: a callable that can be pickled, for Ray Data, Spark's mapInPandas and Dask.

    A row has the columns decision, expected_utility, margin (to the second-best decision) and p_OUTCOME for every
    outcome. ``path`` is a saved model, or the folder of a run. Rows whose decision is clear take fewer draws (see
    `stakes.decide`): the same decisions, sooner, and less exact probabilities where they do not matter. With
    ``settle=1``, all rows take all draws. A frame has the columns that the model was trained on, and those that its
    costs depend on.
    """

    def __init__(self, path: str | os.PathLike[str], settle: float = SETTLE) -> None:
        folder = Path(path)
        in_run = not (folder / "model.json").exists() and (folder / "model").is_dir()
        model = SavedModel.load(folder / "model" if in_run else folder)
        if model.encoder is None or not isinstance(model.utility, TableUtility | FormulaUtility):
            raise StakesError(f"{path}: the model has no preprocessing for tables: use it from Python")
        self.model, self.encoder, self.utility, self.settle = model, model.encoder, model.utility, settle

    @property
    def columns(self) -> list[str]:
        return ["decision", "expected_utility", "margin", *(f"p_{outcome}" for outcome in self.utility.outcomes)]

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        clean = self.encoder.formats.clean(frame)
        x, utility = torch.from_numpy(self.encoder.encode(clean)), utility_of_rows(self.utility, clean)
        # Allocated first and filled piece by piece: small results that are kept between large activations
        # fragment the memory, and take three times as much of it.
        choice = np.empty(len(x), dtype=np.int64)
        numbers = np.empty((len(x), len(self.columns) - 1))
        for first in range(0, len(x), PIECE_ROWS):
            rows = slice(first, first + PIECE_ROWS)
            decisions = self.model.decide(x[rows], self.settle, utility.rows(rows))
            choice[rows] = decisions.choice.numpy()
            numbers[rows, 0], numbers[rows, 1] = decisions.expected_utility.numpy(), decisions.margin.numpy()
            numbers[rows, 2:] = decisions.probs.numpy()
        # Costs may be in millions, or in millionths, also side by side.
        sizes = np.broadcast_to(np.where(utility.magnitude > 0, utility.magnitude, 1.0), len(x))
        places = np.maximum(0, DIGITS - np.floor(np.log10(sizes)).astype(int))  # (N,)
        for digits in np.unique(places):
            numbers[places == digits, :2] = numbers[places == digits, :2].round(digits)
        numbers[:, 2:] = numbers[:, 2:].round(DIGITS)
        decided = pd.DataFrame(numbers, columns=self.columns[1:], index=frame.index)
        decided.insert(0, "decision", np.array(self.utility.decisions, dtype=object)[choice])
        return decided


def decide_table(
    model_path: Path,
    data: Path,
    out: Path,
    *,
    keep: Sequence[str] = (),
    settle: float = SETTLE,
    rows: int = BLOCK_ROWS,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> int:
    """Write a decision for every row of ``data`` to ``out`` (CSV or Parquet, by its suffix); the number of rows.

    Memory does not grow with the table. The same input and model give the same bytes.
    """
    decider = Decider(model_path, settle)
    existing_file(data)
    if out.suffix.lower() not in SUFFIXES:
        raise StakesError(f"{out}: expected a name that ends in .csv or .parquet, so that the form is known")
    if out.exists() and not out.is_file():
        raise StakesError(f"{out}: expected the name of a file to write, but it is something else")
    if out.exists() and out.samefile(data):
        raise StakesError(f"{out}: expected another file than the input to write to")
    clash = [name for name in keep if name in decider.columns]
    if clash:
        raise StakesError(f"cannot keep the columns {listing(clash)}: decisions are written under these names")

    count = 0

    def decided() -> Iterator[pd.DataFrame]:
        nonlocal count
        for block in _one_dtype(data, iter_table(data, decider.encoder, rows, keep, decider.utility.columns), keep):
            yield pd.concat([block[list(keep)], decider(block)], axis=1)
            count += len(block)
            on_rows(len(block))

    write = _write_csv if out.suffix.lower() == ".csv" else _write_parquet
    with atomic(out) as temporary, one_thread():
        write(temporary, decided())
    return count


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
