"""The models of a comparison as values, and where their training starts."""

from dataclasses import replace

import pytest
import torch

from stakes import LossCalibrated, StakesError, Standard, Utility, Weighted
from stakes.features import Features
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


TABM = {"network": "tabm", "posterior": {"family": "batch_ensemble"}, "tabm": {"members": 3, "width": 8}}


@pytest.mark.parametrize("network", ["mlp", "tabm"])
def test_every_network_starts_from_the_same_weights(network: str) -> None:
    """With a learning rate of next to nothing all networks end where they began: at one place."""
    generator = torch.Generator().manual_seed(0)
    examples = TensorExamples(torch.randn(60, 3, generator=generator), torch.randint(2, (60,), generator=generator))
    recipe = Recipe(hidden=(4,), training=Training(epochs=1, learning_rate=1e-12), samples=5, noise=0.1)
    recipes = {"mlp": recipe, "tabm": replace(recipe, **TABM)}
    recipe, problem = recipes[network], Problem(examples, examples, UTILITY, Features(3))
    first, *others = (known.train(problem, recipe, 3)[0](examples.x).mean_probs() for known in NETWORKS)
    for other in others:
        torch.testing.assert_close(other, first)


def test_a_tabm_has_to_know_its_columns_and_has_one_posterior() -> None:
    examples, recipe = TensorExamples(torch.randn(20, 3), torch.arange(20) % 2), Recipe(**TABM)
    standard = NETWORKS[0]
    standard.check(recipe)
    with pytest.raises(StakesError, match="features="):
        standard.train(Problem(examples, examples, UTILITY), recipe, 0)
    for wrong in (replace(recipe, posterior={"family": "dropout"}), replace(recipe, network="mlp")):
        with pytest.raises(StakesError, match="together"):
            standard.check(wrong)
