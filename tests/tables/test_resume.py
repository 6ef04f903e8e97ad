"""A run that is killed in the middle goes on to the same result, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patient_tables import COSTS, HEADER, patient_rows, write_csv

from stakes.tables import fit as fitting
from stakes.tables.models import Recipe
from stakes.tables.run import RunFolder
from stakes.tables.task import Fit, TableTask
from stakes.training.config import Epoch, Training

STAKES = [sys.executable, "-c", "from stakes.cli.main import main; main()"]
SAME = ("summary.json", "results.jsonl", "report.html", "model/model.json", "model/weights.safetensors")


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def members(group: int) -> list[int]:
    """The processes of a process group that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, own = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(own) == group and state != "Z":
            found.append(int(entry.name))
    return found


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    data = write_csv(tmp_path / "patients.csv", HEADER, patient_rows(400))
    (tmp_path / "costs.csv").write_text(COSTS, encoding="utf-8")
    options = "--target diagnosis --models calibrated,boosting --hidden 32 --samples 10 --epochs 10 --patience 10"
    options += " --batch-size 8"
    return [*STAKES, "fit", str(data), "--costs", str(tmp_path / "costs.csv"), *options.split(), "--out"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="watches processes in /proc")
def test_kill_and_resume(command: list[str], tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    subprocess.run([*command, whole], check=True, capture_output=True)
    out = tmp_path / "killed"
    full = [*command, str(out), "--workers", "2"]
    process = subprocess.Popen(full, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert wait_for(lambda: any(out.glob("runs/*/checkpoint.safetensors")), 60), "no checkpoint"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not (out / "summary.json").exists()
    assert wait_for(lambda: not members(process.pid), 5), "workers go on"
    assert any(out.glob("runs/*/checkpoint.safetensors"))
    subprocess.run([*full, "--resume"], check=True, capture_output=True)
    for name in SAME:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert list(out.rglob(".*")) == []
    assert list(out.rglob("checkpoint*")) == []


class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("epoch", [1, 3, 5])
def test_resume_at_any_epoch(patients: Path, costs: Path, tmp_path: Path, epoch: int) -> None:
    training = Training(epochs=5, batch_size=16, checkpoint_seconds=0)
    recipe = Recipe(hidden=(4,), samples=5, training=training)
    task = TableTask(patients, "diagnosis", costs, models=("standard", "calibrated"), recipe=recipe)
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    fitting.fit_table(task, whole)
    seen: list[tuple[Fit, int]] = []

    def kill(fit: Fit, event: object) -> None:
        if fit.model == "calibrated" and isinstance(event, Epoch):
            seen.append((fit, event.number))
            if event.number == epoch:
                raise KilledError

    with pytest.raises(KilledError):
        fitting.fit_table(task, killed, on_progress=kill)
    assert (killed.run("calibrated", 0) / "checkpoint.safetensors").exists()
    (killed.run("calibrated", 0) / ".model.half").mkdir()  # as a kill while the model is written would leave it
    (killed.path / ".summary.json.half").touch()
    seen.clear()
    events: list[tuple[str, object]] = []
    fitting.fit_table(task, killed, resume=True, on_progress=lambda fit, event: events.append((fit.model, event)))
    assert ("standard", "found") in events
    again = [event.number for name, event in events if name == "calibrated" and isinstance(event, Epoch)]
    assert again == list(range(epoch + 1, 6))
    for path in whole.path.rglob("*"):
        if path.is_file():
            assert (killed.path / path.relative_to(whole.path)).read_bytes() == path.read_bytes(), path
    assert list(killed.path.rglob(".*")) == []


def test_two_workers_give_the_same_as_one(patients: Path, costs: Path, tmp_path: Path) -> None:
    recipe = Recipe(hidden=(4,), samples=5, training=Training(epochs=2))
    task = TableTask(patients, "diagnosis", costs, recipe=recipe, seeds=2)
    one, two = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two")
    events: list[tuple[Fit, object]] = []
    fitting.fit_table(task, one)
    fitting.fit_table(task, two, workers=2, on_progress=lambda fit, event: events.append((fit, event)))
    for path in one.path.rglob("*"):
        if path.is_file():
            assert (two.path / path.relative_to(one.path)).read_bytes() == path.read_bytes(), path
    for fit in task.fits():
        assert (fit, "started") in events
        assert (fit, "done") in events
        epochs = [event.number for who, event in events if who == fit and isinstance(event, Epoch)]
        assert epochs == ([] if fit.model == "boosting" else [1, 2])


def test_a_worker_that_fails_says_why(patients: Path, costs: Path, tmp_path: Path) -> None:
    """A loss that explodes is the user's to know, from whichever process it comes."""
    recipe = Recipe(hidden=(4,), samples=5, training=Training(epochs=3, learning_rate=1e38))
    task = TableTask(patients, "diagnosis", costs, recipe=recipe)
    for workers in (1, 2):
        with pytest.raises(ValueError, match="learning rate"):
            fitting.fit_table(task, RunFolder(tmp_path / f"out{workers}"), workers=workers)
