"""The contract of a posterior, and of what is drawn from it."""

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stakes.errors import StakesError
from stakes.likelihoods import Categorical, Likelihood

# Sampling works in blocks whose draws stay near the processor: of inputs, with all their draws,
CACHE_BYTES = 4 * 2**20
# or, where that would be fewer inputs than make up for what a draw costs by itself, of their draws;
ENOUGH_INPUTS = 512
# and, where one input is too large for that, in blocks of its draws that fit here.
MEMORY_BYTES = 64 * 2**20
# Masks or weights of all draws are kept between blocks up to this size, and made again beyond it.
KEPT_BYTES = 128 * 2**20

Head = Callable[[Tensor], Tensor]  # from a network's output (B, C, ...) to what is wanted of it


class Posterior(nn.Module, ABC):
    """A network, a likelihood, and an approximating family q over the network's weights.

    Used in two ways: `log_probs` with `kl` to train q, and `draw` to predict with it.
    """

    likelihood: Likelihood

    def __init__(self, likelihood: Likelihood | None) -> None:
        super().__init__()
        self.likelihood = Categorical() if likelihood is None else likelihood

    @abstractmethod
    def log_probs(self, x: Tensor, samples: int = 1) -> Tensor:
        """``(S, B, ..., C)`` log p(outcome), differentiable, with fresh randomness for every example."""

    @torch.no_grad()
    def mean_probs(self, x: Tensor, samples: int) -> Tensor:
        """``(B, ..., C)`` the mean of fresh draws in eval mode: what decisions during training are taken from.

        Unlike `log_probs`, a draw may be shared by all the examples, where that is cheaper.
        """
        with evaluating(self):
            return self.log_probs(x, samples).exp().mean(0)

    @abstractmethod
    def kl(self) -> Tensor:
        """KL(q || prior) in nats for the whole network; divide it by the number of examples."""

    @abstractmethod
    def draw(self, samples: int, seed: int) -> "Draws":
        """A frozen set of ``samples`` functions, unchanged by later training."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Its family and settings in JSON types."""


class Footprint(NamedTuple):
    """The bytes of the largest activation of one input: before the first random layer, and after it, for one draw."""

    shared: int
    own: int


class Draws(ABC):
    """Frozen functions from a posterior: the same draw of the same input is the same answer, always.

    >>> decisions = decide(draws(x), utility)  # doctest: +SKIP
    """

    samples: int
    device: torch.device
    likelihood: Likelihood

    @abstractmethod
    def outputs(self, x: Tensor, first: int, last: int, head: Head) -> Tensor:
        """``(last - first, B, ...)``: the draws from ``first`` up to ``last`` of ``head(network(x))``."""

    @abstractmethod
    def footprint(self, x: Tensor) -> Footprint:
        """What one input takes, by which blocks are cut."""

    def log_probs(self, x: Tensor, first: int, last: int) -> Tensor:
        """``(last - first, B, ..., C)``: the draws from ``first`` up to ``last`` of log p(outcome)."""
        return self.outputs(x, first, last, self.likelihood.outcome_log_probs)

    def probs(self, x: Tensor, first: int, last: int) -> Tensor:
        """``(last - first, B, ..., C)``: the same as probabilities."""
        return self.outputs(x, first, last, self.likelihood.outcome_probs)

    def __call__(self, x: Tensor, memory: int = MEMORY_BYTES) -> "Predictive":
        if x.ndim < 1 or len(x) == 0:
            raise StakesError(f"expected inputs with a batch axis and at least one row, but got {tuple(x.shape)}")
        return Predictive(self, x, memory)


@dataclass(frozen=True, eq=False)
class Predictive:
    """The draws of some inputs, not yet computed: it is asked for blocks, or for the mean."""

    draws: Draws
    x: Tensor
    memory: int = MEMORY_BYTES

    @property
    def samples(self) -> int:
        return self.draws.samples

    def blocks(self) -> Iterator[Tensor]:
        """``(S, b, ..., C)`` probabilities, for one block of inputs after the other."""
        return self._blocks(self.draws.probs)

    def log_probs(self) -> Tensor:
        """``(S, B, ..., C)`` all draws of all inputs."""
        return torch.cat(list(self._blocks(self.draws.log_probs)), dim=1)

    @torch.no_grad()
    def mean_probs(self) -> Tensor:
        """``(B, ..., C)`` the mean predictive, accumulated without keeping the draws."""
        rows, size = self._block_shape()
        totals = []
        for x in torch.split(self.x, rows):
            blocks = self._draw_blocks(x, size, self.draws.probs)
            total = _sum_of_draws(next(blocks))
            for block in blocks:
                total += _sum_of_draws(block)
            totals.append(total)
        return torch.cat(totals) / self.samples

    @torch.no_grad()
    def _blocks(self, ask: Callable[[Tensor, int, int], Tensor]) -> Iterator[Tensor]:
        rows, size = self._block_shape()
        for x in torch.split(self.x, rows):
            yield torch.cat(list(self._draw_blocks(x, size, ask)))

    def _draw_blocks(self, x: Tensor, size: int, ask: Callable[[Tensor, int, int], Tensor]) -> Iterator[Tensor]:
        x = x.to(self.draws.device)
        for first in range(0, self.samples, size):
            yield ask(x, first, min(first + size, self.samples))

    def _block_shape(self) -> tuple[int, int]:
        """How many inputs, and how many of their draws, are computed at once; a layer's input and output count."""
        shared, own = (2 * size for size in self.draws.footprint(self.x[:1]))
        cache = min(self.memory, CACHE_BYTES)
        # What is shared is computed once, and all draws of a block may be wanted at once: both have to fit into memory.
        most = self.memory // (shared + self.samples * own)
        rows = min(most, cache // (self.samples * own))
        if rows >= ENOUGH_INPUTS:
            return rows, self.samples
        rows = min(most, cache // own, ENOUGH_INPUTS, len(self.x))
        size = cache // (rows * own) if rows > 0 else self.memory // own
        parts = -(-self.samples // max(1, size))
        return max(1, rows), -(-self.samples // parts)


def _sum_of_draws(block: Tensor) -> Tensor:
    """``(S, ...) -> (...)``, as a product with ones in the order of memory: four times as fast as `sum` on a CPU, and
    where a draw takes a multiple of 2048 bytes, twenty times.
    """
    axes = [0, *sorted(range(1, block.ndim), key=block.stride, reverse=True)]
    ordered = block.permute(axes)
    total = block.new_ones(len(block)) @ ordered.flatten(1)
    return total.view(ordered.shape[1:]).permute([axes.index(axis) - 1 for axis in range(1, block.ndim)])


def over_draws(function: Callable[[Mapping[str, Tensor]], Tensor], stacked: Mapping[str, Tensor]) -> Tensor:
    """``function`` of every slice of ``stacked`` along its first axis, results stacked again.

    Under `torch.func.vmap` whatever does not depend on the draw is computed once, not S times. A
    network that vmap cannot run (in-place sums, control flow on values, recurrent layers) is run draw
    by draw: slower, and the same answer.
    """
    with slow_attention(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)  # slower, as said
        try:
            return torch.func.vmap(function, randomness="different")(dict(stacked))
        except RuntimeError:
            count = len(next(iter(stacked.values())))
            draws = [{key: value[s] for key, value in stacked.items()} for s in range(count)]
            return torch.stack([function(draw) for draw in draws])


def repeated(run: Callable[[], Tensor], samples: int) -> Tensor:
    """``run`` with fresh randomness ``samples`` times, stacked."""
    if samples == 1:
        with slow_attention():
            return run().unsqueeze(0)
    return over_draws(lambda _: run(), {"draw": torch.empty(samples)})


@contextmanager
def slow_attention() -> Iterator[None]:
    """Keep transformer layers from their fused path, which passes over their dropout layers in eval mode."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


class Stacks:
    """The random tensors of many draws, stacked: kept if they are small, made again if not."""

    def __init__(self, make: Callable[[int], dict[str, Tensor]], samples: int) -> None:
        self._make = make
        size = sum(tensor.nbytes for tensor in make(0).values())
        self._kept = self._stack(0, samples) if size * samples <= KEPT_BYTES else None

    def __call__(self, first: int, last: int) -> dict[str, Tensor]:
        """``{name: (last - first, ...)}``."""
        if self._kept is None:
            return self._stack(first, last)
        return {key: value[first:last] for key, value in self._kept.items()}

    def _stack(self, first: int, last: int) -> dict[str, Tensor]:
        draws = [self._make(s) for s in range(first, last)]
        return {key: torch.stack([draw[key] for draw in draws]) for key in draws[0]}


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in eval mode inside, and every part of it back in the mode it was in after."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def require_samples(samples: int) -> None:
    if samples < 1:
        raise StakesError(f"expected at least one sample, but got {samples}")


def weight_matrices(module: nn.Module) -> list[nn.Parameter]:
    """The weight matrices and kernels, without biases and norms."""
    return [parameter for parameter in module.parameters() if parameter.ndim >= 2]


def squared_norm(weights: Sequence[Tensor]) -> Tensor:
    """The sum of squares over all weights."""
    squares = [weight.square().sum() for weight in weights]
    return sum(squares[1:], squares[0]) if squares else torch.zeros(())


def swap_layers(network: nn.Module, swap: Callable[[str, nn.Module], nn.Module | None]) -> nn.Module:
    """A copy of ``network`` in which ``swap(name, layer)`` stands for each layer, unless it is None.

    A layer used in several places is swapped once, so that it stays one layer.
    """
    root = nn.ModuleDict({"network": copy.deepcopy(network)})
    swapped = {layer: new for name, layer in root["network"].named_modules() if (new := swap(name, layer))}
    parents = [module for module in root.modules() if module not in swapped]
    for parent in parents:
        for name, child in parent.named_children():
            if child in swapped:
                parent._modules[name] = swapped[child]
    return root["network"]


def device_of(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
