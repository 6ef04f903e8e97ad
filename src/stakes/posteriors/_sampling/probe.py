"""What a network shows when inputs pass through it: sizes, batch axes of its dropout layers, and other randomness."""

import copy
import random
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import TorchDispatchMode

from stakes.errors import StakesError, listing
from stakes.outcomes import Footprint
from stakes.posteriors._sampling.masks import FrozenDropout, MaskLayout, active

SMALL_NETWORK, SMALL_INPUT = 2**20, 2**14  # weights, and numbers in an input


class Probe(NamedTuple):
    """What is known of a frozen network for inputs of one shape."""

    footprint: Footprint
    layouts: dict[str, MaskLayout]  # of the mask for each call of a dropout layer
    random: list[str]  # random operations, and the layers they are in, in eval mode
    random_in_training: list[str]  # the same in training mode
    module_calls: Counter[str]

    def refuse_randomness(self) -> None:
        """What is random in training has to be random in draws; what is random in eval mode cannot be frozen."""
        operations = [*self.random_in_training, *self.random]
        if operations:
            raise StakesError(
                "expected dropout layers to be all that is random in the network, but it also calls "
                f"{listing(dict.fromkeys(operations))}, and draws cannot repeat that. Put nn.Dropout modules in place "
                "of F.dropout, stochastic depth, noise and random activations, give scaled_dot_product_attention "
                "dropout_p=0 (or use nn.MultiheadAttention), or use Ensemble"
            )


def probe(network: nn.Module, x: Tensor, all_random: bool = False) -> Probe:
    """Pass copies of ``x[:1]`` through a copy of ``network``; if that is much to compute, on the meta device.

    ``all_random`` says that the draws differ from the first layer on.
    """
    if not _is_small(network, x[:1]):
        try:
            return _probe(blank(network, "meta"), torch.empty_like(x[:1], device="meta"), all_random, network, x)
        except Exception:  # it needs values, or its device; an error of its own comes again below
            pass
    return _probe(copy.deepcopy(network), x[:1], all_random, network, x)


def batch_is_first(network: nn.Module, row: Tensor) -> bool:
    """Whether every dropout layer of a frozen network gets the batch on axis 0, and only the batch."""
    layouts, folded = _layouts(*(_record(network, torch.cat([row] * rows)) for rows in (2, 3)))
    return not folded and all(layout.axis == 0 for layout in layouts.values())


def blank(network: nn.Module, device: str | None = None) -> nn.Module:
    """A copy of ``network`` with other tensors of the same shapes; on the meta device if it is large."""
    device = device or ("cpu" if _is_small(network) else "meta")
    known: dict[int, Any] = {
        id(tensor): torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).zero_()
        for tensor in [*network.parameters(), *network.buffers()]
    }
    return copy.deepcopy(network, known)


def _is_small(network: nn.Module, *inputs: Tensor) -> bool:
    """Whether it is quicker to compute than to look up on the meta device how it would be computed."""
    weights = sum(parameter.numel() for parameter in network.parameters())
    return weights <= SMALL_NETWORK and all(x.numel() <= SMALL_INPUT for x in inputs)


def _probe(network: nn.Module, row: Tensor, all_random: bool, original: nn.Module, x: Tensor) -> Probe:
    two = _watch(network, row, all_random)
    layouts, folded = _layouts(two.calls, _record(network, torch.cat([row] * 3)))
    for module in network.modules():
        module.training = not isinstance(module, _NormBase)
    trained = _watch(network, row)
    if folded:
        layouts |= _unfolded(copy.deepcopy(original), x, {key: (two.calls[key], axis) for key, axis in folded.items()})
    return Probe(two.footprint, {key: layouts[key] for key in two.calls}, two.random, trained.random, two.module_calls)


class _Call(NamedTuple):
    layer: FrozenDropout
    shape: torch.Size
    x: Tensor | None


class _Pass(NamedTuple):
    footprint: Footprint
    calls: dict[str, _Call]
    random: list[str]
    module_calls: Counter[str]


class _Recorder:
    """Stands for the masks of a draw, and records the calls of dropout layers instead."""

    def __init__(self, keep: Collection[str] = ()) -> None:
        self.calls: dict[str, _Call] = {}
        self._keep, self._counts = keep, Counter[str]()

    def next(self, layer: FrozenDropout, x: Tensor) -> None:
        key = f"{layer.name}/{self._counts[layer.name]}"
        self._counts[layer.name] += 1
        self.calls[key] = _Call(layer, x.shape, x.clone() if key in self._keep else None)


def _record(network: nn.Module, x: Tensor, keep: Collection[str] = ()) -> dict[str, _Call]:
    """Pass ``x`` through ``network``, and return the calls of its dropout layers."""
    recorder = _Recorder(keep)
    with torch.no_grad(), active(recorder):
        network(x)
    return recorder.calls


def _watch(network: nn.Module, row: Tensor, all_random: bool = False) -> _Pass:
    """Pass ``row`` twice, as a batch, through ``network``, and watch what its layers do."""
    before, after = [row.nbytes], [1]
    operations = _RandomOperations()

    def enter(name: str, module: nn.Module, inputs: Any) -> None:
        operations.where.append(name)
        module_calls[name] += 1

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        operations.where.pop()
        sizes = after if all_random or recorder.calls else before
        sizes.extend([output.nbytes // 2] if isinstance(output, Tensor) else [])

    with ExitStack() as stack:
        for name, module in network.named_modules():
            stack.callback(module.register_forward_pre_hook(partial(enter, name)).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        for _ in range(3):  # other threads may draw from Python's and NumPy's generators, too: not three times
            torch_state, python_state, recorder = torch.get_rng_state(), _python_state(), _Recorder()
            module_calls: Counter[str] = Counter()
            with torch.no_grad(), active(recorder), operations:
                network(torch.cat([row, row]))
            if operations.seen:
                torch.set_rng_state(torch_state)
            if _python_state() == python_state:
                break
        else:
            operations.seen.setdefault("Python's random or numpy.random")
    return _Pass(Footprint(max(before), max(after)), recorder.calls, list(operations.seen), module_calls)


def _python_state() -> object:
    state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return random.getstate(), state["key"].tobytes(), state["pos"]


class _RandomOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices operations inside that draw random numbers, of any generator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.where: list[str] = []  # the layers that are running
        self.seen: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and not _is_off(func, args, kwargs or {}):
            name = self.where[-1].removeprefix("network").lstrip(".") if self.where else ""
            self.seen.setdefault(f"{func.name()} in layer {name!r}" if name else str(func.name()))
        return func(*args, **(kwargs or {}))


def _is_off(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a random operation is called so that it does nothing random: attention without dropout, say."""
    schema = func._schema.arguments
    given = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    given |= {argument.name: value for argument, value in zip(schema, args, strict=False)} | dict(kwargs)
    rate = given.get("dropout_p", given.get("p"))
    return (isinstance(rate, int | float) and rate == 0) or False in (given.get("train"), given.get("training"))


def _layouts(two: Mapping[str, _Call], three: Mapping[str, _Call]) -> tuple[dict[str, MaskLayout], dict[str, int]]:
    """The layouts of masks, from the calls for two inputs and for three; and axes that hold the batch and more."""
    layouts, folded = {}, {}
    for key, (layer, shape, _) in two.items():
        other = three[key].shape if key in three else torch.Size()
        axes = [axis for axis, (size, larger) in enumerate(zip(shape, other, strict=False)) if size != larger]
        if len(shape) != len(other) or len(axes) > 1 or any(3 * shape[axis] != 2 * other[axis] for axis in axes):
            raise _unclear(layer, f"its shape is {tuple(shape)} for 2 inputs and {tuple(other)} for 3")
        if axes and shape[axes[0]] > 2:
            folded[key] = axes[0]
        else:
            layouts[key] = MaskLayout.of(layer.layer, shape, axes[0] if axes else None)
    return layouts, folded


def _unfolded(network: nn.Module, x: Tensor, calls: Mapping[str, tuple[_Call, int]]) -> dict[str, MaskLayout]:
    """Find the batch in axes of size ``outer * B * inner``, by which entries follow the second of two inputs."""
    passes = []
    for pair in (x[:1], x[:1]), (x[:1], _another(x)):
        recorded = _record(network, torch.cat(pair), keep=calls)
        passes.append([call.x.nan_to_num() for call in recorded.values() if call.x is not None])
    layouts = {}
    for (key, ((layer, shape, _), axis)), first, second in zip(calls.items(), *passes, strict=True):
        changed = (first != second).movedim(axis, 0).flatten(1).any(1).nonzero().flatten().tolist()
        size = shape[axis] // 2
        divisors = [inner for inner in range(1, size + 1) if size % inner == 0]
        fits = [inner for inner in divisors if all(entry // inner % 2 == 1 for entry in changed)]
        if not changed or len(fits) != 1:
            raise _unclear(layer, f"its shape is {tuple(shape)} for 2 inputs, and its values do not tell")
        layouts[key] = MaskLayout.of(layer.layer, shape, axis, size // fits[0], fits[0])
    return layouts


def _another(x: Tensor) -> Tensor:
    """An input that is not the first."""
    if x.is_floating_point():
        noise = torch.randn(x[:1].shape, generator=torch.Generator().manual_seed(0)).to(x)
        return x[:1] + noise
    others = (x != x[:1]).flatten(1).any(1).nonzero().flatten().tolist()
    return x[others[0] : others[0] + 1] if others else x[:1].roll(1, -1)


def _unclear(layer: FrozenDropout, reason: str) -> StakesError:
    return StakesError(
        f"cannot tell which axis of what enters the dropout layer {layer.name!r} is the batch: {reason}. Give the "
        "layer an input with the batch on an axis of its own, so that a draw can use one mask for all inputs"
    )
