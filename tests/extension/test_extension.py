"""What a user can add with public names only: a posterior family, and outcomes that are numbers."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from amounts import Gaussian, Order
from last_layer import LastLayerLaplace
from scipy import stats
from torch import nn

from stakes import (
    MLP,
    DecisionClassifier,
    Ensemble,
    LossCalibrated,
    SampledPosterior,
    SavedModel,
    Standard,
    Training,
    Utility,
    decide,
    fit,
)

COSTS = Utility.from_costs(
    {"treat": {"ill": 0, "well": 4}, "wait": {"ill": 9, "well": 0}, "test": {"ill": 2, "well": 1}}
)


def patients(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 3, generator=generator)
    return x, (x[:, 0] + 0.5 * torch.randn(count, generator=generator) > 0).long()


@pytest.mark.parametrize(("file", "most"), [("last_layer.py", 60), ("amounts.py", 80)])
def test_it_is_short_and_uses_public_names_only(file: str, most: int) -> None:
    text = (Path(__file__).parent / file).read_text()
    assert len(text.splitlines()) <= most
    modules = [node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    assert {name for name in modules if name.startswith("stakes")} == {"stakes"}


# A posterior family ------------------------------------------------------------------------------------


def test_the_covariance_is_the_inverse_hessian_of_the_last_layer() -> None:
    x, y = patients(40)
    torch.manual_seed(0)
    posterior = LastLayerLaplace(nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double(), prior_sd=0.7)
    posterior.double().finish([(x[:15].double(), y[:15]), (x[15:].double(), y[15:])])
    body, last = posterior.network[:-1], posterior.network[-1]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        weight, bias = flat.reshape(2, 3)[:, :2], flat.reshape(2, 3)[:, 2]
        output = nn.functional.linear(body(x.double()), weight, bias)
        return nn.functional.cross_entropy(output, y, reduction="sum") + flat.square().sum() / (2 * 0.7**2)

    flat = torch.cat([last.weight, last.bias[:, None]], 1).detach().flatten()
    hessian = torch.autograd.functional.hessian(loss, flat)
    torch.testing.assert_close(posterior.factor @ posterior.factor.T, hessian.inverse())


def test_a_new_family_trains_draws_decides_saves_and_loads(tmp_path: Path) -> None:
    posterior, data = LastLayerLaplace(MLP(3, 2, hidden=(8,), dropout=0.0)), patients(300)
    fit(
        posterior, LossCalibrated(COSTS), data, patients(100), utility=COSTS, config=Training(epochs=15), progress=False
    )
    assert posterior.factor.abs().sum() > 0, "fit calls finish"
    x, y = patients(200)
    decisions = decide(posterior.draw(50, seed=1)(x), COSTS)
    assert (decisions.margin_error > 0).any()
    worth = COSTS.realised(decisions.choice, y).mean()
    assert worth > max(COSTS.realised(torch.full_like(y, d), y).mean() for d in range(3)), "better than any constant"
    SavedModel(SampledPosterior(posterior, samples=50, seed=1), COSTS).save(tmp_path / "model")
    again = SavedModel.load(tmp_path / "model").decide(x)
    torch.testing.assert_close(again.utilities, decisions.utilities)


def test_a_new_family_runs_by_name_from_the_estimator() -> None:
    x, y = (tensor.numpy() for tensor in patients(200))
    names = np.where(y == 1, "ill", "well")
    settings = {"network": "mlp", "posterior": "last_layer_laplace", "dropout": 0.0, "folds": 2, "epochs": 10}
    model = DecisionClassifier(COSTS, model="standard", random_state=0, **settings)
    assert model.fit(x, names).score(x, names) > -2.0
    for part in model.predictor_.parts:
        assert isinstance(part.posterior, LastLayerLaplace)
        assert (decide(part(torch.from_numpy(x)), COSTS).margin_error > 0).any()


# Outcomes that are numbers -------------------------------------------------------------------------------


def demand(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    x = torch.rand(count, 1, generator=generator)
    return x, 4 + 6 * x[:, 0] + (0.5 + x[:, 0]) * torch.randn(count, generator=generator)


def test_numbers_train_with_loss_calibration_and_decide() -> None:
    utility = Order([float(amount) for amount in range(16)], under=9, over=1)
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2)) for _ in range(2)]
    posterior = Ensemble(networks, Gaussian())
    config = Training(epochs=40, batch_size=100, learning_rate=0.03, patience=None)
    fit(posterior, Standard(), demand(600), config=config, progress=False)
    objective = LossCalibrated(utility, margin=0.1)
    fit(posterior, objective, demand(600), demand(200), utility=utility, config=config, progress=False)
    x, y = demand(500)
    decisions = decide(posterior.draw(2, seed=0)(x), utility)
    ordered = np.array(utility.amounts)[decisions.choice]
    best = stats.norm.ppf(0.9, loc=4 + 6 * x[:, 0], scale=0.5 + x[:, 0])  # the newsvendor's quantile, in closed form
    assert np.abs(ordered - best).mean() < 1.0
    worth = utility.realised(decisions.choice, y).mean()
    constants = [utility.realised(torch.full((len(y),), d), y).mean() for d in range(16)]
    assert worth > max(constants), "better than any constant order"
