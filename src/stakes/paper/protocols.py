"""What the experiments share: the two protocols, training for many seeds, label noise, the rows of a model."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stakes import seeds
from stakes.errors import StakesError, listing
from stakes.evaluation.comparison import Predictions, score
from stakes.features import Features
from stakes.inputs import require_tensor
from stakes.objectives import LossCalibrated, Objective, Standard, Weighted
from stakes.paper.sweep import ALL_MODELS, Cell, Row
from stakes.posteriors.base import Draws
from stakes.tables.network_models import NetworkModel
from stakes.tables.problem import Recipe
from stakes.training.config import History, Training
from stakes.training.examples import TensorExamples
from stakes.training.fit import fit
from stakes.training.stacked import fit_together
from stakes.utility import TableUtility

PROTOCOLS = ("fair", "authors")
DECIMALS = 6  # of the scores in rows.jsonl
MAX_CONFUSION_CLASSES = 5  # with more classes, rows hold no confusion counts


def check_protocol(protocol: str) -> None:
    if protocol not in PROTOCOLS:
        raise StakesError(f"expected the protocol 'fair' or 'authors', but got {protocol!r}")


def check_models(names: Sequence[str], known: Sequence[str] = ALL_MODELS) -> None:
    for name in names:
        if name not in known:
            raise StakesError(f"expected models of {listing(known)}, but got {name!r}")


def seed_groups(count: int, together: int) -> list[range]:
    """The seeds from 0, in groups of models that are trained together."""
    if together < 1:
        raise StakesError(f"expected at least one model to be trained at a time, but got together={together}")
    return [range(first, min(first + together, count)) for first in range(0, count, together)]


def train_cell(
    config: Any,
    cell: Cell,
    trains: Sequence[TensorExamples],
    validations: Sequence[TensorExamples] | None,
    utility: TableUtility,
    weights: Sequence[float],
    hidden: int,
    noise: float,
    **training: Any,
) -> Iterator[tuple[int, Draws, History]]:
    """Train the model of a cell for each of its seeds, by the settings of `Diagnosis` or `Digits`."""
    recipe = Recipe(
        network="mlp",
        hidden=(hidden,),
        dropout=config.dropout,
        posterior={"family": "dropout", "lengthscale": config.lengthscale},
        training=Training(config.epochs, config.batch_size, config.learning_rate, patience=None, **training),
        samples=config.test_samples,
        noise=noise,
    )
    chosen = paper_model(cell["method"], config.protocol, weights, config.decision_samples, config.warmup)
    trained = train_models(chosen, recipe, trains, validations, utility, cell.seeds)
    return ((seed, *each) for seed, each in zip(cell.seeds, trained, strict=True))


def paper_model(name: str, protocol: str, weights: Sequence[float], samples: int, warmup: int) -> NetworkModel:
    """A model with the paper's class weights, whose decisions are taken as the protocol says.

    ``fair`` takes them at every step (Algorithm 1) and ramps the gain up over the first ``warmup`` steps;
    ``authors`` takes them once an epoch, without warmup.
    """
    timing: dict[str, Any] = {"refresh": "epoch"} if protocol == "authors" else {"warmup": warmup}

    def objective(utility: TableUtility) -> Objective:
        if name == "weighted":
            return Weighted(weights)
        return (
            LossCalibrated(utility, samples=samples, start="network", **timing) if "calibrated" in name else Standard()
        )

    return NetworkModel(name, objective=objective, noisy=name.startswith("noise"))


def train_models(
    chosen: NetworkModel,
    recipe: Recipe,
    trains: Sequence[TensorExamples],
    validations: Sequence[TensorExamples] | None,
    utility: TableUtility,
    model_seeds: Sequence[int],
) -> Iterator[tuple[Draws, History]]:
    """Train a network model for each seed, on its own examples, several in one stack; draws of each, and its epochs."""
    posteriors = [
        chosen.posterior(recipe, Features(require_tensor(train.x, "a table").shape[1]), len(utility.outcomes), seed)
        for train, seed in zip(trains, model_seeds, strict=True)
    ]
    objective = chosen.objective(utility)
    settings: dict[str, Any] = {"utility": utility, "config": recipe.training}
    if len(posteriors) > 1:
        histories = fit_together(posteriors, objective, trains, validations, model_seeds=model_seeds, **settings)
    else:
        held_out = validations[0] if validations else None
        histories = [
            fit(posteriors[0], objective, trains[0], held_out, seed=model_seeds[0], progress=False, **settings)
        ]
    for posterior, history, seed in zip(posteriors, histories, model_seeds, strict=True):
        yield posterior.draw(recipe.samples, seeds.derive(seed, "predict")), history


def redraw_uniformly(
    labels: NDArray[np.int64], rows: NDArray[np.int64], classes: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """A copy of ``labels`` with those at ``rows`` redrawn; every class is equally likely, the old one included."""
    noisy = labels.copy()
    noisy[rows] = generator.integers(classes, size=len(rows))
    return noisy


def score_rows(
    cell: Cell, seed: int, probs: torch.Tensor, labels: torch.Tensor, utility: TableUtility, **extra: object
) -> list[Row]:
    """A row for each rule: utility, accuracy and calibration on the test set; confusion where the classes are few."""
    rows = []
    for scored in score(Predictions(cell["method"], seed, probs), labels, utility):
        rounded = {key: round(scored.scores[key], DECIMALS) for key in ("utility", "accuracy", "nll", "ece")}
        confusion = {"confusion": scored.counts.tolist()} if len(utility.outcomes) <= MAX_CONFUSION_CLASSES else {}
        rows.append({**dict(cell.axes), "seed": seed, "rule": scored.rule, **rounded, **confusion, **extra})
    return rows
