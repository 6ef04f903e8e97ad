import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from stakes import MeanField, StakesError
from stakes.posteriors.mean_field import GaussianLayer


def layer_of(posterior: MeanField) -> GaussianLayer:
    return next(layer for layer in posterior.network.modules() if isinstance(layer, GaussianLayer))


def test_the_divergence_is_that_of_torch_distributions() -> None:
    torch.manual_seed(0)
    posterior = MeanField(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), prior_sd=0.7, initial_sd=0.1)
    expected = 0.0
    for layer in posterior.network.modules():
        if isinstance(layer, GaussianLayer):
            for mean, sd in layer.frozen_moments().values():
                expected += float(kl_divergence(Normal(mean, sd), Normal(torch.zeros(()), 0.7)).sum())
    assert posterior.kl().item() == pytest.approx(expected, rel=1e-5)


def test_the_divergence_of_the_prior_itself_is_zero() -> None:
    posterior = MeanField(nn.Linear(3, 2), prior_sd=0.5, initial_sd=0.5)
    nn.init.zeros_(layer_of(posterior).layer.weight)
    nn.init.zeros_(layer_of(posterior).layer.bias)
    assert posterior.kl().item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("how", ["local reparameterisation", "weight samples"])
def test_a_linear_layer_has_the_output_moments_of_the_closed_form(how: str) -> None:
    torch.manual_seed(0)
    posterior = MeanField(nn.Linear(3, 2), initial_sd=0.3)
    x = torch.randn(4, 3)
    layer = layer_of(posterior)
    (weight, weight_sd), (bias, bias_sd) = layer.frozen_moments().values()
    mean, variance = x @ weight.T + bias, x**2 @ (weight_sd**2).T + bias_sd**2
    torch.manual_seed(1)
    if how == "local reparameterisation":
        outputs = posterior.outputs(x, 20000).detach()
    else:
        outputs = posterior.draw(20000, seed=1).outputs(x, 0, 20000)
    error = (variance / 20000).sqrt()
    assert ((outputs.mean(0) - mean).abs() < 4.5 * error).all()
    torch.testing.assert_close(outputs.var(0), variance, rtol=0.06, atol=0)


def test_a_convolution_has_the_output_moments_of_its_weight_samples() -> None:
    torch.manual_seed(0)
    posterior = MeanField(nn.Conv2d(2, 3, 3, padding=1, stride=2), initial_sd=0.2)
    x = torch.randn(1, 2, 6, 6)
    local = posterior.outputs(x, 6000).detach()
    weights = posterior.draw(6000, seed=0).outputs(x, 0, 6000)
    spread = weights.std(0) * (2 / 6000) ** 0.5
    assert ((local.mean(0) - weights.mean(0)).abs() < 5 * spread).all()
    torch.testing.assert_close(local.var(0), weights.var(0), rtol=0.15, atol=0)


def test_the_network_given_is_left_as_it_was() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    posterior = MeanField(network)
    assert not any(isinstance(layer, GaussianLayer) for layer in network.modules())
    posterior.kl().backward()
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in before.items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_the_mean_network_is_the_one_given() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    posterior = MeanField(network, initial_sd=1e-6)
    x = torch.randn(5, 3)
    expected = network(x).log_softmax(-1).detach()
    torch.testing.assert_close(posterior.draw(3, 0)(x).log_probs(), expected.expand(3, 5, 2), atol=1e-4, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:draws are computed one by one")
def test_attention_works_with_its_projection_left_plain() -> None:
    network = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(32, 3))
    posterior = MeanField(network, initial_sd=0.3).eval()
    x = torch.randn(5, 4, 8)
    for probs in (posterior.outputs(x, 6).softmax(-1), posterior.draw(6, 0)(x).log_probs().exp()):
        assert (probs.std(0) > 1e-4).all()


def test_what_cannot_be_gaussian_is_refused() -> None:
    with pytest.raises(StakesError, match="linear or convolutional"):
        MeanField(nn.Sequential(nn.ReLU()))
    with pytest.raises(StakesError, match="above 0"):
        MeanField(nn.Linear(2, 2), prior_sd=0)


def test_positions_of_an_example_share_their_weights() -> None:
    """Pooling over positions must not average the noise away: training and draws have the same pooled spread."""
    torch.manual_seed(0)
    image = MeanField(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.AvgPool2d(6), nn.Flatten()), initial_sd=0.2)
    tokens = MeanField(nn.Sequential(nn.Linear(4, 3), nn.AvgPool2d((30, 1)), nn.Flatten()), initial_sd=0.2)
    for posterior, x in ((image, torch.randn(1, 2, 6, 6)), (tokens, torch.randn(1, 1, 30, 4))):
        trained = posterior.outputs(x, 6000).detach()
        drawn = posterior.draw(6000, seed=0).outputs(x, 0, 6000)
        torch.testing.assert_close(trained.var(0), drawn.var(0), rtol=0.12, atol=0)


def test_examples_of_a_batch_have_noise_of_their_own() -> None:
    posterior = MeanField(nn.Conv2d(2, 3, 3), initial_sd=0.3)
    x = torch.randn(1, 2, 6, 6).expand(8, 2, 6, 6)
    assert len(posterior.outputs(x)[0].detach().flatten(1).unique(dim=0)) == 8


def test_tied_weights_are_refused() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    for network in (nn.Sequential(first, nn.Tanh(), second), nn.Sequential(first, nn.Tanh(), first)):
        with pytest.raises(StakesError, match=r"'0.weight'.*untie them"):
            MeanField(network)


def test_a_layer_that_is_called_twice_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    with pytest.raises(StakesError, match=r"called once.*'layer'"):
        MeanField(Twice()).draw(3, 0)(torch.randn(2, 3)).mean_probs()
