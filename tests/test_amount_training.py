"""Loss calibration with numbers: its population optimum in closed form, its limits, and every objective and loss."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor, nn

from stakes import (
    MLP,
    Ensemble,
    Gaussian,
    Linex,
    LogNormal,
    LossCalibrated,
    MCDropout,
    Newsvendor,
    Range,
    Squared,
    StakesError,
    Standard,
    StudentT,
    Training,
    Utility,
    Weighted,
    decide,
    fit,
)
from stakes.mixtures import GaussianMixture
from stakes.posteriors import Posterior

MEAN, VARIANCE = 3.0, 4.0


class Constant(nn.Module):
    """Puts out the same mean and scale for every input."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.outputs.expand(len(x), 2)


class Point(Posterior):
    """One set of weights, without a prior: what is left is the objective itself."""

    def __init__(self, likelihood: Gaussian) -> None:
        super().__init__(likelihood)
        self.network = Constant().double()

    def outputs(self, x: Tensor, samples: int = 1) -> Tensor:
        return self.network(x).unsqueeze(0)

    def kl(self) -> Tensor:
        return torch.zeros(())

    def draw(self, samples: int, seed: int):
        raise NotImplementedError

    def settings(self) -> dict:
        return {}


def population_optimum(utility: Utility) -> tuple[float, float]:
    """The mean and the standard deviation that minimise the objective, for labels with the moments of a population."""
    labels = MEAN + VARIANCE**0.5 * torch.tensor(norm.ppf((np.arange(2000) + 0.5) / 2000))
    labels = MEAN + (labels - MEAN) * (VARIANCE / labels.var(correction=0)).sqrt()
    posterior, objective = Point(Gaussian.for_labels(labels, scale="input")), LossCalibrated(utility, samples=1)
    x = torch.zeros(len(labels), 1)
    optimizer = torch.optim.Adam(posterior.parameters(), lr=0.05)
    for step in range(400):
        optimizer.param_groups[0]["lr"] = 0.05 * 0.985**step
        optimizer.zero_grad()
        objective(posterior, x, labels).backward()
        optimizer.step()
    outcomes = posterior.likelihood.outcomes(posterior.outputs(x[:1]))
    return outcomes.location.item(), outcomes.scale.item()


@pytest.mark.parametrize("limit", [2.0, 10.0])
def test_calibrating_for_squared_loss_keeps_the_mean_and_shrinks_the_variance(limit: float) -> None:
    mean, scale = population_optimum(Squared().with_limit(limit))
    assert mean == pytest.approx(MEAN, abs=0.01)
    assert scale**2 == pytest.approx(limit * ((1 + 8 * VARIANCE / limit) ** 0.5 - 1) / 4, rel=0.01)


@pytest.mark.parametrize(("share", "limit"), [(0.9, 1.0), (0.5, 3.0)])
def test_calibrating_for_a_quantile_keeps_the_mean_and_shrinks_the_variance(share: float, limit: float) -> None:
    mean, scale = population_optimum(Newsvendor(share, 1 - share).with_limit(limit))
    slope = norm.pdf(norm.ppf(share)) / limit
    expected = brentq(lambda s: slope * s**3 + s**2 - VARIANCE, 0, 10)
    assert mean == pytest.approx(MEAN, abs=0.01)
    assert scale == pytest.approx(expected, rel=0.01)
    assert scale < VARIANCE**0.5, "so a quantile decision of a right model gets worse"


def test_a_weight_of_nothing_is_standard_and_decisions_are_constants() -> None:
    posterior = Point(Gaussian.for_labels(torch.tensor([0.0, 2.0]), scale="input"))
    x, labels = torch.zeros(2, 1), torch.tensor([0.0, 2.0])
    utility = Newsvendor(9, 1).with_limit(3.0)
    assert torch.equal(LossCalibrated(utility, weight=0)(posterior, x, labels), Standard()(posterior, x, labels))
    loss = LossCalibrated(utility)(posterior, x, labels) - Standard()(posterior, x, labels)
    outcomes = GaussianMixture(*(t.detach() for t in _parts(posterior, x)))
    cost = -utility.expected_of(outcomes, utility.best_choice(outcomes.mixture())).mean()
    assert loss.item() == pytest.approx(cost.item() / 3, rel=1e-6)


def _parts(posterior: Posterior, x: Tensor) -> tuple[Tensor, Tensor]:
    outcomes = posterior.likelihood.outcomes(posterior.outputs(x))
    return outcomes.location, outcomes.scale


def demand(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    x = torch.rand(count, 1, generator=generator)
    return x, 20 + 10 * x[:, 0] + (1 + 2 * x[:, 0]) * torch.randn(count, generator=generator)


UTILITIES: dict[str, Utility] = {
    "newsvendor": Newsvendor(9, 1).with_limit(5.0),
    "newsvendor, exponential": Newsvendor(9, 1, step=1.0).with_limit(5.0, form="exponential"),
    "newsvendor for each": Newsvendor(np.full(120, 9.0), 1.0).with_limit(5.0),
    "squared": Squared().with_limit([3.0, 6.0, 9.0]),
    "linex": Linex(0.2).with_limit(3.0),
    "curves": Utility.from_curves({"small": [(20, 0), (30, 50)], "large": 20}),
    "jumps, exponential": Utility.from_curves({"small": [(24, 0), (24, 20)], "large": [(27, 9), (27, 3)]}).with_limit(
        5.0, form="exponential"
    ),
    "function": Utility.from_function(lambda h, y: (y - h).square(), Range(10, 40)).with_limit(9.0, form="exponential"),
}
LIKELIHOODS = {"gaussian": Gaussian, "log-normal": LogNormal, "student": StudentT}


@pytest.mark.parametrize("kind", UTILITIES)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_loss_trains_with_every_likelihood(kind: str, likelihood: str) -> None:
    data, utility = demand(120), UTILITIES[kind]
    torch.manual_seed(0)
    posterior = MCDropout(
        MLP(1, 2, hidden=(8,), dropout=0.1), LIKELIHOODS[likelihood].for_labels(data[1], scale="input")
    )
    if kind == "linex" and likelihood != "gaussian":
        with pytest.raises(StakesError, match=r"infinite under a .*: use a Gaussian"):
            LossCalibrated(utility, samples=3)(posterior, *data, index=torch.arange(120))
        return
    for refresh in ("step", "epoch"):
        objective, index = LossCalibrated(utility, samples=3, refresh=refresh), torch.arange(120)
        for _ in range(2):  # the decisions of the first are those of the labels
            objective.start_epoch(posterior, [(index, data[0])])
            objective(posterior, *data, index=index).backward()
        if refresh == "epoch" and not utility.decisions:
            assert objective.state_dict()["memory"].is_floating_point()
    for parameter in posterior.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_fit_with_validation_and_a_limit_from_a_plain_model() -> None:
    utility, data = Newsvendor(9, 1), demand(600)
    torch.manual_seed(0)
    posterior = Ensemble.of(lambda: MLP(1, 2, hidden=(8,), dropout=0.0), 2, seed=0, likelihood=Gaussian("input"))
    config = Training(epochs=30, batch_size=100, learning_rate=0.03, patience=None)
    fit(posterior, Standard(), data, demand(200), utility=utility, config=config, progress=False)
    plain = decide(posterior.draw(2, seed=0)(data[0]), utility)
    limited = utility.with_limit(-utility.realised(plain.choice, data[1]))
    history = fit(posterior, LossCalibrated(limited), data, demand(200), utility=utility, config=config, progress=False)
    assert history.best_utility > -6
    x, y = demand(500)
    worth = utility.realised(decide(posterior.draw(2, seed=0)(x), utility).choice, y).mean()
    constant = utility.realised(torch.full((500,), data[1].quantile(0.9).item()), y).mean()
    assert worth > constant, "better than the quantile of the past"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(StakesError, match="with_limit"):
        LossCalibrated(Newsvendor(1, 1))
    data = demand(20)
    posterior = MCDropout(MLP(1, 2), Gaussian.for_labels(data[1], scale="input"))
    with pytest.raises(StakesError, match="running"):
        LossCalibrated(UTILITIES["squared"], refresh="running")(posterior, *data, index=torch.arange(20))
    with pytest.raises(StakesError, match="named outcomes"):
        Weighted([1, 1])(posterior, *data)
