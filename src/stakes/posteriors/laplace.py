"""Laplace: q is a Gaussian around the weights that training found (MacKay 1992; Daxberger et al. 2021).

    q(w) = N(w_map, H^-1),    H = sum_n J_n' L_n J_n + I / prior_sd^2,

with J_n the Jacobian of the outputs for an example, and L_n the Hessian of its -log p(label) in the outputs, which is
diag(p) - p p' for classes. For the last layer H is the exact Hessian; for all weights, its Gauss-Newton approximation.

This is not a wrapper of laplace-torch 0.3, which supports three likelihoods by name and requires torchvision; the tests
compare against it.
"""

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stakes import inputs
from stakes.errors import StakesError, listing
from stakes.inputs import Inputs
from stakes.likelihoods import Likelihood
from stakes.posteriors._curvature import (
    Diagonal,
    Full,
    Gaussian,
    Kron,
    Structure,
    best_prior_precision,
    jacobians,
    label_counts,
    output_hessians,
    rows_of,
)
from stakes.posteriors._last_layer import (
    LastLayerDraws,
    accept_randomness,
    body_of,
    features_of,
    find_last_layer,
    layer_weights,
    outputs_of,
    require_last,
    warn_of_randomness,
)
from stakes.posteriors._sampling.balance import PAIR
from stakes.posteriors._sampling.layers import dropout_layers, without_dropout
from stakes.posteriors._sampling.over_draws import DrawTensors
from stakes.posteriors._sampling.probe import Probe, probe
from stakes.posteriors._sampling.stacking import StackedLayers
from stakes.posteriors.base import (
    FrozenDraws,
    Posterior,
    evaluating,
    families,
    require_samples,
    squared_norm,
    weight_like,
)

STRUCTURES: dict[str, type[Structure]] = {"full": Full, "kron": Kron, "diag": Diagonal}
MOST_WEIGHTS = 2**13  # with a full covariance: half a gigabyte
BLOCK_NUMBERS = 2**23  # of Jacobians or Hessians at a time


@families.register("laplace")
class Laplace(Posterior):
    """A Gaussian over weights of a trained network, fitted after training, in one pass over the training examples.

    >>> network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))  # trained by you
    >>> posterior = Laplace(network)
    >>> posterior.finish([(torch.randn(20, 3), torch.randint(2, (20,)))])  # or a DataLoader
    >>> posterior.draw(100, seed=0)(torch.randn(4, 3)).mean_probs().shape
    torch.Size([4, 2])

    ``weights`` selects what is random: the ``"last"`` layer (linear or a 1 x 1 convolution) or ``"all"``. The last
    layer is the one registered last, unless ``layer`` names another. ``structure`` is that of the covariance:
    ``"full"``, ``"diag"``, or ``"kron"`` for a large last layer. ``prior_sd`` applies to every weight; ``"evidence"``
    picks the value with the highest marginal likelihood from a grid in steps of 6 % (training then uses 1).
    ``fitted_prior_sd`` is the value used, 0 before the fit.

    `fit` trains the network to its mode and ends with `finish`. In training mode there is one draw: the network.
    """

    fitted_prior_sd: Tensor

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood | None = None,
        *,
        weights: Literal["last", "all"] = "last",
        structure: Literal["full", "kron", "diag"] = "full",
        prior_sd: float | Literal["evidence"] = 1.0,
        layer: str | None = None,
    ) -> None:
        super().__init__(likelihood)
        _check_settings(weights, structure, prior_sd, layer)
        self.network, self.weights, self.structure, self.prior_sd = network, weights, structure, prior_sd
        self.layer = find_last_layer(network, layer) if weights == "last" else None
        mean = self._mean()  # (C, F), or (1, P)
        if structure == "full" and mean.numel() > MOST_WEIGHTS:
            remedy = "structure='kron'" if weights == "last" else "structure='diag', or weights='last'"
            raise StakesError(
                f"expected at most {MOST_WEIGHTS} weights for a full covariance, but got {mean.numel()}: use {remedy}"
            )
        shapes = STRUCTURES[structure].shapes(*mean.shape)
        self._factors = tuple(shapes)
        for name, shape in shapes.items():
            self.register_buffer(name, mean.new_zeros(shape))
        self.register_buffer("fitted_prior_sd", mean.new_zeros(()))
        self.training = False  # it is made of a trained network; the network's own mode stays
        names = sorted({type(part).__name__ for part in dropout_layers(network)})
        if names:
            warn_of_randomness(names)

    def outputs(self, x: Inputs, samples: int = 1) -> Tensor:
        """Those of the network, whatever ``samples`` is: training finds the mode."""
        require_samples(samples)
        return inputs.call(self.network, x).unsqueeze(0)

    def kl(self) -> Tensor:
        """-log prior of all weights, up to a constant."""
        prior_sd = 1.0 if isinstance(self.prior_sd, str) else self.prior_sd
        return squared_norm(list(self.network.parameters())) / (2 * prior_sd**2)

    @torch.no_grad()
    def finish(self, batches: Iterable[Any]) -> None:
        """Fit the Gaussian to batches of the training examples, as a `DataLoader` makes them: ``(x, labels)``,
        ``(x, labels, weights)``, or dicts with ``labels``.
        """
        like, mean = weight_like(self.network), self._mean().double().cpu()
        total = STRUCTURES[self.structure](*mean.shape)
        network = without_dropout(self.network) if self.layer is None else body_of(self.network, self.layer)
        empty, learns = True, False
        with evaluating(self.likelihood):
            for batch in batches:
                x, labels, weights = inputs.labelled(batch)
                x = inputs.cast(x, like.device, like.dtype)
                if empty and self.layer is not None:
                    require_last(self.network, self.layer, x)
                empty = False
                weights = None if weights is None else weights.to(like.device)
                self._add(total, network, x, labels.to(like.device), weights)
                learns = learns or self.likelihood.learns_from(labels, weights)
        if empty:
            raise StakesError("expected batches of training examples, but there are none")
        if not learns:
            raise StakesError("expected training labels that count, but all are ignored, or have the weight 0")
        precision = best_prior_precision(total, mean) if isinstance(self.prior_sd, str) else self.prior_sd**-2
        for name, factor in total.factors(precision).items():
            getattr(self, name).copy_(factor)
        self.fitted_prior_sd.fill_(precision**-0.5)

    def draw(self, samples: int, seed: int) -> FrozenDraws:
        require_samples(samples)
        if self.training:
            return self._draws(1, seed, {})
        if self.fitted_prior_sd == 0:
            raise StakesError(
                "expected a fitted Laplace posterior, but it has not seen the training examples: call "
                "posterior.finish(batches) first, with a DataLoader of (x, labels), say"
            )
        return self._draws(samples, seed, {name: getattr(self, name).clone() for name in self._factors})

    def check(self, x: Inputs) -> None:
        draws = self._draws(1, 0, {})
        draws.footprint(x)
        if self.layer is not None:
            require_last(self.network, self.layer, inputs.cast(inputs.rows(x, slice(2)), draws.device, draws.dtype))

    def settings(self) -> dict[str, Any]:
        layer = {} if self.layer is None else {"layer": self.layer}
        return {"weights": self.weights, "structure": self.structure, "prior_sd": self.prior_sd, **layer}

    def _mean(self) -> Tensor:
        """The weights that are random: ``(C, F)`` of the last layer, or ``(1, P)``."""
        if self.layer is not None:
            return layer_weights(self.network, self.layer).detach()
        return torch.cat([weight.detach().flatten() for weight in self.network.parameters()]).unsqueeze(0)

    def _draws(self, samples: int, seed: int, factors: dict[str, Tensor]) -> FrozenDraws:
        gaussian = Gaussian(self._mean().clone(), factors, STRUCTURES[self.structure])
        if self.layer is None:
            return LaplaceDraws(self.network, gaussian, self.likelihood, samples, seed)
        return LastLayerDraws(self.network, self.layer, gaussian, self.likelihood, samples, seed)

    def _add(self, total: Structure, network: nn.Module, x: Inputs, labels: Tensor, weights: Tensor | None) -> None:
        """Add the curvature of a batch, in blocks that fit into memory."""
        mean = self._mean()
        if self.layer is None:
            outputs, width = inputs.call(network, x), mean.numel()  # (B, C, ...)
        else:
            features = features_of(network, x, mean.shape[1])  # (B, F, ...)
            outputs, width = outputs_of(mean.unsqueeze(0), features)[0], max(mean.shape)
        if outputs.ndim < 2:
            raise StakesError(
                f"expected network outputs of shape (B, C, ...), but got {tuple(outputs.shape)}: return (B, 1) for a "
                "single logit, without squeeze"
            )
        size = max(1, BLOCK_NUMBERS // (outputs[0].numel() * width))
        for first in range(0, len(outputs), size):
            block = slice(first, first + size)
            weighted = outputs[block], labels[block], None if weights is None else weights[block]
            hessians = output_hessians(self.likelihood, *weighted)
            if self.layer is None:
                total.add(jacobians(network, inputs.rows(x, block)), hessians)
            else:
                counts = label_counts(self.likelihood, *weighted)
                total.add_linear(rows_of(features[block], axes=1), hessians, counts)


class LaplaceDraws(FrozenDraws):
    """Each draw is one network, all of whose weights are a sample of q."""

    def __init__(self, network: nn.Module, gaussian: Gaussian, likelihood: Likelihood, samples: int, seed: int) -> None:
        super().__init__(without_dropout(network), likelihood, samples, seed, PAIR)
        self._gaussian = gaussian
        self._weights = DrawTensors(self._sample, samples)
        self._stacked = StackedLayers.of(self._network)

    @torch.no_grad()
    def outputs(self, x: Inputs, first: int, last: int) -> Tensor:
        self._plan(x)
        draws = self._weights(first, last)
        if self._stacked is not None and self._stacked.accepts(x):
            return self._stacked(x, draws)
        with self._lock:
            return self._over_draws(lambda weights: inputs.call(self._network, x, weights), draws)

    def _move(self) -> None:
        self._gaussian = self._gaussian.to(self.device, self.dtype)
        self._weights = DrawTensors(self._sample, self.samples)

    def _probe(self, x: Inputs, check: bool) -> Probe:
        return accept_randomness(probe(self._network, x, all_random=True, check=check))

    def _sample(self, first: int, last: int) -> dict[str, Tensor]:
        weights = dict(self._network.named_parameters())
        sizes = [weight.numel() for weight in weights.values()]
        parts = torch.split(self._gaussian.samples(self._seed, first, last).flatten(1), sizes, dim=1)
        return {name: part.reshape(-1, *weights[name].shape) for name, part in zip(weights, parts, strict=True)}


def _check_settings(weights: object, structure: object, prior_sd: object, layer: object) -> None:
    if weights not in ("last", "all") or structure not in STRUCTURES:
        raise StakesError(
            f"expected weights of 'last', 'all' and a structure of {listing(STRUCTURES)}, but got {weights!r} and "
            f"{structure!r}"
        )
    if weights == "all" and (structure == "kron" or layer is not None):
        raise StakesError("expected weights='last' with structure='kron' or layer=, but got weights='all'")
    if prior_sd != "evidence" and not (isinstance(prior_sd, int | float) and 0 < prior_sd < math.inf):
        raise StakesError(f"expected a prior_sd above 0, or 'evidence', but got {prior_sd!r}")
