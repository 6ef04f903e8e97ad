"""The models of a comparison as values, and how they are trained."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from stakes import LossCalibrated, StakesError, Standard, Utility, Weighted
from stakes.seeds import derive
from stakes.tables.models import METHODS, Problem, Recipe, boosted_probs, method, predict, train_model
from stakes.training.config import Training
from stakes.training.examples import TensorExamples

NAMES = ["a", "b"]
UTILITY = Utility.from_costs([[0, 10], [1, 0]], NAMES, NAMES, unit="$")


def test_the_reference_is_scikit_learns_boosting_stopped_on_the_same_rows() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 3)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    places = (slice(200), slice(200, 250), slice(250, 300))
    parts = [TensorExamples(torch.tensor(x[rows]), torch.tensor(y[rows])) for rows in places]
    ours = boosted_probs(Problem(*parts, UTILITY), seed=0)
    model = HistGradientBoostingClassifier(
        random_state=derive(0, "boosting") % 2**32, early_stopping=True, max_iter=500
    )
    model.fit(x[:200], y[:200], X_val=x[200:250], y_val=y[200:250])
    np.testing.assert_allclose(ours, model.predict_proba(x[250:]), atol=1e-6)


def test_methods_are_values_in_one_list() -> None:
    assert [known.name for known in METHODS] == ["standard", "weighted", "calibrated", "noise", "noise+calibrated"]
    kinds = [type(known.objective(UTILITY)) for known in METHODS]
    assert kinds == [Standard, Weighted, LossCalibrated, Standard, LossCalibrated]
    assert method("noise").likelihood(0.25).rate == pytest.approx(0.25)
    assert list(method("noise+calibrated").likelihood("learnt").parameters())
    assert not list(method("calibrated").likelihood("learnt").parameters())
    with pytest.raises(StakesError, match="'best'"):
        method("best")
    with pytest.raises(StakesError, match="needs a rate"):
        method("noise").likelihood(None)


def test_every_method_starts_from_the_same_network() -> None:
    """With a learning rate of next to nothing all methods end where they began: at one place."""
    generator = torch.Generator().manual_seed(0)
    examples = TensorExamples(torch.randn(60, 3, generator=generator), torch.randint(2, (60,), generator=generator))
    recipe = Recipe(hidden=(4,), training=Training(epochs=1, learning_rate=1e-12), samples=5, noise=0.1)
    found = [
        predict(train_model(known, recipe, examples, examples, UTILITY, 3)[0], examples.x, 5, 3) for known in METHODS
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
