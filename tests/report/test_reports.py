"""Reports: what comes from data stays text, and the numbers are those of the run."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from finished_runs import finished_run
from rich.console import Console
from stakes.report.table_run import write_report

from stakes import Utility
from stakes.cli.console import print_comparison, verdict
from stakes.cli.progress import fits_progress
from stakes.evaluation.comparison import Comparison, Run, summarise
from stakes.paper import figures
from stakes.tables.task import Fit, TableTask
from stakes.training.config import Epoch

ODD = ("</script><b>|x", "$a_{b}^$ `c` *d* \\ [e](f)", "日本\r\n# h")


def odd_utility() -> Utility:
    return Utility(np.array([[0.0, -1, -2], [-3, 0, -1], [-1, -2, 0]]), ("go $x^$", *ODD[1:]), ODD, unit="<i>|$")


def odd_comparison(utility: Utility) -> tuple[list[Run], torch.Tensor, Comparison]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (40,), generator=generator)
    runs = [
        Run(model, 0, torch.rand(40, 3, generator=generator).softmax(-1), validation)
        for model, validation in (("standard", -1.0), ("noise+calibrated", -0.5), ("boosting", None))
    ]
    return runs, labels, summarise(runs, labels, utility, seed=0)


def cells(line: str) -> int:
    """How many cells a Markdown table line has: bars that are not escaped, less one."""
    return line.replace("\\\\", "").replace("\\|", "").count("|") - 1


def test_a_report_of_odd_names(tmp_path: Path) -> None:
    utility = odd_utility()
    runs, labels, _ = odd_comparison(utility)
    probs = {run.model: [run.probs] for run in runs}
    changes = {"drop": ["```", "</script>"]}
    folder = finished_run(tmp_path, probs, labels, utility, target=ODD[1], changes=changes)
    write_report(folder)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    prose, _, code = text.partition("```json")
    assert "<" not in prose.replace("&lt;", "")
    assert "&lt;/script>&lt;b>\\|x" in prose
    assert prose.startswith("# \\$a\\_{b}^\\$ \\`c\\` \\*d\\* \\\\ \\[e\\](f): what decisions cost\n")
    assert code.rstrip().endswith("```")
    assert not any(line.startswith("```") for line in code.rstrip().splitlines()[1:-1])
    tables = [block for block in prose.split("\n\n") if block.startswith("|")]
    assert len(tables) == 2
    for table, rows, columns in zip(tables, (6, 3), (9, 4), strict=True):
        lines = table.splitlines()
        assert len(lines) == rows + 2
        assert {cells(line) for line in lines} == {columns}
    assert "## What each decision costs \\[&lt;i>\\|\\$\\]" in prose
    for name in ("comparison", "confusion", "reliability"):
        assert f"figures/{name}.png" in prose
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_figures_of_one_decision_that_costs_nothing(tmp_path: Path) -> None:
    utility = Utility(np.zeros((1, 2)), ("wait",), ("a", "b"))
    figures.confusion_figure(tmp_path / "a.png", np.zeros((1, 2), dtype=np.int64), utility, "none")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_table_on_the_console(width: int) -> None:
    utility = Utility(np.array([[0.0, -1, -2], [-3, 0, -1]]), ("x", "y"), ("a", "b", "c"), unit="minutes")
    _, _, comparison = odd_comparison(utility)
    text = io.StringIO()
    print_comparison(comparison, utility, Console(file=text, width=width, force_terminal=True, color_system=None))
    said = text.getvalue()
    assert "[minutes]" in said.replace("\n", "")
    assert "Chosen: noise+calibrated with optimal decisions, highest mean utility" in said
    for row in comparison.rows:
        assert row.model in said
        assert f"{row.accuracy:.3f}" in said


def test_the_verdict_groups_by_the_interval() -> None:
    utility = Utility(-(1 - np.eye(2)), ("a", "b"), ("a", "b"))
    labels = torch.arange(200) % 2
    right = torch.nn.functional.one_hot(labels, 2).float()
    coin = torch.full((200, 2), 0.5)
    probs = {"standard": (right + coin) / 2, "weighted": 1 - right, "calibrated": (right + coin) / 2}
    comparison = summarise([Run(name, 0, value, 0.0) for name, value in probs.items()], labels, utility, seed=0)
    assert verdict(comparison) == (
        "Against standard with optimal decisions: worth less: weighted (argmax), weighted; "
        "not told apart by this test set: standard (argmax), calibrated (argmax), calibrated."
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    task = TableTask(Path("d"), "t", Path("c"), models=("standard", "weighted"))
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
