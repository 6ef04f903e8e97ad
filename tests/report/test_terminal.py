"""A comparison on the terminal, and the progress of its fits."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from stakes import Utility
from stakes.cli.terminal import fits_progress, print_comparison, verdicts
from stakes.evaluation.comparison import Comparison, Predictions, compare, score
from stakes.tables.task import Fit, TableTask
from stakes.training.config import Epoch
from stakes.utility import TableUtility


def compared(probs: dict[str, torch.Tensor], labels: torch.Tensor, utility: TableUtility) -> Comparison:
    """The models in the order of their validation utilities."""
    predictions = [Predictions(model, 0, table, float(place)) for place, (model, table) in enumerate(probs.items())]
    return compare([item for each in predictions for item in score(each, labels, utility)], seed=0)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_table_on_the_console(width: int) -> None:
    utility = Utility.from_costs(1 - np.eye(3), unit="minutes")
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (40,), generator=generator)
    models = ("standard", "boosting", "noise+calibrated")
    probs = {model: torch.rand(40, 3, generator=generator).softmax(-1) for model in models}
    comparison = compared(probs, labels, utility)
    text = io.StringIO()
    print_comparison(comparison, utility, Console(file=text, width=width, force_terminal=True, color_system=None))
    said = text.getvalue()
    assert "[minutes]" in said.replace("\n", "")
    assert "Chosen: noise+calibrated, deciding by lowest expected cost, highest mean utility" in said
    assert "highest probability" in " ".join(said.split()) or width < 200
    assert "argmax" not in said
    assert "optimal" not in said
    for row in comparison.rows:
        assert row.model in said
        assert f"{row.accuracy:.3f}" in said


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
    task = TableTask(Path("d"), "t", Path("c"), models=("standard", "weighted", "boosting"))
    standard, weighted, boosting = task.fits()
    with fits_progress(task) as tell:
        assert stream.getvalue() == ""  # others write until there is something to show
        tell(standard, "found")
        tell(weighted, "started")
        tell(boosting, "started")
        tell(weighted, Epoch(7, 1.0, utility=-12.5))
        tell(weighted, Epoch(8, 1.0))
        tell(boosting, "done")
        tell(weighted, "done")
    said = stream.getvalue()
    assert re.search(r"standard, seed 0: done before\s*\n", said)
    assert re.search(r"boosting, seed 0: done\s*\n", said)
    assert re.search(r"weighted, seed 0: done\s*\n", said)
    assert "3/3" in said


def test_progress_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    task = TableTask(Path("d"), "t", Path("c"))
    with fits_progress(task) as tell:
        tell(Fit("standard", 3), "started")
        tell(Fit("standard", 3), Epoch(1, 1.0))
        tell(Fit("standard", 3), "done")
        tell(Fit("boosting", 3), "found")
    assert capsys.readouterr().err == "  standard, seed 3: done\n  boosting, seed 3: done before\n"
