"""Laplace against closed forms, quadrature, finite differences, PyTorch's Hessians and laplace-torch."""

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stakes import (
    MLP,
    Bernoulli,
    Categorical,
    DecisionClassifier,
    Laplace,
    LossCalibrated,
    NoisyCategorical,
    Outcomes,
    SampledPosterior,
    SavedModel,
    StakesError,
    StakesWarning,
    Training,
    Utility,
    decide,
    fit,
)
from stakes.likelihoods import Likelihood

COSTS = Utility.from_costs([[0, 4, 9], [3, 0, 2], [2, 2, 2]], outcomes=["a", "b", "c"])


def data(count: int, features: int = 3, classes: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, features, generator=generator, dtype=dtype)
    noisy = x @ torch.randn(features, classes, generator=generator, dtype=dtype)
    return x, (noisy + torch.randn(count, classes, generator=generator, dtype=dtype)).argmax(1)


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)


def covariance(posterior: Laplace) -> Tensor:
    root = posterior.get_buffer("root")
    return root @ root.T


class KnownNoise(Likelihood):
    """A number with a Gaussian error of known size."""

    def __init__(self, sd: float) -> None:
        super().__init__()
        self.sd = sd

    def outcomes(self, outputs: Tensor) -> Outcomes:
        return Outcomes(torch.ones_like(outputs), values=outputs)

    def log_prob(self, outputs: Tensor, labels: Tensor, outcomes: Outcomes | None = None) -> Tensor:
        return -((outputs[:, :, 0] - labels) ** 2) / (2 * self.sd**2)


# The covariance ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [None, 0.2])
def test_of_the_last_layer_it_is_the_inverse_of_the_exact_hessian(rate: float | None) -> None:
    (x, y), net = data(40), network()
    posterior = Laplace(net, None if rate is None else NoisyCategorical(rate), prior_sd=0.7)
    posterior.finish([(x[:15], y[:15]), (x[15:], y[15:])])

    def loss(flat: Tensor) -> Tensor:
        weights = flat.view(3, 5)
        log_probs = (net[:-1](x) @ weights[:, :4].T + weights[:, 4]).log_softmax(-1)
        observed = log_probs if rate is None else ((1 - rate) * log_probs.exp() + rate / 3).log()
        return nn.functional.nll_loss(observed, y, reduction="sum") + flat.square().sum() / (2 * 0.7**2)

    flat = torch.cat([net[-1].weight, net[-1].bias[:, None]], 1).detach().flatten()
    torch.testing.assert_close(covariance(posterior), torch.autograd.functional.hessian(loss, flat).inverse())


def test_of_a_one_by_one_convolution_it_is_the_inverse_of_the_exact_hessian() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 1)).double()
    x, y = torch.randn(6, 2, 4, 5).double(), torch.randint(2, (6, 4, 5))
    posterior = Laplace(net)
    posterior.finish([(x, y)])

    def loss(flat: Tensor) -> Tensor:
        weights = flat.view(2, 4)
        output = nn.functional.conv2d(net[:-1](x), weights[:, :3, None, None], weights[:, 3])
        return nn.functional.cross_entropy(output, y, reduction="sum") + flat.square().sum() / 2

    flat = torch.cat([net[-1].weight.flatten(1), net[-1].bias[:, None]], 1).detach().flatten()
    torch.testing.assert_close(covariance(posterior), torch.autograd.functional.hessian(loss, flat).inverse())


@pytest.mark.parametrize("labels", [1, 4])
def test_of_logits_for_yes_and_no_it_is_the_inverse_of_the_exact_hessian(labels: int) -> None:
    """One label, or several that are decided on one by one."""
    torch.manual_seed(0)
    net, x = nn.Linear(3, labels).double(), torch.randn(20, 3).double()
    y = torch.randint(2, (20, labels) if labels > 1 else (20,))
    posterior = Laplace(net, Bernoulli(labels if labels > 1 else None))
    posterior.finish([(x, y)])

    def loss(flat: Tensor) -> Tensor:
        weights = flat.view(labels, 4)
        outputs = x @ weights[:, :3].T + weights[:, 3]
        target = y.view(20, labels).double()
        entropy = nn.functional.binary_cross_entropy_with_logits(outputs, target, reduction="sum")
        return entropy + flat.square().sum() / 2

    flat = torch.cat([net.weight, net.bias[:, None]], 1).detach().flatten()
    torch.testing.assert_close(covariance(posterior), torch.autograd.functional.hessian(loss, flat).inverse())


def test_ignored_labels_do_not_count() -> None:
    (x, y), net = data(20), network()
    some, marked = Laplace(net), Laplace(net, Categorical(ignore_index=255))
    some.finish([(x[:12], y[:12])])
    marked.finish([(x, y.index_fill(0, torch.arange(12, 20), 255))])
    torch.testing.assert_close(covariance(marked), covariance(some))
    few, all_rows = (Laplace(net, Categorical(ignore_index=255), structure="kron") for _ in range(2))
    few.finish([(x[:12], y[:12])])
    all_rows.finish([(x, y.index_fill(0, torch.arange(12, 20), 255))])
    torch.testing.assert_close(few.get_buffer("sd"), all_rows.get_buffer("sd"))


def numerical_jacobians(net: nn.Module, x: Tensor) -> np.ndarray[Any, Any]:
    """(N, C, P) by central differences."""
    flat = nn.utils.parameters_to_vector(net.parameters()).detach()
    columns = []
    for index in range(len(flat)):
        sides = []
        for step in (1e-6, -1e-6):
            moved = copy.deepcopy(net)
            shifted = flat.clone()
            shifted[index] += step
            nn.utils.vector_to_parameters(shifted, moved.parameters())
            sides.append(moved(x).detach().numpy())
        columns.append((sides[0] - sides[1]) / 2e-6)
    jacobian = np.moveaxis(np.stack(columns, -1), 1, -2)  # (B, ..., C, P)
    return jacobian.reshape(-1, *jacobian.shape[-2:])


@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_of_all_weights_it_is_the_inverse_of_the_gauss_newton_matrix(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "vectors":
        net: nn.Module = network()
        x, y = data(20)
    else:
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Conv2d(2, 3, 2)).double()
        x, y = torch.randn(4, 1, 5, 5).double(), torch.randint(3, (4, 2, 2))
    jacobian = numerical_jacobians(net, x)
    probs = np.moveaxis(net(x).softmax(1).detach().numpy(), 1, -1).reshape(-1, 3)
    precision = sum(j.T @ (np.diag(p) - np.outer(p, p)) @ j for j, p in zip(jacobian, probs, strict=True)) + np.eye(
        jacobian.shape[-1]
    ) / (0.5**2)
    full, diagonal = (Laplace(net, weights="all", structure=each, prior_sd=0.5) for each in ("full", "diag"))
    for posterior in (full, diagonal):
        posterior.finish([(x[:3], y[:3]), (x[3:], y[3:])])
    np.testing.assert_allclose(covariance(full).numpy(), np.linalg.inv(precision), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(diagonal.get_buffer("sd").numpy(), np.diag(precision) ** -0.5, rtol=1e-6)


def test_blocks_of_a_batch_and_batches_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(30)
    for weights in ("last", "all"):
        whole, cut = Laplace(network(), weights=weights), Laplace(network(), weights=weights)  # type: ignore[arg-type]
        whole.finish([(x, y)])
        with monkeypatch.context() as patch:
            patch.setattr("stakes.posteriors.laplace.BLOCK_NUMBERS", 200)
            cut.finish(DataLoader(TensorDataset(x, y), batch_size=7))
        torch.testing.assert_close(covariance(whole), covariance(cut))


def test_weights_of_examples_count_as_repetitions() -> None:
    x, y = data(12)
    counts = torch.arange(12) % 3
    repeated, weighted = Laplace(network()), Laplace(network())
    repeated.finish([(x.repeat_interleave(counts, 0), y.repeat_interleave(counts))])
    weighted.finish([(x, y, counts.double())])
    torch.testing.assert_close(covariance(repeated), covariance(weighted))


class Named(nn.Module):
    """Called by keywords, as models of Hugging Face are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, features: Tensor, seen: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layers(features * seen)}


def test_batches_may_be_those_of_any_loader() -> None:
    (x, y), seen = data(12), torch.ones(12, 3)
    plain = Laplace(network())
    plain.finish([(x, y)])
    rows = [{"features": x[n], "seen": seen[n], "labels": y[n]} for n in range(12)]
    pairs = [((x[n], seen[n]), y[n]) for n in range(12)]  # collated to lists
    for dataset in (rows, pairs):
        posterior = Laplace(Named())
        posterior.finish(DataLoader(dataset, batch_size=5))  # type: ignore[arg-type]
        torch.testing.assert_close(covariance(posterior), covariance(plain))
    with pytest.raises(StakesError, match=r"expected batches \(x, labels\) .* but got a dict"):
        Laplace(Named()).finish([{"features": x, "seen": seen}])  # type: ignore[list-item]


STRUCTURES = [("last", "full"), ("last", "kron"), ("last", "diag"), ("all", "full"), ("all", "diag")]


@pytest.mark.parametrize(("weights", "structure"), STRUCTURES)
def test_draws_have_the_mean_and_the_covariance(weights: Any, structure: Any) -> None:
    """A linear network shows its weights: they are its outputs for unit vectors, and its bias that for zeros."""
    x, y = data(60, features=2)
    net = nn.Linear(2, 3).double()
    posterior = Laplace(net, weights=weights, structure=structure, prior_sd=0.8)
    posterior.finish([(x, y)])
    ones = torch.cat([x, torch.ones(60, 1)], 1)
    probs = net(x).softmax(1).detach()
    curvature = torch.diag_embed(probs) - probs.unsqueeze(2) * probs.unsqueeze(1)
    if structure == "kron":
        precision = torch.kron(curvature.mean(0), ones.T @ ones)
    else:
        precision = sum(torch.kron(l, torch.outer(h, h)) for l, h in zip(curvature, ones, strict=True))  # noqa: E741
    precision = precision + torch.eye(9) / 0.8**2
    expected = (precision.diagonal().diag() if structure == "diag" else precision).inverse()  # of (C, F + 1)
    outputs = posterior.draw(10000, seed=0).outputs(torch.tensor([[1.0, 0], [0, 1], [0, 0]]).double(), 0, 10000)
    samples = torch.cat([outputs[:, :2] - outputs[:, 2:], outputs[:, 2:]], 1).transpose(1, 2).flatten(1)  # (S, C * F)
    mean = torch.cat([net.weight, net.bias[:, None]], 1).detach().flatten()
    assert ((samples.mean(0) - mean).abs() < 4.5 * (expected.diagonal() / 10000).sqrt()).all()
    sd = expected.diagonal().sqrt()
    torch.testing.assert_close(samples.T.cov() / torch.outer(sd, sd), expected / torch.outer(sd, sd), atol=0.05, rtol=0)


def test_draws_come_in_pairs_around_the_mean() -> None:
    (x, y), net = data(30), network()
    posterior = Laplace(net)
    posterior.finish([(x, y)])
    draws = posterior.draw(6, seed=0)
    outputs = draws.outputs(x, 0, 6)
    torch.testing.assert_close(outputs.unflatten(0, (3, 2)).mean(1), net(x).detach().expand(3, -1, -1))
    assert draws.group == 2


# The posterior, and its prior -----------------------------------------------------------------------------------


def regression() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(25, 2, generator=generator, dtype=torch.float64)
    return x, x @ torch.tensor([0.4, -0.3]).double() + 0.1 + 0.5 * torch.randn(25, generator=generator).double()


def ridge(prior_sd: float) -> tuple[nn.Linear, Tensor]:
    """The exact posterior of a linear regression: its mean as a network, and its covariance."""
    x, y = regression()
    ones = torch.cat([x, torch.ones(25, 1)], 1)
    covariance = (ones.T @ ones / 0.5**2 + torch.eye(3) / prior_sd**2).inverse()
    mean = covariance @ ones.T @ y / 0.5**2
    net = nn.Linear(2, 1).double()
    net.weight.data, net.bias.data = mean[None, :2], mean[2:]
    return net, covariance


def test_a_linear_regression_is_exact() -> None:
    net, expected = ridge(0.7)
    posterior = Laplace(net, KnownNoise(0.5), prior_sd=0.7)
    posterior.finish([regression()])
    torch.testing.assert_close(covariance(posterior), expected)


def test_the_evidence_finds_the_prior_that_is_best_for_a_linear_regression() -> None:
    x, y = regression()
    ones = torch.cat([x, torch.ones(25, 1)], 1).numpy()
    grid = np.geomspace(0.05, 20, 600)
    exact = [stats.multivariate_normal.logpdf(y, cov=ones @ ones.T * sd**2 + 0.25 * np.eye(25)) for sd in grid]
    prior_sd = 1.0
    for _ in range(30):  # the mode and the prior, each for the other
        posterior = Laplace(ridge(prior_sd)[0], KnownNoise(0.5), prior_sd="evidence")
        posterior.finish([(x, y)])
        prior_sd = float(posterior.fitted_prior_sd)
    assert prior_sd == pytest.approx(grid[np.argmax(exact)], rel=0.1)


def test_an_evidence_without_a_maximum_is_said() -> None:
    net = nn.Linear(2, 3)
    for parameter in net.parameters():
        parameter.data.zero_()
    posterior = Laplace(net, prior_sd="evidence")
    with pytest.warns(StakesWarning, match="no maximum"):
        posterior.finish([data(20, features=2, dtype=torch.float32)])


def test_a_logistic_regression_predicts_as_quadrature_does() -> None:
    x, y = data(80, features=1, classes=2)
    net = nn.Linear(1, 2, bias=False).double()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=200, tolerance_grad=1e-10)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y, reduction="sum") + net.weight.square().sum() / (2 * 2.0**2)
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    posterior = Laplace(net, prior_sd=2.0)
    posterior.finish([(x, y)])
    grid = torch.linspace(-9, 9, 301).double()
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    slope = (second - first).unsqueeze(-1)  # only the difference of the two weights matters to the labels
    signs = 2 * y - 1
    log_posterior = nn.functional.logsigmoid(slope * x[:, 0] * signs).sum(-1) - (first**2 + second**2) / (2 * 2.0**2)
    mass = log_posterior.flatten().softmax(0)
    test = torch.linspace(-3, 3, 13).double()
    exact = (mass[:, None] * (slope.flatten()[:, None] * test).sigmoid()).sum(0)
    drawn = posterior.draw(10000, seed=0)(test[:, None]).mean_probs()[:, 1]
    assert (drawn - exact).abs().max() < 0.015
    # The Gaussian of the slope in closed form, and its predictive by Gauss-Hermite quadrature.
    mode = (net.weight[1] - net.weight[0]).detach()
    probs = (mode * x[:, 0]).sigmoid()
    variance = 1 / ((x[:, 0] ** 2 * probs * (1 - probs)).sum() + 1 / (2 * 2.0**2))
    nodes, node_weights = (torch.from_numpy(each) for each in np.polynomial.hermite_e.hermegauss(60))
    slopes = mode + variance.sqrt() * nodes
    gaussian = ((slopes[:, None] * test).sigmoid() * node_weights[:, None]).sum(0) / node_weights.sum()
    assert (drawn - gaussian).abs().max() < 0.003


# Laplace in use -----------------------------------------------------------------------------------------------


def test_in_training_a_draw_is_the_network_and_after_it_fit_finishes() -> None:
    posterior = Laplace(MLP(3, 3, hidden=(8,), dropout=0.0))
    x, y = data(200, dtype=torch.float32)
    draws = posterior.train().draw(10, seed=0)
    assert draws.samples == 1
    torch.testing.assert_close(draws(x).mean_probs(), posterior.network(x).softmax(1).detach())
    config = Training(epochs=15, batch_size=20, learning_rate=0.02)
    fit(posterior, LossCalibrated(COSTS), (x, y), (x, y), utility=COSTS, config=config, progress=False)
    decisions = decide(posterior.draw(50, seed=1)(x), COSTS)
    assert (decisions.margin_error > 0).any()
    worth = COSTS.realised(decisions.choice, y).mean()
    assert worth > max(COSTS.realised(torch.full_like(y, d), y).mean() for d in range(3)), "better than any constant"


@pytest.mark.parametrize(("weights", "structure"), STRUCTURES)
def test_it_is_saved_and_loaded(weights: Any, structure: Any, tmp_path: Path) -> None:
    x, y = data(50, dtype=torch.float32)
    posterior = Laplace(network(torch.float32), weights=weights, structure=structure, prior_sd="evidence")
    posterior.finish([(x, y)])
    model = SavedModel(SampledPosterior(posterior, samples=20, seed=1), COSTS)
    model.save(tmp_path / "model")
    again = SavedModel.load(tmp_path / "model", network=network(torch.float32))
    assert torch.equal(again.predictor(x).probs(), model.predictor(x).probs())


def test_it_runs_by_name_from_the_estimator() -> None:
    x, y = (tensor.numpy() for tensor in data(150))
    names = np.array(["a", "b", "c"])[y]
    model = DecisionClassifier(
        COSTS, model="standard", network="mlp", posterior="laplace", dropout=0.0, epochs=5, random_state=0
    )
    probs = model.fit(x, names).predict_proba(x)
    assert np.isfinite(probs).all()
    assert probs.std(0).min() > 0
    with pytest.raises(StakesError, match="'tabm' and the posterior 'batch_ensemble' together"):
        DecisionClassifier(COSTS, posterior="laplace").fit(x, names)


class Words(nn.Module):
    """Called with two tensors, and with an output that holds its logits, as the models of Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(10, 4), nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        h = (self.embed(input_ids) * attention_mask.unsqueeze(-1)).mean(1)
        return {"logits": self.head(self.hidden(h).tanh())}


@pytest.mark.parametrize("weights", ["last", "all"])
def test_a_network_with_several_inputs_and_logits(weights: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = {"input_ids": torch.randint(10, (12, 6)), "attention_mask": torch.randint(2, (12, 6))}
    posterior = Laplace(Words(), weights=weights)
    posterior.finish([(x, torch.arange(12) % 3)])
    model = SavedModel(SampledPosterior(posterior, samples=100), COSTS)
    assert (model.predictor(x).mean_probs() - posterior.network(**x)["logits"].softmax(1)).abs().max() < 0.2
    draws = posterior.draw(3, seed=0)
    assert (draws(x).probs().std(0) > 0).all()
    torch.testing.assert_close(draws(x, memory=1).probs(), draws(x).probs())
    model.save(tmp_path / "model")
    assert torch.equal(
        SavedModel.load(tmp_path / "model", network=Words()).predictor(x).probs(), model.predictor(x).probs()
    )


class TwoHeads(nn.Module):
    """The layer that comes last is registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(4, 3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())  # type: ignore[no-any-return]


def test_the_last_layer_can_be_named() -> None:
    batch = data(30, dtype=torch.float32)
    with pytest.raises(StakesError, match=r"those of 'body' are not what it returns.*layer="):
        Laplace(TwoHeads()).finish([batch])
    posterior = Laplace(TwoHeads(), layer="head")
    posterior.finish([batch])
    draws = posterior.draw(3, seed=0)
    for draw, weight in enumerate(draws._weights(0, 3)["weights"]):
        net = copy.deepcopy(posterior.network)
        net.get_submodule("head").load_state_dict({"weight": weight[:, :-1], "bias": weight[:, -1]})
        torch.testing.assert_close(draws.outputs(batch[0], draw, draw + 1)[0], net(batch[0]).detach())


def test_dropout_is_off_in_draws_and_that_is_said() -> None:
    x, y = data(30, dtype=torch.float32)
    with pytest.warns(StakesWarning, match="random in training .*'Dropout'"):
        posterior = Laplace(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)))
    posterior.train().finish([(x, y)])
    posterior.eval().get_buffer("root").zero_()  # only the mean is left
    draws = posterior.draw(2, seed=0).outputs(x, 0, 2)
    torch.testing.assert_close(draws, posterior.network(x).detach().expand(2, -1, -1))


def squeezed() -> nn.Module:
    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).softmax(1)  # type: ignore[no-any-return]

    return Squeezed()


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.unsqueeze(1))[0][:, -1])  # type: ignore[no-any-return]


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    return net


def test_tied_weights_are_one_in_a_draw() -> None:
    x, y = data(20, dtype=torch.float32)
    posterior = Laplace(tied(), weights="all")
    posterior.finish([(x, y)])
    draws = posterior.draw(2, seed=0)
    weights = draws._weights(0, 2)
    for draw in range(2):
        net = tied()
        for name, parameter in net.named_parameters():
            parameter.data = weights[name][draw]
        torch.testing.assert_close(draws.outputs(x, draw, draw + 1)[0], net(x).detach())


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (squeezed, {}, "those of 'body' are not what it returns"),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()), {}, "those of '0' are not what it returns"),
        (lambda: nn.Sequential(nn.Flatten()), {}, "expected a linear layer .* but there is none"),
        (lambda: nn.Sequential(nn.Linear(3, 3)), {"layer": "1"}, "a layer called '1'"),
        (lambda: nn.Conv2d(3, 3, 3), {}, "expected PyTorch's linear layer or 1 x 1 convolution"),
        (tied, {}, "'0.weight', '2.weight' are one tensor"),
        (lambda: nn.Linear(3, 4000), {}, "at most 8192 weights .* structure='kron'"),
        (lambda: nn.Linear(3, 4000), {"weights": "all"}, "structure='diag', or weights='last'"),
        (lambda: nn.Linear(3, 3), {"weights": "first"}, "expected weights of 'last', 'all'"),
        (lambda: nn.Linear(3, 3), {"structure": "kronecker"}, "structure of 'full', 'kron', 'diag'"),
        (lambda: nn.Linear(3, 3), {"weights": "all", "structure": "kron"}, "expected weights='last'"),
        (lambda: nn.Linear(3, 3), {"prior_sd": 0}, "a prior_sd above 0"),
        (Tokens, {"weights": "all"}, "torch.func cannot differentiate"),
    ],
)
def test_what_cannot_be_done_is_refused(make: Callable[[], nn.Module], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(StakesError, match=message):
        Laplace(make(), **settings).finish([data(5, dtype=torch.float32)])


def test_draws_before_the_fit_and_fits_without_examples_are_refused() -> None:
    posterior = Laplace(nn.Linear(3, 3))
    with pytest.raises(StakesError, match=r"call posterior.finish\(batches\)"):
        posterior.draw(2, seed=0)
    with pytest.raises(StakesError, match="there are none"):
        posterior.finish([])


def test_fit_refuses_a_network_before_it_trains_it() -> None:
    x, y = data(20, dtype=torch.float32)
    net = squeezed()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(StakesError, match="not what it returns"):
        fit(Laplace(net), LossCalibrated(COSTS), (x, y), config=Training(epochs=2), progress=False)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_a_saddle_is_refused() -> None:
    """Labels that the network is sure are wrong: the noisy likelihood is convex around them."""
    net = nn.Linear(3, 3).double()
    net.weight.data.mul_(0).fill_diagonal_(4.0)
    x = torch.eye(3).double().repeat(30, 1)
    posterior = Laplace(net, NoisyCategorical(0.3), prior_sd=100.0)
    with pytest.raises(StakesError, match="not positive in all directions"):
        posterior.finish([(x, (x.argmax(1) + 1) % 3)])


# laplace-torch as the judge ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("weights", "structure"), STRUCTURES)
def test_laplace_torch_agrees(weights: Any, structure: Any) -> None:
    judge = pytest.importorskip("laplace", reason="laplace-torch is not installed")
    (x, y), net = data(40), network()
    if structure == "kron":
        net[-1].bias = None  # theirs is independent of the weights
    loader = DataLoader(TensorDataset(x, y), batch_size=40)
    subset = {"last": "last_layer", "all": "all"}[weights]
    theirs = judge.Laplace(net, "classification", subset_of_weights=subset, hessian_structure=structure)
    theirs.prior_precision = torch.tensor(2.0).double()
    theirs.fit(loader)
    ours = Laplace(net, weights=weights, structure=structure, prior_sd=2**-0.5)
    ours.finish(loader)
    _, variance = theirs._glm_predictive_distribution(x[:5])  # (B, C, C): of the linearised outputs
    draws = ours.draw(4000, seed=0)
    if weights == "last":
        outputs = draws.outputs(x[:5], 0, 4000)
        sampled = torch.stack([outputs[:, row].T.cov() for row in range(5)])
        scale = variance.diagonal(dim1=1, dim2=2).sqrt()
        torch.testing.assert_close(sampled, variance, atol=0.08 * float(scale.max() ** 2), rtol=0)
    torch.manual_seed(0)
    probs = theirs(x[:5], pred_type="nn", link_approx="mc", n_samples=4000)
    torch.testing.assert_close(draws(x[:5]).mean_probs(), probs, atol=0.02, rtol=0)
    if structure == "full" and weights == "all":
        torch.testing.assert_close(covariance(ours), theirs.posterior_covariance)
    grid = torch.logspace(-6, 6, 241).double()
    evidence = [float(theirs.log_marginal_likelihood(prior_precision=precision)) for precision in grid]
    chosen = Laplace(net, weights=weights, structure=structure, prior_sd="evidence")
    chosen.finish(loader)
    assert float(chosen.fitted_prior_sd) == pytest.approx(float(grid[int(np.argmax(evidence))] ** -0.5))


def test_all_structures_are_tested() -> None:
    pairs = set(itertools.product(["last", "all"], ["full", "kron", "diag"]))
    assert pairs - set(STRUCTURES) == {("all", "kron")}
