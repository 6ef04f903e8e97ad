"""Folders of finished runs, made of numbers of the test's own: what `stakes fit` leaves, without training."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stakes import Utility
from stakes._io.files import write_json, write_text
from stakes._io.tensors import write_tensors
from stakes.decisions import decide
from stakes.evaluation.comparison import Run, score_run, summarise
from stakes.tables.run import Cases, RunFolder
from stakes.tables.task import TableTask

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
    utility: Utility,
    *,
    target: str = "diagnosis",
    changes: Mapping[str, Any] | None = None,  # to the settings
) -> RunFolder:
    """The models but boosting are in the order of their validation utilities: the last is chosen."""
    folder = RunFolder(path)
    trained = tuple(model for model in probs if model != "boosting")
    seeds = len(probs[trained[0]])
    task = TableTask(path / "d.csv", target, path / "c.csv", models=trained, seeds=seeds)
    path.mkdir(parents=True, exist_ok=True)
    for file in (task.data, task.costs):
        file.write_text("a\n")
    write_json(folder.settings_file, task.settings() | dict(changes or {}))
    runs = []
    for fit in task.fits():
        value = probs[fit.model][fit.seed]
        validation = None if fit.model == "boosting" else float(trained.index(fit.model) - 0.1 * fit.seed)
        # As if the draws had left a hundredth of a unit of doubt about every margin.
        error = None if fit.model == "boosting" else torch.full((len(labels),), 0.01)
        runs.append(Run(fit.model, fit.seed, value, validation, {}, error))
        tensors = {"probs": value} | ({} if error is None else {"margin_error": error})
        metadata = {"validation_utility": validation, "details": {}}
        write_tensors(folder.predictions_file(fit.model, fit.seed), tensors, metadata)
    numbers = torch.arange(len(labels)) + NUMBERS_START
    rows = {"train": 400, "validation": 100, "test": len(labels)}
    Cases(labels, numbers, utility, rows, 3, 5, {"Python": "3.11", "stakes": "0.1.0"}).write(folder)
    scores = [row for run in runs for row in score_run(run, labels, utility)]
    write_text(folder.results_file, "".join(json.dumps(row) + "\n" for row in scores))
    write_json(folder.summary_file, summarise(runs, labels, utility, seed=0).to_dict(utility))
    return folder


def three_models(
    path: Path, utility: Utility = UTILITY, *, cases: int = 120, seeds: int = 1, **options: Any
) -> RunFolder:
    """Standard is worse than calibrated, which says exactly what outcomes were drawn from; boosting is a coin."""
    true, labels = random_probs(cases, len(utility.outcomes), seed=1)
    coin = torch.full_like(true, 1 / true.shape[1])
    probs = {"standard": (true + coin) / 2, "calibrated": true, "boosting": coin}
    return finished_run(path, {model: [p] * seeds for model, p in probs.items()}, labels, utility, **options)


def python_says(probs: torch.Tensor, labels: torch.Tensor, utility: Utility) -> dict[str, Any]:
    """Decisions and what they came to, by the library."""
    decisions = decide(probs, utility)
    choice, true = decisions.choice.numpy(), labels.numpy()
    counts = np.zeros(utility.values.shape, dtype=int)
    np.add.at(counts, (choice, true), 1)
    return {
        "expected": utility.cost_of(decisions.utilities).tolist(),
        "choice": choice.tolist(),
        "counts": counts.tolist(),
        "money": (counts * utility.costs).tolist(),
        "total": float(utility.costs[choice, true].sum()),
        "claimed": float(utility.cost_of(decisions.expected_utility).sum()),
    }
