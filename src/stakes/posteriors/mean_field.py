"""Mean field: q is an independent Gaussian over every weight (Blundell et al. 2015).

    KL(q || p) = sum_w  log(prior_sd / sd) + (sd^2 + mean^2) / (2 prior_sd^2) - 1/2      in closed form.

Training gives every example fresh noise. Where a layer is applied once to an example, by the local
reparameterisation (Kingma et al. 2015): noise on the output, with the variance that the weights' noise would give
it. Where its weights are shared by many positions (convolutions, tokens), by Flipout (Wen et al. 2018): one sample of
the weights, its signs flipped at random for each example, so that all positions of an example see the same weights.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import softplus
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrize

from stakes import inputs
from stakes.errors import StakesError, listing
from stakes.inputs import Inputs
from stakes.likelihoods import Likelihood
from stakes.posteriors._sampling.balance import PAIR, antithetic_normal, group_coverage, group_size
from stakes.posteriors._sampling.layers import dropout_layers, dropout_on, dropout_rate, frozen, swap_layers
from stakes.posteriors._sampling.masks import ActiveMasks, active
from stakes.posteriors._sampling.over_draws import DrawTensors, OverDraws
from stakes.posteriors._sampling.probe import Probe, probe
from stakes.posteriors._sampling.stacking import StackedLayers
from stakes.posteriors._sampling.stand_in import StandIn
from stakes.posteriors.base import FrozenDraws, Posterior, families, require_samples
from stakes.posteriors.fresh import FreshDraws

_Run = Callable[[dict[str, Tensor], Tensor], Tensor]  # a layer with other weights
_PLAIN = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
)  # fmt: skip


@families.register("mean_field")
class MeanField(Posterior):
    """The linear and convolutional layers of a copy of ``network`` become Gaussian; the rest is learnt as it is."""

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood | None = None,
        *,
        prior_sd: float = 1.0,
        initial_sd: float = 0.02,
    ) -> None:
        super().__init__(likelihood)
        if not (prior_sd > 0 and initial_sd > 0):
            raise StakesError(f"expected standard deviations above 0, but got {prior_sd} and {initial_sd}")
        self.prior_sd, self.initial_sd = prior_sd, initial_sd
        _refuse_tied_weights(network)
        self.network = swap_layers(network, lambda name, layer: _gaussian(layer, initial_sd))
        if not any(isinstance(layer, GaussianLayer) for layer in self.network.modules()):
            raise StakesError(
                f"expected a network with linear or convolutional layers, but {type(network).__name__} has none"
            )
        self._over_draws = OverDraws(network)
        self._checked: set[Hashable] = set()

    def outputs(self, x: Inputs, samples: int = 1) -> Tensor:
        require_samples(samples)
        with dropout_on(self.network):
            return self._over_draws.repeat(self.network, x, samples)

    def fresh_draws(self, x: Inputs, samples: int) -> FreshDraws:
        """In pairs of draws with opposite noise, as in `draw`."""
        require_samples(samples)

        def outputs(x: Inputs, first: int, last: int) -> Tensor:
            pairs = -(-(last - first) // PAIR)
            with _mirrored_noise(self.network):
                both = self.outputs(inputs.cat([x, x]), pairs)  # (pairs, 2 B, C, ...)
            return torch.cat(both.chunk(PAIR, 1))[: last - first]

        return FreshDraws(outputs)

    def kl(self) -> Tensor:
        layers = [layer for layer in self.network.modules() if isinstance(layer, GaussianLayer)]
        return torch.stack([layer.kl(self.prior_sd) for layer in layers]).sum()

    def draw(self, samples: int, seed: int) -> "MeanFieldDraws":
        require_samples(samples)
        draws = MeanFieldDraws(self.network, self.likelihood, samples, seed)
        draws.checked = self._checked
        return draws

    def check(self, x: Inputs) -> None:
        self.draw(1, seed=0).footprint(x)

    def settings(self) -> dict[str, Any]:
        return {"prior_sd": self.prior_sd, "initial_sd": self.initial_sd}


class MeanFieldDraws(FrozenDraws):
    """Each draw is one network whose weights are a sample of q, thinned by masks where it has dropout layers."""

    def __init__(self, network: nn.Module, likelihood: Likelihood, samples: int, seed: int) -> None:
        plain = swap_layers(network, lambda _, layer: layer.give_hooks() if isinstance(layer, GaussianLayer) else None)
        rates = [dropout_rate(layer) for layer in dropout_layers(plain)]
        super().__init__(frozen(plain), likelihood, samples, seed, group_size(rates) if rates else PAIR)
        self.group_coverage = group_coverage(rates)
        self._gaussians = {
            f"{name}.{key}".lstrip("."): moments
            for name, layer in network.named_modules()
            if isinstance(layer, GaussianLayer)
            for key, moments in layer.frozen_moments().items()
        }
        self._weights = DrawTensors(self._sample, samples)
        self._stacked = StackedLayers.of(self._network)

    @torch.no_grad()
    def outputs(self, x: Inputs, first: int, last: int) -> Tensor:
        plan, rows = self._plan(x), inputs.count(x)
        tensors = {**self._weights(first, last), **plan.masks(first, last)}
        if self._stacked is not None and self._stacked.accepts(x):
            return self._stacked(x, tensors)

        def one(draw: Mapping[str, Tensor]) -> Tensor:
            with active(ActiveMasks(draw, plan.layouts, rows)):
                return inputs.call(self._network, x, {key: draw[key] for key in self._gaussians})

        with self._lock:
            return self._over_draws(one, tensors)

    def _move(self) -> None:
        self._gaussians = {
            key: (mean.to(self.device, self.dtype), sd.to(self.device, self.dtype))
            for key, (mean, sd) in self._gaussians.items()
        }
        self._weights = DrawTensors(self._sample, self.samples)

    def _probe(self, x: Inputs, check: bool) -> Probe:
        probed = probe(self._network, x, all_random=True, check=check)
        probed.refuse_randomness()
        layers = {key.rpartition(".")[0] for key in self._gaussians}
        silent = [name for name in sorted(layers) if not probed.module_calls[name]]
        if silent:
            raise StakesError(
                f"expected the network to call its layers, but it does not call {listing(silent)}: if it reads their "
                "weights instead, they have noise in draws and none in training. Call them, remove layers that are "
                "not used, or use MCDropout or Ensemble"
            )
        repeated = [name for name in sorted(layers) if probed.module_calls[name] > 1]
        if repeated:
            raise StakesError(
                f"expected layers that are called once for an input, but {listing(repeated)} are called more often, "
                "each time with other noise in training and with the same in a draw: use MCDropout or Ensemble"
            )
        others = sorted(layers & set(probed.not_batch_first))
        if others:
            raise StakesError(
                f"expected the batch on axis 0 of what enters the layers {listing(others)}: in training each entry of "
                "that axis has noise of its own, and tokens or frames of one input have to share theirs. Give "
                "Transformers batch_first=True, keep frames on an axis of their own, or use MCDropout or Ensemble"
            )
        return probed

    def _sample(self, first: int, last: int) -> dict[str, Tensor]:
        weights = {}
        for key, (mean, sd) in self._gaussians.items():
            draws = [antithetic_normal(mean.shape, draw, self._seed, "weight", key) for draw in range(first, last)]
            weights[key] = mean + sd * torch.stack(draws).to(mean)
        return weights


class GaussianLayer(StandIn):
    """A linear or convolutional layer with Gaussian weights: ``layer`` holds the means, ``rho`` the sds."""

    def __init__(self, layer: nn.Linear | _ConvNd, initial_sd: float) -> None:
        super().__init__()
        self.layer, self.mirrored = layer, False
        start = float(torch.tensor(initial_sd, dtype=torch.float64).expm1().log())  # softplus(start) = sd
        self.rho = nn.ParameterDict({key: torch.full_like(mean, start) for key, mean in layer.named_parameters()})

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        def run(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            out: Tensor = functional_call(self.layer, weights, (x, *args), kwargs)
            return out

        mean: Tensor = self.layer(x, *args, **kwargs)
        return mean + (self._local_noise(run, x) if x.ndim == 2 else self._flipped_noise(run, x, mean))

    def _local_noise(self, run: _Run, x: Tensor) -> Tensor:
        variance = run({key: softplus(rho).square() for key, rho in self.rho.items()}, x.square())
        return variance.clamp_min(1e-16).sqrt() * self._noise(torch.randn, variance.shape, variance)

    def _flipped_noise(self, run: _Run, x: Tensor, mean: Tensor) -> Tensor:
        sd = {key: softplus(rho) for key, rho in self.rho.items()}
        sample = {"weight": sd["weight"] * torch.randn_like(sd["weight"])}
        if "bias" in sd:
            sample["bias"] = torch.zeros_like(sd["bias"])
        axis = -1 if isinstance(self.layer, nn.Linear) else 1
        noise = run(sample, x * self._signs(x, axis)) * self._signs(mean, axis, True)
        if "bias" in sd:
            fresh = self._noise(torch.randn, _per_example(mean, axis), mean)  # (B, 1, ..., features, ..., 1)
            noise = noise + fresh * sd["bias"].reshape([-1 if n == axis % mean.ndim else 1 for n in range(mean.ndim)])
        return noise

    def _noise(self, draw: Callable[..., Tensor], shape: Sequence[int], like: Tensor, opposite: bool = True) -> Tensor:
        """Random numbers for each example; the second half of a mirrored batch has the opposite (or the same) ones."""
        if not self.mirrored:
            return draw(shape, dtype=like.dtype, device=like.device)
        half = draw([shape[0] // PAIR, *shape[1:]], dtype=like.dtype, device=like.device)
        return torch.cat([half, -half if opposite else half])

    def _signs(self, like: Tensor, axis: int, opposite: bool = False) -> Tensor:
        return self._noise(_random_signs, _per_example(like, axis), like, opposite)

    def kl(self, prior_sd: float) -> Tensor:
        terms = []
        for key, mean in self.layer.named_parameters():
            sd = softplus(self.rho[key])
            ratio: Tensor = (sd.square() + mean.square()) / prior_sd**2
            terms.append((ratio - 1 - (sd / prior_sd).square().log()).sum() / 2)
        return torch.stack(terms).sum()

    def frozen_moments(self) -> dict[str, tuple[Tensor, Tensor]]:
        """``{parameter: (mean, sd)}``, copied."""
        moments = {}
        for key, mean in self.layer.named_parameters():
            moments[key] = mean.detach().clone(), softplus(self.rho[key].detach())
        return moments


def _refuse_tied_weights(network: nn.Module) -> None:
    """In training each use of a weight has noise of its own, and a draw has one sample for all of them."""
    uses = Counter(parameter for _, parameter in network.named_parameters(remove_duplicate=False))
    tied = [name for name, parameter in network.named_parameters() if uses[parameter] > 1]
    if tied:
        raise StakesError(
            f"expected a network whose layers each have weights of their own, but {listing(tied)} are used in several "
            "places, and MeanField would train them with noise that its draws do not have: untie them, or use "
            "MCDropout or Ensemble"
        )


def _random_signs(shape: Sequence[int], **kind: Any) -> Tensor:
    return torch.rand(shape, **kind).sub_(0.5).sign_()


def _per_example(like: Tensor, axis: int) -> list[int]:
    """The shape of numbers for each example and feature, shared by all positions."""
    shape = [like.shape[0], *[1] * (like.ndim - 1)]
    shape[axis] = like.shape[axis]
    return shape


@contextmanager
def _mirrored_noise(network: nn.Module) -> Iterator[None]:
    """Give the second half of every batch the opposite noise of the first half."""
    layers = [layer for layer in network.modules() if isinstance(layer, GaussianLayer)]
    for layer in layers:
        layer.mirrored = True
    try:
        yield
    finally:
        for layer in layers:
            layer.mirrored = False


def _gaussian(layer: nn.Module, initial_sd: float) -> GaussianLayer | None:
    # Attention reads the weight of its output projection itself, so that layer has to stay a plain one.
    if not isinstance(layer, nn.Linear | _ConvNd) or isinstance(layer, NonDynamicallyQuantizableLinear):
        return None
    plain = type(layer).forward in {kind.forward for kind in _PLAIN} and "forward" not in vars(layer)
    if not plain or parametrize.is_parametrized(layer) or layer._forward_hooks or layer._forward_pre_hooks:
        raise StakesError(
            f"cannot make {type(layer).__name__} Gaussian: its weight is parametrised (by weight norm, say), or its "
            "forward is not that of PyTorch's layer, so that noise on its output is not noise on its weights: use a "
            "plain layer, or MCDropout or Ensemble"
        )
    return GaussianLayer(layer, initial_sd)
