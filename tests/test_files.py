"""Text as people have it, and files that are written whole or not at all."""

import os
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from stakes._io.files import (
    atomic,
    existing_file,
    read_csv_rows,
    read_json,
    text_encoding,
    write_json,
)
from stakes.errors import StakesError
from stakes.utility.csv import read_cost_file, write_template


class StoppedError(Exception):
    """Stands for whatever goes wrong while a file is written."""


def fail(place: AbstractContextManager[Path], name: str = "") -> None:
    """Write half of what was to be written, and stop."""
    with suppress(StoppedError), place as temporary:
        (temporary / name).parent.mkdir(exist_ok=True)
        (temporary / name).write_text("half")
        raise StoppedError


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_atomic_writes_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "file.txt"
    fail(atomic(path))
    assert tree(tmp_path) == []
    with atomic(path) as temporary:
        temporary.write_text("whole")
        assert temporary.suffix == ".txt"
        assert not path.exists()
    assert tree(tmp_path) == ["new", "new/deep", "new/deep/file.txt"]
    fail(atomic(path))
    assert path.read_text() == "whole"
    assert tree(tmp_path) == ["new", "new/deep", "new/deep/file.txt"]


def test_what_somebody_else_put_there_stays(tmp_path: Path) -> None:
    with suppress(StoppedError), atomic(tmp_path / "new" / "file"):
        (tmp_path / "new" / "other").touch()
        raise StoppedError
    assert tree(tmp_path) == ["new", "new/other"]


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {})
        with atomic(tmp_path / "folder") as temporary:
            temporary.mkdir()
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750


def test_atomic_directories(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder"
    fail(atomic(path), "half")
    assert tree(tmp_path) == []
    for text in ("first", "second"):
        with atomic(path) as temporary:
            temporary.mkdir()
            (temporary / "ours").write_text(text)
        assert (path / "ours").read_text() == text
        (path / "mine").touch()
    assert tree(path) == ["mine", "ours"]


def test_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ü": [1, None]})
    assert read_json(tmp_path / "a.json") == {"ü": [1, None]}
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == {"ü": [1, None]}
    for content in (b"", b"{", b"\xff\xfe\xfd"):
        (tmp_path / "a.json").write_bytes(content)
        with pytest.raises(StakesError, match="damaged"):
            read_json(tmp_path / "a.json")
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises((StakesError, OSError)):
            read_json(place)
        with pytest.raises(StakesError):
            existing_file(place)


def test_encodings(tmp_path: Path) -> None:
    text = "cost [£];gesund;kränklich\nfrüh;0;1\nspät;2;0\n"
    for encoding, found in (
        ("utf-8", "utf-8-sig"),
        ("utf-8-sig", "utf-8-sig"),
        ("utf-16", "utf-16"),
        ("cp1252", "cp1252"),
    ):
        path = tmp_path / f"{encoding}.csv"
        path.write_bytes(text.replace("\n", "\r").encode(encoding))
        assert text_encoding(path) == found
        kind, unit, cells = read_cost_file(path)
        assert (kind, unit) == ("cost", "£")
        assert cells == {"früh": {"gesund": 0, "kränklich": 1}, "spät": {"gesund": 2, "kränklich": 0}}


def test_empty_rows_and_last_columns_of_a_spreadsheet_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("cost,a,b,,\nx,0,1,,\n,,,,\ny, 1 ,0,,\n,,,,\n")
    assert read_csv_rows(tmp_path / "a.csv")[0] == [["cost", "a", "b"], ["x", "0", "1"], ["y", "1", "0"]]


@pytest.mark.parametrize(
    ("corner", "expected"),
    [
        ("", ("cost", "")),
        ("decision", ("cost", "")),
        ("Cost", ("cost", "")),
        ("costs", ("cost", "")),
        ("cost [£]", ("cost", "£")),
        ("Costs (minutes)", ("cost", "minutes")),
        ("utility", ("utility", "")),
        ("Utilities [QALY]", ("utility", "QALY")),
    ],
)
def test_the_corner_says_what_the_numbers_are(tmp_path: Path, corner: str, expected: tuple[str, str]) -> None:
    (tmp_path / "a.csv").write_text(f"{corner},a,b\nx,0,1\ny,1,0\n", encoding="utf-8")
    assert read_cost_file(tmp_path / "a.csv")[:2] == expected
    if corner not in ("", "decision"):
        (tmp_path / "a.csv").write_text(f"outcome,{corner},decision\na,0,x\nb,1,x\n", encoding="utf-8")
        kind, unit, cells = read_cost_file(tmp_path / "a.csv")
        assert (kind, unit) == expected
        assert cells == {"x": {"a": 0, "b": 1}}


@pytest.mark.parametrize("corner", ["utility of care", "profit", "Gain [£]", "reward"])
def test_a_corner_that_may_mean_more_is_better_is_not_taken_for_cost(tmp_path: Path, corner: str) -> None:
    (tmp_path / "a.csv").write_text(f"{corner},a,b\nx,0,1\ny,1,0\n")
    with pytest.raises(StakesError, match="'cost' or 'utility'"):
        read_cost_file(tmp_path / "a.csv")


def test_templates(tmp_path: Path) -> None:
    write_template(tmp_path / "a.csv", ["well, truly", "ill"], ["well, truly", "ill", "ask"], "£")
    text = (tmp_path / "a.csv").read_text(encoding="utf-8")
    assert text == 'cost [£],"well, truly",ill\n"well, truly",0,\nill,,0\nask,,\n'
    with pytest.raises(StakesError, match="empty cell"):
        read_cost_file(tmp_path / "a.csv")
