"""The page's own arithmetic about amounts (amounts.js), by Node's test runner, against the library."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node import NODE, run_tests

from stakes.decisions import decide
from stakes.mixtures import Quantiles
from stakes.utility import Newsvendor

CASES = 300
COSTS = [(15.0, 5.0), (1.0, 1.0), (0.37, 20.0), (99.9, 0.05), (0.0, 3.0), (3.0, 0.0)]


def drawn(seed: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantiles of different widths, in float32 as they are saved, some of them equal; and outcomes."""
    generator = torch.Generator().manual_seed(seed)
    means = 30 + 10 * torch.randn(CASES, 1, generator=generator)
    steps = torch.rand(CASES, 99, generator=generator) * (torch.rand(CASES, 99, generator=generator) > 0.3)
    values = (means + steps.cumsum(-1) / 2) * scale
    return values.float(), (means.squeeze(-1).double() + 20 * torch.rand(CASES, generator=generator)) * scale


def example(utility: Newsvendor, seed: int, scale: float = 1.0, rows: list[int] | None = None) -> dict[str, Any]:
    """What the library decides at several costs, and at costs of each row's own."""
    quantiles, labels = drawn(seed, scale)
    said = Quantiles(quantiles if rows is None else quantiles[rows])
    own = np.random.default_rng(seed).uniform(0.1, 20, (2, CASES))
    at = []
    for under, over in (*COSTS, tuple(own)):
        other = Newsvendor(under, over, **utility.range.to_dict())
        decisions = decide(said, other)
        at.append(
            {
                "under": np.atleast_1d(under).tolist(),
                "over": np.atleast_1d(over).tolist(),
                "choice": decisions.choice.tolist(),
                "claimed": (-decisions.expected_utility).tolist(),
                "realised": (-other.realised(decisions.choice, labels)).tolist(),
            }
        )
    bounds = utility.range.to_dict()
    top = utility.range.top if np.isfinite(utility.range.top) else None
    return {
        "quantiles": quantiles.double().tolist(),
        "labels": labels.tolist(),
        "range": {"atLeast": bounds.get("at_least"), "top": top, "step": utility.step},
        "at": at,
        "rows": rows,
    }


@pytest.mark.skipif(NODE is None, reason="needs Node for the tests of the page's JavaScript")
def test_the_page_decides_as_the_library_does(tmp_path: Path) -> None:
    examples = {
        "any number": example(Newsvendor(1, 1), 0),
        "whole numbers": example(Newsvendor(1, 1, at_least=0, step=1), 1),
        "pallets of seven, from 12 to 50": example(Newsvendor(1, 1, at_least=12, at_most=50, step=7), 2),
        "tenths without bounds": example(Newsvendor(1, 1, step=0.1), 3),
        "between bounds": example(Newsvendor(1, 1, at_least=25, at_most=40), 4),
        "large amounts": example(Newsvendor(1, 1, step=1000), 5, scale=12_345.6),
        "rows that share quantiles": example(Newsvendor(1, 1, step=1), 6, rows=[place % 7 for place in range(CASES)]),
    }
    assert {value for choice in examples["between bounds"]["at"][0]["choice"] for value in [choice]} >= {25.0, 40.0}
    file = tmp_path / "examples.json"
    file.write_text(json.dumps(examples))
    run_tests("amounts.test.mjs", file, passed=len(examples) * (len(COSTS) + 1) + 1)
