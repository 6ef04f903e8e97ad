"""Models for tables: what `stakes fit` compares, each with a name, and how it is trained."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stakes import seeds
from stakes.decisions import decide
from stakes.errors import StakesError, listing
from stakes.inputs import require_tensor
from stakes.likelihoods import Categorical, Likelihood, NoisyCategorical
from stakes.networks import mlp
from stakes.objectives import LossCalibrated, Objective, Standard, Weighted
from stakes.outcomes import Predictor
from stakes.posteriors.base import Posterior
from stakes.predictors import BoostedTrees, SampledPosterior
from stakes.training.config import Epoch, Training
from stakes.training.examples import TensorExamples
from stakes.training.fit import fit
from stakes.utility import TableUtility

Noise = float | Literal["learnt"] | None
Progress = bool | Callable[[Epoch], None]
LEARNT_NOISE_START = 0.05
FAMILY = "dropout"  # of posteriors, if none is asked for
WITHOUT_DROPOUT = ("ensemble", "laplace")  # their draws have none: trained with it, they would be other networks


@dataclass(frozen=True)
class Recipe:
    """How the models of a comparison are built, trained and drawn from."""

    hidden: tuple[int, ...] = mlp.HIDDEN
    dropout: float = mlp.DROPOUT  # but see WITHOUT_DROPOUT
    posterior: Mapping[str, Any] = field(default_factory=lambda: {"family": FAMILY})
    training: Training = field(default_factory=Training)
    samples: int = 100  # draws at prediction
    noise: Noise = None


@dataclass(frozen=True, eq=False)
class Problem:
    """What a model is trained for: examples to learn from, examples to choose by, and the utility."""

    train: TensorExamples
    validation: TensorExamples | None
    utility: TableUtility  # of the examples to learn from, if each has its own
    own_of_validation: TableUtility | None = None  # then that of the examples to choose by

    @property
    def utility_to_choose(self) -> TableUtility:
        return self.utility if self.own_of_validation is None else self.own_of_validation

    def validation_utility(self, predictor: Predictor) -> float | None:
        """The mean utility of its decisions on the validation rows, by which models are chosen; None without any."""
        if self.validation is None:
            return None
        choice = decide(predictor(self.validation.x), self.utility_to_choose).choice
        realised = self.utility_to_choose.realised(choice, self.validation.labels)
        return float(np.average(realised, weights=self.validation.weights))


@dataclass(frozen=True)
class Model(ABC):
    """One of the alternatives."""

    name: str

    def check(self, recipe: Recipe) -> None:  # noqa: B027 (no recipe is wrong for trees)
        """Refuse a recipe that the model cannot be trained by, before anything is read."""

    @abstractmethod
    def train(
        self, problem: Problem, recipe: Recipe, seed: int, checkpoint: Path | None = None, progress: Progress = False
    ) -> tuple[Predictor, dict[str, Any]]:
        """Train, stopped early on the validation rows; goes on from ``checkpoint`` if that file exists.

        Returns the predictor, and in JSON types what training came to.
        """


@dataclass(frozen=True)
class NetworkModel(Model):
    """A posterior over a multilayer perceptron: its objective, and whether it models label noise."""

    objective: Callable[[TableUtility], Objective]
    noisy: bool = False

    def check(self, recipe: Recipe) -> None:
        if recipe.posterior.get("family") == "dropout" and not (recipe.hidden and recipe.dropout):
            raise StakesError(
                "the dropout posterior needs a hidden layer and a dropout rate above 0; "
                "without them, choose the ensemble or the mean_field posterior"
            )
        self.posterior(recipe, inputs=1, outputs=2, seed=0)

    def posterior(self, recipe: Recipe, inputs: int, outputs: int, seed: int) -> Posterior:
        """Freshly initialised from ``seed``."""
        dropout = 0.0 if recipe.posterior.get("family") in WITHOUT_DROPOUT else recipe.dropout
        likelihood = self.likelihood(recipe.noise)
        return Posterior.from_spec(
            recipe.posterior, lambda: mlp.MLP(inputs, outputs, recipe.hidden, dropout), likelihood, seed
        )

    def likelihood(self, noise: Noise) -> Likelihood:
        if not self.noisy:
            return Categorical()
        if noise is None:
            raise StakesError(f"the model {self.name!r} needs a rate of label noise, or 'learnt', but got none")
        return NoisyCategorical(LEARNT_NOISE_START, learn=True) if noise == "learnt" else NoisyCategorical(noise)

    def train(
        self, problem: Problem, recipe: Recipe, seed: int, checkpoint: Path | None = None, progress: Progress = False
    ) -> tuple[Predictor, dict[str, Any]]:
        features = require_tensor(problem.train.x, "a table").shape[1]
        posterior = self.posterior(recipe, features, len(problem.utility.outcomes), seed)
        history = fit(
            posterior,
            self.objective(problem.utility),
            problem.train,
            problem.validation,
            utility=problem.utility_to_choose,
            config=recipe.training,
            seed=seed,
            checkpoint=checkpoint,
            resume=checkpoint is not None,
            progress=progress,
        )
        predictor = SampledPosterior(posterior, recipe.samples, seeds.derive(seed, "predict"))
        return predictor, {"epochs": len(history.epochs), "best_epoch": history.best}


@dataclass(frozen=True)
class BoostingModel(Model):
    """Gradient boosted trees. Of the recipe it uses nothing."""

    def train(
        self, problem: Problem, recipe: Recipe, seed: int, checkpoint: Path | None = None, progress: Progress = False
    ) -> tuple[Predictor, dict[str, Any]]:
        trees = BoostedTrees.fit(problem.train, problem.validation, len(problem.utility.outcomes), seed)
        return trees, {"trees": len(trees.arrays["start"])}


MODELS: tuple[Model, ...] = (
    NetworkModel("standard", lambda utility: Standard()),
    NetworkModel("weighted", Weighted.from_utility),
    NetworkModel("calibrated", LossCalibrated),
    NetworkModel("noise", lambda utility: Standard(), noisy=True),
    NetworkModel("noise+calibrated", LossCalibrated, noisy=True),
    BoostingModel("boosting"),
)


def model(name: str) -> Model:
    known = {each.name: each for each in MODELS}
    if name not in known:
        raise StakesError(f"expected a model of {listing(known)}, but got {name!r}")
    return known[name]


def model_names(noise: Noise) -> tuple[str, ...]:
    """The models that are compared if none are named: those for noisy labels only where a rate is given."""
    return tuple(known.name for known in MODELS if noise is not None or not getattr(known, "noisy", False))
