"""Folders of finished runs, made of numbers of the test's own: what `stakes fit` leaves, without training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stakes import Utility
from stakes.decisions import decide
from stakes.evaluation.comparison import Choice, Predictions, advantage, compare, score
from stakes.report.page import write_page
from stakes.tables.run import Run
from stakes.tables.runs import load_run
from stakes.tables.task import TableTask
from stakes.utility import TableUtility

UTILITY = Utility.from_costs(
    {
        "send home": {"healthy": 0, "mild": 50, "severe": 500},
        "treat": {"healthy": 40, "mild": 0, "severe": 35.5},
        "operate": {"healthy": 200, "mild": 90, "severe": 0},
    },
    unit="£",
)
NUMBERS_START = 7  # the row of the first case in its file


def random_probs(cases: int, outcomes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, C) float32 probabilities, and (N,) outcomes drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(cases, outcomes, generator=generator)).softmax(-1)
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(-1)


def finished_run(
    path: Path,
    probs: Mapping[str, Sequence[torch.Tensor]],  # for each model, of each seed
    labels: torch.Tensor,
    utility: TableUtility,
    *,
    target: str = "diagnosis",
    changes: Mapping[str, Any] | None = None,  # to the settings
    chosen: str | None = None,
    **fields: Any,  # of the run
) -> Run:
    """A saved run. The last model is the chosen one, but for boosting; the first is its rival, as on the test rows.

    The constant is among them: it says the frequencies of the test rows.
    """
    models = tuple(probs)
    seeds = len(probs[models[0]])
    frequencies = torch.bincount(labels, minlength=len(utility.outcomes)) / len(labels)
    probs = {"constant": [frequencies.expand(len(labels), -1)] * seeds, **probs}
    task = TableTask(path / "d.csv", target, path / "c.csv", models=models, seeds=seeds)
    path.mkdir(parents=True, exist_ok=True)
    for file in (task.data, task.costs):
        file.write_text("a\n")
    scored = []
    for seed in range(seeds):
        for model, of_seeds in probs.items():
            validation = float([*probs].index(model) - 0.1 * seed) if model != "boosting" else -1.0
            scored += score(Predictions(model, seed, of_seeds[seed], validation), labels, utility)
    chosen = chosen or [model for model in models if model != "boosting"][-1]
    lead = None if chosen == models[0] else advantage(scored, (chosen, "optimal"), (models[0], "optimal"), seed=0)
    choice = Choice(chosen, "it is the test's", None if lead is None else models[0], lead)
    run = Run(
        task.settings() | dict(changes or {}),
        labels,
        torch.arange(len(labels)) + NUMBERS_START,
        utility,
        {"train": 400, "test": len(labels), "folds": 5, "tested": "share"},
        3,
        5,
        {"Python": "3.11", "stakes": "0.1.0"},
        tuple(scored),
        compare(scored, choice, seed=0),
        **fields,
    )
    run.save(path)
    return run


def write_report(path: Path) -> Path:
    """The page of a saved run, made as `stakes report` makes it."""
    page = path / "report.html"
    write_page(load_run(path), page)
    return page


def three_models(
    path: Path, utility: TableUtility = UTILITY, *, cases: int = 120, seeds: int = 1, **options: Any
) -> Run:
    """Standard is worse than calibrated, which says exactly what outcomes were drawn from; boosting is a coin."""
    true, labels = random_probs(cases, len(utility.outcomes), seed=1)
    coin = torch.full_like(true, 1 / true.shape[1])
    probs = {"standard": (true + coin) / 2, "calibrated": true, "boosting": coin}
    return finished_run(path, {model: [p] * seeds for model, p in probs.items()}, labels, utility, **options)


def python_says(probs: torch.Tensor, labels: torch.Tensor, utility: TableUtility) -> dict[str, Any]:
    """Decisions and what they came to, by the library."""
    decisions = decide(probs, utility)
    choice, true = decisions.choice.numpy(), labels.numpy()
    counts = np.zeros(utility.costs.shape, dtype=int)
    np.add.at(counts, (choice, true), 1)
    return {
        "expected": utility.cost_of(decisions.utilities).tolist(),
        "choice": choice.tolist(),
        "counts": counts.tolist(),
        "money": (counts * utility.costs).tolist(),
        "total": float(utility.costs[choice, true].sum()),
        "claimed": float(utility.cost_of(decisions.expected_utility).sum()),
    }


def seconds_of_edits(page: Any, selector: str, most: int = 30) -> list[float]:
    """How long edits of an input take until all is drawn; ends with the first below a tenth of a second.

    What is least is the page's own: other work on the machine only ever adds to it.
    """
    edit = """([selector, value]) => {
        const [input, start] = [document.querySelector(selector), performance.now()];
        input.value = value;
        input.dispatchEvent(new Event("input"));
        document.body.getBoundingClientRect();  // layout is a part of it
        return (performance.now() - start) / 1000;
    }"""
    times: list[float] = []
    while not times or (times[-1] >= 0.1 and len(times) < most):
        times.append(page.evaluate(edit, [selector, str(1 + 37 * len(times) % 90)]))
    return times
