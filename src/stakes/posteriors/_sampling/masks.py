"""Where dropout layers stand in a network that is drawn from: sites, which apply the mask of the current draw."""

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from stakes.errors import StakesError

_BY_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
IMAGE_AXES = 3
_ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_ALPHA_DROPPED = -1.7580993408473766  # what SELU tends to: -scale * alpha


class Board(threading.local):
    """Where the sites of one network look up their masks. A layer used twice has two places on it.

    Each thread has its own, for draws may be asked by several at once.
    """

    def __init__(self) -> None:
        self.seen: dict[str, tuple[_DropoutNd, torch.Size]] = {}
        self._masks: Mapping[str, Tensor] | None = None
        self._calls: Counter[str] = Counter()

    def site(self, name: str, layer: nn.Module) -> "Site | None":
        """What stands for a layer, if it is one that drops."""
        return Site(name, layer, self) if isinstance(layer, _DropoutNd) and layer.p > 0 else None

    def start(self, masks: Mapping[str, Tensor] | None) -> None:
        """Begin a forward pass with these masks, or, with None, one that only looks which are needed."""
        self._masks = masks
        self._calls.clear()
        if masks is None:
            self.seen.clear()

    def mask(self, site: "Site", x: Tensor) -> Tensor | None:
        key = f"{site.name}/{self._calls[site.name]}"
        self._calls[site.name] += 1
        if self._masks is not None:
            if key not in self._masks:
                raise StakesError(
                    f"expected the dropout layer {site.name!r} to be called as often for every input of one shape, but "
                    "it is called more often for this one: a network may not choose its layers by values"
                )
            mask = self._masks[key]
            return mask.movedim(-1, 0) if mask.ndim == IMAGE_AXES else mask
        shape = mask_shape(site.layer, x)
        # Masks of images have their channels last in memory, as the images have in prediction.
        self.seen[key] = site.layer, torch.Size([*shape[1:], shape[0]]) if len(shape) == IMAGE_AXES else shape
        return None


class Site(nn.Module):
    """Stands where a dropout layer stood, and applies the mask of the current draw."""

    def __init__(self, name: str, layer: _DropoutNd, board: Board) -> None:
        super().__init__()
        self.name, self.layer, self.board = name, layer, board

    def forward(self, x: Tensor) -> Tensor:
        mask = self.board.mask(self, x)
        return x if mask is None else thinned(self.layer, x, mask)


class ThinnedLinear(nn.Module):
    """A site and the linear layer after it. For inputs that all draws share, their draws are one matrix product:

    (x * m_s) W' = x (m_s * W)',    stacked over the draws s.
    """

    def __init__(self, site: Site, linear: nn.Linear) -> None:
        super().__init__()
        self.site, self.linear = site, linear

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2 or isinstance(self.site.layer, _ALPHA) or self.site.layer.p == 1:
            out: Tensor = self.linear(self.site(x))
            return out
        mask = self.site.board.mask(self.site, x)
        if mask is None:
            return self.linear(x)  # type: ignore[no-any-return]
        bias = self.linear.bias
        bias = self.linear.weight.new_zeros(self.linear.out_features) if bias is None else bias
        return _ThinnedProduct.apply(x, mask.to(x.dtype) / (1 - self.site.layer.p), self.linear.weight, bias)  # type: ignore[no-any-return, no-untyped-call]


class _ThinnedProduct(torch.autograd.Function):
    """``(B, U), (U,), (C, U), (C,) -> (B, C)``; it is a Function for its rule of how to run under vmap."""

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
            thin = torch.cat([masks * weight, bias.expand(len(masks), -1).unsqueeze(-1)], -1)  # (S, C, U + 1)
            ones = torch.cat([x, x.new_ones(len(x), 1)], 1)  # (B, U + 1)
            out = thin.flatten(0, 1) @ ones.T  # (S * C, B): classes before examples, as the softmax likes them
            return out.view(len(masks), -1, len(x)).transpose(1, 2), 0
        own = x if in_dims[0] is None else x.movedim(in_dims[0], 0)  # (S, B, U)
        return nn.functional.linear(own * masks, weight, bias), 0


def mask_shape(layer: _DropoutNd, x: Tensor) -> torch.Size:
    """Of a mask that all examples share."""
    return torch.Size([x.shape[1], *[1] * (x.ndim - 2)]) if isinstance(layer, _BY_CHANNEL) else x.shape[1:]


def thinned(layer: _DropoutNd, x: Tensor, mask: Tensor) -> Tensor:
    """What the layer makes of ``x`` where its mask is 1 for what stays, and 0 for what is dropped."""
    p = layer.p
    if isinstance(layer, _ALPHA):
        a: float = ((1 - p) * (1 + p * _ALPHA_DROPPED**2)) ** -0.5
        return torch.where(mask.bool(), x, _ALPHA_DROPPED) * a - a * _ALPHA_DROPPED * p
    return x * mask.to(x.dtype, copy=True).mul_(1 / (1 - p) if p < 1 else 1)  # twice as fast as torch.where
