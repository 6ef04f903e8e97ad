"""A trained model's predictive as the two rows of a cell."""

import torch

from stakes.comparison import Run, score_run
from stakes.experiments.sweep import Cell, Row
from stakes.utility import Utility

DIGITS = 6  # kept in rows, which are many
_SCORES = ("utility", "accuracy", "nll", "ece")


def rows_of(cell: Cell, probs: torch.Tensor, labels: torch.Tensor, utility: Utility, **more: object) -> list[Row]:
    """A row for each rule: utility, accuracy, calibration and confusion on the test set."""
    rows = []
    for scored in score_run(Run(cell["method"], cell["seed"], probs, None), labels, utility):
        rounded = {key: round(scored[key], DIGITS) for key in _SCORES}
        axes = dict(cell.axes)
        rows.append({**axes, "rule": scored["rule"], **rounded, "confusion": scored["confusion"], **more})
    return rows
