"""The contract of a posterior, and of what is drawn from it."""

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from stakes import seeds
from stakes.errors import StakesError
from stakes.likelihoods import Categorical, Likelihood
from stakes.outcomes import Outcomes, Predictor
from stakes.registry import Registry

# Masks or weights of all draws are kept between blocks up to this size, and made again beyond it.
KEPT_BYTES = 128 * 2**20

families: Registry["Posterior"] = Registry("posterior")


class Posterior(nn.Module, ABC):
    """A network, a likelihood, and an approximating family q over the network's weights.

    Used in two ways: `outputs` with `kl` to train q, and `draw` to predict with it. A family that is registered,
    ``@families.register("name")``, can be asked for by its name and saved.
    """

    network: nn.Module  # of the architecture that a saved model is built from again
    likelihood: Likelihood

    def __init__(self, likelihood: Likelihood | None) -> None:
        super().__init__()
        self.likelihood = Categorical() if likelihood is None else likelihood

    @classmethod
    def build(cls, make_network: Callable[[], nn.Module], likelihood: Likelihood, seed: int, **settings: Any) -> Self:
        """One freshly initialised from ``seed``, with the settings of `spec`."""
        with seeds.seeded(seed, "network"):
            network = make_network()
        return cls(network, likelihood, **settings)  # type: ignore[call-arg, arg-type]

    @abstractmethod
    def outputs(self, x: Tensor, samples: int = 1) -> Tensor:
        """``(S, B, C, ...)`` network outputs, differentiable, with fresh randomness for every example."""

    def log_probs(self, x: Tensor, samples: int = 1) -> Tensor:
        """``(S, B, ..., C)`` log p(outcome) of `outputs`."""
        return self.likelihood.outcomes(self.outputs(x, samples)).log_weights

    def shared_outputs(self, x: Tensor, samples: int) -> Tensor:
        """As `outputs`, but a draw may be shared by all the examples, where that is cheaper."""
        return self.outputs(x, samples)

    @torch.no_grad()
    def mixture(self, x: Tensor, samples: int) -> Outcomes:
        """``(B, ..., K)`` the mixture of fresh draws in eval mode: what decisions during training are taken from."""
        with evaluating(self):
            outcomes = self.likelihood.outcomes(self.shared_outputs(x, samples))
        # By way of logarithms: these are the probabilities whose logarithms training sees.
        return Outcomes(outcomes.log_weights.exp().mean(0)) if outcomes.values is None else outcomes.mixture()

    @abstractmethod
    def kl(self) -> Tensor:
        """KL(q || prior) in nats for the whole network; divide it by the number of examples."""

    def finish(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """A step after training, on batches ``(x, labels)`` of the training examples: a Laplace fit, say."""

    @abstractmethod
    def draw(self, samples: int, seed: int) -> "Draws":
        """A frozen set of ``samples`` functions, unchanged by later training."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of its constructor in JSON types."""

    def spec(self) -> dict[str, Any]:
        """The name of its family, and its settings."""
        return {"family": families.name_of(type(self)), **self.settings()}


class Draws(Predictor):
    """Frozen functions from a posterior.

    >>> decisions = decide(draws(x), utility)  # doctest: +SKIP
    """

    likelihood: Likelihood
    dtype: torch.dtype = torch.float32  # of the weights, to which inputs are cast

    @abstractmethod
    def outputs(self, x: Tensor, first: int, last: int) -> Tensor:
        """``(last - first, B, C, ...)``: the network outputs of the draws from ``first`` up to ``last``."""

    def outcomes(self, x: Tensor, first: int, last: int) -> Outcomes:
        x = x.to(self.dtype) if x.is_floating_point() else x
        return self.likelihood.outcomes(self.outputs(x, first, last))


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


def weight_like(module: nn.Module) -> Tensor:
    """A tensor on the device and in the precision of a module's weights."""
    return next((p for p in module.parameters() if p.is_floating_point()), torch.empty(()))
