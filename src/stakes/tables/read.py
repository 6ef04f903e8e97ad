"""Reading tables from CSV and Parquet files, whole or in blocks of constant memory.

Columns become features in ``stakes.tables.encode``, labels become indices in ``stakes.tables.values``.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from stakes._io.files import existing_file
from stakes.errors import Refusals, StakesError, listing
from stakes.tables.csv_layout import Layout, binary, check_unique, check_widths, csv_layout
from stakes.tables.encode import TableEncoder
from stakes.tables.formats import decimal_mark
from stakes.tables.values import MISSING_TEXTS, FloatArray, numbers

BLOCK_ROWS = 16384
_GROUPED = r"[+-]?([1-9]\d{0,2}(\.\d{3})?|0)"
PARQUET_SUFFIXES = {".parquet", ".pq"}


def read_table(
    path: str | os.PathLike[str], untouched: Sequence[str] = (), written: Collection[str] = ()
) -> pd.DataFrame:
    """The whole table of a CSV (any delimiter, line end or encoding) or, by its suffix, Parquet file.

    A line with fewer fields than the header has missing values at its end; one with more is an error. From a CSV the
    columns ``untouched`` are text exactly as written, and those ``written`` in some format are text, or missing.
    """
    file_path = existing_file(path)
    if file_path.suffix.lower() in PARQUET_SUFFIXES:
        with _parquet_errors(file_path), pq.ParquetFile(file_path) as file:
            raw_names = _parquet_names(file_path, file)
            frame = _parquet_frame(file.read(list(raw_names.values())), raw_names)
    else:
        layout = csv_layout(file_path)
        texts = dict.fromkeys((*untouched, *written), "str")
        with _csv_errors(layout), _open_csv(layout, texts, untouched) as reader:
            frame = reader.read()
        frame = _with_grouped_thousands(frame, layout)
    if frame.empty:
        raise _no_rows(file_path)
    return frame


def iter_table(
    path: str | os.PathLike[str],
    encoder: TableEncoder,
    rows: int = BLOCK_ROWS,
    keep: Sequence[str] = (),
    numeric: Sequence[str] = (),
) -> Iterator[pd.DataFrame]:
    """Blocks of at most ``rows`` rows with the columns ``encoder`` needs, those of ``keep``, and ``numeric`` ones.

    From a CSV the kept columns are text exactly as written; those that are needed as well are so under `as_written`.
    The index counts the rows of the file.
    """
    if rows < 1:
        raise StakesError(f"expected blocks of at least 1 row, but got rows={rows}")
    file_path = existing_file(path)
    written = dict.fromkeys(encoder.formats.columns, "str")  # what a format reads stays text until then
    dtypes = {name: written.get(name, "float64") for name in numeric} | encoder.dtypes
    wanted = list(dict.fromkeys([*encoder.names, *keep, *numeric]))
    if file_path.suffix.lower() in PARQUET_SUFFIXES:
        with _parquet_errors(file_path), pq.ParquetFile(file_path) as file:
            raw_names = _parquet_names(file_path, file)
        _check_columns(file_path, raw_names, wanted)
        return _parquet_blocks(file_path, {name: raw_names[name] for name in wanted}, rows)
    layout = csv_layout(file_path)
    _check_columns(file_path, layout.names, wanted)
    return _csv_blocks(layout, dtypes, keep, wanted, rows)


def as_written(name: str) -> str:
    """What a column is called in a block, exactly as it is in the file, where the block also has what it means."""
    return f"\0{name}"


def _open_csv(
    layout: Layout, dtypes: Mapping[str, str], untouched: Collection[str] = (), rows: int | None = None
) -> Any:
    """A reader of blocks of so many rows, or of all."""
    # Not usecols: with it pandas no longer notices lines that are too long, and their values shift.
    return pd.read_csv(
        layout.path,
        sep=layout.delimiter,
        encoding=layout.encoding,
        compression=None,
        header=0,
        names=list(layout.names),
        dtype=dict(dtypes),
        skipinitialspace=True,
        keep_default_na=False,
        na_values={name: MISSING_TEXTS for name in layout.names if name not in untouched},
        low_memory=False,
        iterator=True,
        chunksize=rows,
    )


def _csv_blocks(
    layout: Layout, dtypes: Mapping[str, str], keep: Collection[str], wanted: list[str], rows: int
) -> Iterator[pd.DataFrame]:
    # Numbers are left to pandas' guess and converted after: that is faster, and can say what is wrong.
    texts = dict.fromkeys(keep, "str") | {name: d for name, d in dtypes.items() if d == "str"}
    both = [name for name in keep if name in dtypes]
    wanted, seen = [*wanted, *map(as_written, both)], 0
    with _csv_errors(layout), _open_csv(layout, texts, keep, rows) as reader:
        for block in filter(len, reader):
            seen += len(block)
            for name in both:
                written = block[name]
                block = block.assign(**{name: written.mask(written.isin(MISSING_TEXTS)), as_written(name): written})
            guessed = [name for name, kind in dtypes.items() if kind != "str" and block[name].dtype != np.float64]
            converted, refusals = {}, Refusals()
            for name in guessed:
                with refusals.gather():
                    converted[name] = numbers(block[name])
            try:
                refusals.refuse()
            except StakesError as error:
                raise StakesError(f"{layout.path}: {error}") from None
            yield block[wanted].assign(**converted) if converted else block[wanted]
    if not seen:
        raise _no_rows(layout.path)


def _with_grouped_thousands(frame: pd.DataFrame, layout: Layout) -> pd.DataFrame:
    """Columns of 6.737 and 997, which are numbers to pandas, as text where decimal marks are commas: by a format they
    are 6737 and 997 then.
    """
    floats = [name for name in layout.names if frame[name].dtype == np.float64]
    doubtful = [name for name in floats if _may_be_thousands(frame[name].to_numpy())]
    if not doubtful or decimal_mark(frame.drop(columns=doubtful)) != ",":
        return frame
    with _open_csv(layout, dict.fromkeys(doubtful, "str")) as reader:
        texts = reader.read()[doubtful]
    grouped = [name for name in doubtful if texts[name].dropna().str.strip().str.fullmatch(_GROUPED).all()]
    return frame.assign(**{name: texts[name] for name in grouped})


def _may_be_thousands(values: FloatArray) -> bool:
    """Whether all have at most three digits on either side of a point, and some have a point."""
    values = values[np.isfinite(values)]
    thousands = np.rint(1000 * values)
    return bool((np.abs(values) < 1000).all() and (values % 1).any() and np.allclose(thousands, 1000 * values))


@contextmanager
def _csv_errors(layout: Layout) -> Iterator[None]:
    try:
        yield
    except pd.errors.ParserError as error:
        check_widths(layout)
        reason = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        raise StakesError(
            f"{layout.path}: expected a well-formed CSV, but reading failed ({reason}); "
            "look for a quotation mark that is never closed"
        ) from None
    except UnicodeError:
        raise binary(layout.path) from None


def _parquet_names(path: Path, file: Any) -> dict[str, str]:
    """The column names, stripped, and as they are in the file; without the index that pandas stores."""
    raw = [name for name in file.schema_arrow.names if not re.fullmatch(r"__index_level_\d+__", name)]
    names = [name.strip() for name in raw]
    if not names:
        raise StakesError(f"{path}: expected a table, but it has no columns")
    check_unique(path, names)
    return dict(zip(names, raw, strict=True))


def _parquet_blocks(path: Path, raw_names: Mapping[str, str], rows: int) -> Iterator[pd.DataFrame]:
    seen = 0
    with _parquet_errors(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=rows, columns=list(raw_names.values())):
            if batch.num_rows:
                yield _parquet_frame(batch, raw_names, seen)
                seen += batch.num_rows
    if not seen:
        raise _no_rows(path)


def _parquet_frame(part: Any, raw_names: Mapping[str, str], start: int = 0) -> pd.DataFrame:
    # Selected once more, for Parquet takes the name "a" for "a.b" as well.
    frame: pd.DataFrame = part.select(list(raw_names.values())).to_pandas(ignore_metadata=True)
    frame.columns = pd.Index(list(raw_names))
    frame.index = pd.RangeIndex(start, start + len(frame))
    return frame


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise StakesError(
            f"{path}: expected a Parquet file, as its name says, but reading failed ({reason}); "
            "if it is a CSV, name it .csv"
        ) from None


def _check_columns(path: Path, names: Collection[str], wanted: Sequence[str]) -> None:
    absent = [name for name in wanted if name not in names]
    if absent:
        raise StakesError(
            f"{path}: expected columns that are missing: {listing(absent, limit=len(absent))}; "
            f"the file has {listing(names)}; add or rename them"
        )


def _no_rows(path: Path) -> StakesError:
    return StakesError(f"{path}: expected rows below the header, but there are none; check the file")
