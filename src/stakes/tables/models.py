"""Models for tables: what `stakes fit` compares, each with a name, and how it is trained."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from stakes import seeds
from stakes.decisions import decide
from stakes.errors import StakesError, listing
from stakes.features import Features
from stakes.inputs import require_tensor
from stakes.likelihoods import Categorical, Likelihood, NoisyCategorical
from stakes.networks import TabM, mlp
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


@dataclass(frozen=True)
class Recipe:
    """How the models of a comparison are built, trained and drawn from."""

    hidden: tuple[int, ...] = mlp.HIDDEN  # of an MLP
    dropout: float = mlp.DROPOUT  # of an MLP; the members of an ensemble have none
    posterior: Mapping[str, Any] = field(default_factory=lambda: {"family": FAMILY})
    training: Training = field(default_factory=Training)
    samples: int = 100  # draws at prediction
    noise: Noise = None
    network: Literal["mlp", "tabm"] = "mlp"  # the posterior of a TabM is a batch_ensemble
    tabm: Mapping[str, Any] = field(default_factory=dict)  # settings of a TabM: members, width, depth, ...


@dataclass(frozen=True, eq=False)
class Problem:
    """What a model is trained for: examples to learn from, examples to choose by, and the utility."""

    train: TensorExamples
    validation: TensorExamples | None
    utility: TableUtility
    features: Features | None = None  # what the columns of the inputs are; a TabM has to know

    def validation_utility(self, predictor: Predictor) -> float | None:
        """The mean utility of its decisions on the validation rows, by which models are chosen; None without any."""
        if self.validation is None:
            return None
        choice = decide(predictor(self.validation.x), self.utility).choice
        realised = self.utility.realised(choice, self.validation.labels)
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
    """A posterior over a network: its objective, and whether it models label noise."""

    objective: Callable[[TableUtility], Objective]
    noisy: bool = False

    def check(self, recipe: Recipe) -> None:
        family = recipe.posterior.get("family")
        if (recipe.network == "tabm") != (family == "batch_ensemble"):
            raise StakesError(
                "expected the network 'tabm' and the posterior 'batch_ensemble' together, but got the network "
                f"{recipe.network!r} with the posterior {family!r}"
            )
        if recipe.network == "mlp" and family == "dropout" and not (recipe.hidden and recipe.dropout):
            raise StakesError(
                "the dropout posterior needs a hidden layer and a dropout rate above 0; "
                "without them, choose the ensemble or the mean_field posterior"
            )
        self.posterior(recipe, Features(1), outputs=2, seed=0)

    def posterior(
        self, recipe: Recipe, features: Features, outputs: int, seed: int, x: Tensor | None = None
    ) -> Posterior:
        """Freshly initialised from ``seed``; ``x`` are the training rows, of which a TabM takes its bins."""
        # A draw of an ensemble is a member without its dropout: trained with it, members would be other networks.
        dropout = 0.0 if recipe.posterior.get("family") == "ensemble" else recipe.dropout

        def make() -> nn.Module:
            if recipe.network == "mlp":
                return mlp.MLP(features.width, outputs, recipe.hidden, dropout)
            network = TabM(features, outputs, **recipe.tabm)
            if x is not None:
                network.set_bins(x)
            return network

        return Posterior.from_spec(recipe.posterior, make, self.likelihood(recipe.noise), seed)

    def likelihood(self, noise: Noise) -> Likelihood:
        if not self.noisy:
            return Categorical()
        if noise is None:
            raise StakesError(f"the model {self.name!r} needs a rate of label noise, or 'learnt', but got none")
        return NoisyCategorical(LEARNT_NOISE_START, learn=True) if noise == "learnt" else NoisyCategorical(noise)

    def train(
        self, problem: Problem, recipe: Recipe, seed: int, checkpoint: Path | None = None, progress: Progress = False
    ) -> tuple[Predictor, dict[str, Any]]:
        x = require_tensor(problem.train.x, "a table")
        if problem.features is None and recipe.network == "tabm":
            raise StakesError("a TabM has to know which columns are numbers: pass features=, as its encoder has them")
        features = problem.features or Features(x.shape[1])
        posterior = self.posterior(recipe, features, len(problem.utility.outcomes), seed, x)
        history = fit(
            posterior,
            self.objective(problem.utility),
            problem.train,
            problem.validation,
            utility=problem.utility,
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
