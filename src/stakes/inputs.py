"""What goes into a network, and what comes out of it.

Inputs are one tensor, or a tuple or dict of tensors, each with the batch on axis 0. A tuple is passed to the network as
positional arguments, a dict as keyword arguments. The output is a tensor of logits, or has one: ``output.logits`` or
``output["logits"]``, as the models of Hugging Face do.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stakes.errors import StakesError

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


def tensors_of(x: Inputs) -> list[Tensor]:
    """The tensors of some inputs, in order."""
    return [x] if isinstance(x, Tensor) else [*x.values()] if isinstance(x, Mapping) else [*x]


def count(x: Inputs) -> int:
    """How many inputs there are; an error if it is none, or if ``x`` is not what inputs are."""
    tensors = tensors_of(x) if isinstance(x, Tensor | tuple | Mapping) else []
    # Not `len`, which would fix the number in a program that torch.export makes.
    sizes = [each.shape[0] if isinstance(each, Tensor) and each.ndim else 0 for each in tensors]
    if not sizes or any(size == 0 or size != sizes[0] for size in sizes):
        raise StakesError(
            "expected inputs as one tensor, or a tuple or dict of tensors, with one batch on axis 0 of all and at "
            f"least one row, but got {_described(x)}: pass tensors only, a row of each for every input"
        )
    return sizes[0]


def require_tensor(x: Inputs, taker: str) -> Tensor:
    """``x``, for those that take one tensor only."""
    if not isinstance(x, Tensor):
        raise StakesError(f"expected one tensor of inputs for {taker}, but got {_described(x)}")
    return x


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


def nbytes(x: Inputs) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(x))


def split(x: Inputs, size: int) -> Iterator[Inputs]:
    """All of the inputs, ``size`` at a time."""
    total = count(x)
    for first in range(0, total, size):
        yield x if size >= total else rows(x, slice(first, first + size))


def cat(parts: Sequence[Inputs]) -> Inputs:
    """Inputs of one kind, one after the other."""
    tensors = iter([torch.cat(same) for same in zip(*map(tensors_of, parts), strict=True)])
    return map_tensors(lambda _: next(tensors), parts[0])


def cast(x: Inputs, device: torch.device, dtype: torch.dtype | None = None) -> Inputs:
    """The inputs on ``device``, floating-point ones in ``dtype`` if one is given."""
    return map_tensors(lambda tensor: tensor.to(device, dtype if tensor.is_floating_point() else None), x)


def signature(x: Inputs) -> Hashable:
    """What inputs of one kind have in common: names, shapes without the batch, and types."""
    if isinstance(x, Tensor):
        return x.shape[1:], x.dtype
    return tuple(x) if isinstance(x, Mapping) else (), tuple(map(signature, tensors_of(x)))


def call(network: nn.Module, x: Inputs, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """``(B, C, ...)``: the logits of the network, with ``weights`` in place of its own if they are given."""
    args: tuple[Any, ...] = (x,)
    kwargs: dict[str, Any] = {}
    if not isinstance(x, Tensor):
        count(x)
        args, kwargs = ((), dict(x)) if isinstance(x, Mapping) else (x, {})
    if weights is None:
        return logits_of(network(*args, **kwargs))
    return logits_of(torch.func.functional_call(network, dict(weights), args, kwargs))


def logits_of(output: Any) -> Tensor:
    """The logits in what a network returned."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise StakesError(
            "expected the network to return a tensor of logits, or a dict or object with `logits`, but it returned "
            f"a {type(output).__name__}: wrap it in a module that returns the logits alone"
        )
    return logits


def labelled(items: Any) -> tuple[Inputs, Tensor, Tensor | None]:
    """``x``, labels and weights of a batch as a `DataLoader` makes it: a tuple of two or three, or a dict with
    ``labels`` (and ``weights``) whose other entries are the network's keyword arguments.
    """
    x: Any = None
    labels, weights = None, None
    if isinstance(items, Mapping):
        x = dict(items)
        labels, weights = x.pop("labels", None), x.pop("weights", None)
    elif isinstance(items, Sequence) and len(items) in (2, 3):
        x, labels, weights = (*items, None)[:3]
        x = tuple(x) if isinstance(x, list) else x  # PyTorch collates tuples to lists
    if not isinstance(labels, Tensor) or not isinstance(weights, Tensor | None):
        raise StakesError(
            "expected batches (x, labels) or (x, labels, weights) of tensors, or dicts with labels, but got "
            f"a {type(items).__name__}: have the dataset, or the collate_fn of the DataLoader, return them"
        )
    return x, labels, weights


def _described(x: Any) -> str:
    """The shapes of tensors, and the types of what is none."""
    if isinstance(x, Tensor):
        return str(tuple(x.shape))
    if isinstance(x, tuple):
        return f"({', '.join(map(_described_entry, x))})"
    if isinstance(x, Mapping):
        return f"{{{', '.join(f'{key!r}: {_described_entry(value)}' for key, value in x.items())}}}"
    return f"a {type(x).__name__}"


def _described_entry(value: Any) -> str:
    return _described(value) if isinstance(value, Tensor) else f"a {type(value).__name__}"
