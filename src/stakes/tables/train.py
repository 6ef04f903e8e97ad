"""One model of a catalogue, trained in memory: for scikit-learn's estimators."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from stakes.outcomes import Predictor
from stakes.tables.kind import Kind
from stakes.tables.problem import Part, Problem, Recipe


def train_mix(
    kind: Kind, name: str, problem: Problem, recipe: Recipe, seed: int, finish: Callable[[Predictor], Predictor]
) -> tuple[Predictor, Mapping[str, Any]]:
    """One model of those that can be compared, and what training came to; ``finish`` is for each part of it."""
    parts: dict[str, list[Part]] = {}
    for trained in kind.catalogue.trained_for((name,)):
        model = kind.catalogue.trained[trained]
        model.check(recipe)
        before = [part.predictor for part in parts[model.after]] if model.after else []
        parts[trained] = model.train(problem, recipe, seed, range(len(problem.folds)), before=before)
    held_out = {
        trained: torch.cat([fold_parts[fold].held_out for fold in problem.selection_folds])
        for trained, fold_parts in parts.items()
    }
    mixed = kind.solve((name,), problem, held_out, {}).mixes[name]
    predictors = {
        trained: [finish(parts[trained][fold].predictor) for fold in problem.model_folds] for trained in mixed.weights
    }
    return mixed.predictor(predictors), mixed.details
