"""The contract of a posterior, and of what is drawn from it."""

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from stakes import inputs, seeds
from stakes._io.memory import keep_freed_memory
from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.likelihoods import Categorical, Likelihood
from stakes.outcomes import Footprint, Outcomes, Predictor
from stakes.posteriors._export import export
from stakes.posteriors._sampling.masks import GroupedMasks, MaskLayout
from stakes.posteriors._sampling.over_draws import DrawTensors, OverDraws
from stakes.posteriors._sampling.probe import Probe
from stakes.posteriors._sampling.stacking import StackedLayers
from stakes.posteriors.fresh import Enough, FreshDraws, mixture_of_enough
from stakes.registry import Registry

KNOWN_SHAPES = 8  # of inputs, whose masks are kept

families: Registry["Posterior"] = Registry("posterior")


class Posterior(nn.Module, ABC):
    """A network, a likelihood, and an approximating family q over the network's weights.

    Used in two ways: `outputs` with `kl` to train q, and `draw` to predict with it. A family that is registered,
    ``@families.register("name")``, can be asked for by its name and saved.

    ``x`` is one tensor, or a tuple or dict of tensors with the batch on axis 0 of each, which the network gets as
    positional or keyword arguments. It returns a tensor of logits, or a dict or object with ``logits``.
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

    @staticmethod
    def from_spec(
        spec: Mapping[str, Any], make_network: Callable[[], nn.Module], likelihood: Likelihood, seed: int
    ) -> "Posterior":
        """The posterior that ``spec``, ``{"family": ..., **settings}``, describes, freshly initialised."""
        settings = dict(spec)
        family = families[settings.pop("family", None)]
        try:
            return family.build(make_network, likelihood, seed, **settings)
        except TypeError as error:
            if "argument" not in str(error):  # not about the settings: a fault of its own
                raise
            raise StakesError(f"unknown settings for the posterior {spec['family']!r}: {error}") from None

    @abstractmethod
    def outputs(self, x: Inputs, samples: int = 1) -> Tensor:
        """``(S, B, C, ...)`` network outputs, differentiable, with fresh randomness for every example."""

    def log_probs(self, x: Inputs, samples: int = 1) -> Tensor:
        """``(S, B, ..., C)`` log p(outcome) of `outputs`."""
        return self.likelihood.outcomes(self.outputs(x, samples)).log_weights

    def fresh_draws(self, x: Inputs, samples: int) -> FreshDraws:
        """Draws for a batch, with fresh randomness, which all the examples may share where that is cheaper."""
        return FreshDraws(lambda x, first, last: self.outputs(x, last - first))

    def shared_outputs(self, x: Inputs, samples: int) -> Tensor:
        """``(S, B, C, ...)`` network outputs of `fresh_draws`."""
        return self.fresh_draws(x, samples).outputs(x, 0, samples)

    @torch.no_grad()
    def mixture(self, x: Inputs, samples: int, enough: Enough | None = None) -> Outcomes:
        """``(B, ..., K)`` the mixture of fresh draws in eval mode: what decisions during training are taken from.

        Examples for which the mixture of fewer draws is ``enough`` may take fewer, where that saves time.
        """
        keep_freed_memory()
        with evaluating(self):
            draws = self.fresh_draws(x, samples)
            if enough is not None and draws.divisible:
                return Outcomes(mixture_of_enough(draws, self.likelihood.outcomes, x, samples, enough))
            outcomes = self.likelihood.outcomes(draws.outputs(x, 0, samples))
        # By way of logarithms: these are the probabilities whose logarithms training sees.
        return outcomes.mixture() if outcomes.numeric else Outcomes(outcomes.log_weights.exp().mean(0))

    def check(self, x: Inputs) -> None:
        """Refuse a network that could be trained on such inputs, but not drawn from; `fit` asks before it starts."""

    @abstractmethod
    def kl(self) -> Tensor:
        """KL(q || prior) in nats for the whole network; divide it by the number of examples."""

    def finish(self, batches: Iterable[tuple[Any, ...]]) -> None:
        """A step after training, a Laplace fit, say, on batches of the training examples: ``(x, labels)``, or
        ``(x, labels, weights)`` where they have weights.
        """

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

    >>> from stakes import MLP, MCDropout
    >>> draws = MCDropout(MLP(inputs=3, outputs=2)).draw(samples=10, seed=0)
    >>> draws(torch.zeros(4, 3)).mean_probs().shape
    torch.Size([4, 2])
    """

    likelihood: Likelihood
    dtype: torch.dtype = torch.float32  # of the weights, to which inputs are cast

    @abstractmethod
    def outputs(self, x: Inputs, first: int, last: int) -> Tensor:
        """``(last - first, B, C, ...)``: the network outputs of the draws from ``first`` up to ``last``."""

    def to(self, *target: torch.device | str | torch.dtype) -> Self:
        """The same draws on another device, or in another precision: new ones, while these stay as they are."""
        raise StakesError(f"a {type(self).__name__} cannot be moved: move the posterior, and draw from it again")

    def export(self, x: Inputs, mean: bool = False) -> torch.export.ExportedProgram:
        """A program that maps inputs like ``x``, any number of them, to the probabilities ``(S, B, ..., C)`` of all
        draws, or to their ``mean``, ``(B, ..., C)``. It is called as the network is, and runs without stakes.

        ``torch.export.save`` writes it, ``torch.export.load(path).module()(x)`` runs it, for all draws at once.
        """
        raise StakesError(f"a {type(self).__name__} cannot be exported")

    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        return self.likelihood.outcomes(self.outputs(inputs.cast(x, self.device, self.dtype), first, last))


class Plan(NamedTuple):
    """How inputs of one shape are drawn for."""

    masks: DrawTensors
    layouts: Mapping[str, MaskLayout]
    footprint: Footprint
    sorts: bool  # whether the network puts something in order, which may be its inputs


class FrozenDraws(Draws):
    """Draws of one frozen network, whose masks, or weights, differ from draw to draw.

    What it has to know of inputs is found by a probe, at the first input of each shape.
    """

    _weights: DrawTensors  # of families that sample weights
    _stacked: StackedLayers | None = None  # of plain networks

    def __init__(self, network: nn.Module, likelihood: Likelihood, samples: int, seed: int, group: int = 1) -> None:
        self.samples, self.group = samples, group
        weight = weight_like(network)
        self.device, self.dtype = weight.device, weight.dtype
        self.likelihood = copy.deepcopy(likelihood).eval()
        self._network, self._seed = network, seed
        self._over_draws = OverDraws(network)
        self._plans: dict[Hashable, Plan] = {}
        self.checked: set[Hashable] = set()  # signatures of inputs for which randomness was looked for
        self._lock = threading.RLock()  # around a probe, and where weights are put into the network

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_plans": {}}  # found again where it is needed
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def footprint(self, x: Inputs) -> Footprint:
        return self._plan(x).footprint

    def to(self, *target: torch.device | str | torch.dtype) -> Self:
        # Masks and noise are made on the CPU, wherever they are used, so these are the same draws.
        moved = copy.deepcopy(self)
        for module in (moved._network, moved.likelihood):
            module.to(*target)  # type: ignore[call-overload]
        weight = weight_like(moved._network)
        moved.device, moved.dtype = weight.device, weight.dtype
        moved._move()
        return moved

    def _move(self) -> None:
        """Bring what the network does not hold to its device and precision."""

    def export(self, x: Inputs, mean: bool = False) -> torch.export.ExportedProgram:
        return export(self, x, mean)

    def for_export(self, x: Inputs, one_by_one: bool) -> Self:
        """A copy for inputs like ``x``, with all that is random held as tensors."""
        fixed = copy.deepcopy(self)
        plan = fixed._plan(x)
        fixed._plans = {inputs.signature(x): plan._replace(masks=plan.masks.kept())}
        if "_weights" in vars(fixed):
            fixed._weights = fixed._weights.kept()
        fixed._stacked = None  # it goes by the number of inputs, which a program cannot
        fixed._over_draws.one_by_one |= one_by_one
        return fixed

    @abstractmethod
    def _probe(self, x: Inputs, check: bool) -> Probe:
        """Probe the network, and refuse what draws cannot be made of."""

    def _plan(self, x: Inputs) -> Plan:
        x = inputs.cast(x, self.device, self.dtype)
        key = inputs.signature(x)
        plan = self._plans.get(key)
        if plan is None:
            with self._lock:
                probed = self._probe(x, check=key not in self.checked)
                self.checked.add(key)
            masks = DrawTensors(GroupedMasks(probed.layouts, self.group, self._seed, self.device), self.samples)
            plan = Plan(masks, probed.layouts, probed.footprint, probed.sorts)
            self._plans = {**dict([*self._plans.items()][1 - KNOWN_SHAPES :]), key: plan}
        return plan


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put the module in eval mode; restore the mode of every submodule on exit."""
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


def weight_like(module: nn.Module) -> Tensor:
    """A tensor on the device and in the precision of a module's weights."""
    return next((p for p in module.parameters() if p.is_floating_point()), torch.empty(()))
