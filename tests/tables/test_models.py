"""The models of a comparison as values: which are trained for which, on what, and where their training starts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from stakes import LossCalibrated, StakesError, Standard, Utility, Weighted
from stakes.features import Features
from stakes.predictors import BoostedTrees, Constant, SampledPosterior
from stakes.predictors.trees import ITERATIONS, SETTINGS
from stakes.seeds import derive
from stakes.tables.models import CLASS_MODELS, COMPARED, DEFAULT, TRAINED, compared_names
from stakes.tables.network_models import FinetunedModel, NetworkModel
from stakes.tables.problem import Part, Problem, Recipe
from stakes.tables.split import folds
from stakes.training.config import Training
from stakes.training.examples import TensorExamples

NAMES = ["a", "b"]
UTILITY = Utility.from_costs([[0, 10], [1, 0]], NAMES, NAMES, unit="$")
NETWORKS = [model for model in TRAINED.values() if isinstance(model, NetworkModel)]
TABM = Recipe(tabm={"members": 3, "width": 8}, noise=0.1, training=Training(epochs=2, select="nll"))
MLP = replace(TABM, network="mlp", hidden=(4,), posterior={"family": "dropout"}, samples=5)


def problem(rows: int = 90, count: int = 3) -> Problem:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 3)).astype(np.float32)
    y = (x[:, 0] + generator.normal(size=rows) > 0).astype(np.int64)
    examples = TensorExamples(torch.from_numpy(x), torch.from_numpy(y))
    return Problem(examples, folds(y, np.arange(rows), count, seed=0), UTILITY, Features(3))


def train(name: str, task: Problem, recipe: Recipe = TABM, seed: int = 1) -> list[Part]:
    model, every = TRAINED[name], range(len(task.folds))
    before = [part.predictor for part in train(model.after, task, recipe, seed)] if model.after else []
    return model.train(task, recipe, seed, every, before=before)


def test_models_are_values_in_one_list() -> None:
    kinds = {model.name: type(model.objective(UTILITY)) for model in NETWORKS}
    assert kinds == {
        "standard": Standard,
        "weighted": Weighted,
        "noise": Standard,
        "calibrated-0.1": LossCalibrated,
        "calibrated-1": LossCalibrated,
        "noise+calibrated": LossCalibrated,
    }
    assert [TRAINED[name].objective(UTILITY).weight for name in ("calibrated-0.1", "calibrated-1")] == [0.1, 1]
    noise, both, calibrated = (TRAINED[name] for name in ("noise", "noise+calibrated", "calibrated-1"))
    assert noise.likelihood(0.25).rate == pytest.approx(0.25)
    assert list(both.likelihood("learnt").parameters())
    assert not list(calibrated.likelihood("learnt").parameters())
    with pytest.raises(StakesError, match="needs a rate"):
        noise.likelihood(None)


def test_what_is_compared_and_what_is_trained_for_it() -> None:
    assert compared_names(None) == DEFAULT
    assert compared_names(0.0) == (*DEFAULT[:-1], "noise", "noise+calibrated")
    assert CLASS_MODELS.with_constant(("boosting",)) == ("constant", "boosting")
    assert CLASS_MODELS.with_constant(("boosting", "constant")) == ("boosting", "constant")
    with pytest.raises(StakesError, match="'best'"):
        CLASS_MODELS.with_constant(("best",))
    assert CLASS_MODELS.trained_for(("calibrated",)) == ("standard", "calibrated-0.1", "calibrated-1")
    assert CLASS_MODELS.trained_for(("noise+calibrated",)) == ("noise", "noise+calibrated")
    assert {name for name in TRAINED if "noise" not in name and name != "weighted"} == set(
        CLASS_MODELS.trained_for(DEFAULT)
    )
    for name in COMPARED:  # what others start from stands before them
        needed = CLASS_MODELS.trained_for((name,))
        assert all(TRAINED[each].after in (None, *needed[:place]) for place, each in enumerate(needed))


def test_a_blend_is_made_of_what_stands_beside_it() -> None:
    assert (
        CLASS_MODELS.blended(("constant", "blend"))
        == CLASS_MODELS.blended(DEFAULT)
        == ("logistic", "forest", "boosting", "calibrated")
    )
    assert CLASS_MODELS.blended(("boosting", "blend")) == ("boosting",)
    assert CLASS_MODELS.blended(("standard", "logistic", "blend")) == ("logistic", "standard")


@pytest.mark.parametrize("name", TRAINED)
def test_every_model_has_a_part_for_each_fold_that_did_not_see_its_rows(name: str) -> None:
    task = problem()
    parts = train(name, task)
    assert len(parts) == 3
    for part, fold in zip(parts, task.folds, strict=True):
        rows = torch.from_numpy(fold.held)
        torch.testing.assert_close(part.held_out, part.predictor(task.examples.x[rows]).mean_probs())


def test_the_constant_of_a_fold_has_the_frequencies_of_its_training_rows() -> None:
    task = problem(70)
    for part, fold in zip(train("constant", task), task.folds, strict=True):
        assert isinstance(part.predictor, Constant)
        counts = np.bincount(task.examples.labels.numpy()[fold.train], minlength=2)
        np.testing.assert_allclose(part.held_out, np.tile(counts / counts.sum(), (len(fold.held), 1)), rtol=1e-6)


def test_boosting_is_scikit_learns_stopped_on_the_rows_held_out() -> None:
    task = problem(300)
    (part, *_) = train("boosting", task, seed=4)
    rows, held = task.folds[0]
    theirs = HistGradientBoostingClassifier(
        **SETTINGS,
        random_state=derive(derive(4, "fold", 0) % 2**31, "boosting") % 2**32,
        early_stopping=True,
        max_iter=ITERATIONS,
    )
    x, y = task.examples.x.numpy(), task.examples.labels.numpy()
    theirs.fit(x[rows], y[rows], X_val=x[held], y_val=y[held])
    assert isinstance(part.predictor, BoostedTrees)
    np.testing.assert_allclose(part.held_out, theirs.predict_proba(x[held]), atol=1e-6)


@pytest.mark.parametrize("recipe", [MLP, TABM], ids=["mlp", "tabm"])
def test_every_network_starts_from_the_same_weights(recipe: Recipe) -> None:
    """With a learning rate of next to nothing all networks end where they began: at one place."""
    still = replace(recipe, training=Training(epochs=1, learning_rate=1e-12, select="nll"))
    task = problem(60, count=2)
    first, *others = (train(model.name, task, still, seed=3) for model in NETWORKS)
    for other in others:
        for part, expected in zip(other, first, strict=True):
            torch.testing.assert_close(part.held_out, expected.held_out)


def test_a_finetuned_network_leaves_the_one_it_starts_from_as_it_was() -> None:
    task = problem(60, count=2)
    before = [part.predictor for part in train("standard", task)]
    said = [predictor(task.examples.x).mean_probs() for predictor in before]
    after = TRAINED["calibrated-1"].train(
        task, replace(TABM, training=Training(20, select="nll")), 1, [0, 1], before=before
    )
    for predictor, expected, part in zip(before, said, after, strict=True):
        assert torch.equal(predictor(task.examples.x).mean_probs(), expected)
        assert not torch.equal(part.predictor(task.examples.x).mean_probs(), expected)
        assert part.details["epochs"] == 2  # a tenth of those of the network before it


def test_folds_one_by_one_are_those_together() -> None:
    """A fold that is trained alone, as those of large tables are, starts and ends where it does beside others."""
    task = problem(60, count=2)
    together = train("standard", task)
    for fold in (0, 1):
        (alone,) = TRAINED["standard"].train(task, TABM, 1, [fold])
        torch.testing.assert_close(alone.held_out, together[fold].held_out, atol=1e-4, rtol=1e-3)


def test_rows_with_costs_of_their_own_and_many_rows_are_trained_fold_by_fold() -> None:
    task = problem()
    tables = Utility.from_costs(np.random.default_rng(0).random((90, 2, 2)), NAMES, NAMES)
    assert TRAINED["standard"].together(task, TABM)
    assert not TRAINED["standard"].together(replace(task, utility=tables), TABM)
    assert not TRAINED["noise"].together(task, replace(TABM, noise="learnt"))
    assert TRAINED["standard"].together(task, replace(TABM, noise="learnt"))
    large = problem(6_000, count=2)
    assert not TRAINED["standard"].together(large, TABM)
    assert TRAINED["boosting"].together(large, TABM)


def test_a_network_and_its_posterior_have_to_fit() -> None:
    standard = TRAINED["standard"]
    standard.check(TABM)
    standard.check(MLP)
    for wrong in (replace(TABM, posterior={"family": "dropout"}), replace(TABM, network="mlp")):
        with pytest.raises(StakesError, match="together"):
            standard.check(wrong)
    with pytest.raises(StakesError, match="dropout rate above 0"):
        standard.check(replace(MLP, dropout=0.0))


def test_finetuning_is_for_the_networks_that_others_train() -> None:
    for model in TRAINED.values():
        assert (model.after is not None) == isinstance(model, FinetunedModel)
        if model.after:
            assert isinstance(train(model.after, problem(60, 2))[0].predictor, SampledPosterior)
