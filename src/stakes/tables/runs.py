"""Runs of any kind, loaded from their folders."""

from pathlib import Path

from stakes._io.tensors import read_tensors
from stakes.tables.amounts.run import AmountRun
from stakes.tables.run import Run
from stakes.tables.run_folder import CASES, RunFolder


def load_run(path: Path) -> Run | AmountRun:
    """The finished run in a folder."""
    RunFolder(path).refuse_unfinished()
    kind = read_tensors(path / CASES)[1].get("kind", Run.kind)
    return AmountRun.load(path) if kind == AmountRun.kind else Run.load(path)
