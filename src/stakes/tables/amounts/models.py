"""The models that `stakes fit` trains for outcomes that are numbers, and the names under which they are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stakes.decisions import decide
from stakes.likelihoods import Gaussian, Likelihood, LogNormal, StudentT
from stakes.mixtures import Quantiles
from stakes.objectives import LossCalibrated
from stakes.outcomes import Predictor
from stakes.predictors import ForestPast, LinearQuantiles, MeanTrees, NearestPast, PastQuantiles, QuantileTrees
from stakes.predictors._amounts import weighted_quantiles
from stakes.tables.catalogue import Catalogue
from stakes.tables.models import STRENGTHS, FitFunction, RowModel, calibrated_name
from stakes.tables.network_models import FinetunedModel, NetworkModel
from stakes.tables.problem import LikelihoodName, Part, Problem, Progress, Recipe, predict_rows
from stakes.training.examples import TensorExamples
from stakes.utility import CurveUtility, Newsvendor, NumberUtility, Utility
from stakes.utility.amounts import LIMIT_QUANTILE

LIKELIHOODS: dict[LikelihoodName, Callable[..., Likelihood]] = {
    "gaussian": Gaussian,
    "log_normal": LogNormal,
    "student_t": StudentT,
}
MOST_SHARES = (0.1, 0.5, 0.9)  # of the shares that rows of different costs ask for, the quantiles that are trained for


def shares_of(utility: Utility) -> tuple[float, ...]:
    """The shares of outcomes that decisions should cover: quantiles that models are to know well."""
    if not isinstance(utility, Newsvendor):
        return ()
    shares = np.unique(utility.share)
    chosen = shares if len(shares) <= len(MOST_SHARES) else np.quantile(utility.share, MOST_SHARES)
    return tuple(float(share) for share in chosen if 0 < share < 1)


def _plain(kind: Any) -> FitFunction:
    def fit(problem: Problem, train: TensorExamples, held: TensorExamples | None, seed: int) -> Predictor:
        return kind.fit(train, held, seed, problem.features)  # type: ignore[no-any-return]

    return fit


def _at_shares(kind: Any) -> FitFunction:
    """Of models that are trained for several quantiles."""

    def fit(problem: Problem, train: TensorExamples, held: TensorExamples | None, seed: int) -> Predictor:
        return kind.fit(train, held, seed, problem.features, shares_of(problem.utility))  # type: ignore[no-any-return]

    return fit


@dataclass(frozen=True)
class AmountNetwork(NetworkModel):
    """A posterior over a network that puts out a location and a scale for each row."""

    def outputs(self, problem: Problem) -> int:
        return 2

    def likelihood_for(self, recipe: Recipe) -> Likelihood:
        return LIKELIHOODS[recipe.likelihood](scale="input")


@dataclass(frozen=True)
class CalibratedAmounts(FinetunedModel, AmountNetwork):
    """A network that goes on from the standard one with the gain, whose limit comes from the losses of that one."""

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
        limited = replace(problem, utility=_limited(problem, before, folds))
        return super().train(limited, recipe, seed, folds, before=before, checkpoint=checkpoint, progress=progress)


def _limited(problem: Problem, plain: Sequence[Predictor], folds: Sequence[int]) -> Utility:
    """The utility with a limit: a quantile of what the decisions of plain parts cost on rows that folds held out."""
    utility = problem.utility
    if isinstance(utility, CurveUtility) or not isinstance(utility, NumberUtility):
        return utility  # which has a bound
    losses, weights = [], []
    for predictor, fold in zip(plain, folds, strict=True):
        train, held = problem.train_and_held_out(fold)
        judged, rows = (train, problem.folds[fold].train) if held is None else (held, problem.folds[fold].held)
        row_utility = utility.rows(torch.from_numpy(rows))
        choice = decide(Quantiles(predict_rows(predictor, judged.x)), row_utility).choice
        least = row_utility.unavoidable(judged.labels.double())
        cost = row_utility.cost_of(row_utility.realised(choice, judged.labels))
        losses.append(cost if least is None else cost - least.numpy())
        weights.append(torch.ones(len(judged)) if judged.weights is None else judged.weights)
    costs = np.concatenate(losses)
    quantile = weighted_quantiles(costs, torch.cat(weights).numpy(), torch.tensor(LIMIT_QUANTILE))
    limit = float(quantile) or costs.max() or 1.0  # where nearly all decisions are perfect
    return utility.with_limit([limit])


AMOUNT_MODELS = Catalogue(
    trained={
        model.name: model
        for model in (
            AmountNetwork("standard"),
            *(
                CalibratedAmounts(
                    calibrated_name(strength),
                    "standard",
                    objective=partial(LossCalibrated, weight=strength, start="network"),
                )
                for strength in STRENGTHS
            ),
            RowModel("boosting", effort=4, fit=_at_shares(QuantileTrees)),
            RowModel("mean", effort=1, fit=_plain(MeanTrees)),
            RowModel("forest", effort=2, fit=_plain(ForestPast), stops_early=False),
            RowModel("neighbours", keeps_rows=True, fit=_plain(NearestPast)),
            RowModel("linear", effort=2, fit=_at_shares(LinearQuantiles)),
            RowModel("constant", fit=_plain(PastQuantiles), stops_early=False),
        )
    },
    compared={
        "constant": ("constant",),
        "linear": ("linear",),
        "neighbours": ("neighbours",),
        "forest": ("forest",),
        "mean": ("mean",),
        "boosting": ("boosting",),
        "standard": ("standard",),
        "calibrated": ("standard", *map(calibrated_name, STRENGTHS)),
        "blend": (),
    },
    members=("linear", "neighbours", "forest", "mean", "boosting", "calibrated", "standard"),
)
USUAL = tuple(AMOUNT_MODELS.compared)
