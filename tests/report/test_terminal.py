"""A comparison on the terminal, and the progress of its fits."""

import io
import re

import numpy as np
import pytest
import torch
from rich.console import Console

from stakes import Utility
from stakes.cli.terminal import fits_progress, print_comparison, verdicts
from stakes.evaluation.comparison import Choice, Comparison, Predictions, compare, score
from stakes.tables.fit import Fit
from stakes.training.config import Epoch
from stakes.utility import TableUtility


def compared(probs: dict[str, torch.Tensor], labels: torch.Tensor, utility: TableUtility) -> Comparison:
    """The last model is the chosen one."""
    predictions = [Predictions(model, 0, table) for model, table in probs.items()]
    choice = Choice(list(probs)[-1], "it came last")
    return compare([item for each in predictions for item in score(each, labels, utility)], choice, seed=0)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_table_on_the_console(width: int) -> None:
    utility = Utility.from_costs(1 - np.eye(3), unit="minutes")
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (40,), generator=generator)
    models = ("constant", "boosting", "noise+calibrated")
    probs = {model: torch.rand(40, 3, generator=generator).softmax(-1) for model in models}
    comparison = compared(probs, labels, utility)
    text = io.StringIO()
    print_comparison(comparison, utility, Console(file=text, width=width, force_terminal=True, color_system=None))
    said = text.getvalue()
    assert "[minutes]" in said.replace("\n", "")
    assert "Chosen: noise+calibrated, it came last." in said
    assert "highest probability" in " ".join(said.split()) or width < 200
    assert "argmax" not in said
    assert "optimal" not in said
    for row in comparison.rows:
        assert row.model in said
        assert f"{row.nll:.3f}" in said
    # The most frequent outcome for everybody: nobody would decide so.
    assert len(re.findall(r"^constant ", said, re.MULTILINE)) == 1
    assert "constant (highest probability)" not in said
    lead = comparison.row("noise+calibrated", "optimal").lead
    assert lead is not None
    assert f"{-lead.mean:+.3f} (" in said or width < 200


def test_the_verdict_groups_by_the_interval() -> None:
    utility = Utility.from_costs(1 - np.eye(2), ("a", "b"), ("a", "b"))
    labels = torch.arange(200) % 2
    right = torch.nn.functional.one_hot(labels, 2).float()
    coin = torch.full((200, 2), 0.5)
    probs = {"standard": (right + coin) / 2, "weighted": 1 - right, "calibrated": (right + coin) / 2}
    assert verdicts(compared(probs, labels, utility)) == (
        "Against standard, deciding by lowest expected cost: worth less: weighted (highest probability), weighted; "
        "the same: standard (highest probability), calibrated (highest probability), calibrated."
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    standard, weighted, boosting = fits = [
        Fit("standard", 0, "1", (0, 1)), Fit("weighted", 0, "1", (1,)), Fit("boosting", 0, "1", (0, 1))]  # fmt: skip
    with fits_progress(30) as tell:
        assert stream.getvalue() == ""  # others write until there is something to show
        tell.plan(fits)
        tell(standard, "found")
        tell(weighted, "started")
        tell(boosting, "started")
        tell(weighted, Epoch(7, 1.0, utility=-12.5))
        tell(weighted, Epoch(8, 1.0, nll=0.5))
        tell(boosting, "done")
        tell(weighted, "done")
    said = stream.getvalue()
    assert re.search(r"standard, 2 folds, seed 0: done before\s*\n", said)
    assert re.search(r"boosting, 2 folds, seed 0: done, about \d+ s left\s*\n", said)
    assert re.search(r"weighted, fold 2, seed 0: done\s*\n", said)


def test_progress_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    first, last = (Fit("standard", 3, division, (0, 1)) for division in ("1", "all"))
    before = Fit("boosting", 3, "2", (0, 1))
    with fits_progress(30) as tell:
        tell.plan([first, last, before])
        tell(before, "found")
        tell(first, "started")
        tell(first, Epoch(1, 1.0))
        tell(first, "done")
        tell(last, "done")
    said = re.sub(r"about \d+ s", "about 9 s", capsys.readouterr().err)
    assert said == (
        "  boosting, 2 folds, test part 2, seed 3: done before\n"
        "  standard, 2 folds, test part 1, seed 3: done, about 9 s left\n"
        "  standard, 2 folds, all rows, seed 3: done\n"
    )


def test_the_time_that_is_left_follows_from_the_efforts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the effort took 60 s: the rest takes two minutes more."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    clock = iter([100.0, 160.0, 160.0])
    monkeypatch.setattr("stakes.cli.terminal.time.monotonic", lambda: next(clock, 160.0))
    fits = [Fit("logistic", seed, "1", (0, 1)) for seed in range(3)]
    with fits_progress(30) as tell:
        tell.plan(fits)
        tell(fits[0], "done")
    assert stream.getvalue() == "  logistic, 2 folds, seed 0: done, about 2 min left\n"
