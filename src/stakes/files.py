"""Reading text as people have it, and writing files so that nothing half-written stays on disk."""

import codecs
import csv
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stakes.errors import StakesError

# A UTF-8 byte-order mark that some program took for Latin-1 text and encoded once more.
MANGLED_BOM = "\u00ef\u00bb\u00bf"
DELIMITERS = ",;\t|"


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path``, renamed to it if the block succeeds, else removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
    """All cells of a small CSV, stripped; empty lines left out; any delimiter, line end or BOM."""
    found = existing_file(path)
    text = found.read_text(encoding=text_encoding(found)).removeprefix(MANGLED_BOM)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise StakesError(f"{found}: expected a table, but the file is empty")
    reader = csv.reader(lines, delimiter=csv_delimiter(lines[0]))
    return [[cell.strip() for cell in row] for row in reader]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
