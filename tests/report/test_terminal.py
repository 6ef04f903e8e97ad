"""A comparison on the terminal, and the progress of its fits."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from finished_runs import UTILITY, three_models
from rich.console import Console

from stakes.cli.terminal import fits_progress, print_run
from stakes.report.headline import headline
from stakes.tables.fit import FitJob
from stakes.training.config import Epoch


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_answer_on_the_console(tmp_path: Path, width: int) -> None:
    utility = replace(UTILITY, unit="minutes")
    run = three_models(tmp_path, utility, cases=400)
    text = io.StringIO()
    print_run(run, Console(file=text, width=width, force_terminal=True, color_system=None))
    said = text.getvalue()
    assert said.startswith(headline(run).sentence)
    assert headline(run).judgement in said
    assert "Chosen: calibrated, it is the test's. On the rows that the choice was made by, its decisions cost " in said
    assert " minutes less each than those of standard" in said
    assert "highest probability" in " ".join(said.split()) or width < 200
    assert "argmax" not in said
    assert "optimal" not in said
    for row in run.comparison.rows:
        assert row.model in said
        assert f"{row.nll:.3f}" in said
    # The most frequent outcome for everybody: nobody would decide so.
    assert len(re.findall(r"^constant ", said, re.MULTILINE)) == 1


def test_notes_on_the_console(tmp_path: Path) -> None:
    text = io.StringIO()
    print_run(three_models(tmp_path, cases=12), Console(file=text, width=100))
    assert "Note: All of this rests on 12 test rows: another 12 may say something else.\n" in text.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    standard, weighted, boosting = fits = [
        FitJob("standard", 0, "1", (0, 1)),
        FitJob("weighted", 0, "1", (1,)),
        FitJob("boosting", 0, "1", (0, 1)),
    ]
    with fits_progress(30) as tell:
        assert stream.getvalue() == ""  # others write until there is something to show
        tell.plan(fits)
        tell(standard, "cached")
        tell(weighted, "started")
        tell(boosting, "started")
        tell(weighted, Epoch(7, 1.0, utility=-12.5))
        tell(weighted, Epoch(8, 1.0, nll=0.5))
        tell(boosting, "done")
        tell(weighted, "done")
    said = stream.getvalue()
    assert re.search(r"standard, 2 trainings, seed 0: done before\s*\n", said)
    assert re.search(r"boosting, 2 trainings, seed 0: done, about \d+ s left\s*\n", said)
    assert re.search(r"weighted, fold 2, seed 0: done\s*\n", said)


def test_progress_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    first, last = (FitJob("standard", 3, division, (0, 1)) for division in ("1", "all"))
    before = FitJob("boosting", 3, "2", (0, 1))
    with fits_progress(30) as tell:
        tell.plan([first, last, before])
        tell(before, "cached")
        tell(first, "started")
        tell(first, Epoch(1, 1.0))
        tell(first, "done")
        tell(last, "done")
    said = re.sub(r"about \d+ s", "about 9 s", capsys.readouterr().err)
    assert said == (
        "  boosting, 2 trainings, test part 2, seed 3: done before\n"
        "  standard, 2 trainings, test part 1, seed 3: done, about 9 s left\n"
        "  standard, 2 trainings, all rows, seed 3: done\n"
    )


def test_the_time_that_is_left_follows_from_the_efforts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the effort took 60 s: the rest takes two minutes more."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    clock = iter([100.0, 160.0, 160.0])
    monkeypatch.setattr("stakes.cli.terminal.time.monotonic", lambda: next(clock, 160.0))
    fits = [FitJob("logistic", seed, "1", (0, 1)) for seed in range(3)]
    with fits_progress(30) as tell:
        tell.plan(fits)
        tell(fits[0], "done")
    assert stream.getvalue() == "  logistic, 2 trainings, seed 0: done, about 2 min left\n"
