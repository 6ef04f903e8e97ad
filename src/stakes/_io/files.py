"""Reading text as people have it, and writing files so that nothing half-written stays on disk."""

import codecs
import csv
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stakes.errors import StakesError

# A UTF-8 byte-order mark that some program took for Latin-1 text and encoded once more.
MANGLED_BOM = "\u00ef\u00bb\u00bf"
DELIMITERS = ",;\t|"


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path``, renamed to it if the block succeeds, else removed."""
    with _parents_of(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A temporary directory beside ``path`` that takes its place if the block succeeds, else is removed."""
    with _parents_of(path):
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _parents_of(path: Path) -> Iterator[None]:
    """The directories above ``path``, made if need be, and unmade if the block fails."""
    absent = [parent for parent in path.parents if not parent.exists()]  # innermost first
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for parent in absent:
            with suppress(OSError):  # somebody else has put something there meanwhile
                parent.rmdir()
        raise


def write_text(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, value: Any) -> None:
    """Strict JSON: a NaN is a mistake of ours, not something to hand to the next program."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StakesError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StakesError(f"{path}: expected JSON, but it is damaged ({error})") from None


def existing_file(path: str | os.PathLike[str]) -> Path:
    """``path`` as a Path, or a clear error if it is not a readable file."""
    found = Path(path)
    if found.is_dir():
        raise StakesError(f"{found}: expected a file, but it is a directory")
    if not found.exists():
        raise StakesError(f"{found}: no such file")
    return found


def text_encoding(path: Path) -> str:
    """The encoding of a text file: UTF-8 (with or without a mark), UTF-16 by its mark, else Windows-1252."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        file.seek(0)
        try:
            while block := file.read(1 << 20):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8-sig"


def csv_delimiter(header: str) -> str:
    """The delimiter that splits a header line into the most fields."""
    return max(DELIMITERS, key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))


def read_csv_rows(path: str | os.PathLike[str]) -> list[list[str]]:
    """All cells of a small CSV, stripped; any delimiter, line end or BOM; empty rows and last columns left out.

    Errors do not name the file: the caller, who knows what it is for, does.
    """
    found = Path(path)
    if not found.is_file():
        raise StakesError("expected a file, but it is a directory" if found.is_dir() else "no such file")
    try:
        text = found.read_text(encoding=text_encoding(found)).removeprefix(MANGLED_BOM)
        lines = [line for line in text.splitlines() if line.strip()]
        delimiter = csv_delimiter(lines[0]) if lines else ","
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter, strict=True)]
    except (UnicodeError, csv.Error) as error:
        raise StakesError(f"expected a table as text (CSV), but reading failed ({error}); save it as CSV") from None
    if "\0" in text:
        raise StakesError("expected a table as text (CSV), but the file is binary; save it as CSV")
    rows = [row for row in rows if any(row)]
    if not rows:
        raise StakesError("expected a table, but the file is empty")
    width = max(place + 1 for row in rows for place, cell in enumerate(row) if cell)
    return [row[:width] for row in rows]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
