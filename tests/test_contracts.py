"""What every posterior and every objective must do, whatever it is: one test for all pairs."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stakes import (
    BatchEnsemble,
    Ensemble,
    Laplace,
    LossCalibrated,
    MCDropout,
    MeanField,
    NoisyCategorical,
    StakesError,
    Standard,
    Utility,
    Weighted,
)
from stakes.objectives import Objective
from stakes.posteriors import Posterior
from stakes.training.config import Training
from stakes.training.fit import fit

CLASSES = 3
UTILITY = Utility.from_costs([[0, 50, 100], [40, 0, 35], [45, 30, 0], [20, 20, 20]], outcomes=["a", "b", "c"])


def vector_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, CLASSES))


class ImageNetwork(nn.Module):
    """A segmenter with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, CLASSES, 1)
        self.norm, self.dropout = nn.BatchNorm2d(6), nn.Dropout2d(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(x)
        return self.up(h + self.dropout(self.norm(h).relu()))


INPUTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vectors": (vector_network, (4,)),
    "images": (ImageNetwork, (2, 5, 6)),
}


class WithMembers(nn.Module):
    """Members that share a network, and see its inputs in scales of their own."""

    def __init__(self, network: nn.Module, members: int = 3) -> None:
        super().__init__()
        self.network, self.members = network, members
        self.scales = nn.Parameter(1 + 0.3 * torch.randn(members))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.network(x * scale) for scale in self.scales])

    def squared_norm(self) -> Tensor:
        return sum(parameter.square().sum() for parameter in self.network.parameters() if parameter.ndim > 1)


def finished(posterior: Posterior) -> Posterior:
    """With its step after training, if it has one."""
    kind = "vectors" if isinstance(posterior.network, nn.Sequential) else "images"
    posterior.finish([examples(kind)])
    return posterior


POSTERIORS: dict[str, Callable[[Callable[[], nn.Module]], Posterior]] = {
    "dropout": lambda make: MCDropout(make()),
    "dropout, noisy labels": lambda make: MCDropout(make(), NoisyCategorical(0.1, learn=True)),
    "ensemble": lambda make: Ensemble.of(make, 3, seed=0),
    "batch ensemble": lambda make: BatchEnsemble(WithMembers(make())),
    "mean field": lambda make: MeanField(make()),
    "laplace": lambda make: finished(Laplace(make())),
    "laplace, all weights": lambda make: finished(Laplace(make(), weights="all")),
}
OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "standard": Standard,
    "weighted": lambda: Weighted.from_utility(UTILITY),
    "calibrated, step": lambda: LossCalibrated(UTILITY, samples=4),
    "calibrated, epoch": lambda: LossCalibrated(UTILITY, samples=4, refresh="epoch"),
    "calibrated, running": lambda: LossCalibrated(UTILITY, refresh="running"),
}

pytestmark = [
    pytest.mark.filterwarnings("ignore:members of the ensemble are random in training"),
    pytest.mark.filterwarnings("ignore:the network is random in training"),
]
inputs = pytest.mark.parametrize("kind", INPUTS)
posteriors = pytest.mark.parametrize("family", POSTERIORS)
objectives = pytest.mark.parametrize("goal", OBJECTIVES)


def examples(kind: str, count: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, *INPUTS[kind][1], generator=generator)
    labels = (x.sum(1) > 0).long() + (x.sum(1) > 1).long()
    return x, labels


def build(kind: str, family: str) -> Posterior:
    torch.manual_seed(0)
    return POSTERIORS[family](INPUTS[kind][0])


def snapshot(posterior: Posterior) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in posterior.state_dict().items()}


@inputs
@posteriors
@objectives
def test_a_step_gives_every_parameter_a_finite_gradient(kind: str, family: str, goal: str) -> None:
    posterior, objective = build(kind, family).train(), OBJECTIVES[goal]()
    x, labels = examples(kind)
    index = torch.arange(len(x))
    objective.start_epoch(posterior, [(index, x)])
    loss = objective(posterior, x, labels, index=index) + posterior.kl() / len(x)
    assert loss.ndim == 0
    loss.backward()
    for name, parameter in posterior.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@inputs
@posteriors
@objectives
def test_fit_learns(kind: str, family: str, goal: str) -> None:
    posterior = build(kind, family)
    data = examples(kind, 64)
    config = Training(epochs=12, batch_size=16, learning_rate=0.02, samples=3)
    history = fit(posterior, OBJECTIVES[goal](), data, data, utility=UTILITY, config=config, progress=False)
    assert history.epochs[-1].loss < history.epochs[0].loss
    assert history.best_utility == max(epoch.utility for epoch in history.epochs)
    assert not posterior.training


@inputs
@posteriors
def test_shapes_keep_the_draw_axis(kind: str, family: str) -> None:
    posterior = build(kind, family).eval()
    x, labels = examples(kind, 7)
    draws = posterior.draw(4, seed=0)
    trained = posterior.log_probs(x, 4)
    assert draws.samples == (3 if "ensemble" in family else 4)
    assert draws(x).log_probs().shape == (draws.samples, *labels.shape, CLASSES)
    assert trained.shape == (1 if "laplace" in family else draws.samples, *labels.shape, CLASSES), "it trains its mode"
    assert draws(x).mean_probs().shape == (*labels.shape, CLASSES)
    for log_probs in (trained, draws(x).log_probs()):
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(log_probs.shape[:-1]))


@inputs
@posteriors
def test_draws_are_frozen_functions(kind: str, family: str) -> None:
    posterior = build(kind, family)
    x, _ = examples(kind, 9)
    draws = posterior.draw(5, seed=3)
    first = draws(x).log_probs()
    assert torch.equal(first, draws(x).log_probs()), "the same answer again"
    assert torch.equal(first, copy.deepcopy(posterior).draw(5, seed=3)(x).log_probs()), "and from the same seed"
    in_another_batch, in_other_blocks = draws(x[2:4]).log_probs(), draws(x, memory=1).log_probs()
    torch.testing.assert_close(first[:, 2:4], in_another_batch)
    torch.testing.assert_close(first, in_other_blocks)
    if "ensemble" not in family:
        assert not torch.equal(first, posterior.draw(5, seed=4)(x).log_probs()), "another seed is another draw"
        assert torch.equal(first[:2], posterior.draw(2, seed=3)(x).log_probs()), "fewer draws are the first of them"
    for parameter in posterior.parameters():
        parameter.data.add_(1.0)
    assert torch.equal(first, draws(x).log_probs()), "and after the posterior has moved on"


@inputs
@posteriors
def test_sampling_leaves_no_trace(kind: str, family: str) -> None:
    posterior = build(kind, family).train()
    next(module for module in posterior.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)).eval()
    modes = [module.training for module in posterior.modules()]
    x, _ = examples(kind)
    before, generator = snapshot(posterior), torch.get_rng_state()
    posterior.draw(4, seed=0)(x).mean_probs()
    assert torch.equal(torch.get_rng_state(), generator), "draws have generators of their own"
    objective = LossCalibrated(UTILITY, refresh="epoch", samples=3)
    objective.start_epoch(posterior, [(torch.arange(len(x)), x)])
    assert [module.training for module in posterior.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in snapshot(posterior).items()), "batch norm too"


@posteriors
def test_the_mean_predictive_is_the_mean_of_the_draws(family: str) -> None:
    draws = build("vectors", family).draw(6, seed=0)
    x, _ = examples("vectors")
    expected = draws(x).log_probs().exp().mean(0)
    torch.testing.assert_close(draws(x).mean_probs(), expected)
    torch.testing.assert_close(draws(x, memory=600).mean_probs(), expected)


@posteriors
def test_nonsense_is_refused(family: str) -> None:
    posterior = build("vectors", family)
    with pytest.raises(StakesError, match="at least one sample"):
        posterior.draw(0, seed=0)
    with pytest.raises(StakesError, match="at least one sample"):
        posterior.log_probs(torch.randn(3, 4), 0)
    with pytest.raises(StakesError, match="at least one row"):
        posterior.draw(2, seed=0)(torch.zeros(0, 4))


@posteriors
def test_a_spec_is_plain_json(family: str) -> None:
    import json

    spec = build("vectors", family).spec()
    assert json.loads(json.dumps(spec)) == spec
