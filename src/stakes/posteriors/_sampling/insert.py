"""Dropout for networks that have none: before some of their layers, which keep their names, weights and types."""

from collections.abc import Callable, Collection
from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from stakes.errors import StakesError, listing
from stakes.posteriors._sampling.layers import copied, dropout_rate

CHILD = "inserted_dropout"  # its name in the layer that it stands before

Where = type[nn.Module] | tuple[type[nn.Module], ...] | str | Collection[str] | Callable[[str, nn.Module], bool]


def insert_dropout(network: nn.Module, p: float, where: Where | None, layer: Callable[[float], nn.Module]) -> nn.Module:
    """A copy of ``network`` with ``layer(p)`` before each layer that ``where`` tells.

    The dropout layer is a child of the layer that it stands before, called by a hook: a network that reads
    ``layer.weight`` still can, and weights keep their names.
    """
    if not 0 < p < 1:
        raise StakesError(f"expected a dropout rate between 0 and 1, but got {p}")
    if dropout_rate(layer(p)) != p:
        raise StakesError(f"expected layer= to make a dropout layer of PyTorch, but it made {layer(p)}")
    network = copied(network)
    chosen = dict.fromkeys(_chosen(network, where))
    if not chosen:
        raise StakesError(
            f"expected where= to tell layers of {type(network).__name__}, but it has none such: give a type, names (of "
            "network.named_modules()), or a function (name, module) -> bool"
        )
    for module in chosen:
        if CHILD in module._modules:
            raise StakesError("expected a network without inserted dropout, but it has some: start from the original")
        module.add_module(CHILD, layer(p).train(module.training))
        module.register_forward_pre_hook(drop_first)
    return network


def drop_first(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The hook: what enters the layer goes through its dropout first."""
    return (layer.get_submodule(CHILD)(args[0]), *args[1:]) if args else args


def has_inserted(network: nn.Module) -> bool:
    return any(CHILD in layer._modules for layer in network.modules())


def _chosen(network: nn.Module, where: Where | None) -> list[nn.Module]:
    modules = dict(network.named_modules())
    if where is None:  # what enters the first layer with weights is the raw input
        layers = [part for part in modules.values() if any(True for _ in part.parameters(recurse=False))]
        layers = layers if isinstance(network, nn.Linear) else [part for part in layers if part is not network]
        return [part for part in layers[1:] if isinstance(part, nn.Linear) and not _is_read(part)]
    if callable(where) and not isinstance(where, type):
        return [part for name, part in modules.items() if where(name, part)]
    given = [where] if isinstance(where, str | type) else [*where]
    kinds: tuple[type[nn.Module], ...] = tuple(kind for kind in given if isinstance(kind, type))
    if kinds:
        return [part for part in modules.values() if isinstance(part, kinds) and not _is_read(part)]
    unknown = [name for name in given if name not in modules]
    if unknown:
        raise StakesError(f"expected names of layers, but {type(network).__name__} has no {listing(unknown)}")
    return [modules[str(name)] for name in given]


def _is_read(layer: nn.Module) -> bool:
    """Whether nobody calls it: attention reads the weight of its output projection."""
    return isinstance(layer, NonDynamicallyQuantizableLinear)
