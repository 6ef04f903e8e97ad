"""One way to turn a trained model's predictive into the two rows of a cell."""

import torch

from stakes import metrics
from stakes.decision import RULES, decide
from stakes.experiments.sweep import Cell, Row
from stakes.utility import Utility

DIGITS = 6  # kept in rows, which are many


def rows_of(cell: Cell, probs: torch.Tensor, labels: torch.Tensor, utility: Utility, **more: object) -> list[Row]:
    """A row for each rule: utility, accuracy, calibration and confusion on the test set."""
    nll, ece = metrics.nll(probs, labels), metrics.reliability(probs, labels).ece
    rows = []
    for rule in RULES:
        counts = metrics.confusion_counts(decide(probs, utility, rule).choice, labels, utility)
        rows.append(
            {
                **dict(cell.axes),
                "rule": rule,
                "utility": round(metrics.realised_utility(counts, utility), DIGITS),
                "accuracy": round(metrics.accuracy(counts, utility), DIGITS),
                "nll": round(nll, DIGITS),
                "ece": round(ece, DIGITS),
                "confusion": counts.tolist(),
                **more,
            }
        )
    return rows
