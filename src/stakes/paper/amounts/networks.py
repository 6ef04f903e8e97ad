"""The networks of the experiment, and how long they are trained: one hidden layer, dropout on inputs and units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stakes import seeds
from stakes.likelihoods import Gaussian
from stakes.networks.mlp import MLP
from stakes.objectives import Objective
from stakes.posteriors import Ensemble, MCDropout, MeanField
from stakes.posteriors.base import Posterior
from stakes.training.config import Training
from stakes.training.examples import TensorExamples
from stakes.training.fit import fit
from stakes.training.stacked import fit_together

HIDDEN, LENGTHSCALE, MEMBERS = 50, 0.01, 5


@dataclass(frozen=True)
class Schedule:
    """So many steps with a learning rate that falls to 0, or so many epochs with one that stays."""

    batch_size: int
    learning_rate: float
    steps: int = 0
    epochs: int = 0

    def training(self, rows: int) -> Training:
        common: dict[str, Any] = {
            "batch_size": self.batch_size, "learning_rate": self.learning_rate, "patience": None
        }  # fmt: skip
        if self.epochs:
            return Training(epochs=self.epochs, **common)
        epochs = max(1, round(self.steps / math.ceil(rows / self.batch_size)))
        return Training(epochs=epochs, schedule="cosine", schedule_by="step", **common)


class OneScale(nn.Module):
    """A network of locations with one scale for all inputs beside them.

    As `Gaussian("learnt")`, but the scale is the network's: so several of them can be trained together.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.raw_scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.network(x), self.raw_scale.expand(len(x), 1)], 1)


def dropout_network(inputs: int, outputs: int, rate: float) -> nn.Module:
    return nn.Sequential(nn.Dropout(rate), *MLP(inputs, outputs, (HIDDEN,), rate))


def make_posterior(family: str, inputs: int, seed: int, *, rate: float = 0.0, scale: Any = "input") -> Posterior:
    """A posterior of a family of ``dropout``, ``ensemble`` and ``mean field``; ``scale`` is that of the likelihood,
    or ``"one"``: one for all inputs, learnt.
    """
    likelihood = Gaussian("input" if scale == "one" else scale)

    def network() -> nn.Module:
        made = dropout_network(inputs, 2 if scale == "input" else 1, rate)
        return OneScale(made) if scale == "one" else made

    if family == "ensemble":
        return Ensemble.of(lambda: MLP(inputs, 2 if scale == "input" else 1, (HIDDEN,), 0.0), MEMBERS, seed, likelihood)
    with seeds.seeded(seed, "network"):
        if family == "mean field":
            return MeanField(MLP(inputs, 2 if scale == "input" else 1, (HIDDEN,), 0.0), likelihood)
        return MCDropout(network(), likelihood, lengthscale=LENGTHSCALE)


def train(
    posteriors: Sequence[Posterior],
    objective: Objective,
    trains: Sequence[TensorExamples],
    schedule: Schedule,
    model_seeds: Sequence[int],
) -> None:
    """Train a posterior on each set of examples, several as one stack."""
    config = schedule.training(max(map(len, trains)))
    if len(posteriors) == 1:
        fit(posteriors[0], objective, trains[0], config=config, seed=model_seeds[0], progress=False)
    else:
        fit_together(posteriors, objective, trains, config=config, model_seeds=model_seeds)
