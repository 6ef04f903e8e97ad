"""A fitted model as a directory of JSON and safetensors. Loading never runs code from it.

model.json            what the model is: network, posterior, likelihood, utility, preprocessing, versions
weights.safetensors   its numbers
"""

import copy
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from stakes import likelihoods
from stakes._io.files import atomic_directory, read_json, write_json
from stakes._io.tensors import read_tensors, write_tensors
from stakes.decisions import Decisions, decide
from stakes.errors import StakesError
from stakes.networks.mlp import MLP
from stakes.posteriors import registry as families
from stakes.posteriors.base import Draws, Posterior
from stakes.tables.encode import TableEncoder
from stakes.utility import Utility

FORMAT = 1
_JSON, _WEIGHTS = "model.json", "weights.safetensors"
_NETWORKS: dict[str, type[nn.Module]] = {"mlp": MLP}


@dataclass(frozen=True, eq=False)
class SavedModel:
    """All that it takes to decide: a trained posterior, the utility, and how inputs become tensors.

    ``encoder`` is None for a model whose inputs are tensors already. ``notes`` is free: where it came from.
    """

    posterior: Posterior
    utility: Utility
    encoder: TableEncoder | None = None
    samples: int = 100
    seed: int = 0
    notes: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def draws(self) -> Draws:
        """The frozen draws that all decisions of this model are made with."""
        return self.posterior.draw(self.samples, self.seed)

    def decide(self, x: Tensor) -> Decisions:
        """Decisions for encoded inputs."""
        return decide(self.draws(x), self.utility)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the directory, whole or not at all; an existing one is refused."""
        target = Path(path)
        if target.exists():
            raise StakesError(f"{target}: exists already; remove it, or save elsewhere")
        with atomic_directory(target) as temporary:
            write_tensors(temporary / _WEIGHTS, self.posterior.state_dict(), {"format": FORMAT})
            write_json(temporary / _JSON, self._description() | {"sha256": _sha256(temporary / _WEIGHTS)})

    @classmethod
    def load(cls, path: str | os.PathLike[str], network: nn.Module | None = None) -> Self:
        """Read a saved model. ``network`` gives the architecture of one that stakes does not know itself."""
        folder = Path(path)
        described = _read_description(folder)
        try:
            return cls._from_description(described, folder, network)
        except StakesError as error:
            message = str(error)
            raise StakesError(message if message.startswith(f"{folder}") else f"{folder}: {message}") from None
        except KeyError as error:
            raise StakesError(f"{folder / _JSON}: damaged, the entry {error} is missing") from None
        except (RuntimeError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise StakesError(f"{folder}: damaged, {_JSON} and the weights do not fit together ({reason})") from None

    @classmethod
    def _from_description(cls, described: Mapping[str, Any], folder: Path, network: nn.Module | None) -> Self:
        posterior = _rebuild(described, network)
        weights, _ = read_tensors(folder / _WEIGHTS)
        if described["sha256"] != _sha256(folder / _WEIGHTS):
            raise StakesError(f"damaged, the checksum of {_WEIGHTS} is not the one it had")
        posterior.load_state_dict(weights)
        utility = Utility.from_dict(described["utility"])
        encoder = None if described["encoder"] is None else TableEncoder.from_dict(described["encoder"])
        _check_sizes(described["network"], encoder, utility)
        samples, seed, notes = described["samples"], described["seed"], described["notes"]
        if not (isinstance(samples, int) and samples >= 1 and isinstance(seed, int) and isinstance(notes, dict)):
            raise StakesError(f"damaged, expected numbers of samples and seed, but got {samples!r} and {seed!r}")
        return cls(posterior.eval(), utility, encoder, samples, seed, notes)

    def _description(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "versions": {name: version(name) for name in ("stakes", "torch")},
            "network": _network_spec(self.posterior),
            "posterior": self.posterior.spec(),
            "likelihood": self.posterior.likelihood.spec(),
            "utility": self.utility.to_dict(),
            "encoder": None if self.encoder is None else self.encoder.to_dict(),
            "samples": self.samples,
            "seed": self.seed,
            "notes": dict(self.notes),
        }


def _network_spec(posterior: Posterior) -> dict[str, Any]:
    """The settings of a network that can describe itself, or the name of its class."""
    network = posterior.members[0] if hasattr(posterior, "members") else posterior.network  # type: ignore[index]
    return network.spec() if isinstance(network, MLP) else {"kind": "custom", "class": type(network).__name__}


def _check_sizes(network: Mapping[str, Any], encoder: TableEncoder | None, utility: Utility) -> None:
    """What goes in and comes out must be as wide as the network that stands between."""
    widths = {"inputs": encoder.width if encoder else None, "outputs": len(utility.outcomes)}
    for side, width in widths.items():
        if width is not None and network.get(side, width) != width:
            raise StakesError(f"damaged, expected a network with {width} {side}, but it has {network[side]}")


def _read_description(folder: Path) -> dict[str, Any]:
    if not (folder / _JSON).is_file():
        raise StakesError(f"{folder}: expected a saved model, but there is no {_JSON} in it")
    described = read_json(folder / _JSON)
    found = described.get("format") if isinstance(described, dict) else None
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise StakesError(f"{folder / _JSON}: expected a model saved by stakes, but it has no format number")
    if found > FORMAT:
        raise StakesError(
            f"{folder}: saved by a newer stakes, in format {found}; this one reads up to {FORMAT}: upgrade stakes"
        )
    return dict(described)


def _rebuild(described: Mapping[str, Any], network: nn.Module | None) -> Posterior:
    spec = dict(described["network"])
    kind = spec.pop("kind")
    if network is None and kind not in _NETWORKS:
        raise StakesError(
            f"the network is a {spec.get('class', kind)!r}, which stakes cannot build: pass network=, one like it"
        )
    likelihood = likelihoods.from_spec(described["likelihood"])

    def make() -> nn.Module:
        return copy.deepcopy(network) if network is not None else _NETWORKS[kind](**spec)

    return families.build(described["posterior"], make, likelihood, seed=0)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
