"""The paper's diagnosis example as files, so that the demo is an ordinary run."""

import csv
import io
from pathlib import Path

from stakes._io.files import write_text
from stakes.paper.diagnosis import data as diagnosis
from stakes.tables.models import MODELS, Recipe
from stakes.tables.task import CHECKPOINT_SECONDS, TableTask
from stakes.training.config import Training

TARGET = "diagnosis"


def write_patients(folder: Path, *, corrupted: int, seed: int = 0) -> None:
    """Training patients with ``corrupted`` labels per class, clean test patients, and the costs."""
    recorded = diagnosis.patients(diagnosis.TRAIN_PER_CLASS, corrupted, seed, "train")
    clean = diagnosis.patients(diagnosis.TEST_PER_CLASS, 0, seed, "test")
    _write_csv(folder / "train.csv", [*diagnosis.TESTS, TARGET], _rows(recorded))
    _write_csv(folder / "test.csv", [*diagnosis.TESTS, TARGET], _rows(clean))
    costs = [[name, *row] for name, row in zip(diagnosis.CLASSES, diagnosis.COSTS, strict=True)]
    _write_csv(folder / "costs.csv", ["cost [£]", *diagnosis.CLASSES], costs)


def demo_task(folder: Path, *, seeds: int, corrupted: int, seed: int = 0) -> TableTask:
    """The comparison of all models on the files of `write_patients`."""
    return TableTask(
        data=folder / "train.csv",
        test=folder / "test.csv",
        target=TARGET,
        costs=folder / "costs.csv",
        models=tuple(known.name for known in MODELS),
        recipe=Recipe(
            hidden=(20,),
            dropout=0.2,
            training=Training(epochs=200, batch_size=50, patience=200, checkpoint_seconds=CHECKPOINT_SECONDS),
            noise=corrupted / diagnosis.TRAIN_PER_CLASS,
        ),
        seeds=seeds,
        seed=seed,
    )


def _rows(patients: diagnosis.Patients) -> list[list[object]]:
    names = [diagnosis.CLASSES[label] for label in patients.observed]
    return [[*(f"{value:.6f}" for value in x), name] for x, name in zip(patients.x, names, strict=True)]


def _write_csv(path: Path, header: list[str], rows: list[list[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())
