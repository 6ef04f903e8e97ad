"""Networks for tables: posteriors that are trained by an objective, for all folds at once where they are small."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from stakes import seeds
from stakes.errors import StakesError
from stakes.features import Features
from stakes.inputs import require_tensor
from stakes.likelihoods import Categorical, Likelihood, NoisyCategorical
from stakes.networks import TabM, mlp
from stakes.objectives import Objective, Standard
from stakes.outcomes import Predictor
from stakes.posteriors.base import Posterior
from stakes.predictors import SampledPosterior
from stakes.tables.problem import FAMILIES, Model, Noise, Part, Problem, Progress, Recipe
from stakes.training.config import History, Training
from stakes.training.examples import TensorExamples
from stakes.training.fit import fit
from stakes.training.stacked import fit_together

LEARNT_NOISE_START = 0.05
WITHOUT_DROPOUT = ("ensemble", "laplace")  # their draws have none: trained with it, they would be other networks
SMALLEST_BATCH, LARGEST_BATCH, STEPS = 64, 512, 20  # rows in a step, and about so many steps in an epoch
STACKED_ROWS = 4_000  # up to so many, the networks of all folds are trained as one


@dataclass(frozen=True)
class NetworkModel(Model):
    """A posterior over a network: its objective, and whether it models label noise."""

    objective: Callable[[Any], Objective] = lambda utility: Standard()  # of a utility
    noisy: bool = False
    stops_early: bool = True  # on the rows held out
    effort: int = 8

    def check(self, recipe: Recipe) -> None:
        family = recipe.posterior.get("family")
        if (recipe.network == "tabm") != (family == FAMILIES["tabm"]):
            raise StakesError(
                "expected the network 'tabm' and the posterior 'batch_ensemble' together, but got the network "
                f"{recipe.network!r} with the posterior {family!r}"
            )
        if family == "dropout" and not (recipe.hidden and recipe.dropout):
            raise StakesError(
                "the dropout posterior needs a hidden layer and a dropout rate above 0; "
                "without them, choose the ensemble or the mean_field posterior"
            )
        self.posterior(recipe, Features(1), outputs=2, seed=0)

    def outputs(self, problem: Problem) -> int:
        """The number of network outputs."""
        return problem.classes

    def posterior(
        self, recipe: Recipe, features: Features, outputs: int, seed: int, x: Tensor | None = None
    ) -> Posterior:
        """Freshly initialised from ``seed``; ``x`` are the training rows, of which a TabM takes its bins."""
        dropout = 0.0 if recipe.posterior.get("family") in WITHOUT_DROPOUT else recipe.dropout

        def make() -> nn.Module:
            if recipe.network == "mlp":
                return mlp.MLP(features.width, outputs, recipe.hidden, dropout)
            network = TabM(features, outputs, **recipe.tabm)
            if x is not None:
                network.set_bins(x)
            return network

        return Posterior.from_spec(recipe.posterior, make, self.likelihood_for(recipe), seed)

    def likelihood_for(self, recipe: Recipe) -> Likelihood:
        return self.likelihood(recipe.noise)

    def likelihood(self, noise: Noise) -> Likelihood:
        if not self.noisy:
            return Categorical()
        if noise is None:
            raise StakesError(f"the model {self.name!r} needs a rate of label noise, or 'learnt', but got none")
        return NoisyCategorical(LEARNT_NOISE_START, learn=True) if noise == "learnt" else NoisyCategorical(noise)

    def training(self, recipe: Recipe, rows: int) -> Training:
        """For a network that is trained on so many rows."""
        batch = min(LARGEST_BATCH, max(SMALLEST_BATCH, 2 ** round(math.log2(rows / STEPS))))
        return replace(recipe.training, batch_size=recipe.training.batch_size or batch)

    def together(self, problem: Problem, recipe: Recipe) -> bool:
        # A table of costs for each row belongs to one set of rows, and a likelihood that learns to one network.
        alone = problem.utility.per_example or (self.noisy and recipe.noise == "learnt")
        return len(problem.examples) <= STACKED_ROWS and not alone

    def train(
        self,
        problem: Problem,
        recipe: Recipe,
        seed: int,
        folds: Sequence[int],
        *,
        before: Sequence[Predictor] = (),
        checkpoint: Path | None = None,
        progress: Progress = lambda epoch: None,
    ) -> list[Part]:
        train_and_held_out = [problem.train_and_held_out(fold) for fold in folds]
        held = [examples for _, examples in train_and_held_out if examples is not None and self.stops_early]
        fold_seeds = [seeds.derive(seed, "fold", fold) for fold in folds]
        posteriors = [copy.deepcopy(part.posterior) for part in before if isinstance(part, SampledPosterior)]
        if not posteriors:
            posteriors = [
                self.posterior(
                    recipe, problem.features, self.outputs(problem), fold_seed, require_tensor(train.x, "a table")
                )
                for (train, _), fold_seed in zip(train_and_held_out, fold_seeds, strict=True)
            ]
        if len(folds) > 1 and self.together(problem, recipe):
            histories = fit_together(
                posteriors,
                self.objective(problem.utility),
                [train for train, _ in train_and_held_out],
                held or None,
                utility=problem.utility,
                config=self.training(recipe, len(train_and_held_out[0][0])),
                model_seeds=fold_seeds,
                progress=progress,
            )
        else:
            kept = checkpoint if len(folds) == 1 else None
            histories = [
                self._fit(problem, recipe, fold, posterior, train, stop, fold_seed, kept, progress)
                for posterior, fold, (train, _), stop, fold_seed in zip(
                    posteriors, folds, train_and_held_out, held or repeat(None, len(folds)), fold_seeds, strict=True
                )
            ]
        return [
            Part.of(
                problem,
                SampledPosterior(posterior, recipe.samples, seeds.derive(fold_seed, "predict")),
                held_out,
                {"epochs": len(history.epochs), "best_epoch": history.best},
            )
            for posterior, history, fold_seed, (_, held_out) in zip(
                posteriors, histories, fold_seeds, train_and_held_out, strict=True
            )
        ]

    def _fit(
        self,
        problem: Problem,
        recipe: Recipe,
        fold: int,
        posterior: Posterior,
        train: TensorExamples,
        held: TensorExamples | None,
        seed: int,
        checkpoint: Path | None,
        progress: Progress,
    ) -> History:
        utility, utility_held = (problem.utility.rows(rows) for rows in problem.folds[fold])
        return fit(
            posterior,
            self.objective(utility),
            train,
            held,
            utility=utility_held,
            config=self.training(recipe, len(train)),
            seed=seed,
            checkpoint=checkpoint,
            resume=checkpoint is not None,
            progress=progress,
        )


@dataclass(frozen=True)
class FinetunedModel(NetworkModel):
    """A network that goes on from where ``after`` left it, for the decisions: they are not arbitrary any more.

    It is trained for as long in every fold. Stopped where its decisions were best on the rows held out, it would look
    better on these than it is, and strengths of calibration are compared there.
    """

    stops_early: bool = False
    effort: int = 2

    def training(self, recipe: Recipe, rows: int) -> Training:
        usual = super().training(recipe, rows)
        return replace(usual, epochs=max(1, usual.epochs // 10), learning_rate=usual.learning_rate / 4)
