"""``make bench``: print every claim with the ratio measured now; exit 1 if one does not hold."""

import os
import sys

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import importing, sampling, training_steps
from stakes.threads import one_thread


def main() -> int:
    console = Console(width=130)
    console.print(f"{os.cpu_count()} cores, 1 thread, torch {torch.__version__}")
    table = Table(box=None, pad_edge=False)
    for heading in ("claim", "against", "ratio", "promised"):
        table.add_column(heading)
    held = True
    for module in (importing, sampling, training_steps):
        console.print(f"measuring {module.__name__} ...", style="dim")
        with one_thread():
            for claim in module.measure():
                held &= claim.holds
                mark = "" if claim.holds else "  does not hold"
                table.add_row(claim.what, claim.against, f"{claim.ratio:.2f}{mark}", claim.promised)
    console.print(table)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
