"""Predictors: whatever turns inputs into `Outcomes`, saved as settings and tensors, without pickles.

A user's own kind is registered, ``@predictors.kinds.register("name")``, and then saves and loads like ours.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from stakes.outcomes import Predictor
from stakes.predictors.sampled import SampledPosterior
from stakes.predictors.trees import BoostedTrees
from stakes.registry import Registry

__all__ = ["BoostedTrees", "Predictor", "SampledPosterior", "kinds", "load", "spec_of"]

kinds: Registry[Predictor] = Registry("predictor")
kinds.register("posterior")(SampledPosterior)
kinds.register("trees")(BoostedTrees)


def spec_of(predictor: Predictor) -> dict[str, Any]:
    """The kind of a predictor and its settings; an error if it could not be loaded again."""
    spec = predictor.spec()
    return {"kind": kinds.name_of(type(predictor)), **spec}


def load(spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Predictor:
    """The predictor of a `spec_of` and a ``state_dict``; ``network`` is one like a network that stakes cannot build."""
    settings = dict(spec)
    return kinds[settings.pop("kind")].load(settings, tensors, network)
