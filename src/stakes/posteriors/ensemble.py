"""Deep ensemble: q is a set of networks, each with a weight of one (Lakshminarayanan et al. 2017).

    KL(q || p) ~ mean_m  ||W_m||^2 / (2 prior_sd^2)      up to a constant:

point masses have no entropy to speak of, so each member is a maximum a posteriori fit from its own start.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from stakes import inputs, seeds
from stakes.errors import StakesError, StakesWarning, listing
from stakes.inputs import Inputs
from stakes.likelihoods import Likelihood
from stakes.posteriors._sampling.fusion import FusedNetwork
from stakes.posteriors._sampling.layers import dropout_layers, without_dropout
from stakes.posteriors._sampling.probe import Probe, probe
from stakes.posteriors._sampling.stacking import StackedLayers
from stakes.posteriors.base import (
    FrozenDraws,
    Posterior,
    families,
    require_samples,
    squared_norm,
    weight_matrices,
)

DEFAULT_MEMBERS = 5


@families.register("ensemble")
class Ensemble(Posterior):
    """Every member is trained on every batch; a draw is a member, so there are no more draws than members."""

    def __init__(
        self, members: Sequence[nn.Module], likelihood: Likelihood | None = None, *, prior_sd: float = 1.0
    ) -> None:
        super().__init__(likelihood)
        if len(members) < 2:
            raise StakesError(f"expected an ensemble of at least 2 networks, but got {len(members)}")
        if len({id(member) for member in members}) < len(members):
            raise StakesError("expected different networks in an ensemble, but one object stands in it twice")
        shapes = {tuple((key, value.shape) for key, value in member.state_dict().items()) for member in members}
        # By name: a layer with a parametrized weight has a class of its own.
        layers = {tuple((name, type(part).__qualname__) for name, part in each.named_modules()) for each in members}
        if len(shapes) > 1 or len(layers) > 1:
            raise StakesError(
                "expected networks of one architecture in an ensemble, but their parameters or layers differ: train "
                "each by itself, and decide by Predictor.from_samples(logits=[...]) of them"
            )
        self.members = nn.ModuleList(members)
        self.prior_sd = prior_sd
        warn_of_dropout(self.members)

    @classmethod
    def of(
        cls,
        make: Callable[[], nn.Module],
        members: int,
        seed: int,
        likelihood: Likelihood | None = None,
        *,
        prior_sd: float = 1.0,
    ) -> Self:
        """``members`` networks from ``make()``, each initialised from its own stream of ``seed``."""
        networks = []
        for member in range(members):
            with seeds.seeded(seed, "member", member):
                networks.append(make())
        return cls(networks, likelihood, prior_sd=prior_sd)

    @property
    def network(self) -> nn.Module:  # type: ignore[override]
        """The first of the members, by which those are known that are built alike."""
        return self.members[0]

    @classmethod
    def build(cls, make_network: Callable[[], nn.Module], likelihood: Likelihood, seed: int, **settings: Any) -> Self:
        return cls.of(make_network, settings.pop("members", DEFAULT_MEMBERS), seed, likelihood, **settings)

    def outputs(self, x: Inputs, samples: int = 1) -> Tensor:
        """All the members, whatever ``samples`` is: each has to learn from each batch."""
        require_samples(samples)
        return torch.stack([inputs.call(member, x) for member in self.members])

    def kl(self) -> Tensor:
        return squared_norm(weight_matrices(self.members)) / (2 * self.prior_sd**2 * len(self.members))

    def draw(self, samples: int, seed: int) -> "EnsembleDraws":
        """``samples`` members without repetition, or all of them if there are no more than that."""
        require_samples(samples)
        order = torch.randperm(len(self.members), generator=seeds.generator(seed, "members"))
        chosen = sorted(order[:samples].tolist())
        return EnsembleDraws([self.members[index] for index in chosen], self.likelihood)

    def settings(self) -> dict[str, Any]:
        return {"members": len(self.members), "prior_sd": self.prior_sd}


def warn_of_dropout(network: nn.Module) -> None:
    names = sorted({type(layer).__name__ for layer in dropout_layers(network)})
    if names:
        _warn_of_randomness(names)


def _warn_of_randomness(names: Sequence[str]) -> None:
    warnings.warn(
        f"members of the ensemble are random in training ({listing(names)}); a draw of it is a member without that. "
        "Use MCDropout for draws with dropout, or networks without it",
        StakesWarning,
        stacklevel=4,
    )


class EnsembleDraws(FrozenDraws):
    """Each draw is one member of the ensemble, as it was when it was drawn, without its dropout."""

    _network: FusedNetwork

    def __init__(self, members: Sequence[nn.Module], likelihood: Likelihood) -> None:
        alike = all(_settings_of(member) == _settings_of(members[0]) for member in members)
        frozen = [FusedNetwork(without_dropout(member), channels_last=False) for member in members]
        super().__init__(frozen[0], likelihood, len(frozen), seed=0)
        # One network with all their weights, unless they differ in something else.
        self._members = None if alike else frozen
        self._state: dict[str, Tensor] = {}
        if alike:
            parameters, buffers = torch.func.stack_module_state(frozen)
            self._state = {**parameters, **buffers}
        names = {layer: name for name, layer in self._network.named_modules()}
        self._stacked = StackedLayers.of_layers(self._network.layers or [], names)

    @torch.no_grad()
    def outputs(self, x: Inputs, first: int, last: int) -> Tensor:
        self._plan(x)
        if self._members is not None:
            return torch.stack([inputs.call(member, x) for member in self._members[first:last]])
        state = {key: value[first:last] for key, value in self._state.items()}
        if self._stacked is not None and self._stacked.accepts(x):
            return self._stacked(x, state)

        def one(state: Mapping[str, Tensor]) -> Tensor:
            return inputs.call(self._network, x, state)

        with self._lock:
            return self._over_draws(one, state)

    def _move(self) -> None:
        for member in self._members or []:
            member.to(self.device, self.dtype)
        self._state = {
            key: value.to(self.device, self.dtype if value.is_floating_point() else None)
            for key, value in self._state.items()
        }

    def _probe(self, x: Inputs, check: bool) -> Probe:
        return probe_members(self._network, x, check)


def probe_members(network: nn.Module, x: Inputs, check: bool) -> Probe:
    """Probe a member, or a network of several: what is random in training is warned of, for a draw has none of it."""
    probed = probe(network, x, all_random=True, check=check)
    probed._replace(random_in_training=[]).refuse_randomness()
    if probed.random_in_training:
        _warn_of_randomness(probed.random_in_training)
    return probed


def _settings_of(network: nn.Module) -> list[object]:
    """All that its modules have apart from weights, in a form that is equal only for what is alike."""
    tensors = {"_parameters", "_buffers", "_modules", "training"}
    weights = [parameter for _, parameter in network.named_parameters(remove_duplicate=False)]
    tied = [[first is second for second in weights[:index]] for index, first in enumerate(weights)]
    return [tied] + [
        {key: _comparable(value) for key, value in vars(module).items() if key not in tensors}
        for module in network.modules()
    ]


def _comparable(value: object) -> object:
    if isinstance(value, Tensor | np.ndarray):
        return type(value), value.dtype, value.tolist()
    if isinstance(value, Mapping):
        return type(value), [(_comparable(key), _comparable(entry)) for key, entry in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [_comparable(entry) for entry in value]
    plain = isinstance(value, str | int | float | complex | set | np.generic | torch.dtype | torch.device | None)
    return type(value), value if plain else id(value)
