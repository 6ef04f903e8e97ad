"""Draws of a posterior as a predictor that can be saved: what is kept is the posterior, and how it is drawn from."""

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from stakes import likelihoods, networks
from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.outcomes import MEMORY_BYTES, Footprint, Outcomes, Predictive, Predictor
from stakes.posteriors._sampling.insert import has_inserted
from stakes.posteriors.base import Draws, Posterior, require_samples


class SampledPosterior(Predictor):
    """``samples`` draws of a posterior, the same ones always; they are made when they are first needed."""

    def __init__(self, posterior: Posterior, samples: int = 100, seed: int = 0) -> None:
        require_samples(samples)
        self.posterior, self.seed, self._samples = posterior, seed, samples
        known = posterior.network if self._can_build() else None
        self.features = getattr(known, "inputs", None)
        self.classes = posterior.likelihood.classes or getattr(known, "outputs", None)

    @cached_property
    def draws(self) -> Draws:
        return self.posterior.draw(self._samples, self.seed)

    @property
    def samples(self) -> int:  # type: ignore[override]
        """The number of draws; an ensemble has no more than it has members."""
        return self.draws.samples

    @property
    def group(self) -> int:  # type: ignore[override]
        return self.draws.group

    @property
    def group_coverage(self) -> float:  # type: ignore[override]
        return self.draws.group_coverage

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.draws.device

    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        return self.draws.outcomes(x, first, last)

    def footprint(self, x: Inputs) -> Footprint:
        return self.draws.footprint(x)

    def __call__(self, x: Inputs, memory: int = MEMORY_BYTES) -> Predictive:
        return self.draws(x, memory)

    def double(self) -> Self:
        """The same in double precision: then a row's prediction does not depend on the rows beside it."""
        return type(self)(copy.deepcopy(self.posterior).double(), self._samples, self.seed)

    def spec(self) -> dict[str, Any]:
        return {
            "posterior": self.posterior.spec(),
            "network": self._network_spec(),
            "likelihood": self.posterior.likelihood.spec(),
            "samples": self._samples,
            "seed": self.seed,
        }

    def _network_spec(self) -> dict[str, Any]:
        network: Any = self.posterior.network
        return network.spec() if self._can_build() else {"kind": "custom", "class": type(network).__name__}

    def _can_build(self) -> bool:
        """Whether its network can be built again: not a subclass, nor one with dropout inserted, which compute
        something else.
        """
        network = self.posterior.network
        return type(network) in networks.kinds.classes and not has_inserted(network)

    def state_dict(self) -> dict[str, Tensor]:
        return self.posterior.state_dict()

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        kind = spec["network"]["kind"]
        if network is None and kind not in networks.kinds:
            raise StakesError(
                f"the network is a {spec['network'].get('class', kind)!r}, which stakes cannot build: "
                "pass network=, one of the same architecture"
            )
        samples, seed = spec["samples"], spec["seed"]
        if not (type(samples) is int and samples >= 1 and type(seed) is int):
            raise StakesError(f"damaged, expected numbers of samples and seed, but got {samples!r} and {seed!r}")

        def make() -> nn.Module:
            return copy.deepcopy(network) if network is not None else networks.from_spec(spec["network"])

        posterior = Posterior.from_spec(spec["posterior"], make, likelihoods.from_spec(spec["likelihood"]), seed=0)
        posterior.load_state_dict(dict(tensors))
        return cls(posterior.eval(), samples, seed)

    def __getstate__(self) -> dict[str, Any]:
        """Without the draws, which are made again: they may hold functions that cannot be pickled."""
        return {key: value for key, value in self.__dict__.items() if key != "draws"}
