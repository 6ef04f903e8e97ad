"""What must be known of a CSV before it is read: encoding, delimiter, names, lines that are too long."""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from stakes._io.files import MANGLED_BOM, csv_delimiter, text_encoding
from stakes.errors import StakesError, listing


@dataclass(frozen=True)
class Layout:
    """How a CSV is to be read."""

    path: Path
    encoding: str
    delimiter: str
    names: tuple[str, ...]


def csv_layout(path: Path) -> Layout:
    """Look at the beginning of a file."""
    encoding = text_encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        try:
            line = next((line for line in file if line.strip()), "").removeprefix(MANGLED_BOM)
            delimiter = csv_delimiter(line)
            records = csv.reader(chain([line], file), delimiter=delimiter, skipinitialspace=True)
            header = next(records, [])
        except (UnicodeError, csv.Error):
            raise binary(path) from None
    if "\0" in line:
        raise binary(path)
    if not any(cell.strip() for cell in header):
        raise StakesError(f"{path}: expected a table with a header line, but the file is empty")
    # As pandas calls a column without a name, such as the index that it writes itself.
    names = tuple(cell.strip() or f"Unnamed: {i}" for i, cell in enumerate(header))
    check_unique(path, names)
    layout = Layout(path, encoding, delimiter, names)
    check_widths(layout, records=1)  # pandas takes a first row that is too long for an index
    return layout


def check_widths(layout: Layout, records: int | None = None) -> None:
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


def check_unique(path: Path, names: Sequence[str]) -> None:
    """Refuse a table with two columns of one name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise StakesError(
            f"{path}: expected different column names, but {listing(twice)} occurs more than once; "
            "rename or remove the extra columns"
        )


def binary(path: Path) -> StakesError:
    """The error for a file that is no text."""
    return StakesError(f"{path}: expected a text table (CSV) or a .parquet file, but it is binary; save it as CSV")
