"""Read text in common encodings, and write files atomically."""

import codecs
import csv
import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from stakes.errors import StakesError

# A UTF-8 byte-order mark that some program took for Latin-1 text and encoded once more.
MANGLED_BOM = "\u00ef\u00bb\u00bf"
DELIMITERS = ",;\t|"
_HOLDER = re.compile(r"(\d+ on \S*)?")  # what a lock says: a process and its machine
LOCK = ".lock"
LOCK_SECONDS = 2  # to wait for a lock: the workers of a process that was killed live for half a second more


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, which is created if need be, for this process, or say which process holds it.

    A lock ends with its process, however that ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK
    lock = FileLock(file)
    if file.exists() and (file.stat().st_nlink > 1 or not _HOLDER.fullmatch(file.read_text(errors="replace"))):
        raise StakesError(f"{file}: expected no such file, or one of stakes: remove it, or choose another --out")
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        holder = file.read_text() if file.exists() else ""
        raise StakesError(
            f"{folder}: process {holder or 'unknown'} is writing into it; let it end, or choose another --out"
        ) from None
    try:
        file.write_text(f"{os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        file.unlink(missing_ok=True)
        lock.release()


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path``; the file or directory written there replaces ``path`` if the block succeeds.

    Where there is a directory already, its files are replaced one by one, and what else it holds stays.
    """
    with _parents_of(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        temporary = Path(folder) / path.name
        yield temporary
        if temporary.is_dir() and path.is_dir():
            for each in temporary.iterdir():
                os.replace(each, path / each.name)
        else:
            os.replace(temporary, path)


@contextmanager
def _parents_of(path: Path) -> Iterator[None]:
    """Create the directories above ``path`` that are missing; remove them if the block fails."""
    absent = [parent for parent in path.parents if not parent.exists()]  # innermost first
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for parent in absent:
            with suppress(OSError):  # another process has written there meanwhile
                parent.rmdir()
        raise


def write_text(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON: NaN is an error."""
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
    path = Path(path)
    if path.is_dir():
        raise StakesError(f"{path}: expected a file, but it is a directory")
    if not path.exists():
        raise StakesError(f"{path}: no such file")
    return path


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


def read_csv_rows(path: str | os.PathLike[str]) -> tuple[list[list[str]], str]:
    """All cells of a small CSV, stripped, with any line end or BOM, and its delimiter.

    Empty rows and trailing empty columns are left out. Errors do not name the file: the caller does.
    """
    path = Path(path)
    if not path.is_file():
        raise StakesError("expected a file, but it is a directory" if path.is_dir() else "no such file")
    try:
        text = path.read_text(encoding=text_encoding(path)).removeprefix(MANGLED_BOM)
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
    width = max(index + 1 for row in rows for index, cell in enumerate(row) if cell)
    return [row[:width] for row in rows], delimiter
