"""Reading tables from CSV and Parquet files, whole or in blocks of constant memory.

Columns become features in ``stakes.tables.encode``, labels become indices in ``stakes.tables.values``.
"""

import csv
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from stakes._io.files import MANGLED_BOM, csv_delimiter, existing_file, text_encoding
from stakes.errors import StakesError, listing
from stakes.tables.encode import TableEncoder
from stakes.tables.values import numbers

BLOCK_ROWS = 16384
SNIFFED_ROWS = 200
PARQUET_SUFFIXES = {".parquet", ".pq"}

# Named here and not left to pandas, which cannot exempt the columns that are carried through untouched.
MISSING_TEXTS = ["", "?", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NULL", "null", "NaN", "nan", "-nan", "None"]


def read_table(path: str | os.PathLike[str], untouched: Sequence[str] = ()) -> pd.DataFrame:
    """The whole table of a CSV (any delimiter, line end or encoding) or, by its suffix, Parquet file.

    A line with fewer fields than the header has missing values at its end; one with more is an error. From a CSV the
    columns ``untouched`` are text exactly as written.
    """
    file_path = existing_file(path)
    if file_path.suffix.lower() in PARQUET_SUFFIXES:
        with _parquet_errors(file_path), pq.ParquetFile(file_path) as file:
            raw_names = _parquet_names(file_path, file)
            frame = _parquet_frame(file.read(list(raw_names.values())), raw_names)
    else:
        layout = _csv_layout(file_path)
        with _csv_errors(layout), _open_csv(layout, dict.fromkeys(untouched, "str"), untouched) as reader:
            frame = reader.read()
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

    From a CSV the kept columns are text exactly as written, except those that are needed as well. The index counts the
    rows of the file.
    """
    if rows < 1:
        raise StakesError(f"expected blocks of at least 1 row, but got rows={rows}")
    file_path = existing_file(path)
    dtypes = dict.fromkeys(numeric, "float64") | encoder.dtypes
    wanted = list(dict.fromkeys([*encoder.names, *keep, *numeric]))
    if file_path.suffix.lower() in PARQUET_SUFFIXES:
        with _parquet_errors(file_path), pq.ParquetFile(file_path) as file:
            raw_names = _parquet_names(file_path, file)
        _check_columns(file_path, raw_names, wanted)
        return _parquet_blocks(file_path, {name: raw_names[name] for name in wanted}, rows)
    layout = _csv_layout(file_path)
    _check_columns(file_path, layout.names, wanted)
    return _csv_blocks(layout, dtypes, set(keep) - set(dtypes), wanted, rows)


@dataclass(frozen=True)
class _Layout:
    """What must be known of a CSV before pandas reads it."""

    path: Path
    encoding: str
    delimiter: str
    names: tuple[str, ...]
    decimal: str = "."


def _csv_layout(path: Path) -> _Layout:
    encoding = text_encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        try:
            line = next((line for line in file if line.strip()), "").removeprefix(MANGLED_BOM)
            delimiter = csv_delimiter(line)
            records = csv.reader(chain([line], file), delimiter=delimiter, skipinitialspace=True)
            header = next(records, [])
            decimal = _decimal_mark(delimiter, islice(records, SNIFFED_ROWS))
        except (UnicodeError, csv.Error):
            raise _binary(path) from None
    if "\0" in line:
        raise _binary(path)
    if not any(cell.strip() for cell in header):
        raise StakesError(f"{path}: expected a table with a header line, but the file is empty")
    # As pandas calls a column without a name, such as the index that it writes itself.
    names = tuple(cell.strip() or f"Unnamed: {i}" for i, cell in enumerate(header))
    _check_unique(path, names)
    layout = _Layout(path, encoding, delimiter, names, decimal)
    _check_widths(layout, records=1)  # pandas takes a first row that is too long for an index
    return layout


def _decimal_mark(delimiter: str, records: Iterable[list[str]]) -> str:
    """A comma, where it separates no fields and the first rows have numbers like 1,5 and none like 1.5."""
    if delimiter == ",":
        return "."
    fields = [field.strip() for record in records for field in record]
    commas = any(re.fullmatch(r"[+-]?\d+,\d+", field) for field in fields)
    points = any(re.fullmatch(r"[+-]?\d+\.\d+", field) for field in fields)
    return "," if commas and not points else "."


def _open_csv(
    layout: _Layout, dtypes: Mapping[str, str], untouched: Collection[str] = (), rows: int | None = None
) -> Any:
    """A reader of blocks of so many rows, or of all."""
    # Not usecols: with it pandas no longer notices lines that are too long, and their values shift.
    return pd.read_csv(
        layout.path,
        sep=layout.delimiter,
        decimal=layout.decimal,
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
    layout: _Layout, dtypes: Mapping[str, str], untouched: Collection[str], wanted: list[str], rows: int
) -> Iterator[pd.DataFrame]:
    # Numbers are left to pandas' guess and converted after: that is faster, and can say what is wrong.
    texts = dict.fromkeys(untouched, "str") | {name: d for name, d in dtypes.items() if d == "str"}
    seen = 0
    with _csv_errors(layout), _open_csv(layout, texts, untouched, rows) as reader:
        for block in filter(len, reader):
            seen += len(block)
            guessed = [name for name in dtypes if name not in texts and block[name].dtype != np.float64]
            try:
                converted = {name: numbers(block[name]) for name in guessed}
            except StakesError as error:
                raise StakesError(f"{layout.path}: {error}") from None
            yield block[wanted].assign(**converted) if converted else block[wanted]
    if not seen:
        raise _no_rows(layout.path)


@contextmanager
def _csv_errors(layout: _Layout) -> Iterator[None]:
    try:
        yield
    except pd.errors.ParserError as error:
        _check_widths(layout)
        reason = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        raise StakesError(
            f"{layout.path}: expected a well-formed CSV, but reading failed ({reason}); "
            "look for a quotation mark that is never closed"
        ) from None
    except UnicodeError:
        raise _binary(layout.path) from None


def _check_widths(layout: _Layout, records: int | None = None) -> None:
    """Name the first line, of so many after the header, with more fields than the header has."""
    with layout.path.open(encoding=layout.encoding, newline="") as file:
        reader = csv.reader(file, delimiter=layout.delimiter, skipinitialspace=True)
        try:
            for fields in islice(filter(None, reader), 1, records and records + 1):
                if len(fields) > len(layout.names):
                    raise StakesError(
                        f"{layout.path}: expected {len(layout.names)} fields as in the header, but line "
                        f"{reader.line_num} has {len(fields)}; put quotation marks around text that contains "
                        f"{layout.delimiter!r}, or correct the line"
                    )
        except csv.Error:
            return  # a cell of megabytes: a quotation mark is open, as the caller reports


def _parquet_names(path: Path, file: Any) -> dict[str, str]:
    """The column names, stripped, and as they are in the file; without the index that pandas stores."""
    raw = [name for name in file.schema_arrow.names if not re.fullmatch(r"__index_level_\d+__", name)]
    names = [name.strip() for name in raw]
    if not names:
        raise StakesError(f"{path}: expected a table, but it has no columns")
    _check_unique(path, names)
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


def _check_unique(path: Path, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise StakesError(
            f"{path}: expected different column names, but {listing(twice)} occurs more than once; "
            "rename or remove the extra columns"
        )


def _check_columns(path: Path, names: Collection[str], wanted: Sequence[str]) -> None:
    absent = [name for name in wanted if name not in names]
    if absent:
        raise StakesError(
            f"{path}: expected columns that are missing: {listing(absent, limit=len(absent))}; "
            f"the file has {listing(names)}; add or rename them"
        )


def _binary(path: Path) -> StakesError:
    return StakesError(f"{path}: expected a text table (CSV) or a .parquet file, but it is binary; save it as CSV")


def _no_rows(path: Path) -> StakesError:
    return StakesError(f"{path}: expected rows below the header, but there are none; check the file")
