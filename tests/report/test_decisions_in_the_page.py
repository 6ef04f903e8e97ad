"""The page's own arithmetic (decisions.js), by Node's test runner, against the library on the same numbers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finished_runs import UTILITY, python_says, random_probs
from node import NODE, run_tests

from stakes import Utility
from stakes.decisions import decide


def with_costs(utility: Utility, costs: np.ndarray) -> Utility:
    return replace(utility, values=utility.best - costs / utility.scale)


def example(utility: Utility, cases: int, seed: int) -> dict[str, Any]:
    """Numbers, and what the library says of them: at the costs, at edited ones, one cost at a time, with a referral."""
    probs, labels = random_probs(cases, len(utility.outcomes), seed)
    costs = utility.costs
    generator = np.random.default_rng(seed)
    edited = with_costs(utility, costs * generator.uniform(0.3, 2, costs.shape))
    now, after = (decide(probs, table).choice.numpy() for table in (utility, edited))
    return {
        "probs": probs.double().tolist(),
        "labels": labels.tolist(),
        "costs": costs.tolist(),
        **python_says(probs, labels, utility),
        "edited": edited.costs.tolist(),
        "after": after.tolist(),
        "flips": np.flatnonzero(now != after).tolist(),
        "scans": [scan(probs, utility, d, c) for d, c in ((0, len(costs[0]) - 1), (1, 0))],
        "referrals": [referral(probs, labels, utility, k) for k in np.linspace(0, costs.max() / 2, 23)],
    }


def scan(probs: torch.Tensor, utility: Utility, decision: int, outcome: int) -> dict[str, Any]:
    """What is decided at many values of one cost."""
    values, taken = np.linspace(0, 2 * utility.costs.max(), 41), []
    for value in values:
        costs = utility.costs.copy()
        costs[decision, outcome] = value
        taken.append(decide(probs, with_costs(utility, costs)).choice.tolist())
    return {"decision": decision, "outcome": outcome, "at": values.tolist(), "taken": taken}


def referral(probs: torch.Tensor, labels: torch.Tensor, utility: Utility, cost: float) -> dict[str, Any]:
    """The table with one more row, which costs the same whatever happens."""
    costs = np.vstack([utility.costs, np.full(len(utility.outcomes), cost)])
    table = Utility.from_costs(costs, [*utility.decisions, "ask"], utility.outcomes)
    choice = decide(probs, table).choice.numpy()
    total = float(costs[choice, labels.numpy()].sum())
    return {"cost": float(cost), "referred": int((choice == len(utility.decisions)).sum()), "total": total}


@pytest.mark.skipif(NODE is None, reason="needs Node for the tests of the page's JavaScript")
@pytest.mark.filterwarnings("ignore::stakes.errors.StakesWarning")  # edited tables may have dominated rows
def test_the_page_decides_as_the_library_does(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    wide = Utility.from_costs(generator.uniform(-50, 900, (4, 7)), unit="$")
    scaled = Utility.from_costs(generator.uniform(0, 3e6, (5, 2)), best=2, scale=50)
    examples = {
        "three by three": example(UTILITY, 400, 0),
        "four by seven, with gains": example(wide, 400, 1),
        "large costs, another scale": example(scaled, 400, 2),
    }
    assert all(len(found["flips"]) > 10 for found in examples.values())
    file = tmp_path / "examples.json"
    file.write_text(json.dumps(examples))
    run_tests("decisions.test.mjs", file, passed=15)
