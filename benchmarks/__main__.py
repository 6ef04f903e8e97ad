"""``make bench``: print every claim with the ratio measured now; exit 1 if one does not hold."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import bounds
from benchmarks.timing import Claim
from stakes._io.parallel import one_thread
from stakes.report.words import markdown_table

MODULES = (
    "importing", "sampling", "accuracy", "settling", "networks", "segmentation", "training_steps", "running_decisions",
    "ensembles", "deciding", "amounts", "scaling",
)  # fmt: skip
HEADINGS = ("claim", "against", "measured", "promised")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"measure only these, of: {', '.join(MODULES)}")
    parser.add_argument("--save", action="store_true", help="measure all, and write the tables to RESULTS.md too")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.modules if name not in MODULES]
    if unknown or (arguments.save and arguments.modules):
        parser.error(f"no module {unknown[0]!r}" if unknown else "--save is for all modules")
    console, start = Console(width=160), time.monotonic()
    machine = f"{os.cpu_count()} cores, 1 thread, torch {torch.__version__}"
    console.print(machine)
    claims: list[Claim] = []
    with one_thread():
        for name in arguments.modules or MODULES:
            console.print(f"measuring {name} ...", style="dim")
            claims += import_module(f"benchmarks.{name}").measure()
        if not arguments.modules:
            console.print("measuring bounds ...", style="dim")
        bounded = [] if arguments.modules else bounds.measure()
    rows = [_row(claim) for claim in claims]
    for headings, body in ((HEADINGS, rows), (bounds.HEADINGS, bounded)):
        _show(console, headings, body)
    if arguments.save:
        _save(machine, rows, bounded, (time.monotonic() - start) / 60)
    return 0 if all(claim.holds for claim in claims) else 1


def _row(claim: Claim) -> list[str]:
    mark = "" if claim.holds else ", does not hold"
    return [claim.what, claim.against, f"{claim.ratio:.2f}{mark}", claim.promised]


def _show(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(*headings, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    if rows:
        console.print(table)


def _save(machine: str, rows: list[list[str]], bounded: list[list[str]], minutes: float) -> None:
    parts = [
        "# Measured claims",
        f"Written by `python -m benchmarks --save` in {minutes:.0f} minutes: {machine}. Each figure is a ratio "
        "measured side by side in one run, the best of several rounds.",
        markdown_table(HEADINGS, rows),
    ]
    if bounded:
        parts += [
            "## What bounds it",
            (Path(__file__).parent / "bounds.md").read_text(encoding="utf-8").strip(),
            markdown_table(bounds.HEADINGS, bounded),
            "![Time against draws, inputs and classes](scaling.png)",
        ]
    (Path(__file__).parent / "RESULTS.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
