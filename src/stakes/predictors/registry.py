"""The kinds of predictors by name: how a saved one is found again, be it ours, a user's, or inside another."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from stakes.outcomes import Predictor
from stakes.registry import Registry

kinds: Registry[Predictor] = Registry("predictor")


def spec_of(predictor: Predictor) -> dict[str, Any]:
    """The kind of a predictor and its settings; an error if it could not be loaded again."""
    spec = predictor.spec()
    return {"kind": kinds.name_of(type(predictor)), **spec}


def load(spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Predictor:
    """The predictor of a `spec_of` and a ``state_dict``; ``network`` is one like a network that stakes cannot build."""
    settings = dict(spec)
    return kinds[settings.pop("kind")].load(settings, tensors, network)
