"""What goes into a network, and what comes out of it.

Inputs are one tensor, or a tuple or dict of tensors, each with the batch on axis 0. A tuple is passed to the network as
positional arguments, a dict as keyword arguments. The output is a tensor of logits, or has one: ``output.logits`` or
``output["logits"]``, as the models of Hugging Face do.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stakes.errors import StakesError

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


def tensors_of(x: Inputs) -> list[Tensor]:
    """The tensors of some inputs, in order."""
    return [x] if isinstance(x, Tensor) else [*x.values()] if isinstance(x, Mapping) else [*x]


def count(x: Inputs) -> int:
    """How many inputs there are; an error if the tensors do not agree, or if there are none."""
    sizes = {len(tensor) if isinstance(tensor, Tensor) and tensor.ndim else 0 for tensor in tensors_of(x)}
    if len(sizes) != 1 or 0 in sizes:
        shapes = [tuple(getattr(tensor, "shape", ())) for tensor in tensors_of(x)]
        raise StakesError(
            "expected inputs as a tensor, or a tuple or dict of tensors, with the same batch on axis 0 and at least "
            f"one row, but got {shapes}"
        )
    return sizes.pop()


def map_tensors(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """The same inputs, each tensor replaced by ``function`` of it."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, Mapping):
        return {key: function(tensor) for key, tensor in x.items()}
    return tuple(function(tensor) for tensor in x)


def rows(x: Inputs, index: Tensor | slice) -> Inputs:
    """Some of the inputs."""
    return map_tensors(lambda tensor: tensor[index], x)


def split(x: Inputs, size: int) -> Iterator[Inputs]:
    """All of the inputs, ``size`` at a time."""
    total = count(x)
    for first in range(0, total, size):
        yield x if size >= total else rows(x, slice(first, first + size))


def cast(x: Inputs, device: torch.device, dtype: torch.dtype) -> Inputs:
    """The inputs on ``device``, floating-point ones in ``dtype``."""
    return map_tensors(lambda tensor: tensor.to(device, dtype if tensor.is_floating_point() else None), x)


def signature(x: Inputs) -> Hashable:
    """What inputs of one kind have in common: names, shapes without the batch, and types."""
    kinds = tuple((tensor.shape[1:], tensor.dtype) for tensor in tensors_of(x))
    return (tuple(x) if isinstance(x, Mapping) else isinstance(x, Tensor), kinds)


def call(network: nn.Module, x: Inputs) -> Tensor:
    """``(B, C, ...)``: the logits of the network."""
    output = network(x) if isinstance(x, Tensor) else network(**x) if isinstance(x, Mapping) else network(*x)
    return logits_of(output)


def logits_of(output: Any) -> Tensor:
    """The logits in what a network returned."""
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise StakesError(
            "expected the network to return a tensor of logits, or a dict or object with `logits`, but it returned "
            f"{type(output).__name__}: wrap it in a module that returns the logits alone"
        )
    return logits
