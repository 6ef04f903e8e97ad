"""A run that is killed in the middle goes on to the same result, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import pytest
from patient_tables import COSTS, HEADER, patient_rows, write_csv

from stakes.tables import fit as fitting
from stakes.tables import network_models
from stakes.tables.fit import FitJob
from stakes.tables.problem import Recipe
from stakes.tables.run_folder import RunFolder
from stakes.tables.task import TableTask
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
    options = "--target diagnosis --models noise+calibrated,logistic --test 0.2 --folds 2 --network mlp --hidden 32"
    # Noise that is learnt belongs to one network: folds are trained one by one, with checkpoints.
    options += " --label-noise learnt --samples 10 --epochs 12 --patience 12 --batch-size 8"
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
        assert wait_for(lambda: any(out.glob("parts/*/*/*/checkpoint.safetensors")), 60), "no checkpoint"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not (out / "summary.json").exists()
    assert wait_for(lambda: not members(process.pid), 5), "workers go on"
    subprocess.run([*full, "--resume"], check=True, capture_output=True)
    for name in SAME:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert list(out.rglob(".*")) == []
    assert list(out.rglob("checkpoint*")) == []


class KilledError(BaseException):
    """Stands for the end of the process."""


def small_task(patients: Path, costs: Path, training: Training, **options: Any) -> TableTask:
    recipe = Recipe(tabm={"members": 2, "width": 8}, training=training)
    return TableTask(patients, "diagnosis", costs, **({"test": 0.2, "folds": 2, "recipe": recipe} | options))


def assert_same_files(first: Path, second: Path) -> None:
    for path in first.rglob("*"):
        if path.is_file():
            assert (second / path.relative_to(first)).read_bytes() == path.read_bytes(), path


@pytest.mark.parametrize("epoch", [1, 3, 5])
def test_resume_at_any_epoch(
    patients: Path, costs: Path, tmp_path: Path, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a fold that is trained alone, as those of large tables are."""
    monkeypatch.setattr(network_models, "STACKED_ROWS", 0)
    training = Training(epochs=5, batch_size=16, select="nll", checkpoint_seconds=0)
    task = small_task(patients, costs, training, models=("calibrated", "logistic", "blend"))
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    fitting.fit_table(task, whole)

    def kill(fit: FitJob, event: object) -> None:
        if (fit.model, fit.folds) == ("standard", (1,)) and isinstance(event, Epoch) and event.number == epoch:
            raise KilledError

    with pytest.raises(KilledError):
        fitting.fit_table(task, killed, on_progress=kill)
    part = killed.part("standard", 0, "1", 1)
    assert (part / "checkpoint.safetensors").exists()
    (part / ".model.k3_9xa7q").mkdir()  # as a kill while the model is written would leave it
    (killed.path / ".summary.json.ab12cd34").mkdir()
    events: list[tuple[str, tuple[int, ...], object]] = []
    fitting.fit_table(
        task, killed, resume=True, on_progress=lambda fit, event: events.append((fit.model, fit.folds, event))
    )
    assert ("standard", (0,), "cached") in events
    again = [event.number for name, folds, event in events if (name, folds) == ("standard", (1,)) and is_epoch(event)]
    assert again == list(range(epoch + 1, 6))
    assert_same_files(whole.path, killed.path)
    assert list(killed.path.rglob(".*")) == []
    assert list(killed.path.rglob("checkpoint*")) == []


def is_epoch(event: object) -> TypeGuard[Epoch]:
    return isinstance(event, Epoch)


def test_two_workers_give_the_same_as_one(patients: Path, costs: Path, tmp_path: Path) -> None:
    models = ("logistic", "calibrated", "blend")
    task = small_task(patients, costs, Training(epochs=2, select="nll"), models=models, seeds=2)
    one, two = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two")
    events: list[tuple[FitJob, object]] = []
    fits: list[FitJob] = []
    fitting.fit_table(task, one)
    fitting.fit_table(
        task,
        two,
        workers=2,
        on_prepared=lambda prepared, planned: fits.extend(planned),
        on_progress=lambda fit, event: events.append((fit, event)),
    )
    assert_same_files(one.path, two.path)
    names = ("constant", "logistic", "standard", "calibrated-0.1", "calibrated-1")
    assert {(fit.model, fit.seed) for fit in fits} == {(name, seed) for name in names for seed in (0, 1)}
    epochs_of = {"standard": [1, 1, 2, 2], "calibrated-0.1": [1, 1], "calibrated-1": [1, 1]}  # of each fold
    for fit in fits:
        assert (fit, "started") in events
        assert (fit, "done") in events
        epochs = [event.number for who, event in events if who == fit and is_epoch(event)]
        assert epochs == epochs_of.get(fit.model, [])


def test_a_worker_that_fails_says_why(patients: Path, costs: Path, tmp_path: Path) -> None:
    """A loss that explodes is the user's to know, from whichever process it comes."""
    task = small_task(patients, costs, Training(epochs=3, learning_rate=1e38, select="nll"), models=("standard",))
    for workers in (1, 2):
        with pytest.raises(ValueError, match="learning rate"):
            fitting.fit_table(task, RunFolder(tmp_path / f"out{workers}"), workers=workers)
