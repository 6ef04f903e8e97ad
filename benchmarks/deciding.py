"""``stakes decide`` on a long table, against reading and writing the same file with pandas; and its memory."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.timing import Claim
from stakes.tables.fit import fit_table
from stakes.tables.problem import Recipe
from stakes.tables.run_folder import RunFolder
from stakes.tables.task import TableTask
from stakes.training.config import Training

ROWS, COLUMNS = 1_000_000, 30
COSTS = "decision,ill,well\ntreat,0,40\nsend home,500,0\ntest more,60,15\n"
_DECIDE = """
import sys, time
from pathlib import Path
from benchmarks.timing import peak_memory
from stakes.tables.decide import decide_table
start = time.monotonic()
decide_table(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
print(time.monotonic() - start, peak_memory())
"""


def measure() -> list[Claim]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "train.csv", 2_000, labelled=True)
        (folder / "costs.csv").write_text(COSTS)
        training = Training(epochs=2, batch_size=50)
        task = TableTask(
            folder / "train.csv",
            "state",
            folder / "costs.csv",
            folds=2,
            models=("calibrated",),
            recipe=Recipe(network="mlp", posterior={"family": "dropout"}, training=training),
        )
        fit_table(task, RunFolder(folder / "run"))
        for file, rows in (("long.csv", ROWS), ("short.csv", ROWS // 10)):
            _write(folder / file, rows, labelled=False)
        start = time.monotonic()
        pd.read_csv(folder / "long.csv").to_csv(folder / "copy.csv", index=False)
        copying = time.monotonic() - start
        long_time, long_memory = _decide(folder, "long.csv")
        _, short_memory = _decide(folder, "short.csv")
    what = f"`decide` on {ROWS:,} rows of {COLUMNS} columns, 100 draws"
    return [
        Claim(f"{what}: time", "pandas reading and writing the file", long_time / copying, "<= 4"),
        Claim(f"{what}: peak memory", f"{ROWS // 10:,} rows", long_memory / short_memory, "<= 1.1"),
    ]


def _write(path: Path, rows: int, labelled: bool) -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(rows, COLUMNS)).round(6), columns=[f"x{n}" for n in range(COLUMNS)])
    if labelled:
        frame["state"] = np.where(frame["x0"] + generator.normal(size=rows) > 0, "ill", "well")
    frame.to_csv(path, index=False)


def _decide(folder: Path, file: str) -> tuple[float, float]:
    paths = [str(folder / name) for name in ("run", file, "decided.csv")]
    found = subprocess.run([sys.executable, "-c", _DECIDE, *paths], check=True, capture_output=True, text=True)
    seconds, memory = map(float, found.stdout.split())
    return seconds, memory
