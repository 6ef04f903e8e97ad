"""The last layer of a network, linear or a 1 x 1 convolution, apart from the body before it."""

import warnings
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from stakes import inputs
from stakes.errors import StakesError, StakesWarning, listing
from stakes.inputs import Inputs
from stakes.likelihoods import Likelihood
from stakes.outcomes import Footprint, Outcomes
from stakes.posteriors._curvature import Gaussian
from stakes.posteriors._sampling.balance import PAIR
from stakes.posteriors._sampling.fusion import FusedNetwork, is_exactly
from stakes.posteriors._sampling.layers import without_dropout
from stakes.posteriors._sampling.over_draws import DrawTensors
from stakes.posteriors._sampling.probe import Probe, probe
from stakes.posteriors.base import FrozenDraws


def find_last_layer(network: nn.Module, name: str | None) -> str:
    """The name of the layer that is registered last, or ``name``; an error if its outputs are not W h + b."""
    modules = dict(network.named_modules())
    names = [key for key, part in modules.items() if isinstance(part, nn.Linear | _ConvNd)]
    if (name is None and not names) or (name is not None and name not in modules):
        missing = "a linear layer or a 1 x 1 convolution" if name is None else f"a layer called {name!r}"
        raise StakesError(
            f"expected {missing} in {type(network).__name__}, but there is none: give the name of its last layer with "
            "layer=, or use weights='all'"
        )
    name = names[-1] if name is None else name
    layer = modules[name]
    if not (is_exactly(layer, nn.Linear) or _is_pointwise(layer)):
        raise StakesError(
            f"expected PyTorch's linear layer or 1 x 1 convolution, without hooks, as the last layer, but {name!r} is "
            f"{layer}: name another one with layer=, or use weights='all'"
        )
    weight = layer.get_parameter("weight")
    uses = [key for key, other in network.named_parameters(remove_duplicate=False) if other is weight]
    if len(uses) > 1:
        raise StakesError(
            f"expected a last layer with weights of its own, but {listing(uses)} are one tensor: untie them, or use "
            "weights='all'"
        )
    return name


def _is_pointwise(layer: nn.Module) -> bool:
    return is_exactly(layer, nn.Conv1d, nn.Conv2d, nn.Conv3d) and (
        {*layer.kernel_size, *layer.stride} == {1} and layer.padding in {(0,), (0, 0), (0, 0, 0)} and layer.groups == 1
    )


def layer_weights(network: nn.Module, name: str) -> Tensor:
    """``(C, F)``: the weights of the layer, its bias as the last column."""
    layer = network.get_submodule(name)
    weight, bias = layer.get_parameter("weight").flatten(1), layer.bias
    return torch.cat([weight, bias.unsqueeze(1)], 1) if isinstance(bias, Tensor) else weight


def body_of(network: nn.Module, name: str) -> nn.Module:
    """A copy, without its dropout, whose last layer passes on what enters it."""
    body = without_dropout(network)
    body.get_submodule(name).__dict__["forward"] = _pass_on  # the layer stays, for networks that look at it
    return body


def _pass_on(x: Tensor) -> Tensor:
    return x


def features_of(body: nn.Module, x: Inputs, width: int) -> Tensor:
    """``(B, F, ...)``: what enters the last layer, ones included if the layer has a bias."""
    features = inputs.call(body, x)
    return features if features.shape[1] == width else torch.cat([features, torch.ones_like(features[:, :1])], 1)


def outputs_of(weights: Tensor, features: Tensor) -> Tensor:
    """``(S, C, F), (B, F, ...) -> (S, B, C, ...)``: all draws in one product."""
    (samples, classes, _), rows = weights.shape, features.shape[0]
    if features.ndim == 2:
        out = weights.flatten(0, 1) @ features.T  # (S * C, B): classes before examples, as the softmax likes them
        return out.view(samples, classes, rows).transpose(1, 2)
    out = weights.flatten(0, 1) @ features.flatten(2)  # (B, S * C, positions)
    return out.view(rows, samples, classes, *features.shape[2:]).transpose(0, 1)


@torch.no_grad()
def require_last(network: nn.Module, name: str, x: Inputs) -> None:
    """Refuse a network that does more with the outputs of its last layer than to return them."""
    plain, weights = without_dropout(network), layer_weights(network, name)
    expected, reason = inputs.call(plain, x), ""
    expected = expected.unsqueeze(1) if expected.ndim == 1 else expected  # a logit, as `Bernoulli` takes it, too
    try:
        outputs = outputs_of(weights.unsqueeze(0), features_of(body_of(network, name), x, weights.shape[1]))[0]
        same = outputs.shape == expected.shape and torch.allclose(outputs, expected, rtol=1e-3, atol=1e-4)
    except Exception as error:  # the network itself ran: what fails is what follows the layer
        same, reason = False, f" ({(str(error).splitlines() or [''])[0][:120]})"
    if not same:
        raise StakesError(
            f"expected the network to return the outputs (B, C, ...) of its last layer as they are, but those of "
            f"{name!r} are not what it returns{reason}: name the last layer with layer=, or use weights='all'"
        )


class LastLayerDraws(FrozenDraws):
    """Each draw is a sample of the last layer. What enters it is computed once; all draws are one matrix product."""

    _network: FusedNetwork

    def __init__(
        self, network: nn.Module, layer: str, gaussian: Gaussian, likelihood: Likelihood, samples: int, seed: int
    ) -> None:
        super().__init__(FusedNetwork(body_of(network, layer)), likelihood, samples, seed, PAIR)
        self._gaussian = gaussian
        self._weights = DrawTensors(self._sample, samples)

    @torch.no_grad()
    def outputs(self, x: Inputs, first: int, last: int) -> Tensor:
        return outputs_of(self._weights(first, last)["weights"], self._features(x))

    @torch.no_grad()
    def draw_blocks(self, x: Inputs, size: int, first: int = 0, last: int | None = None) -> Iterator[Outcomes]:
        features = self._features(inputs.cast(x, self.device, self.dtype))
        last = self.samples if last is None else last
        for start in range(first, last, size):
            weights = self._weights(start, min(start + size, last))["weights"]
            yield self.likelihood.outcomes(outputs_of(weights, features))

    def _features(self, x: Inputs) -> Tensor:
        self._plan(x)
        width = self._gaussian.mean.shape[1]
        return self._network.with_layout_fallback(lambda: features_of(self._network, x, width))

    def _move(self) -> None:
        self._gaussian = self._gaussian.to(self.device, self.dtype)
        self._weights = DrawTensors(self._sample, self.samples)

    def _probe(self, x: Inputs, check: bool) -> Probe:
        probed = self._network.with_layout_fallback(lambda: probe(self._network, x, check=check))
        row = inputs.call(self._network, inputs.rows(x, slice(0, 1)))  # (1, F, ...)
        outputs = row[:, 0].nbytes * len(self._gaussian.mean)
        return accept_randomness(probed._replace(footprint=Footprint(probed.footprint.shared, outputs)))

    def _sample(self, first: int, last: int) -> dict[str, Tensor]:
        return {"weights": self._gaussian.samples(self._seed, first, last)}


def accept_randomness(probed: Probe) -> Probe:
    """Of training, with a warning; what is random in eval mode too cannot be frozen."""
    probed._replace(random_in_training=[]).refuse_randomness()
    if probed.random_in_training:
        warn_of_randomness(probed.random_in_training)
    return probed


def warn_of_randomness(names: Iterable[str]) -> None:
    warnings.warn(
        f"the network is random in training ({listing(names)}); a draw of Laplace has other weights, but not that. Use "
        "MCDropout for draws with dropout, or a network without it",
        StakesWarning,
        stacklevel=3,
    )
