"""What stands for a layer in a copy of a network."""

from typing import Any

from torch import nn

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


class StandIn(nn.Module):
    """Stands for ``layer``. What it does not have itself, networks read from the layer."""

    layer: nn.Module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "layer":  # a copy that is not built yet
                raise
            return getattr(self.layer, name)

    def take_hooks(self) -> None:
        """Have the hooks of the layer, which are called around its own forward."""
        vars(self).update({name: vars(self.layer)[name] for name in _HOOKS})

    def give_hooks(self) -> nn.Module:
        """The layer, with the hooks that were put on its stand-in."""
        vars(self.layer).update({name: vars(self)[name] for name in _HOOKS})
        return self.layer


def has_hooks(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)
