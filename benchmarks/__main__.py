"""``make bench``: print every claim with the ratio measured now; exit 1 if one does not hold.

``python -m benchmarks --save`` writes the table to benchmarks/RESULTS.md too; ``python -m benchmarks sampling ...``
measures only some.
"""

import os
import sys
import time
from importlib import import_module
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Claim
from stakes.report.tables import markdown_table
from stakes.threads import one_thread

MODULES = (
    "importing", "sampling", "segmentation", "training_steps", "running_decisions", "ensembles", "deciding", "scaling",
)  # fmt: skip
HEADINGS = ("claim", "against", "measured", "promised")


def main(arguments: list[str]) -> int:
    console = Console(width=160)
    machine = f"{os.cpu_count()} cores, 1 thread, torch {torch.__version__}"
    console.print(machine)
    start, claims = time.monotonic(), []
    for name in [argument for argument in arguments if argument in MODULES] or MODULES:
        console.print(f"measuring {name} ...", style="dim")
        with one_thread():
            claims += import_module(f"benchmarks.{name}").measure()
    rows = [_row(claim) for claim in claims]
    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if "--save" in arguments:
        _save(machine, rows, (time.monotonic() - start) / 60)
    return 0 if all(claim.holds for claim in claims) else 1


def _row(claim: Claim) -> list[str]:
    mark = "" if claim.holds else ", does not hold"
    return [claim.what, claim.against, f"{claim.ratio:.2f}{mark}", claim.promised]


def _save(machine: str, rows: list[list[str]], minutes: float) -> None:
    parts = [
        "# Measured claims",
        f"Written by `python -m benchmarks --save` in {minutes:.0f} minutes: {machine}. Each figure is a ratio "
        "measured side by side in one run, the best of several rounds.",
        markdown_table(HEADINGS, rows),
    ]
    (Path(__file__).parent / "RESULTS.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
