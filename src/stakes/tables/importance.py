"""What drives the decisions: how much less they are worth once one column is shuffled among the test rows.

Each column of the raw table is shuffled once within the test rows of each division, and the division's own model
decides again. The difference is paired, row by row. Columns that tell the same stand in for each other, so that both
seem to matter little.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.evaluation.metrics import bootstrap
from stakes.outcomes import Predictor
from stakes.seeds import numpy_generator
from stakes.tables.kind import Kind
from stakes.tables.prepare import Division
from stakes.tables.problem import predict_rows
from stakes.utility import Utility

MOST_ROWS, MOST_COLUMNS, MOST_PREDICTIONS = 2_000, 100, 20_000  # to keep the time within that of a fit
FEWEST_ROWS = 200
AT_ONCE = 4_096  # rows that are predicted at once


@dataclass(frozen=True, eq=False)
class ScoredDivision:
    """The test rows of a division, and the model that was made without them."""

    division: Division
    predictor: Predictor


def importance(
    kind: Kind,
    parts: list[ScoredDivision],
    labels: Tensor,
    utility: Utility,
    seed: int,
    dependence: Mapping[str, NDArray[Any] | None],  # of test rows, as `bootstrap` takes it
) -> dict[str, Any]:
    """The loss of utility per decision for each column, with intervals; how many rows, and what was not measured."""
    names = parts[0].division.encoder.names
    columns = _most_telling(kind, parts[0].division, MOST_COLUMNS)
    rows = min(MOST_ROWS, max(FEWEST_ROWS, MOST_PREDICTIONS // len(columns)))
    samples = [_sample(part, rows / len(labels), seed) for part in parts]
    worth = np.concatenate(
        [_worths(kind, *each, columns, labels, utility, seed) for each in zip(parts, samples, strict=True)], 1
    )
    measured = np.concatenate([indices.numpy() for indices, _ in samples])
    together: dict[str, Any] = {key: None if each is None else each[measured] for key, each in dependence.items()}
    losses = {
        names[column]: bootstrap(worth[0] - own, seed=seed, **together)
        for column, own in zip(columns, worth[1:], strict=True)
    }
    return {"columns": losses, "rows": worth.shape[1], "not_measured": len(names) - len(columns)}


def _sample(part: ScoredDivision, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Which of all test rows, and their features: a share of those of a division."""
    division = part.division
    count = min(len(division.tested), max(1, round(share * len(division.tested))))
    chosen = numpy_generator(seed, "importance", division.name).permutation(len(division.tested))[:count]
    return torch.from_numpy(division.tested[chosen]), division.test_x[torch.from_numpy(chosen)]


def _worths(
    kind: Kind,
    part: ScoredDivision,
    sample: tuple[Tensor, Tensor],
    columns: list[int],
    labels: Tensor,
    utility: Utility,
    seed: int,
) -> NDArray[np.float64]:
    """(1 + columns, n) what the decisions are worth: as the rows are, then with each column shuffled."""
    rows, x = sample
    encoder = part.division.encoder
    copies = [x]
    for column in columns:
        order = numpy_generator(seed, "importance", part.division.name, encoder.names[column]).permutation(len(x))
        features = torch.from_numpy(encoder.sources == column)
        copies.append(torch.where(features, x[torch.from_numpy(order)], x))
    own, true = utility.rows(rows), labels[rows]
    worths = []
    group = max(1, AT_ONCE // len(x))  # copies predicted together: a forest takes as long for 10 rows as for 1,000
    for first in range(0, len(copies), group):
        batch = copies[first : first + group]
        values = predict_rows(part.predictor, torch.cat(batch))
        worths += [own.realised(kind.decide(each, own).choice, true) for each in torch.split(values, len(x))]
    return np.stack(worths)


def _most_telling(kind: Kind, division: Division, most: int) -> list[int]:
    """The columns to measure: all; of many, those whose features differ most between the outcomes, in training rows."""
    sources = division.encoder.sources
    count = len(division.encoder.names)
    if count <= most:
        return list(range(count))
    examples = division.problem.examples
    assert isinstance(examples.x, Tensor)  # a table is one
    x, labels = examples.x.numpy(), kind.strata(examples.labels.numpy())
    groups = [x[labels == c] for c in np.unique(labels)]
    between = sum(len(group) * (group.mean(0) - x.mean(0)) ** 2 for group in groups) / len(x)
    score = np.zeros(count)
    np.maximum.at(score, sources, between / (x.var(0) + 1e-9))
    return sorted(np.argsort(-score, kind="stable")[:most].tolist())
