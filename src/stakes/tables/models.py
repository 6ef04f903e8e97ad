"""The models that `stakes fit` trains, and the names under which they are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from stakes import seeds
from stakes.objectives import LossCalibrated, Weighted
from stakes.outcomes import Predictor
from stakes.predictors import BoostedTrees, Constant, Forest, Logistic
from stakes.tables.catalogue import Catalogue
from stakes.tables.network_models import FinetunedModel, NetworkModel
from stakes.tables.problem import Model, Noise, Part, Problem, Progress, Recipe
from stakes.training.examples import TensorExamples

STRENGTHS = (0.1, 1.0)  # of calibration, beside 0, which is standard
SEEDS = 2**31  # scikit-learn takes no larger ones

FitFunction = Callable[[Problem, TensorExamples, TensorExamples | None, int], Predictor]


@dataclass(frozen=True)
class RowModel(Model):
    """A model of rows without a recipe, trained for one fold after the other."""

    fit: FitFunction = field(kw_only=True)
    stops_early: bool = True  # on the rows held out; if not, parts that nothing is judged by train on all rows

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
        parts = []
        for fold in folds:
            train, held = problem.train_and_held_out(fold)
            if not self.stops_early and fold not in problem.selection_folds:
                train = problem.examples
            predictor = self.fit(problem, train, held, seeds.derive(seed, "fold", fold) % SEEDS)
            parts.append(Part.of(problem, predictor, held, {}))
        return parts


def _boosting(problem: Problem, train: TensorExamples, held: TensorExamples | None, seed: int) -> Predictor:
    return BoostedTrees.fit(train, held, problem.classes, seed, problem.features)


def _forest(problem: Problem, train: TensorExamples, held: TensorExamples | None, seed: int) -> Predictor:
    return Forest.fit(train, problem.classes, seed)


def _logistic(problem: Problem, train: TensorExamples, held: TensorExamples | None, seed: int) -> Predictor:
    return Logistic.fit(train, held, problem.classes, seed)


def _constant(problem: Problem, train: TensorExamples, held: TensorExamples | None, seed: int) -> Predictor:
    return Constant.fit(train.labels, problem.classes, train.weights)


def calibrated_name(strength: float) -> str:
    return f"calibrated-{strength:g}"


# In this order: a model that starts from another comes after it.
TRAINED: dict[str, Model] = {
    model.name: model
    for model in (
        NetworkModel("standard"),
        NetworkModel("weighted", objective=Weighted.from_utility),
        NetworkModel("noise", noisy=True),
        *(
            FinetunedModel(
                calibrated_name(strength),
                "standard",
                objective=partial(LossCalibrated, weight=strength, start="network"),
            )
            for strength in STRENGTHS
        ),
        FinetunedModel("noise+calibrated", "noise", objective=partial(LossCalibrated, start="network"), noisy=True),
        RowModel("boosting", effort=2, fit=_boosting),
        RowModel("forest", effort=2, fit=_forest, stops_early=False),
        RowModel("logistic", fit=_logistic),
        RowModel("constant", fit=_constant, stops_early=False),
    )
}

# What is compared, and the trained models that each is made of; a blend is made of those that stand beside it.
COMPARED: dict[str, tuple[str, ...]] = {
    "constant": ("constant",),
    "logistic": ("logistic",),
    "forest": ("forest",),
    "boosting": ("boosting",),
    "standard": ("standard",),
    "weighted": ("weighted",),
    "calibrated": ("standard", *map(calibrated_name, STRENGTHS)),
    "noise": ("noise",),
    "noise+calibrated": ("noise", "noise+calibrated"),
    "blend": (),
}
BLENDED = ("logistic", "forest", "boosting", "calibrated", "standard")
DEFAULT = ("constant", "logistic", "forest", "boosting", "standard", "calibrated", "blend")


def compared_names(noise: Noise) -> tuple[str, ...]:
    """What is compared if nothing is named. A blend cannot weigh models that know of noise against others by labels
    that are noisy: where a rate is given, there is none.
    """
    if noise is None:
        return DEFAULT
    return (*(name for name in DEFAULT if name != "blend"), "noise", "noise+calibrated")


CLASS_MODELS = Catalogue(TRAINED, COMPARED, BLENDED)
