"""Gradient boosting is a model like the others: trained, validated, chosen, saved and decided with by the same code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from stakes import SavedModel, Utility
from stakes._io.tensors import read_tensors
from stakes.predictors import BoostedTrees
from stakes.predictors.trees import ITERATIONS, SETTINGS
from stakes.seeds import derive
from stakes.tables.models import MODELS, Problem, Recipe, model, model_names
from stakes.training.config import Training
from stakes.training.examples import TensorExamples

COSTS = np.array([[0.0, 5.0], [1.0, 0.0]])
UTILITY = Utility.from_costs(COSTS, ["a", "b"], ["a", "b"])
RECIPE = Recipe(hidden=(4,), samples=5, training=Training(epochs=2), noise=0.1)


def problem(rows: int = 200) -> Problem:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2 * rows, 3)).astype(np.float32)
    y = (x[:, 0] + generator.normal(size=2 * rows) > 0).astype(np.int64)
    parts = [TensorExamples(torch.tensor(x[part]), torch.tensor(y[part])) for part in (slice(rows), slice(rows, None))]
    return Problem(*parts, UTILITY)


@pytest.mark.parametrize("name", [known.name for known in MODELS])
def test_every_model_is_validated_by_its_decisions_on_the_validation_rows(name: str) -> None:
    task = problem()
    predictor, _ = model(name).train(task, RECIPE, seed=1)
    probs = predictor(task.validation.x).mean_probs().double().numpy()
    choice = (probs @ COSTS.T).argmin(1)
    mean = -COSTS[choice, task.validation.labels.numpy()].mean()
    assert task.validation_utility(predictor) == pytest.approx(mean)
    weights = np.random.default_rng(1).uniform(0.1, 3, len(choice))
    heavy = TensorExamples(task.validation.x, task.validation.labels, torch.tensor(weights).float())
    costs = COSTS[choice, heavy.labels.numpy()]
    weighted = Problem(task.train, heavy, UTILITY).validation_utility(predictor)
    assert weighted == pytest.approx(-np.average(costs, weights=weights))
    assert Problem(task.train, None, UTILITY).validation_utility(predictor) is None


def test_boosting_is_scikit_learns_stopped_on_the_same_rows() -> None:
    task = problem()
    trees, details = model("boosting").train(task, RECIPE, seed=4)
    theirs = HistGradientBoostingClassifier(
        **SETTINGS,
        random_state=derive(4, "boosting") % 2**32,
        early_stopping=True,
        max_iter=ITERATIONS,
    )
    validation = {"X_val": task.validation.x.numpy(), "y_val": task.validation.labels.numpy()}
    theirs.fit(task.train.x.numpy(), task.train.labels.numpy(), **validation)
    x = torch.randn(50, 3)
    np.testing.assert_allclose(trees(x).mean_probs(), theirs.predict_proba(x.numpy()), atol=1e-6)
    assert details == {"trees": theirs.n_iter_}


def test_models_compared_by_default() -> None:
    assert model_names(None) == ("standard", "weighted", "calibrated", "boosting")
    assert model_names(0.0) == tuple(known.name for known in MODELS)


def test_a_run_with_boosting_alone(stakes: Callable[..., Any], patients: Path, costs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = stakes("fit", patients, "--target", "diagnosis", "--costs", costs, "--out", out, "--models", "boosting")
    assert said.code == 0, said.err
    assert [path.name for path in (out / "runs").iterdir()] == ["boosting-0"]
    saved = SavedModel.load(out / "model")
    assert isinstance(saved.predictor, BoostedTrees)
    tensors, metadata = read_tensors(out / "runs" / "boosting-0" / "predictions.safetensors")
    assert metadata["validation_utility"] is not None
    assert "margin_error" not in tensors
    assert stakes("decide", out, patients, "--out", tmp_path / "decisions.csv").code == 0
    decisions = pd.read_csv(tmp_path / "decisions.csv")
    x = torch.from_numpy(saved.encoder.transform(pd.read_csv(patients)))
    assert decisions["decision"].tolist() == saved.decide(x).chosen_names.tolist()
    assert len(decisions) == 120


def test_a_run_without_boosting_trains_none(
    stakes: Callable[..., Any], patients: Path, costs: Path, tmp_path: Path
) -> None:
    options = ("--models", "standard", "--epochs", 1, "--hidden", 4, "--samples", 3)
    stakes("fit", patients, "--target", "diagnosis", "--costs", costs, "--out", tmp_path / "out", *options)
    assert [path.name for path in (tmp_path / "out" / "runs").iterdir()] == ["standard-0"]
