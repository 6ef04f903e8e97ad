"""``stakes decide`` on a long table, of classes and of amounts, against pandas copying the file; and its memory."""

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
    claims = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "train.csv", 2_000, labelled=True)
        (folder / "costs.csv").write_text(COSTS)
        for file, rows in (("long.csv", ROWS), ("short.csv", ROWS // 10)):
            _write(folder / file, rows, labelled=False)
        start = time.monotonic()
        pd.read_csv(folder / "long.csv").to_csv(folder / "copy.csv", index=False)
        copying = time.monotonic() - start
        for model, (task, duration, memory) in _tasks(folder).items():
            fit_table(task, RunFolder(folder / model))
            long_time, long_memory = _decide(folder, model, "long.csv")
            _, short_memory = _decide(folder, model, "short.csv")
            what = f"`decide` on {ROWS:,} rows of {COLUMNS} columns, {model}"
            claims += [
                Claim(f"{what}: time", "pandas reading and writing the file", long_time / copying, duration),
                Claim(f"{what}: peak memory", f"{ROWS // 10:,} rows", long_memory / short_memory, memory),
            ]
    return claims


def _tasks(folder: Path) -> dict[str, tuple[TableTask, str, str]]:
    """A run for each kind of outcome, and what is promised of time and memory; the time of trees is only told."""
    data, training = folder / "train.csv", Training(epochs=2, batch_size=50)
    recipe = Recipe(network="mlp", posterior={"family": "dropout"}, training=training)
    classes = TableTask(
        data, "state", folder / "costs.csv", folds=2, models=("calibrated",), drop=("sold",), recipe=recipe
    )
    amounts = TableTask(
        data, "sold", under="15", over="5", folds=2, models=("linear", "boosting", "blend"), drop=("state",)
    )
    return {
        "100 draws": (classes, "<= 4", "<= 1.1"),
        "amounts by a blend of linear quantiles and boosting": (amounts, "-", "<= 1.3"),
    }


def _write(path: Path, rows: int, labelled: bool) -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(rows, COLUMNS)).round(6), columns=[f"x{n}" for n in range(COLUMNS)])
    if labelled:
        frame["state"] = np.where(frame["x0"] + generator.normal(size=rows) > 0, "ill", "well")
        frame["sold"] = (100 + 20 * frame["x0"] + 5 * generator.normal(size=rows)).round(2)
    frame.to_csv(path, index=False)


def _decide(folder: Path, model: str, file: str) -> tuple[float, float]:
    paths = [str(folder / name) for name in (model, file, "decided.csv")]
    found = subprocess.run([sys.executable, "-c", _DECIDE, *paths], check=True, capture_output=True, text=True)
    seconds, memory = map(float, found.stdout.split())
    return seconds, memory
