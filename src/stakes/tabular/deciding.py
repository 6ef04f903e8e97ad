"""``stakes decide``: decisions for a table of any length, block by block."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from stakes.artifact import SavedModel
from stakes.data.tables import BLOCK_ROWS, PARQUET_SUFFIXES, iter_table
from stakes.errors import StakesError, listing
from stakes.files import atomic

DIGITS = 6  # of probabilities and utilities in the file


def find_model(path: Path) -> Path:
    """The model directory: ``path`` itself, or the ``model`` in the folder of a run."""
    return path / "model" if not (path / "model.json").exists() and (path / "model").is_dir() else path


def decide_table(
    model_path: Path,
    data: Path,
    out: Path,
    *,
    keep: Sequence[str] = (),
    rows: int = BLOCK_ROWS,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> int:
    """Write a decision for every row of ``data`` to ``out`` (CSV, or Parquet by its suffix); the number of rows.

    Memory does not grow with the table. The same input and model give the same bytes.
    """
    model = SavedModel.load(find_model(model_path))
    if model.encoder is None:
        raise StakesError(f"{model_path}: the model has no preprocessing for tables: use it from Python")
    if out.exists() and out.samefile(data):
        raise StakesError(f"{out}: expected another file than the input to write to")
    columns = _columns(model)
    clash = [name for name in keep if name in columns]
    if clash:
        raise StakesError(f"cannot keep the columns {listing(clash)}: decisions are written under these names")
    blocks = _decided(model, iter_table(data, model.encoder, rows, keep), keep, on_rows)
    write = _write_parquet if out.suffix.lower() in PARQUET_SUFFIXES else _write_csv
    with atomic(out) as temporary:
        return write(temporary, blocks)


def _columns(model: SavedModel) -> list[str]:
    return ["decision", "expected_utility", "margin", *(f"p_{outcome}" for outcome in model.utility.outcomes)]


def _decided(
    model: SavedModel, blocks: Iterator[pd.DataFrame], keep: Sequence[str], on_rows: Callable[[int], None]
) -> Iterator[pd.DataFrame]:
    assert model.encoder is not None
    for block in blocks:
        decisions = model.decide(torch.from_numpy(model.encoder.transform(block)))
        numbers = torch.cat(
            [decisions.expected_utility[:, None], decisions.margin[:, None], decisions.probs], dim=1
        )  # (rows, 2 + C)
        frame = pd.DataFrame(numbers.double().numpy().round(DIGITS), columns=_columns(model)[1:])
        frame.insert(0, "decision", decisions.chosen_names)
        yield pd.concat([block[list(keep)].reset_index(drop=True), frame], axis=1) if keep else frame
        on_rows(len(frame))


def _write_csv(path: Path, blocks: Iterator[pd.DataFrame]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        for frame in blocks:
            frame.to_csv(file, index=False, header=count == 0, lineterminator="\n")
            count += len(frame)
    return count


def _write_parquet(path: Path, blocks: Iterator[pd.DataFrame]) -> int:
    first = pa.Table.from_pandas(next(blocks), preserve_index=False)
    count = 0
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        count += int(first.num_rows)
        for frame in blocks:
            writer.write_table(pa.Table.from_pandas(frame, schema=first.schema, preserve_index=False))
            count += len(frame)
    return count
