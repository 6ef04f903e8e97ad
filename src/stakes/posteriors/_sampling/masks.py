"""Masks of a draw: what stands for a dropout layer in a frozen network, and how it finds and applies its mask."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from stakes import seeds
from stakes.errors import StakesError
from stakes.posteriors._sampling.balance import seeded_masks, unpack
from stakes.posteriors._sampling.stand_in import StandIn

_BY_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_IMAGE_AXES = 3
_ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_ALPHA_DROPPED = -1.7580993408473766  # what SELU tends to: -scale * alpha


class MaskLayout(NamedTuple):
    """The mask of one call of a dropout layer: shared along the batch axis of its input, independent along the others.

    The batch may be folded with other axes into one of size ``outer * B * inner``: frames of a video, say.
    """

    p: float
    shape: torch.Size  # of the mask in memory, without the batch
    input_shape: tuple[int, ...]  # of the layer's input for one example
    axis: int | None  # of the batch in the layer's input; None if the input is the same for all examples
    outer: int = 1
    inner: int = 1
    channels_last: bool = False  # in memory, as images have them in prediction

    @classmethod
    def of(cls, layer: _DropoutNd, shape: torch.Size, axis: int | None, outer: int = 1, inner: int = 1) -> "MaskLayout":
        """The layout for a layer whose input has this shape, batch axis included."""
        sizes, input_shape = mask_shape(layer, shape), list(shape)
        if axis is not None:
            folded = [outer, inner] if outer * inner > 1 else []
            sizes[axis : axis + 1] = folded if sizes[axis] > 1 else [1] * len(folded)
            input_shape[axis] = outer * inner
        channels_last = axis == 0 and outer * inner == 1 and len(sizes) == _IMAGE_AXES
        stored = [*sizes[1:], sizes[0]] if channels_last else sizes
        return cls(layer.p, torch.Size(stored), tuple(input_shape), axis, outer, inner, channels_last)

    @property
    def batch_first(self) -> bool:
        return self.axis == 0 and self.outer * self.inner == 1

    def accepts(self, shape: torch.Size, rows: int) -> bool:
        """Whether a layer's input of this shape, for this many examples, is as it was when it was probed."""
        expected = [size * rows if axis == self.axis else size for axis, size in enumerate(self.input_shape)]
        return list(shape) == expected


class GroupedMasks:
    """The masks of draws, 1 for what is kept and 0 for what is dropped, balanced in groups of draws."""

    def __init__(self, layouts: Mapping[str, MaskLayout], group: int, seed: int, device: torch.device) -> None:
        self._layouts, self._group, self._seed, self._device = layouts, group, seed, device
        self._latest: tuple[int, dict[str, Tensor]] = (-1, {})  # a group, as blocks of draws may be smaller than one

    def __call__(self, first: int, last: int) -> dict[str, Tensor]:
        """``{key: (last - first, ...)}``: the masks of the draws from ``first`` up to ``last``."""
        parts: dict[str, list[Tensor]] = {key: [] for key in self._layouts}
        for number in range(first // self._group, -(-last // self._group)):
            start = number * self._group
            for key, patterns in self._patterns(number).items():
                parts[key].append(unpack(patterns, max(first - start, 0), min(last - start, self._group)))
        return {key: torch.cat(masks) for key, masks in parts.items()}

    def _patterns(self, number: int) -> dict[str, Tensor]:
        latest, patterns = self._latest
        if latest != number:
            patterns = {
                key: seeded_masks(
                    layout.p, self._group, layout.shape, seeds.generator(self._seed, "mask", key, number)
                ).to(self._device)
                for key, layout in self._layouts.items()
            }
            self._latest = number, patterns
        return patterns


def mask_shape(layer: _DropoutNd, shape: torch.Size) -> list[int]:
    """The shape of the mask that the layer draws in training for such an input; 1 on axes that share it."""
    axes = len(shape)
    if isinstance(layer, _BY_CHANNEL):
        without_batch = 2 if isinstance(layer, nn.Dropout1d) else 4 if isinstance(layer, nn.Dropout3d) else None
        axes = 1 if axes == without_batch else 2  # then PyTorch takes axis 0 for the channels
    return [size if axis < axes else 1 for axis, size in enumerate(shape)]


class MaskSource(Protocol):
    def next(self, layer: "FrozenDropout", x: Tensor) -> tuple[MaskLayout, Tensor] | None:
        """The mask for the next call of ``layer``; None if ``x`` is to pass as it is."""


class ActiveMasks:
    """The masks of one forward pass. A layer that is called twice has two."""

    def __init__(self, masks: Mapping[str, Tensor], layouts: Mapping[str, MaskLayout], rows: int) -> None:
        self._masks, self._layouts, self._rows = masks, layouts, rows
        self._calls: Counter[str] = Counter()

    def next(self, layer: "FrozenDropout", x: Tensor) -> tuple[MaskLayout, Tensor]:
        return self.take(layer, x.shape)

    def upcoming(self, layer: "FrozenDropout") -> tuple[MaskLayout, Tensor] | None:
        """The mask for the next call of ``layer``, which stays the next one; None if there is none."""
        key = f"{layer.name}/{self._calls[layer.name]}"
        return (self._layouts[key], self._masks[key]) if key in self._layouts else None

    def take(self, layer: "FrozenDropout", shape: torch.Size) -> tuple[MaskLayout, Tensor]:
        """The mask for the next call of ``layer``, with an input of this shape."""
        upcoming = self.upcoming(layer)
        self._calls[layer.name] += 1
        if upcoming is None or not upcoming[0].accepts(shape, self._rows):
            raise StakesError(
                f"expected the dropout layer {layer.name!r} to be called as often, and with the same shape, for every "
                f"input of one shape, but its call {self._calls[layer.name]} with shape {tuple(shape)} is a new one: "
                "a network may not choose its layers by the values or the number of its inputs"
            )
        return upcoming


class CachedPrefix(NamedTuple):
    """What the first layers of a sequence put out for an input; a later layer may have changed either in place."""

    x: Tensor
    x_version: int
    out: Tensor
    out_version: int

    def holds_for(self, x: Tensor) -> bool:
        return self.x is x and (self.x_version, self.out_version) == (x._version, self.out._version)


class _Thread(threading.local):
    source: MaskSource | None = None
    reused: dict[object, CachedPrefix] | None = None


_thread = _Thread()  # several threads may ask one network for its draws at once


@contextmanager
def active(source: MaskSource) -> Iterator[None]:
    """Make frozen dropout layers take their masks from ``source``, in this thread."""
    before = _thread.source
    _thread.source = source
    try:
        yield
    finally:
        _thread.source = before


def active_masks() -> ActiveMasks | None:
    """The masks of the current pass in this thread; None outside of one, and where a network is probed."""
    return _thread.source if isinstance(_thread.source, ActiveMasks) else None


@contextmanager
def reusing_prefixes() -> Iterator[None]:
    """Compute what precedes the first dropout layer once for all blocks of draws, in this thread."""
    before = _thread.reused
    _thread.reused = {}
    try:
        yield
    finally:
        _thread.reused = before


def prefix(owner: object, x: Tensor, run: Callable[[Tensor], Tensor], certain: bool = False) -> Tensor:
    """``run(x)``, or what ``owner`` got for the same input before."""
    # Unless it is certain that it is the same for all draws, only under vmap: what depends on the draw shows it there.
    certain = certain or torch._C._functorch.peek_interpreter_stack() is not None
    if _thread.reused is None or not certain or not _is_reusable(x):
        return run(x)
    cached = _thread.reused.get(owner)
    if cached is None or not cached.holds_for(x):
        out = run(x)
        if not _is_reusable(out):
            return out
        cached = _thread.reused[owner] = CachedPrefix(x, x._version, out, out._version)
    return cached.out


def forget_prefixes() -> None:
    if _thread.reused is not None:
        _thread.reused.clear()


def _is_reusable(x: Any) -> bool:
    """Not what depends on the draw, and not what has no version."""
    return isinstance(x, Tensor) and not torch._C._functorch.is_batchedtensor(x) and not x.is_inference()


class FrozenDropout(StandIn):
    """Stands for a dropout layer, and applies the mask of the current draw."""

    layer: _DropoutNd

    def __init__(self, name: str, layer: _DropoutNd) -> None:
        super().__init__()
        self.name, self.layer = name, layer

    def next_mask(self, x: Tensor) -> tuple[MaskLayout, Tensor] | None:
        if _thread.source is None:
            raise StakesError(f"the frozen dropout layer {self.name!r} is called outside of a draw: call draws(x)")
        return _thread.source.next(self, x)

    def forward(self, x: Tensor) -> Tensor:
        current = self.next_mask(x)
        return x if current is None else self.apply_mask(x, *current)

    def apply_mask(self, x: Tensor, layout: MaskLayout, mask: Tensor) -> Tensor:
        """``mask`` is that of one draw; or has those of several, which are folded into the batch of ``x``."""
        axis, several = layout.axis, mask.ndim > len(layout.shape)
        if axis is None:
            return masked(self.layer, x, mask)
        mask = mask.movedim(-1, -_IMAGE_AXES) if layout.channels_last else mask
        alone = layout.outer * layout.inner == 1
        if alone and not several:
            return masked(self.layer, x, mask.unsqueeze(axis) if axis > 0 else mask)
        mask = mask if several else mask.unsqueeze(0)
        mask = mask.unsqueeze(axis + 1).unsqueeze(axis + 1) if alone else mask  # (S, ..., outer, inner, ...)
        sizes = (layout.outer, -1, len(mask), layout.inner)
        mask = mask.movedim(0, axis + 1).unsqueeze(axis + 1)  # (..., outer, 1, S, inner, ...)
        unfolded = x.unflatten(axis, sizes)  # type: ignore[no-untyped-call]
        return masked(self.layer, unfolded, mask).flatten(axis, axis + 3)


class MaskedLinear(nn.Module):
    """Dropout and the linear layer after it. For inputs that all draws share, their draws are one matrix product:

    (x * m_s) W' = x (m_s * W)',    stacked over the draws s.
    """

    def __init__(self, dropout: FrozenDropout, linear: nn.Linear) -> None:
        super().__init__()
        self.dropout, self.linear = dropout, linear

    def forward(self, x: Tensor) -> Tensor:
        p, current = self.dropout.layer.p, self.dropout.next_mask(x)
        if current is None:
            return self.linear(x)  # type: ignore[no-any-return]
        layout, mask = current
        fusible = (
            x.ndim == 2
            and mask.ndim == 1
            and layout.batch_first
            and not isinstance(self.dropout.layer, _ALPHA)
            and p < 1
        )
        if not fusible or torch.compiler.is_exporting():  # which cannot look into a Function
            return self.linear(self.dropout.apply_mask(x, layout, mask))  # type: ignore[no-any-return]
        bias = self.linear.bias
        bias = self.linear.weight.new_zeros(self.linear.out_features) if bias is None else bias
        return _MaskedProduct.apply(x, mask.to(x.dtype) / (1 - p), self.linear.weight, bias)  # type: ignore[no-any-return, no-untyped-call]


class _MaskedProduct(torch.autograd.Function):
    """``(B, U), (U,), (C, U), (C,) -> (B, C)``; a Function, so that it can have its own rule under vmap."""

    @staticmethod
    def forward(x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return nn.functional.linear(x * mask, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, mask: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, int]:
        masks = mask if in_dims[1] is None else mask.movedim(in_dims[1], 0).unsqueeze(1)  # (S, 1, U)
        if in_dims[0] is None and in_dims[1] is not None:
            weights = torch.cat([masks * weight, bias.expand(len(masks), -1).unsqueeze(-1)], -1)  # (S, C, U + 1)
            ones = torch.cat([x, x.new_ones(len(x), 1)], 1)  # (B, U + 1)
            out = weights.flatten(0, 1) @ ones.T  # (S * C, B): classes before examples, as the softmax likes them
            return out.view(len(masks), -1, len(x)).transpose(1, 2), 0
        x = x if in_dims[0] is None else x.movedim(in_dims[0], 0)  # (S, B, U)
        return nn.functional.linear(x * masks, weight, bias), 0


def masked(layer: _DropoutNd, x: Tensor, mask: Tensor) -> Tensor:
    """The output of a dropout layer in training, for a mask that is 1 for what is kept and 0 for what is dropped."""
    p = layer.p
    if isinstance(layer, _ALPHA):
        a: float = ((1 - p) * (1 + p * _ALPHA_DROPPED**2)) ** -0.5
        return torch.where(mask.bool(), x, _ALPHA_DROPPED) * a - a * _ALPHA_DROPPED * p
    return x * mask.to(x.dtype, copy=True).mul_(1 / (1 - p) if p < 1 else 1)  # twice as fast as torch.where
