"""What the experiments share: the two protocols, label noise, and the rows of a trained model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from stakes.errors import StakesError, listing
from stakes.evaluation.comparison import Predictions, score
from stakes.objectives import LossCalibrated, Objective, Weighted
from stakes.paper.sweep import ALL_MODELS, Cell, Row
from stakes.tables.models import NetworkModel, model
from stakes.utility import TableUtility, Utility

PROTOCOLS = ("fair", "authors")
DECIMALS = 6  # of the scores in rows.jsonl
MAX_CONFUSION_CLASSES = 5  # with more classes, rows hold no confusion counts


def check_protocol(protocol: str) -> None:
    if protocol not in PROTOCOLS:
        raise StakesError(f"expected the protocol 'fair' or 'authors', but got {protocol!r}")


def check_models(names: Sequence[str]) -> None:
    for name in names:
        if name not in ALL_MODELS:
            raise StakesError(f"expected models of {listing(ALL_MODELS)}, but got {name!r}")


def seed_groups(seeds: int, together: int) -> list[range]:
    """The seeds from 0, in groups of models that are trained together."""
    if together < 1:
        raise StakesError(f"expected at least one model to be trained at a time, but got together={together}")
    return [range(first, min(first + together, seeds)) for first in range(0, seeds, together)]


def paper_model(name: str, protocol: str, weights: Sequence[float], samples: int, warmup: int) -> NetworkModel:
    """A model with the paper's class weights, whose decisions are taken as the protocol says.

    ``fair`` takes them at every step (Algorithm 1) and ramps the gain up over the first ``warmup`` steps;
    ``authors`` takes them once an epoch, without warmup.
    """

    def weighted(utility: Utility) -> Objective:
        return Weighted(weights)

    def calibrated(utility: Utility) -> Objective:
        if protocol == "authors":
            return LossCalibrated(utility, samples=samples, refresh="epoch")
        return LossCalibrated(utility, samples=samples, warmup=warmup)

    objectives = {"weighted": weighted, "calibrated": calibrated, "noise+calibrated": calibrated}
    network = model(name)
    assert isinstance(network, NetworkModel)
    return replace(network, objective=objectives.get(name, network.objective))


def redraw_uniformly(
    labels: NDArray[np.int64], rows: NDArray[np.int64], classes: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """A copy of ``labels`` with those at ``rows`` redrawn; every class is equally likely, the old one included."""
    if classes < 2:
        raise StakesError(f"expected at least 2 classes to draw from, but got {classes}")
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
