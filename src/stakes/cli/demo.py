"""The paper's diagnosis example as files, so that the demo is an ordinary run."""

from pathlib import Path

import numpy as np
import pandas as pd

from stakes._io.files import write_text
from stakes.paper.diagnosis import data as diagnosis
from stakes.tables.problem import Recipe
from stakes.tables.task import CHECKPOINT_SECONDS, TableTask
from stakes.training.config import Training

TARGET, EPOCHS = "diagnosis", 200


def write_patients(folder: Path, *, corrupted: int) -> None:
    """Training patients with ``corrupted`` labels per class, clean test patients, and the costs."""
    parts = {"train": (diagnosis.TRAIN_PER_CLASS, corrupted), "test": (diagnosis.TEST_PER_CLASS, 0)}
    for part, (per_class, redrawn) in parts.items():
        patients = diagnosis.patients(per_class, redrawn, seed=0, name=part)
        frame = pd.DataFrame(patients.x, columns=diagnosis.TESTS)
        frame[TARGET] = np.array(diagnosis.CLASSES)[patients.observed]
        write_text(folder / f"{part}.csv", frame.to_csv(index=False, float_format="%.6f", lineterminator="\n"))
    costs = pd.DataFrame(diagnosis.COSTS, diagnosis.CLASSES, diagnosis.CLASSES)
    write_text(folder / "costs.csv", costs.to_csv(index_label="cost [£]", lineterminator="\n"))


def demo_task(folder: Path, *, seeds: int, corrupted: int) -> TableTask:
    """The comparison of all models on the files of `write_patients`."""
    return TableTask(
        data=folder / "train.csv",
        test=folder / "test.csv",
        target=TARGET,
        costs=folder / "costs.csv",
        models=("standard", "weighted", "calibrated", "noise", "noise+calibrated", "boosting"),
        recipe=Recipe(
            network="mlp",
            posterior={"family": "dropout"},
            hidden=(20,),
            dropout=0.2,
            training=Training(
                EPOCHS, batch_size=50, patience=EPOCHS, select="nll", checkpoint_seconds=CHECKPOINT_SECONDS
            ),
            noise=corrupted / diagnosis.TRAIN_PER_CLASS,
        ),
        seeds=seeds,
    )
