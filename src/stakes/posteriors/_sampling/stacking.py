"""Plain networks, linear layers with activations and dropout between, for all draws of a block without vmap.

vmap alone takes longer than a small network does for one input. And here the order in memory can be chosen:

    few inputs    (S, B, U)    the masks on the inputs of a layer, all draws in one product with its weight
    many inputs   (S, U, B)    the masks on the weights, of which there are fewer; examples innermost, where products
                               with few classes, and the softmax over them, are fast

Until the first layer that differs from draw to draw, what all draws share is (B, U) and computed once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.outcomes import Footprint
from stakes.posteriors._sampling.fusion import NormedLinear, fuse_dropout, fuse_neighbours, is_exactly, is_plain
from stakes.posteriors._sampling.masks import FrozenDropout, MaskedLinear, MaskLayout, prefix

MANY_INPUTS = 32
_ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity)


class _Step(NamedTuple):
    """One layer: a mask on its inputs, if it has one, then ``layer``, if there is one."""

    layer: nn.Module | None
    name: str  # under which draws have weights for it
    mask: str | None = None  # under which draws have masks for it
    dropout: nn.Dropout | None = None  # that the masks are of

    @property
    def scale(self) -> float:
        """The factor of the units that the mask keeps."""
        return 1.0 if self.dropout is None else 1 / (1 - self.dropout.p)


class StackedLayers:
    """Runs a plain sequence of layers with tensors that differ from draw to draw."""

    def __init__(self, steps: Sequence[_Step], weights_differ: bool) -> None:
        masked = [step.mask is not None for step in steps]
        shared = 0 if weights_differ or True not in masked else masked.index(True)
        self._shared, self._steps = steps[:shared], steps[shared:]

    @classmethod
    def of(cls, network: nn.Module) -> "StackedLayers | None":
        """For a network that is one plain sequence, in training or frozen; None for others."""
        if not isinstance(network, nn.Sequential) or not is_plain(network):
            return None
        names = {layer: name for name, layer in network.named_modules()}  # the first, of a layer that stands twice
        dropout: dict[nn.Module, nn.Module] = {
            layer: FrozenDropout(names[layer], layer)
            for layer in network
            if is_exactly(layer, nn.Dropout) and layer.p > 0
        }
        return cls.of_layers([dropout.get(layer, layer) for layer in network], names)

    @classmethod
    def of_layers(cls, layers: Sequence[nn.Module], names: Mapping[nn.Module, str]) -> "StackedLayers | None":
        """For the layers of a sequence; None if one of them is not plain."""
        layers = fuse_neighbours(layers, fuse_dropout)
        steps: list[_Step] = []
        calls: Counter[str] = Counter()
        for layer in layers:
            layer = layer.fused if isinstance(layer, NormedLinear) else layer
            dropout = layer.dropout if isinstance(layer, MaskedLinear) else layer
            linear = layer.linear if isinstance(layer, MaskedLinear) else layer
            if isinstance(dropout, FrozenDropout):
                if not is_exactly(dropout.layer, nn.Dropout) or dropout.layer.p == 1:
                    return None
                key = f"{dropout.name}/{calls[dropout.name]}"
                calls[dropout.name] += 1
                after = linear if isinstance(layer, MaskedLinear) else None
                steps.append(_Step(after, names.get(linear, ""), key, dropout.layer))
            elif is_exactly(linear, nn.Linear) or (steps and is_exactly(linear, *_ELEMENTWISE, nn.Dropout)):
                steps.append(_Step(linear, names.get(linear, "")))  # not first: it may work in place
            else:
                return None
        linear_layers = {step.layer for step in steps if isinstance(step.layer, nn.Linear)}
        weights = [weight for layer in linear_layers for weight in layer.parameters()]
        if len(set(weights)) < len(weights):
            return None  # tied ones have one name, under which the draws of the other layer would not be found
        return cls(steps, weights_differ=bool(names)) if steps else None

    @staticmethod
    def accepts(x: Inputs) -> TypeGuard[Tensor]:
        return isinstance(x, Tensor) and x.ndim == 2

    def layouts(self, x: Tensor) -> tuple[dict[str, MaskLayout], Footprint]:
        """The mask layouts and the footprint of an input ``(B, U)``, from layer sizes alone, without a probe."""
        width, layouts = x.shape[1], {}
        before, after = [width], [1]
        for step in (*self._shared, *self._steps):
            if step.mask is not None and step.dropout is not None:
                layouts[step.mask] = MaskLayout.of(step.dropout, torch.Size([len(x), width]), axis=0)
            if isinstance(step.layer, nn.Linear):
                if width != step.layer.in_features:
                    raise StakesError(
                        f"expected {step.layer.in_features} numbers for a linear layer of the network, but got {width}"
                        f": inputs are {tuple(x.shape)}"
                    )
                width = step.layer.out_features
            (after if layouts else before).append(width)
        return layouts, Footprint(max(before) * x.element_size(), max(after) * x.element_size())

    def __call__(self, x: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """``(B, U) -> (S, B, C)``; ``draws`` holds masks ``(S, U)``, weights ``(S, O, U)`` and biases ``(S, O)``."""
        samples, many = len(next(iter(draws.values()))), len(x) >= MANY_INPUTS
        x = prefix(self, x, lambda x: _run(self._shared, x, draws, many), certain=True) if self._shared else x
        x = _run(self._steps, x, draws, many)
        if x.ndim == 2:
            return x.expand(samples, *x.shape)
        return x.transpose(1, 2) if many else x


def _run(steps: Sequence[_Step], x: Tensor, draws: Mapping[str, Tensor], many: bool) -> Tensor:
    for step in steps:
        mask = None if step.mask is None else draws[step.mask].to(x.dtype) * step.scale
        if isinstance(step.layer, nn.Linear):
            weight = draws.get(f"{step.name}.weight", step.layer.weight)
            bias = draws.get(f"{step.name}.bias", step.layer.bias)
            bias = weight.new_zeros(weight.shape[-2]) if bias is None else bias
            x = (_linear_many_inputs if many else _linear_few_inputs)(x, weight, bias, mask)
        elif mask is not None:
            x = _masked(x, mask, many)
        else:
            assert step.layer is not None
            x = step.layer(x)
    return x


def _masked(x: Tensor, mask: Tensor, many: bool) -> Tensor:
    if not many:
        return x * mask.unsqueeze(1)  # (S, B, U)
    return (x.T if x.ndim == 2 else x) * mask.unsqueeze(2)  # (S, U, B)


def _linear_few_inputs(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """``(B, U) or (S, B, U) -> (S, B, O)``, or ``(B, O)`` as long as all draws share it."""
    x = x if mask is None else _masked(x, mask, many=False)
    if weight.ndim == 2:
        return nn.functional.linear(x, weight, bias)
    x = x.expand(len(weight), *x.shape) if x.ndim == 2 else x
    bias = bias.expand(len(weight), -1).unsqueeze(1)
    return torch.baddbmm(bias, x, weight.transpose(1, 2))


def _linear_many_inputs(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """``(B, U) or (S, U, B) -> (S, O, B)``, or ``(B, O)`` as long as all draws share it."""
    if mask is None and weight.ndim == x.ndim == 2:
        return nn.functional.linear(x, weight, bias)
    samples = len(weight if weight.ndim == 3 else x if mask is None else mask)
    weight = weight.expand(samples, *weight.shape[-2:]) if mask is None else weight * mask.unsqueeze(1)  # (S, O, U)
    bias = bias.expand(samples, -1).unsqueeze(2)  # (S, O, 1)
    if x.ndim == 3:
        return torch.baddbmm(bias, weight, x)
    # One product for all draws, the bias as the weight of an input that is 1.
    weights = torch.cat([weight, bias], 2).flatten(0, 1)  # (S O, U + 1)
    ones = torch.cat([x, x.new_ones(len(x), 1)], 1)  # (B, U + 1)
    return (weights @ ones.T).view(samples, -1, len(x))
