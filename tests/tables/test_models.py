"""The models of a comparison as values, and where their training starts."""

import pytest
import torch

from stakes import LossCalibrated, StakesError, Standard, Utility, Weighted
from stakes.tables.models import MODELS, NetworkModel, Problem, Recipe, model
from stakes.training.config import Training
from stakes.training.examples import TensorExamples

NAMES = ["a", "b"]
UTILITY = Utility.from_costs([[0, 10], [1, 0]], NAMES, NAMES, unit="$")
NETWORKS = [known for known in MODELS if isinstance(known, NetworkModel)]


def test_models_are_values_in_one_list() -> None:
    names = ["standard", "weighted", "calibrated", "noise", "noise+calibrated", "boosting"]
    assert [known.name for known in MODELS] == names
    kinds = [type(known.objective(UTILITY)) for known in NETWORKS]
    assert kinds == [Standard, Weighted, LossCalibrated, Standard, LossCalibrated]
    _, _, calibrated, noise, both = NETWORKS
    assert noise.likelihood(0.25).rate == pytest.approx(0.25)
    assert list(both.likelihood("learnt").parameters())
    assert not list(calibrated.likelihood("learnt").parameters())
    with pytest.raises(StakesError, match="'best'"):
        model("best")
    with pytest.raises(StakesError, match="needs a rate"):
        noise.likelihood(None)


def test_every_network_starts_from_the_same_weights() -> None:
    """With a learning rate of next to nothing all networks end where they began: at one place."""
    generator = torch.Generator().manual_seed(0)
    examples = TensorExamples(torch.randn(60, 3, generator=generator), torch.randint(2, (60,), generator=generator))
    recipe = Recipe(hidden=(4,), training=Training(epochs=1, learning_rate=1e-12), samples=5, noise=0.1)
    problem = Problem(examples, examples, UTILITY)
    first, *others = (known.train(problem, recipe, 3)[0](examples.x).mean_probs() for known in NETWORKS)
    for other in others:
        torch.testing.assert_close(other, first)
