"""Real data as files, so that the demo is an ordinary run: the Wisconsin breast-cancer table of scikit-learn."""

from pathlib import Path

import pandas as pd

from stakes._io.files import write_text
from stakes.errors import StakesError
from stakes.tables.problem import FAMILIES, LEARNING_RATES, PATIENCE, Recipe
from stakes.tables.task import CHECKPOINT_SECONDS, CV, TableTask
from stakes.training.config import Training

TARGET, ID, BY = "diagnosis", "case", "mean radius"
EPOCHS = 60
COSTS = {
    "send home": {"benign": 0, "malignant": 10_000},
    "biopsy": {"benign": 300, "malignant": 500},
    "operate": {"benign": 3_000, "malignant": 0},
}
MODELS = ("constant", "logistic", "boosting", "calibrated", "blend")
LOOK = (
    "569 breast tumours, 30 measurements each; for every one: send home, biopsy or operate. What to look at: how much "
    "less a decision costs than a biopsy for everybody."
)


def write_tumours(folder: Path) -> None:
    """The measurements with a name for each case, and the costs."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer(as_frame=True)
    frame = pd.DataFrame(data.data)
    frame.insert(0, ID, [f"case {number}" for number in range(1, len(frame) + 1)])
    frame[TARGET] = [str(data.target_names[label]) for label in data.target]
    costs = pd.DataFrame(COSTS).T
    texts = {
        folder / "tumours.csv": frame.to_csv(index=False, lineterminator="\n"),
        folder / "costs.csv": costs.to_csv(index_label="cost [£]", lineterminator="\n"),
    }
    for path, text in texts.items():
        if path.is_symlink() or folder.is_symlink() or (path.exists() and path.read_bytes() != text.encode()):
            raise StakesError(f"{path}: expected the demo's own file, or none; move it away, or choose another --out")
    for path, text in texts.items():
        write_text(path, text)


def demo_task(folder: Path) -> TableTask:
    """The comparison on the files of `write_tumours`: every row is a test row once."""
    return TableTask(
        data=folder / "tumours.csv",
        target=TARGET,
        costs=folder / "costs.csv",
        test=CV,
        id=ID,
        by=BY,
        models=MODELS,
        recipe=Recipe(
            network="mlp",
            posterior={"family": FAMILIES["mlp"]},
            hidden=(32,),
            samples=30,
            training=Training(
                EPOCHS,
                learning_rate=LEARNING_RATES["mlp"],
                patience=PATIENCE,
                select="nll",
                checkpoint_seconds=CHECKPOINT_SECONDS,
            ),
        ),
    )
