"""Layers of PyTorch that are random in training, and what stands for them in a frozen network."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.rnn import PackedSequence

from stakes.errors import StakesError
from stakes.posteriors._sampling.masks import FrozenDropout

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
# Layers with a fused path in eval mode, which passes over their dropout and which vmap cannot run. It is ruled out
# for each layer, by its training mode, and not by the flag in torch.backends, which is one for all threads.
_WITH_FAST_PATH = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def _is_stock(layer: nn.Module, types: tuple[type[nn.Module], ...]) -> bool:
    """Whether the layer is one of these types, or a subclass that does not override forward."""
    stock = any(isinstance(layer, kind) and type(layer).forward is kind.forward for kind in types)
    return stock and "forward" not in vars(layer)


def dropout_rate(layer: nn.Module) -> float:
    """The rate of a layer of PyTorch that drops in training; 0 for other layers."""
    if isinstance(layer, _DropoutNd) and _is_stock(layer, _DROPOUT):
        return float(layer.p)
    if isinstance(layer, nn.MultiheadAttention) and _is_stock(layer, (nn.MultiheadAttention,)):
        return float(layer.dropout)
    if isinstance(layer, nn.RNNBase) and _is_stock(layer, _RECURRENT) and layer.num_layers > 1:
        return layer.dropout
    return 0.0


def dropout_layers(network: nn.Module) -> list[nn.Module]:
    return [layer for layer in network.modules() if dropout_rate(layer) > 0]


def silent_dropout(network: nn.Module) -> list[str]:
    """The names of dropout layers that ``network.train()`` leaves in eval mode, those of a frozen backbone, say."""
    if all(type(part).train is nn.Module.train for part in network.modules()):
        return []
    modes = {part: part.training for part in network.modules()}
    network.train()
    names = [name for name, part in network.named_modules() if dropout_rate(part) > 0 and not part.training]
    for part, training in modes.items():
        part.training = training
    return names


@contextmanager
def dropout_on(network: nn.Module) -> Iterator[None]:
    """Keep dropout random whatever the mode of the network; batch norm follows its own mode."""
    inactive = [
        layer
        for layer in network.modules()
        if not layer.training and (dropout_rate(layer) > 0 or _is_stock(layer, _WITH_FAST_PATH))
    ]
    for layer in inactive:
        layer.training = True
    try:
        yield
    finally:
        for layer in inactive:
            layer.training = False


@contextmanager
def taking_masks(network: nn.Module) -> Iterator[None]:
    """Make the dropout layers of ``network`` apply the masks of the current draw; restore them on exit."""
    with dropout_on(network):
        layers = dict(network.named_modules())
        patched = {name: layer for name, layer in layers.items() if dropout_rate(layer) > 0}
        rates = {name: layer.dropout for name, layer in patched.items() if isinstance(layer, nn.MultiheadAttention)}
        for name, layer in patched.items():
            layer.__dict__["forward"] = _with_masks(name, layer)
        try:
            yield
        finally:
            for name, layer in patched.items():
                del layer.__dict__["forward"]
                if name in rates:
                    layer.dropout = rates[name]


def _with_masks(name: str, layer: nn.Module) -> Callable[..., Any]:
    """The forward of a dropout layer, with masks."""
    if isinstance(layer, nn.MultiheadAttention):
        return FrozenAttention(name, layer)
    if isinstance(layer, nn.RNNBase):
        return FrozenRecurrent(name, layer)
    assert isinstance(layer, _DropoutNd)
    return FrozenDropout(name, layer)


def frozen(network: nn.Module) -> nn.Module:
    """A copy in eval mode, without gradients, whose dropout layers apply the masks of the current draw."""

    def swap(name: str, layer: nn.Module) -> nn.Module | None:
        if not isinstance(layer, _DropoutNd) or dropout_rate(layer) == 0:
            return None
        stand_in = FrozenDropout(name, layer)
        stand_in.take_hooks()
        return stand_in

    network = swap_layers(network, swap)
    for name, layer in network.named_modules():
        if dropout_rate(layer) > 0 and isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
            layer.__dict__["forward"] = _with_masks(name, layer)
    return _for_inference(network)


def without_dropout(network: nn.Module) -> nn.Module:
    """A copy in eval mode, without gradients, whose dropout layers drop nothing in any mode."""
    network = copied(network)
    for layer in dropout_layers(network):
        setattr(layer, "p" if isinstance(layer, _DropoutNd) else "dropout", 0.0)
    return _for_inference(network)


def eager(network: nn.Module) -> nn.Module:
    """The network that `torch.compile` was given, which has the same layers: vmap and copies need it."""
    return cast(nn.Module, getattr(network, "_orig_mod", network))


def copied(network: nn.Module) -> nn.Module:
    """A copy of its own; what cannot be copied is refused."""
    if any(isinstance(parameter, UninitializedParameter) for parameter in network.parameters()):
        raise StakesError(
            "expected a network whose layers know their sizes: pass a batch through its lazy layers first"
        )
    network, known = eager(network), dict[int, Any]()
    layers = set(network.modules())
    for name, module in network.named_modules():
        where = f" of {name!r}" if name else ""
        for key, value in _kept(module):
            if isinstance(value, Tensor) and value.grad_fn is not None:  # made of others by a hook, which makes it anew
                known[id(value)] = value.detach().clone()
            if _refers(value, layers, False, set()):
                raise StakesError(
                    f"expected a network that can be copied, but the function in {key!r}{where} refers to layers by "
                    "itself, and in a copy it would still call those of the original: write it as a method"
                )
    return copy.deepcopy(network, known)


def _kept(module: nn.Module) -> list[tuple[str, Any]]:
    """What a module keeps beside parameters, buffers and layers: attributes and hooks."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    attributes = [(key, value) for key, value in vars(module).items() if key not in _OF_EVERY_MODULE]
    return [*attributes, *(("a hook", hook) for hook in hooks)]


def _refers(value: Any, layers: Collection[nn.Module], inside: bool, seen: set[tuple[int, bool]]) -> bool:
    """Whether a function among what is kept uses one of ``layers`` that it does not get as an argument. ``inside`` one,
    every layer counts; outside, copies of what refers to layers refer to their copies.
    """
    if (id(value), inside) in seen:
        return False
    seen.add((id(value), inside))
    if isinstance(value, nn.Module):
        return inside and value in layers
    is_function = isinstance(value, FunctionType)
    parts = _variables_of(value) if is_function else _parts_of(value)
    return any(_refers(each, layers, inside or is_function, seen) for each in parts)


def _variables_of(function: FunctionType) -> list[Any]:
    """The variables around a function, and its defaults."""
    around = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return [*around, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [*value.values()]
    if isinstance(value, list | tuple | set):
        return [*value]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    return [value.__self__] if isinstance(value, MethodType) else []


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (raises where the variable has no value)
    except ValueError:
        return False
    return True


def _for_inference(network: nn.Module) -> nn.Module:
    network.eval()
    for parameter in network.parameters():
        if parameter.requires_grad:  # else there is nothing to do, and under vmap it is an error
            parameter.requires_grad_(False)
    for layer in network.modules():
        if type(layer).forward in {kind.forward for kind in _WITH_FAST_PATH}:
            layer.training = True
    return network


class FrozenAttention:
    """The forward of a `nn.MultiheadAttention`, with the mask of the current draw on the attention weights."""

    def __init__(self, name: str, layer: nn.MultiheadAttention) -> None:
        self.dropout, self.layer = FrozenDropout(name, nn.Dropout(layer.dropout)), layer
        layer.dropout = 0.0  # for its own forward, which computes the weights

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        layer = self.layer
        _, weights = nn.MultiheadAttention.forward(
            layer, query, key, value, key_padding_mask, True, attn_mask, False, is_causal
        )
        bias = attention_bias(attn_mask, key_padding_mask, query, layer.num_heads) if query.ndim == 3 else None
        if (
            bias is not None
            and weights is not None
            and not (need_weights or layer.add_zero_attn or layer.bias_k is not None)
        ):
            weights = without_masked_rows(weights, bias.squeeze(1).movedim(0, -3))  # from (heads, 1, B, T, S)
        weights = self.dropout(weights)  # (B, heads, T, S), or (heads, T, S) without a batch
        batch_second = query.ndim == 3 and not layer.batch_first
        heads = self._values(value.transpose(0, 1) if batch_second else value)  # (B, heads, S, E / heads)
        out = layer.out_proj((weights @ heads).transpose(-2, -3).flatten(-2))  # (B, T, E)
        out = out.transpose(0, 1) if batch_second else out
        if not need_weights:
            return out, None
        return out, weights.mean(-3) if average_attn_weights else weights

    def _values(self, value: Tensor) -> Tensor:
        """``(..., S, E) -> (..., heads, S, E / heads)``."""
        layer = self.layer
        packed = layer.in_proj_weight
        weight = layer.v_proj_weight if packed is None else packed[-layer.embed_dim :]
        bias = None if layer.in_proj_bias is None else layer.in_proj_bias[-layer.embed_dim :]
        value = nn.functional.linear(value, weight, bias)
        one = (*value.shape[:-2], 1, layer.embed_dim)
        if layer.bias_v is not None:
            value = torch.cat([value, layer.bias_v.reshape(-1).expand(one)], -2)
        if layer.add_zero_attn:
            value = torch.cat([value, value.new_zeros(one)], -2)
        return value.unflatten(-1, (layer.num_heads, -1)).transpose(-2, -3)  # type: ignore[no-any-return, no-untyped-call]


def attention_bias(mask: Tensor | None, padding: Tensor | None, x: Tensor, heads: int) -> Tensor | None:
    """``(heads, 1, B, T, S)``, with 1 in place of what shares it: what is added to the scores of attention."""
    parts = []
    if mask is not None:  # (T, S) or (B heads, T, S)
        mask = mask.view(-1, 1 if mask.ndim == 2 else heads, *mask.shape[-2:])
        parts.append(mask.transpose(0, 1).unsqueeze(1))
    if padding is not None:  # (B, S)
        parts.append(padding[None, None, :, None])
    added = [
        torch.where(part, -torch.inf, 0.0).to(x.dtype) if part.dtype == torch.bool else part.to(x.dtype)
        for part in parts
    ]
    return sum(added[1:], added[0]) if added else None


def without_masked_rows(weights: Tensor, bias: Tensor) -> Tensor:
    """Attention weights, 0 for a position that may look at none, as scaled_dot_product_attention has them."""
    return weights.masked_fill((bias == -torch.inf).all(-1, keepdim=True), 0)


class FrozenRecurrent:
    """The forward of a `nn.LSTM`, `nn.GRU` or `nn.RNN`, with the masks of the current draw between its layers."""

    def __init__(self, name: str, layer: nn.RNNBase) -> None:
        self.dropout, self.layer = FrozenDropout(name, nn.Dropout(layer.dropout)), layer

    def __call__(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        if isinstance(x, PackedSequence):
            raise StakesError(
                f"expected padded sequences, but the layer {self.dropout.name!r} gets a PackedSequence, in which draws "
                "cannot mask positions: pass the padded tensor, or give the layer dropout=0"
            )
        layer = self.layer
        batch_axis = (0 if layer.batch_first else 1) if x.ndim == 3 else None
        directions = 2 if layer.bidirectional else 1
        states = self._initial(x, batch_axis, directions) if hx is None else hx if isinstance(hx, tuple) else (hx,)
        if batch_axis is None:
            x, states = x.unsqueeze(1), tuple(state.unsqueeze(1) for state in states)
        run = getattr(torch._VF, layer.mode.lower())
        ends = []
        for start in range(0, directions * layer.num_layers, directions):
            part = slice(start, start + directions)
            if start > 0:
                x = self.dropout(x if batch_axis is not None else x.squeeze(1))
                x = x if batch_axis is not None else x.unsqueeze(1)
            weights = [weight for group in layer.all_weights[part] for weight in group]
            initial = tuple(state[part].contiguous() for state in states)
            settings = (layer.bias, 1, 0.0, False, layer.bidirectional, layer.batch_first and batch_axis is not None)
            x, *end = run(x, initial if len(initial) > 1 else initial[0], weights, *settings)
            ends.append(end)
        last = tuple(torch.cat(parts) for parts in zip(*ends, strict=True))
        if batch_axis is None:
            x, last = x.squeeze(1), tuple(state.squeeze(1) for state in last)
        return x, last if len(last) > 1 else last[0]

    def _initial(self, x: Tensor, batch_axis: int | None, directions: int) -> tuple[Tensor, ...]:
        layer = self.layer
        sizes = [layer.proj_size or layer.hidden_size, *([layer.hidden_size] if layer.mode == "LSTM" else [])]
        batch = [] if batch_axis is None else [x.shape[batch_axis]]
        return tuple(x.new_zeros(directions * layer.num_layers, *batch, size) for size in sizes)


def swap_layers(network: nn.Module, swap: Callable[[str, nn.Module], nn.Module | None]) -> nn.Module:
    """A copy of ``network`` in which ``swap(name, layer)`` stands for each layer, unless it is None.

    A layer used in several places is swapped once, so that it stays one layer.
    """
    root = nn.ModuleDict({"network": copied(network)})
    swapped = {layer: new for name, layer in root["network"].named_modules() if (new := swap(name, layer))}
    parents = [module for module in root.modules() if module not in swapped]
    for parent in parents:
        for name, child in parent._modules.items():  # `named_children` leaves out a layer that stands here twice
            if child in swapped:
                parent._modules[name] = swapped[child]
    return root["network"]
