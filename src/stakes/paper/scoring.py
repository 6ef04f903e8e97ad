"""A trained model's predictive as the two rows of a cell."""

import torch

from stakes.evaluation.comparison import Run, score_run
from stakes.paper.sweep import Cell, Row
from stakes.utility import Utility

DIGITS = 6  # kept in rows, which are many
FEW_CLASSES = 5
_SCORES = ("utility", "accuracy", "nll", "ece")


def rows_of(
    cell: Cell, seed: int, probs: torch.Tensor, labels: torch.Tensor, utility: Utility, **more: object
) -> list[Row]:
    """A row for each rule: utility, accuracy and calibration on the test set; confusion where the classes are few."""
    rows = []
    for scored in score_run(Run(cell["method"], seed, probs, None), labels, utility):
        rounded = {key: round(scored[key], DIGITS) for key in _SCORES}
        place = {**dict(cell.axes), "seed": seed, "rule": scored["rule"]}
        confusion = {"confusion": scored["confusion"]} if len(utility.outcomes) <= FEW_CLASSES else {}
        rows.append({**place, **rounded, **confusion, **more})
    return rows
