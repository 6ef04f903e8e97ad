"""What a network shows when inputs pass through it: sizes, batch axes of its dropout layers, and other randomness."""

import copy
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from stakes import inputs
from stakes.errors import StakesError, listing
from stakes.inputs import Inputs
from stakes.outcomes import Footprint
from stakes.posteriors._sampling.masks import ActiveMasks, FrozenDropout, MaskLayout, active

SMALL_NETWORK, SMALL_INPUT = 2**20, 2**14  # weights, and numbers in an input
_SORTS = ("aten::sort", "aten::argsort", "aten::topk", "aten::msort")
_CHANGES = "results that differ from pass to pass (noise, or what it keeps between calls)"
PASSES = 8  # that have to agree: a layer that is skipped at random, half of the time, is missed once in 128 times


class Probe(NamedTuple):
    """What is known of a frozen network for inputs of one shape."""

    footprint: Footprint
    layouts: dict[str, MaskLayout]  # of the mask for each call of a dropout layer
    random: list[str]  # random operations, and the layers they are in, in eval mode
    random_in_training: list[str]  # the same in training mode
    module_calls: Counter[str]
    not_batch_first: list[str]  # modules whose first input does not have the batch, and nothing else, on axis 0
    sorts: bool = False  # whether it puts something in order, which may be its inputs

    def refuse_randomness(self) -> None:
        """What is random in training has to be random in draws; what is random in eval mode cannot be frozen."""
        operations = [*self.random_in_training, *self.random]
        if operations:
            raise StakesError(
                "expected dropout layers to be all that is random in the network, but it also has "
                f"{listing(dict.fromkeys(operations))}, and draws cannot repeat that. Put nn.Dropout modules, called "
                "in every mode, in place of F.dropout, stochastic depth, noise and random activations, give "
                "scaled_dot_product_attention dropout_p=0 (or use nn.MultiheadAttention), or use Ensemble"
            )


def probe(network: nn.Module, x: Inputs, all_random: bool = False, check: bool = True) -> Probe:
    """Pass copies of the first of ``x`` through a copy of ``network``; if that is much to compute, on the meta device.

    ``all_random`` says that the draws differ from the first layer on; without ``check``, randomness is not looked for.
    """
    row = inputs.rows(x, slice(1))
    if not _is_small(network, *inputs.tensors_of(row)):
        try:
            blank_row = inputs.map_tensors(lambda tensor: torch.empty_like(tensor, device="meta"), row)
            return _probe(blank(network, "meta"), blank_row, all_random, check, network, x)
        except Exception:  # it needs values, or its device; an error of its own comes again below
            pass
    return _probe(copy.deepcopy(network), row, all_random, check, network, x)


class Work(NamedTuple):
    """Multiplications and additions in products and convolutions, for one input."""

    shared: int  # before the first dropout layer
    per_draw: int


class Shapes(NamedTuple):
    """What shapes alone tell of a frozen network."""

    layouts: dict[str, MaskLayout]
    work: Work = Work(0, 0)
    sorts: bool = False


def shapes_without_values(network: nn.Module, row: Inputs) -> Shapes | None:
    """For inputs like ``row``; None if shapes alone do not tell it."""
    two = _watch(network, inputs.cat([row] * 2))
    layouts, folded = _layouts(two.calls, _record(network, inputs.cat([row] * 3)))
    return None if folded else Shapes(layouts, two.work, two.sorts)


def blank(network: nn.Module, device: str | None = None) -> nn.Module:
    """A copy of ``network`` with other tensors of the same shapes; on the meta device if it is large."""
    device = device or ("cpu" if _is_small(network) else "meta")
    known: dict[int, Any] = {
        id(tensor): torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).zero_()
        for tensor in [*network.parameters(), *network.buffers()]
    }
    return copy.deepcopy(network, known)


def _is_small(network: nn.Module, *tensors: Tensor) -> bool:
    """Whether it is quicker to compute than to look up on the meta device how it would be computed."""
    weights = sum(parameter.numel() for parameter in network.parameters())
    return weights <= SMALL_NETWORK and all(tensor.numel() <= SMALL_INPUT for tensor in tensors)


def _probe(network: nn.Module, row: Inputs, all_random: bool, check: bool, original: nn.Module, x: Inputs) -> Probe:
    two, three = (_watch(network, inputs.cat([row] * rows), all_random) for rows in (2, 3))
    layouts, folded = _layouts(two.calls, three.calls)
    if folded:
        layouts |= _unfolded(copy.deepcopy(original), x, {key: (two.calls[key], axis) for key, axis in folded.items()})
    layouts = {key: layouts[key] for key in two.calls}
    random, random_in_training = two.random, []
    if check:
        _refuse_changes_in_place(original, inputs.rows(x, slice(1)), two.calls, layouts)
        random += _changes(network, inputs.cat([row, row]))
        if not random:
            _refuse_dependence(original, inputs.rows(x, slice(2)))
        for module in network.modules():
            module.training = not (isinstance(module, _NormBase | _SpectralNorm) or _is_normed(module))
        trained = _watch(network, inputs.cat([row, row]))
        others = sorted({key.rpartition("/")[0] for key in trained.calls.keys() ^ two.calls.keys()})
        random_in_training = [*trained.random, *(f"dropout layer {name!r} called in one mode only" for name in others)]
        random_in_training += _changes(network, inputs.cat([row, row]))
    sizes = {name: (shape, three.inputs.get(name, torch.Size())) for name, shape in two.inputs.items()}
    not_first = [name for name, (first, second) in sizes.items() if not _batch_is_first(first, second)]
    return Probe(two.footprint, layouts, random, random_in_training, two.module_calls, not_first, two.sorts)


def _is_normed(module: nn.Module) -> bool:
    """Whether a hook estimates the spectral norm of its weight, with each pass in training."""
    return any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values())


def _batch_is_first(two: torch.Size, three: torch.Size) -> bool:
    return (two[:1], three[:1], two[1:]) == ((2,), (3,), three[1:])


def _changes(network: nn.Module, x: Inputs) -> list[str]:
    """What differs between passes of the same input: randomness of generators that nobody can watch."""
    steps, outputs = set(), []
    for _ in range(PASSES):
        recorder = _Recorder()
        with torch.no_grad(), active(recorder), _Operations(recorder) as operations:
            outputs.append(inputs.call(network, x))
        steps.add((*recorder.calls, *operations.names))
    same = all(out.is_meta or _is_equal(out, outputs[0]) for out in outputs)
    return [] if same and len(steps) == 1 else [_CHANGES]


def _is_equal(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-4, atol=1e-5, equal_nan=True)


def _refuse_changes_in_place(
    network: nn.Module, row: Inputs, calls: Mapping[str, "_Call"], layouts: Mapping[str, MaskLayout]
) -> None:
    """A dropout layer with ``inplace=True`` changes its input in training, but not in a draw: others may see it."""
    in_place = [call.layer for call in calls.values() if getattr(call.layer.layer, "inplace", False)]
    if not in_place:
        return
    network = copy.deepcopy(network)
    device = inputs.tensors_of(row)[0].device
    kept = {key: torch.ones(layout.shape, dtype=torch.uint8, device=device) for key, layout in layouts.items()}
    outputs = []
    for source in (ActiveMasks(kept, layouts, 1), _InPlace(ActiveMasks(kept, layouts, 1))):
        with torch.no_grad(), active(source):
            outputs.append(inputs.call(network, inputs.map_tensors(torch.clone, row)))
    if not _is_equal(*outputs):
        raise StakesError(
            f"the dropout layer {in_place[0].name!r} works in place on a tensor that the network uses elsewhere, which "
            "draws cannot repeat: give it inplace=False"
        )


def _refuse_dependence(network: nn.Module, pair: Inputs) -> None:
    """An input has to have the same answer beside another one as beside itself."""
    first, dtypes = inputs.rows(pair, slice(1)), {parameter.dtype for parameter in network.parameters()}
    if inputs.count(pair) < 2 or not dtypes <= {torch.float32, torch.float64}:
        return
    outputs = []
    for x in (pair, inputs.cat([first] * 3)):
        alike = copy.deepcopy(network, {id(each): each for each in network.parameters()})  # with buffers of its own
        with torch.no_grad(), active(_Recorder()):
            outputs.append(inputs.call(alike, inputs.map_tensors(torch.clone, x)))
    beside_other, beside_itself = outputs
    batch_first = (len(beside_other), len(beside_itself)) == (2, 3)  # not where members of an ensemble come first
    if batch_first and not _is_equal(beside_other[:1], beside_itself[:1]):
        raise StakesError(
            "expected the answer for an input not to depend on the other inputs of its batch, but it does: is there a "
            "mean over the batch in the network, or batch norm without running statistics? Give that "
            "track_running_stats=True"
        )


class _InPlace:
    """Masks that keep all, applied in place by layers that ask for it."""

    def __init__(self, masks: ActiveMasks) -> None:
        self._masks = masks

    def next(self, layer: FrozenDropout, x: Tensor) -> tuple[MaskLayout, Tensor] | None:
        layout, mask = self._masks.next(layer, x)
        if not getattr(layer.layer, "inplace", False):
            return layout, mask
        x.copy_(layer.apply_mask(x, layout, mask))
        return None


class _Call(NamedTuple):
    layer: FrozenDropout
    shape: torch.Size
    x: Tensor | None
    nbytes: int


class _Pass(NamedTuple):
    footprint: Footprint
    work: Work
    sorts: bool
    calls: dict[str, _Call]
    random: list[str]
    module_calls: Counter[str]
    inputs: dict[str, torch.Size]  # of the first argument of each module


class _Recorder:
    """Stands for the masks of a draw, and records the calls of dropout layers instead."""

    def __init__(self, keep: Collection[str] = ()) -> None:
        self.calls: dict[str, _Call] = {}
        self._keep, self._counts = keep, Counter[str]()

    def next(self, layer: FrozenDropout, x: Tensor) -> None:
        key = f"{layer.name}/{self._counts[layer.name]}"
        self._counts[layer.name] += 1
        self.calls[key] = _Call(layer, x.shape, x.clone() if key in self._keep else None, x.nbytes)


def _record(network: nn.Module, x: Inputs, keep: Collection[str] = ()) -> dict[str, _Call]:
    """Pass ``x`` through ``network``, and return the calls of its dropout layers."""
    recorder = _Recorder(keep)
    with torch.no_grad(), active(recorder):
        inputs.call(network, x)
    return recorder.calls


def _watch(network: nn.Module, x: Inputs, all_random: bool = False) -> _Pass:
    """Pass ``x`` through ``network``, and watch what its layers do."""
    rows = inputs.count(x)
    before, after = [inputs.nbytes(x) // rows], [1]
    recorder = _Recorder()
    operations = _Operations(recorder)
    module_calls: Counter[str] = Counter()
    shapes: dict[str, torch.Size] = {}

    def enter(name: str, module: nn.Module, args: Any) -> None:
        operations.where.append(name)
        module_calls[name] += 1
        if args and isinstance(args[0], Tensor):
            shapes.setdefault(name, args[0].shape)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        operations.where.pop()
        sizes = after if all_random or recorder.calls else before
        sizes.extend([output.nbytes // rows] if isinstance(output, Tensor) else [])

    with ExitStack() as stack:
        for name, module in network.named_modules():
            stack.callback(module.register_forward_pre_hook(partial(enter, name)).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        with torch.no_grad(), active(recorder), operations:
            inputs.call(network, x)
    known = set(network.modules())  # dropout inside of attention is none of them
    after += [call.nbytes // rows for call in recorder.calls.values() if call.layer not in known]
    work = Work(*(total // rows for total in operations.work))
    sorts = any(name.startswith(_SORTS) for name in operations.names)
    return _Pass(
        Footprint(max(before), max(after)), work, sorts, recorder.calls, list(operations.seen), module_calls, shapes
    )


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record operations, those that draw random numbers, from any generator, and the work before and after the first
    call of a dropout layer that ``recorder`` knows.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's switch: True, its default, would import the compiler, which takes seconds, with the first probe."""
        return False

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self.work = [0, 0]
        self.where: list[str] = []  # the layers that are running
        self.names: list[str] = []  # of all operations, in order
        self.seen: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.names.append(func.name())
        if torch.Tag.nondeterministic_seeded not in func.tags or _is_off(func, args, kwargs):
            out = func(*args, **kwargs)
            count = flop_registry.get(func.overloadpacket)
            if count and not (isinstance(out, Tensor) and out.is_nested):  # which has no shape
                self.work[bool(self._recorder.calls)] += count(*args, **kwargs, out_val=out)
            return out
        name = self.where[-1].removeprefix("network").lstrip(".") if self.where else ""
        self.seen.setdefault(f"{func.name()} in {f'layer {name!r}' if name else 'its own forward'}")
        return _without_numbers(func, args, kwargs)


def _without_numbers(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Zeros in place of random numbers: the generator is that of all threads, and one of them may be training."""
    if func._schema.is_mutable:  # as normal_
        return args[0].zero_()
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    device = kwargs.get("device") or (tensors[0].device if tensors else "cpu")
    names = {argument.name for argument in func._schema.arguments}
    options = {**kwargs, **({"device": "meta"} if "device" in names else {})}
    out = func(*tree_map(_on_meta, args), **{key: _on_meta(value) for key, value in options.items()})
    return tree_map(lambda value: torch.zeros_like(value, device=device) if isinstance(value, Tensor) else value, out)


def _on_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else None if isinstance(value, torch.Generator) else value


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
    for key, (layer, shape, *_) in two.items():
        other = three[key].shape if key in three else torch.Size()
        axes = [axis for axis, (size, larger) in enumerate(zip(shape, other, strict=False)) if size != larger]
        if len(shape) != len(other) or len(axes) > 1 or any(3 * shape[axis] != 2 * other[axis] for axis in axes):
            raise _unclear(layer, f"its shape is {tuple(shape)} for 2 inputs and {tuple(other)} for 3")
        if axes and shape[axes[0]] > 2:
            folded[key] = axes[0]
        else:
            layouts[key] = MaskLayout.of(layer.layer, shape, axes[0] if axes else None)
    return layouts, folded


def _unfolded(network: nn.Module, x: Inputs, calls: Mapping[str, tuple[_Call, int]]) -> dict[str, MaskLayout]:
    """Find the batch in axes of size ``outer * B * inner``, by which entries follow the second of two inputs.

    Branches that start as zeros tell nothing: then once more, with weights that are none.
    """
    try:
        return _followed(network, x, calls)
    except StakesError:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator).to(weight), alpha=0.1)
        return _followed(network, x, calls)


def _followed(network: nn.Module, x: Inputs, calls: Mapping[str, tuple[_Call, int]]) -> dict[str, MaskLayout]:
    passes, row = [], inputs.rows(x, slice(1))
    for pair in (row, row), (row, _another(x)):
        try:
            recorded = _record(network, inputs.cat(pair), keep=calls)
        except Exception as error:  # an input with noise need not be one that the network takes
            ((layer, shape, *_), _), *_ = calls.values()
            raise _unclear(
                layer, f"its shape is {tuple(shape)} for 2 inputs, and another input fails: {error}"
            ) from None
        passes.append([call.x.nan_to_num() for call in recorded.values() if call.x is not None])
    layouts = {}
    for (key, ((layer, shape, *_), axis)), first, second in zip(calls.items(), *passes, strict=True):
        if first.shape != second.shape:
            raise _unclear(layer, f"its size, {len(first)} or {len(second)}, depends on the values of the inputs")
        changed = (first != second).movedim(axis, 0).flatten(1).any(1).nonzero().flatten().tolist()
        size = shape[axis] // 2
        divisors = [inner for inner in range(1, size + 1) if size % inner == 0]
        fits = [inner for inner in divisors if all(entry // inner % 2 == 1 for entry in changed)]
        if not changed or len(fits) != 1:
            raise _unclear(layer, f"its shape is {tuple(shape)} for 2 inputs, and its values do not tell")
        layouts[key] = MaskLayout.of(layer.layer, shape, axis, size // fits[0], fits[0])
    return layouts


def _another(x: Inputs) -> Inputs:
    """An input that is not the first: one of the others, which is sure to be valid, or one with noise."""
    differs = [(tensor != tensor[:1]).reshape(len(tensor), -1).any(1) for tensor in inputs.tensors_of(x)]
    others = torch.stack(differs).any(0).nonzero().flatten().tolist()
    return inputs.rows(x, slice(others[0], others[0] + 1)) if others else inputs.map_tensors(_with_noise, x)


def _with_noise(x: Tensor) -> Tensor:
    row = x[:1]
    if not x.is_floating_point():
        return row.roll(1, -1)
    noise = torch.randn(row.shape, generator=torch.Generator().manual_seed(0)).to(x)
    return row + noise * (1 + row.abs())


def _unclear(layer: FrozenDropout, reason: str) -> StakesError:
    return StakesError(
        f"cannot tell which axis of what enters the dropout layer {layer.name!r} is the batch: {reason}. Give the "
        "layer an input with the batch on an axis of its own, so that a draw can use one mask for all inputs"
    )
