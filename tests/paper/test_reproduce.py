import sys
from pathlib import Path

import pytest

from stakes.cli import main as cli


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["stakes", "reproduce", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_every_field_is_an_option_and_figures_are_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = ["--corrupted", "5,25", "--seeds", 1, "--epochs", 2, "--methods", "standard,calibrated", "--test-samples", 5]
    toy += ["--hidden", 4, "--learning-rate", 0.01, "--workers", 1]
    assert run(monkeypatch, "diagnosis", "--out", tmp_path / "out", *toy) == 0
    printed = capsys.readouterr()
    assert "calibrated" in printed.out
    assert "4 of 4 fits" in printed.err
    figures = list((tmp_path / "out").glob("*.png"))
    assert len(figures) == 5
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count('<img src="data:image/png;base64,') == 5
    assert page.count("<table>") == (tmp_path / "out" / "tables.md").read_text(encoding="utf-8").count("| --- |\n")
    assert "stakes reproduce diagnosis --protocol fair --corrupted 5,25 --seeds 1 --methods standard,calibrated" in page
    for figure in figures:
        figure.unlink()
    assert run(monkeypatch, "diagnosis", "--figures-only", tmp_path / "out") == 0
    assert len(list((tmp_path / "out").glob("*.png"))) == 5
    assert run(monkeypatch, "diagnosis", "--out", tmp_path / "out", *toy[:-2]) == 0, "known rows are not run again"
    assert run(monkeypatch, "diagnosis", "--out", tmp_path / "out", *toy, "--dropout", 0.4) == 1
    assert "different: dropout" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnosis", "--preset", "huge"], "quick or paper"),
        (["diagnosis", "--seeds", "many"], "--seeds: expected something like 50"),
        (["diagnosis", "--protocol", "mine"], "'fair' or 'authors'"),
        (["diagnosis", "--methods", "magic"], "'magic'"),
        (["diagnosis", "--backend", "magic"], "the backend 'magic' cannot be used"),
        (["digits"], "STAKES_DATA"),
        (["roads", "--data", "nowhere"], "trainannot"),
        (["amounts", "--preset", "paper"], "quick or full"),
        (["amounts", "--data", "nowhere"], "has regression/"),
        (["amounts", "--data", "nowhere", "--sets", "moon"], "'moon'"),
        (["diagnosis", "--figures-only", "nowhere"], "no such file"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.delenv("STAKES_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) != 0
    error = capsys.readouterr().err.strip()
    assert words in error
    assert "Traceback" not in error
    assert error.splitlines()[-1].startswith("stakes: error:")
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.parametrize("name", ["diagnosis", "digits", "roads"])
def test_help_names_the_settings(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, name, "--help") == 0
    printed = capsys.readouterr().out
    assert all(option in printed for option in ("--preset", "--protocol", "--seeds", "--epochs", "paper:"))


def test_help_names_the_settings_beyond_the_paper(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "amounts", "--help") == 0
    printed = capsys.readouterr().out
    assert all(option in printed for option in ("--preset", "--splits", "--products", "full:"))
    assert "paper:" not in printed
