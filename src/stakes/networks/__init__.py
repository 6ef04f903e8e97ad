"""Networks that stakes can build again from a saved model.

A user's own kind is registered, ``@networks.kinds.register("name")``, and has ``spec()``: its settings, with its kind.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from stakes.networks.mlp import MLP
from stakes.networks.tabm import TabM
from stakes.registry import Registry

__all__ = ["MLP", "TabM", "from_spec", "kinds"]

kinds: Registry[nn.Module] = Registry("network")
kinds.register("mlp")(MLP)
kinds.register("tabm")(TabM)


def from_spec(spec: Mapping[str, Any]) -> nn.Module:
    """The network of a `spec`, freshly initialised."""
    settings = dict(spec)
    return kinds[settings.pop("kind")](**settings)
