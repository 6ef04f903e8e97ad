"""Monte-Carlo dropout: q is a Bernoulli mask over units (Gal and Ghahramani 2016).

    KL(q || p) ~ sum_l  lengthscale^2 (1 - p) / 2  ||W_l||^2      up to a constant,

with p the mean rate of the network's dropout layers. `fit` divides it by the number of examples: the weight
decay of a standard dropout network.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from stakes import seeds
from stakes.errors import StakesError, StakesWarning
from stakes.likelihoods import Likelihood
from stakes.outcomes import Footprint
from stakes.posteriors._sampling.fusion import Ready
from stakes.posteriors._sampling.masks import Board, mask_shape, thinned
from stakes.posteriors._sampling.probe import trial
from stakes.posteriors.base import (
    Draws,
    Posterior,
    Stacks,
    families,
    over_draws,
    repeated,
    require_samples,
    squared_norm,
    swap_layers,
    weight_like,
    weight_matrices,
)

KNOWN_SHAPES = 8  # of inputs, whose masks are kept
_HIDDEN_DROPOUT = (nn.RNNBase, nn.MultiheadAttention)


@families.register("dropout")
class MCDropout(Posterior):
    """Dropout layers stay random: in training a fresh mask for every example, in a draw one for all.

    ``network`` is trained in place. ``lengthscale`` is the prior's, the paper's is 0.01.
    """

    def __init__(self, network: nn.Module, likelihood: Likelihood | None = None, *, lengthscale: float = 0.1) -> None:
        super().__init__(likelihood)
        layers = _dropout_layers(network)
        if not layers:
            raise StakesError(
                f"expected a network with dropout layers, but {type(network).__name__} has none that can be "
                "seen: put nn.Dropout(p) modules with p > 0 into it (calls of F.dropout cannot be "
                "controlled), or use Ensemble or MeanField"
            )
        _warn_of_hidden_dropout(network)
        self.network = network
        self.lengthscale = lengthscale
        self._keep = 1 - sum(layer.p for layer in layers) / len(layers)

    def outputs(self, x: Tensor, samples: int = 1) -> Tensor:
        require_samples(samples)
        with _active(_dropout_layers(self.network)):
            return repeated(lambda: self.network(x), samples)

    def shared_outputs(self, x: Tensor, samples: int) -> Tensor:
        """A draw is one thinned network, as in `draw`: a mask for all examples, so that few numbers are random."""
        require_samples(samples)
        with _one_mask_each(_dropout_layers(self.network)):
            return repeated(lambda: self.network(x), samples)

    def kl(self) -> Tensor:
        return self.lengthscale**2 * self._keep / 2 * squared_norm(weight_matrices(self.network))

    def draw(self, samples: int, seed: int) -> "DropoutDraws":
        require_samples(samples)
        return DropoutDraws(self.network, self.likelihood, samples, seed)

    def settings(self) -> dict[str, Any]:
        return {"lengthscale": self.lengthscale}


class DropoutDraws(Draws):
    """Each draw is one thinned network: a mask for each place where dropout is applied, shared by all inputs."""

    def __init__(self, network: nn.Module, likelihood: Likelihood, samples: int, seed: int) -> None:
        self.samples = samples
        weight = weight_like(network)
        self.device, self.dtype = weight.device, weight.dtype
        self._seed = seed
        self._board = Board()
        self.likelihood = copy.deepcopy(likelihood).eval()
        self._network = Ready(swap_layers(network, self._board.site).eval())
        self._known: dict[torch.Size, tuple[Stacks, Footprint]] = {}

    def outputs(self, x: Tensor, first: int, last: int) -> Tensor:
        masks, _ = self._masks(x[:1])

        def one(draw: Mapping[str, Tensor]) -> Tensor:
            self._board.start(draw)
            return self._network(x)

        with torch.no_grad():
            return self._network.asked(lambda: over_draws(one, masks(first, last)))

    def footprint(self, x: Tensor) -> Footprint:
        return self._masks(x[:1])[1]

    def _masks(self, x: Tensor) -> tuple[Stacks, Footprint]:
        """The masks for inputs of this shape, and what one input takes; found by letting one input through."""
        if x.shape not in self._known:
            board = self._board
            start, is_random = lambda: board.start(None), lambda: bool(board.seen)
            shown = self._network.asked(lambda: trial(self._network, x.to(self.device), board, start, is_random))
            sites = dict(self._board.seen)
            if not sites:
                raise StakesError(
                    "expected the network to call its dropout layers, but it did not for this input: its draws "
                    "would all be equal"
                )
            masks = Stacks(lambda s: {key: self._mask(key, *sites[key], s) for key in sites}, self.samples)
            while len(self._known) >= KNOWN_SHAPES:
                self._known.pop(next(iter(self._known)))
            self._known[x.shape] = masks, shown.footprint
            if shown.draws_numbers and not self._gives_one_answer(x.to(self.device)):
                del self._known[x.shape]
                raise StakesError(
                    "expected nn.Dropout layers to be the only randomness of the network, but one draw gives two "
                    "answers for one input: put nn.Dropout modules in place of calls of F.dropout and the like"
                )
        return self._known[x.shape]

    def _gives_one_answer(self, x: Tensor) -> bool:
        """A draw has to give the same answer twice: calls of F.dropout, say, cannot be frozen."""
        # Clones, so that nothing is remembered of the first.
        first, second = (self.outputs(x.clone(), 0, min(self.samples, 8)) for _ in range(2))
        return torch.allclose(first, second, rtol=1e-4, atol=1e-5)

    def _mask(self, key: str, layer: _DropoutNd, shape: torch.Size, draw: int) -> Tensor:
        generator = seeds.generator(self._seed, "mask", key, draw)
        # Four numbers of 16 bits from each random word: a mask of an image has millions of them.
        words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
        numbers = words.view(torch.int16)[: shape.numel()].reshape(shape)
        dropped = round(layer.p * 2**16)
        stays = numbers >= dropped - 2**15 if dropped < 2**16 else torch.zeros_like(numbers, dtype=torch.bool)
        return stays.view(torch.uint8).to(self.device)  # which becomes floats three times as fast as bool does


def _dropout_layers(network: nn.Module) -> list[_DropoutNd]:
    return [layer for layer in network.modules() if isinstance(layer, _DropoutNd) and layer.p > 0]


def _warn_of_hidden_dropout(network: nn.Module) -> None:
    for name, layer in network.named_modules():
        if isinstance(layer, _HIDDEN_DROPOUT) and layer.dropout > 0:
            warnings.warn(
                f"layer {name!r} ({type(layer).__name__}) has dropout inside, which is random in training but "
                "cannot be frozen into draws: give it dropout=0 and put nn.Dropout beside it",
                StakesWarning,
                stacklevel=3,
            )


@contextmanager
def _active(layers: Sequence[_DropoutNd]) -> Iterator[None]:
    """Dropout layers random inside, whatever the mode of the rest; batch norm follows its own mode."""
    quiet = [layer for layer in layers if not layer.training]
    for layer in quiet:
        layer.training = True
    try:
        yield
    finally:
        for layer in quiet:
            layer.training = False


@contextmanager
def _one_mask_each(layers: Sequence[_DropoutNd]) -> Iterator[None]:
    """Inside, each call of a dropout layer draws one fresh mask for all examples."""

    def forward(layer: _DropoutNd, x: Tensor) -> Tensor:
        return thinned(layer, x, torch.rand(mask_shape(layer, x), device=x.device) >= layer.p)

    for layer in layers:
        layer.__dict__["forward"] = partial(forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]
