"""Methods: the alternatives as values, and how a model for tables is built and trained with one of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from stakes import seeds
from stakes.errors import StakesError, listing
from stakes.likelihoods import Categorical, Likelihood, NoisyCategorical
from stakes.networks.mlp import MLP
from stakes.objectives import LossCalibrated, Objective, Standard, Weighted
from stakes.posteriors import registry as families
from stakes.posteriors.base import Posterior
from stakes.training.config import Epoch, History, Training
from stakes.training.examples import TensorExamples
from stakes.training.fit import fit, fit_together
from stakes.utility import TableUtility, Utility

Noise = float | Literal["learnt"] | None
LEARNT_NOISE_START = 0.05
REFERENCE = "boosting"  # what a user would otherwise pick; reported, never saved


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be decided: examples split in three, and the utility. Only ``train`` is learnt from."""

    train: TensorExamples
    validation: TensorExamples | None
    test: TensorExamples
    utility: TableUtility


@dataclass(frozen=True)
class Method:
    """One way to train: what is minimised, and whether labels are believed."""

    name: str
    objective: Callable[[Utility], Objective]
    noisy: bool = False

    def likelihood(self, noise: Noise) -> Likelihood:
        if not self.noisy:
            return Categorical()
        if noise is None:
            raise StakesError(f"the model {self.name!r} needs a rate of label noise, or 'learnt', but got none")
        return NoisyCategorical(LEARNT_NOISE_START, learn=True) if noise == "learnt" else NoisyCategorical(noise)


def _standard(utility: Utility) -> Objective:
    return Standard()


METHODS: tuple[Method, ...] = (
    Method("standard", _standard),
    Method("weighted", Weighted.from_utility),
    Method("calibrated", LossCalibrated),
    Method("noise", _standard, noisy=True),
    Method("noise+calibrated", LossCalibrated, noisy=True),
)


def method(name: str) -> Method:
    found = {known.name: known for known in METHODS}
    if name not in found:
        raise StakesError(f"expected a model of {listing(found)}, but got {name!r}")
    return found[name]


@dataclass(frozen=True)
class Recipe:
    """How every model of a comparison is built, trained and asked."""

    hidden: tuple[int, ...] = (128, 64)
    dropout: float = 0.1
    posterior: Mapping[str, Any] = field(default_factory=lambda: {"family": "dropout"})
    training: Training = field(default_factory=Training)
    samples: int = 100  # draws at prediction
    noise: Noise = None


def train_models(
    chosen: Method,
    recipe: Recipe,
    trains: Sequence[TensorExamples],
    validations: Sequence[TensorExamples] | None,
    utility: Utility,
    seeds_of: Sequence[int],
) -> list[tuple[Posterior, History]]:
    """Train a model for tables for each seed, on its own examples; several of them in one go."""
    if len(trains) == 1:
        validation = validations[0] if validations else None
        return [train_model(chosen, recipe, trains[0], validation, utility, seeds_of[0])]
    posteriors = [
        _posterior(chosen, recipe, train, utility, seed) for train, seed in zip(trains, seeds_of, strict=True)
    ]
    histories = fit_together(
        posteriors,
        chosen.objective(utility),
        trains,
        validations,
        utility=utility,
        config=recipe.training,
        seeds_of=seeds_of,
    )
    return list(zip(posteriors, histories, strict=True))


def train_model(
    chosen: Method,
    recipe: Recipe,
    train: TensorExamples,
    validation: TensorExamples | None,
    utility: Utility,
    seed: int,
    *,
    checkpoint: Path | None = None,
    progress: bool | Callable[[Epoch], None] = False,
) -> tuple[Posterior, History]:
    """Train one model for tables; goes on from ``checkpoint`` if that file exists."""
    posterior = _posterior(chosen, recipe, train, utility, seed)
    history = fit(
        posterior,
        chosen.objective(utility),
        train,
        validation,
        utility=utility,
        config=recipe.training,
        seed=seed,
        checkpoint=checkpoint,
        resume=checkpoint is not None,
        progress=progress,
    )
    return posterior, history


def _posterior(chosen: Method, recipe: Recipe, train: TensorExamples, utility: Utility, seed: int) -> Posterior:
    inputs, outputs = train.x.shape[1], len(utility.outcomes)
    return families.build(
        recipe.posterior,
        lambda: MLP(inputs, outputs, recipe.hidden, recipe.dropout),
        chosen.likelihood(recipe.noise),
        seed,
    )


def predict(posterior: Posterior, x: torch.Tensor, samples: int, seed: int) -> torch.Tensor:
    """(N, C) the mean predictive of the draws that belong to ``seed``."""
    return posterior.draw(samples, seeds.derive(seed, "predict"))(x).mean_probs()


def boosted_probs(problem: Problem, seed: int) -> torch.Tensor:
    """(N, C) what scikit-learn's gradient boosting says of the test set, stopped early on the same validation set."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    train, validation = problem.train, problem.validation
    model = HistGradientBoostingClassifier(
        random_state=seeds.derive(seed, "boosting") % 2**32, early_stopping=validation is not None, max_iter=500
    )
    held_out = {} if validation is None else {"X_val": validation.x.numpy(), "y_val": validation.labels.numpy()}
    model.fit(train.x.numpy(), train.labels.numpy(), **held_out)
    known = model.predict_proba(problem.test.x.numpy())
    probs = np.zeros((len(known), len(problem.utility.outcomes)), dtype=np.float64)
    probs[:, model.classes_] = known
    return torch.from_numpy(probs).float()
