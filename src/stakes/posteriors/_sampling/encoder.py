"""PyTorch's Transformer encoder layer with the masks of draws, in fewer passes over memory than its parts take.

Its products are most of what it computes; what stands between them is memory traffic. Here

    x + mask * y                 is one operation;
    relu(h) * mask               is one, in place: h is cut to [0, inf] where a unit is kept, to [0, 0] elsewhere;
    the factors 1 / (1 - p)      are those of the products that follow;
    queries, keys and values     are not copied: a head is a slice of what projects them.

Draws are computed a few at a time, so that their tensors stay in the cache; what they share, once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from stakes.posteriors._sampling.fusion import is_exactly
from stakes.posteriors._sampling.layers import FrozenAttention, attention_bias, without_masked_rows
from stakes.posteriors._sampling.masks import ActiveMasks, FrozenDropout, active_masks

BLOCK_BYTES = 2 * 2**20  # of hidden units of all draws that are computed at once
_RELU = 1  # in `nn.TransformerEncoderLayer.activation_relu_or_gelu`
_BATCH_AXES = 3


def fuse_encoders(network: nn.Module) -> nn.Module:
    """``network`` itself, a frozen one, with fused encoder layers."""
    _fuse(network)
    return network


@contextmanager
def fused_encoders(network: nn.Module) -> Iterator[None]:
    """Fuse the encoder layers of ``network``, whose dropout takes masks; restore their forwards on exit."""
    layers = _fuse(network)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _fuse(network: nn.Module) -> list[nn.Module]:
    """Replace the forward of the encoder layers for which that is the same function, and return these layers."""
    fused: list[nn.Module] = []
    for layer in network.modules():
        if is_exactly(layer, nn.TransformerEncoderLayer) and _is_fusible(layer):
            dropout = _dropout_of(layer)
            if dropout is not None:
                layer.__dict__["forward"] = FusedEncoderLayer(layer, dropout)
                fused.append(layer)
    return fused


def _is_fusible(layer: nn.TransformerEncoderLayer) -> bool:
    attention = layer.self_attn
    return (
        all(is_exactly(part, nn.Linear) for part in (layer.linear1, layer.linear2))
        and all(is_exactly(part, nn.LayerNorm) for part in (layer.norm1, layer.norm2))
        and is_exactly(attention.out_proj, NonDynamicallyQuantizableLinear)
        and type(attention) is nn.MultiheadAttention
        and not (attention._forward_hooks or attention._forward_pre_hooks)
        and attention.in_proj_weight is not None
        and attention.bias_k is None
        and not attention.add_zero_attn
    )


def _dropout_of(layer: nn.TransformerEncoderLayer) -> list[FrozenDropout | None] | None:
    """Its four dropout layers (of attention, of its output, of hidden units, of their output), None for a rate of 0; or
    None if one is not plain.
    """
    attention = vars(layer.self_attn).get("forward")
    if not isinstance(attention, FrozenAttention) and (attention is not None or layer.self_attn.dropout > 0):
        return None
    dropout = [attention.dropout if isinstance(attention, FrozenAttention) else None]
    for part in (layer.dropout1, layer.dropout, layer.dropout2):
        frozen = part if isinstance(part, FrozenDropout) else vars(part).get("forward")
        if isinstance(frozen, FrozenDropout) and not (part._forward_hooks or part._forward_pre_hooks):
            dropout.append(frozen)
        elif is_exactly(part, nn.Dropout) and part.p == 0:
            dropout.append(None)
        else:
            return None
    plain = all(part is None or (type(part.layer) is nn.Dropout and part.layer.p < 1) for part in dropout)
    return dropout if plain else None


class FusedEncoderLayer:
    """The forward of a `nn.TransformerEncoderLayer`. The layer's own forward runs while a network is probed or
    exported, where gradients are wanted, and for what is rare.
    """

    def __init__(self, layer: nn.TransformerEncoderLayer, dropout: Sequence[FrozenDropout | None]) -> None:
        self.layer, self.dropout = layer, dropout
        self._scales = [1.0 if part is None else 1 / (1 - part.layer.p) for part in dropout]

    def __call__(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        layer, masks = self.layer, active_masks()
        rare = src.is_nested or src.ndim != _BATCH_AXES or (is_causal and src_mask is None)
        rare = rare or any(mask is not None and is_batchedtensor(mask) for mask in (src_mask, src_key_padding_mask))
        if masks is None or rare or not self._fits(masks, src):
            return nn.TransformerEncoderLayer.forward(layer, src, src_mask, src_key_padding_mask, is_causal)
        kept = self._take(masks, src)
        batch_first = layer.self_attn.batch_first
        x = src if batch_first else src.transpose(0, 1)  # (B, T, E)
        bias = attention_bias(src_mask, src_key_padding_mask, x, layer.self_attn.num_heads)
        out: Tensor = _BatchedForward.apply(partial(self._run, bias), x, *kept)  # type: ignore[no-untyped-call]
        return out if batch_first else out.transpose(0, 1)

    def _fits(self, masks: ActiveMasks, src: Tensor) -> bool:
        """Whether nothing but values is wanted, in one precision, and masks are shared along the batch as it stands in
        the layer's input, with nothing folded into it.
        """
        if torch.is_grad_enabled() or torch.compiler.is_exporting() or torch.is_autocast_enabled(src.device.type):
            return False
        axes = (0, *[0 if self.layer.self_attn.batch_first else 1] * 3)
        for part, axis in zip(self.dropout, axes, strict=True):
            upcoming = None if part is None else masks.upcoming(part)
            if upcoming is None:
                continue
            layout, mask = upcoming
            if layout.axis != axis or layout.outer * layout.inner > 1 or mask.ndim > len(layout.shape):
                return False
        return True

    def _take(self, masks: ActiveMasks, src: Tensor) -> list[Tensor | None]:
        """The masks of this call, in the order of `dropout`; that of attention is (T, T, heads)."""
        layer = self.layer
        rows, length = src.shape[:2] if layer.self_attn.batch_first else (src.shape[1], src.shape[0])
        weights = rows, layer.self_attn.num_heads, length, length
        hidden = *src.shape[:2], layer.linear1.out_features
        shapes = [torch.Size(shape) for shape in (weights, src.shape, hidden, src.shape)]
        return [
            None if part is None else masks.take(part, shape)[1]
            for part, shape in zip(self.dropout, shapes, strict=True)
        ]

    def _run(self, bias: Tensor | None, x: Tensor, *kept: Tensor | None) -> Tensor:
        """``(S, B, T, E) -> (S, B, T, E)`` with masks ``(S, ...)``; 1 in place of S for what draws share.

        A few draws are computed at a time, whose tensors stay in the cache.
        """
        masks = self._factors(kept, x.dtype)
        draws = max(len(value) for value in (x, *masks) if value is not None)
        size = max(1, BLOCK_BYTES // (x[0, ..., 0].numel() * self.layer.linear1.out_features * x.element_size()))
        shared = self._weights(x, bias) if len(x) == 1 else None
        out = x.new_empty(draws, *x.shape[1:])
        for first in range(0, draws, size):
            block = slice(first, first + size)
            some = x if shared is not None else x[block]
            kept_weights, *others = (_part(mask, block) for mask in masks)
            weights, values = self._weights(some, bias) if shared is None else shared
            if kept_weights is not None:
                factor = kept_weights.transpose(0, 1)  # (heads, S, 1, T, T)
                weights = weights.mul_(factor) if shared is None else weights * factor
            attended = self._attend(weights, values)
            del weights, values  # their memory is that of the hidden units
            out[block] = self._after_attention(some, attended, *others)
        return out

    def _factors(self, kept: Sequence[Tensor | None], dtype: torch.dtype) -> list[Tensor | None]:
        """Masks as the numbers that they are applied as, with an axis for the examples."""
        attention, *others = (None if mask is None else mask.to(dtype) for mask in kept)
        if attention is not None:
            attention = attention.movedim(-1, 1).contiguous().unsqueeze(2)  # (S, heads, 1, T, T)
        first, hidden, second = (None if mask is None else mask.unsqueeze(1) for mask in others)
        if hidden is not None and self._cuts:
            hidden = hidden / (1 - hidden)  # infinity for 1, 0 for 0: in a quarter of the time of torch.where
        return [attention, first, hidden, second]

    @property
    def _cuts(self) -> bool:
        """Whether hidden units are cut to limits, which is their activation and their mask in one."""
        return self.layer.activation_relu_or_gelu == _RELU

    def _after_attention(
        self, x: Tensor, attended: Tensor, first: Tensor | None, hidden: Tensor | None, second: Tensor | None
    ) -> Tensor:
        layer = self.layer
        x = _sum(x, attended, first, self._scales[1])
        if layer.norm_first:
            return _sum(x, self._feed_forward(layer.norm2(x), hidden), second, self._scales[3])
        x = layer.norm1(x)
        out: Tensor = layer.norm2(_sum(x, self._feed_forward(x, hidden), second, self._scales[3]))
        return out

    def _weights(self, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """The attention weights, ``(heads, S, B, T, T)``, and the values, ``(heads, S, B, T, E / heads)``."""
        x = self.layer.norm1(x) if self.layer.norm_first else x
        attention, (draws, rows, length, width) = self.layer.self_attn, x.shape
        heads = attention.num_heads
        projected = nn.functional.linear(x, attention.in_proj_weight, attention.in_proj_bias)
        projected = projected.view(draws * rows, length, 3, heads, -1).permute(2, 3, 0, 1, 4)
        q, k, v = projected.unbind()  # (heads, S B, T, E / heads)
        scores, scale = x.new_empty(heads, draws * rows, length, length), (width // heads) ** -0.5
        for queries, keys, out in zip(q.unbind(), k.mT.unbind(), scores.unbind(), strict=True):
            torch.baddbmm(out, queries, keys, beta=0, alpha=scale, out=out)
        scores = scores.view(heads, draws, rows, length, length)
        weights = scores.softmax(-1) if bias is None else without_masked_rows((scores + bias).softmax(-1), bias)
        return weights, v.unflatten(1, (draws, rows))  # type: ignore[no-untyped-call]

    def _attend(self, weights: Tensor, values: Tensor) -> Tensor:
        """``(S, B, T, E)`` the output of attention, from its weights after dropout."""
        values = values.expand(*weights.shape[:-1], -1)
        heads = zip(weights.flatten(1, 2).unbind(), values.flatten(1, 2).unbind(), strict=True)
        out = torch.stack([torch.bmm(*head) for head in heads], -2)  # (S B, T, heads, E / heads)
        return _linear(out.view(*weights.shape[1:-1], -1), self.layer.self_attn.out_proj, self._scales[0])

    def _feed_forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        layer = self.layer
        hidden: Tensor = layer.linear1(x)  # (S, B, T, hidden)
        if mask is None or not self._cuts:
            hidden = layer.activation(hidden)
            hidden = hidden if mask is None else hidden * mask
        else:
            cut = hidden.clamp_ if len(mask) == len(hidden) else hidden.clamp
            hidden = cut(mask.new_zeros(()), mask)
        return _linear(hidden, layer.linear2, self._scales[2])


class _BatchedForward(torch.autograd.Function):
    """``run`` for one draw; under vmap, for all draws at once."""

    @staticmethod
    def forward(run: Callable[..., Tensor], x: Tensor, *kept: Tensor | None) -> Tensor:
        return run(*(None if value is None else value.unsqueeze(0) for value in (x, *kept))).squeeze(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], run: Callable[..., Tensor], *tensors: Tensor | None
    ) -> tuple[Tensor, int]:
        draws_first = [
            None if value is None else value.unsqueeze(0) if dim is None else value.movedim(dim, 0)
            for value, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        out = run(*draws_first)
        return out.expand(info.batch_size, *out.shape[1:]), 0


def _part(mask: Tensor | None, block: slice) -> Tensor | None:
    return mask if mask is None or len(mask) == 1 else mask[block]


def _sum(x: Tensor, y: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The sum of ``x``, and of ``y`` after dropout."""
    return x + y if mask is None else torch.addcmul(x, y, mask, value=scale)


def _linear(x: Tensor, layer: nn.Linear, scale: float) -> Tensor:
    """The layer of ``scale * x``."""
    if layer.bias is None:
        return (x @ layer.weight.t()).mul_(scale)
    product = torch.addmm(layer.bias, x.flatten(0, -2), layer.weight.t(), alpha=scale)
    return product.view(*x.shape[:-1], -1)
