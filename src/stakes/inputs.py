"""What goes into a network, and what comes out of it.

Inputs are one tensor, or a tuple or dict of tensors, each with the batch on axis 0. A tuple is passed to the network as
positional arguments, a dict as keyword arguments. The output is a tensor of logits, or has one: ``output.logits`` or
``output["logits"]``, as the models of Hugging Face do.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

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


def require_tensor(x: Inputs, model_name: str) -> Tensor:
    """``x``, for those that take one tensor only."""
    if not isinstance(x, Tensor):
        raise StakesError(f"expected one tensor of inputs for {model_name}, but got {_described(x)}")
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
    """``(B, C, ...)``: the logits of the network, with ``weights`` in place of its own if they are given.

    A network that works in place gets a copy: other draws, and the decisions for a batch, are made of the same ``x``.
    """
    if not isinstance(x, Tensor):
        count(x)
    leaves_inputs = _leaves_inputs.get(network, False)
    tracked = all(map(_has_version, tensors_of(x)))
    x = x if tracked and leaves_inputs else map_tensors(torch.clone, x)
    versions = [tensor._version for tensor in tensors_of(x)] if tracked else []
    args: tuple[Any, ...] = (x,)
    kwargs: dict[str, Any] = {}
    if not isinstance(x, Tensor):
        args, kwargs = ((), dict(x)) if isinstance(x, Mapping) else (x, {})
    if weights is None:
        logits = logits_of(network(*args, **kwargs))
    else:
        logits = logits_of(torch.func.functional_call(network, dict(weights), args, kwargs))
    if tracked:
        changed = versions != [tensor._version for tensor in tensors_of(x)]
        if changed and leaves_inputs:
            raise StakesError(
                f"expected a network that treats its inputs alike in every pass, but {type(network).__name__} changed "
                "them in place only now: write x = x - 1, say, in place of x -= 1"
            )
        if not leaves_inputs:
            _leaves_inputs[network] = not changed and not any(map(_drops_in_place, network.modules()))
    return logits


_leaves_inputs: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # networks that do not change them in place


def _has_version(tensor: Tensor) -> bool:
    """Whether it tells that it was changed; under vmap, in inference mode and in an exported program it does not."""
    hidden = torch.compiler.is_exporting() or tensor.is_inference()
    return not hidden and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _drops_in_place(layer: nn.Module) -> bool:
    """Which it does in training only: a pass need not show it."""
    return isinstance(layer, _DropoutNd) and layer.inplace


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
    if weights is not None and not weights.is_floating_point():
        raise StakesError(
            f"expected weights as floating-point numbers in the third place of a batch, but got {weights.dtype}: leave "
            "out what are positions, which fit knows itself, and use weights.float() for counts"
        )
    if weights is not None:
        require_weights(weights)
    return x, class_numbers(labels), weights


def class_numbers(labels: Tensor) -> Tensor:
    """Labels as they are used: class numbers as int64, whatever integers they were; amounts as they are."""
    return labels if labels.is_floating_point() else labels.long()


def require_weights(weights: Tensor) -> None:
    """Refuse weights that are negative, infinite or NaN."""
    low, high = map(float, weights.aminmax()) if weights.numel() else (0.0, 0.0)
    if not 0 <= low <= high < math.inf:
        raise StakesError(
            f"expected a weight of 0 or more for each example or label, but got weights from {low} to {high}: use 0 "
            "for what is not to count"
        )


def by_label(weights: Tensor, shape: torch.Size) -> Tensor:
    """Weights of examples, ``(B,)``, or of labels, ``(B, ...)``, in a shape that broadcasts to that of the labels."""
    if weights.shape not in (shape, shape[:1]):
        raise StakesError(
            f"expected a weight for each example, {tuple(shape[:1])}, or for each label, {tuple(shape)}, but got "
            f"weights of shape {tuple(weights.shape)}"
        )
    return weights.reshape(*weights.shape, *[1] * (len(shape) - weights.ndim))


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
