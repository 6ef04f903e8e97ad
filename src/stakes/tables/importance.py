"""What drives the decisions: how much less they are worth once one column is shuffled among the test rows.

Each column of the raw table is shuffled once within the test rows of each division, and the division's own model
decides again. The difference is paired, row by row. Columns that tell the same stand in for each other, so that both
seem to matter little.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.decisions import decide
from stakes.evaluation.metrics import Interval, bootstrap
from stakes.outcomes import Predictor
from stakes.seeds import numpy_generator
from stakes.tables.prepare import Division
from stakes.utility import TableUtility

MOST_ROWS, MOST_COLUMNS, MOST_PREDICTIONS = 2_000, 100, 40_000  # to keep the time within that of a fit
FEWEST_ROWS = 200


@dataclass(frozen=True, eq=False)
class Tested:
    """The test rows of a division, and the model that was made without them."""

    division: Division
    predictor: Predictor


def importance(
    parts: list[Tested],
    labels: Tensor,
    utility: TableUtility,
    seed: int,
) -> dict[str, Any]:
    """The loss of utility per decision for each column, with intervals; how many rows, and what was not measured."""
    names = parts[0].division.encoder.names
    columns = _most_telling(parts[0].division, MOST_COLUMNS)
    rows = min(MOST_ROWS, max(FEWEST_ROWS, MOST_PREDICTIONS // len(columns)))
    samples = [_sample(part, rows / len(labels), seed) for part in parts]
    before = np.concatenate(
        [_worth(part, x, own, labels, utility) for part, (own, x) in zip(parts, samples, strict=True)]
    )
    losses: dict[str, Interval] = {}
    for column in columns:
        generator = numpy_generator(seed, "importance", names[column])
        after = []
        for part, (own, x) in zip(parts, samples, strict=True):
            features = torch.from_numpy(np.flatnonzero(part.division.encoder.sources == column))
            shuffled = x.clone()
            shuffled[:, features] = x[torch.from_numpy(generator.permutation(len(x)))][:, features]
            after.append(_worth(part, shuffled, own, labels, utility))
        losses[names[column]] = bootstrap(before - np.concatenate(after), seed=seed)
    return {"columns": losses, "rows": len(before), "not_measured": len(names) - len(columns)}


def _sample(part: Tested, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Which of all test rows, and their features: a share of those of a division."""
    division = part.division
    count = min(len(division.tested), max(1, round(share * len(division.tested))))
    chosen = numpy_generator(seed, "importance", division.name).permutation(len(division.tested))[:count]
    return torch.from_numpy(division.tested[chosen]), division.test_x[torch.from_numpy(chosen)]


def _worth(part: Tested, x: Tensor, rows: Tensor, labels: Tensor, utility: TableUtility) -> NDArray[np.float64]:
    own = utility.rows(rows)
    return own.realised(decide(part.predictor(x).mean_probs(), own).choice, labels[rows])


def _most_telling(division: Division, most: int) -> list[int]:
    """The columns to measure: all; of many, those whose features differ most between the outcomes, in training rows."""
    sources = division.encoder.sources
    count = len(division.encoder.names)
    if count <= most:
        return list(range(count))
    examples = division.problem.examples
    assert isinstance(examples.x, Tensor)  # a table is one
    x, labels = examples.x.numpy(), examples.labels.numpy()
    groups = [x[labels == c] for c in np.unique(labels)]
    between = sum(len(group) * (group.mean(0) - x.mean(0)) ** 2 for group in groups) / len(x)
    score = np.zeros(count)
    np.maximum.at(score, sources, between / (x.var(0) + 1e-9))
    return sorted(np.argsort(-score, kind="stable")[:most].tolist())
