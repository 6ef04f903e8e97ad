"""Permutation importance: a column that decides matters by what it is worth, one that is not read by nothing."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from stakes import Utility
from stakes.outcomes import Outcomes
from stakes.tables.encode import TableEncoder
from stakes.tables.importance import ScoredDivision, importance
from stakes.tables.task import CLASSES

UTILITY = Utility.from_costs({"a": {"a": 0, "b": 10}, "b": {"a": 10, "b": 0}})


def by_sign(x: torch.Tensor) -> Any:
    """Sure of b where the first column is above its mean."""
    p = (x[:, 0] > 0).double()
    probs = torch.stack([1 - p, p], -1)
    return SimpleNamespace(mixture=lambda: Outcomes(probs))


def test_what_is_read_matters_and_what_is_not_does_not() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"read": generator.normal(size=400), "unread": generator.normal(size=400)})
    frame["level"] = generator.choice(["x", "y", "z"], 400)
    encoder = TableEncoder.fit(frame)
    x = torch.from_numpy(encoder.transform(frame))
    labels = (x[:, 0] > 0).long()
    halves = np.arange(400).reshape(2, 200)
    parts: Any = [
        ScoredDivision(SimpleNamespace(name=str(n), encoder=encoder, test_x=x[own], tested=own), by_sign)  # type: ignore[arg-type]
        for n, own in enumerate(halves)
    ]
    found = importance(CLASSES, parts, labels, UTILITY, seed=0, dependence={})
    assert list(found["columns"]) == ["read", "unread", "level"]
    assert found["rows"] == 400
    read = found["columns"]["read"]
    assert 4 < read.low < read.mean < read.high < 6, "half of the decisions, at 10 each"
    assert found["columns"]["unread"] == found["columns"]["level"] == (0, 0, 0)
    assert importance(CLASSES, parts, labels, UTILITY, seed=0, dependence={}) == found
