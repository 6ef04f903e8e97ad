"""Networks for prediction: the same function, in fewer and faster steps.

Only neighbours in an ``nn.Sequential`` are fused, where it is certain what follows what, and only layers of PyTorch's
own types, without hooks.

    convolution or linear, batch norm             one layer (batch norm is affine in eval mode)
    convolution, 1 x 1 convolution                one convolution, if that is less work
    nearest upsampling by 2, 3 x 3 convolution    one transposed convolution, which multiplies with 2 x 2 weights
                                                  for each output pixel: 4/9 of the multiplications
    convolution or batch norm of images, ReLU     the ReLU in place
    dropout, linear                               see `masks.MaskedLinear`

What precedes the first dropout layer is computed once for all blocks of draws of an input (`masks.prefix`), and
convolutions get their channels last in memory, which CPUs prefer.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from stakes.inputs import Inputs
from stakes.posteriors._sampling.insert import CHILD, drop_first
from stakes.posteriors._sampling.masks import FrozenDropout, MaskedLinear, forget_prefixes, prefix
from stakes.posteriors._sampling.stand_in import has_hooks

_COUNTS_ON_ORDER = "view size is not compatible"  # in the error of `view`
_IMAGES = 4  # axes
_T = TypeVar("_T")
_M = TypeVar("_M", bound=nn.Module)


class FusedNetwork(nn.Module):
    """A network, in eval mode, whose sequences run their layers fused. To a network that looks into its sequences,
    or takes their layers one by one, these are as they were.
    """

    def __init__(self, network: nn.Module, channels_last: bool = True) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        self.fused = nn.ModuleList()  # the layers that stand for others, where `parameters` finds them
        sequences = [module for module in network.modules() if isinstance(module, nn.Sequential) and is_plain(module)]
        modules = set(network.modules())
        for sequence in reversed(sequences):  # inner ones first
            # Not its `children`, which name a layer once that stands in it twice.
            layers = [part for layer in sequence for part in _unfused(layer)]
            for fuse in (_fuse_norm, _fuse_one_by_one, _fuse_upsampling, _fuse_relu, fuse_dropout):
                layers = fuse_neighbours(layers, fuse)
            self.fused.extend(layer for layer in layers if layer not in modules and not isinstance(layer, MaskedLinear))
            sequence.__dict__["forward"] = _FusedForward(layers)
        self.channels_last = channels_last and any(isinstance(layer, nn.Conv2d) for layer in network.modules())
        if self.channels_last:
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.network(*args, **kwargs)

    @property
    def layers(self) -> Sequence[nn.Module] | None:
        """The fused layers of a network that is one sequence."""
        forward = vars(self.network).get("forward")
        return forward.layers if isinstance(forward, _FusedForward) else None

    @property
    def has_prefix(self) -> bool:
        """Whether a sequence begins with layers that are the same for all draws."""
        forwards = [vars(module).get("forward") for module in self.network.modules()]
        return any(isinstance(forward, _FusedForward) and forward.first > 0 for forward in forwards)

    def with_layout_fallback(self, run: Callable[[], _T]) -> _T:
        """The result of ``run``, which runs the network. If it counts on PyTorch's usual order in memory (by `view`),
        it gets that order back first.
        """
        try:
            return run()
        except RuntimeError as error:
            if not self.channels_last or _COUNTS_ON_ORDER not in str(error):
                raise
        self.channels_last = False
        self.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        forget_prefixes()
        return run()


class ImageOrder:
    """Gives images to a network whose weights stay as they are: with their channels last in memory, where pooling is
    several times as fast on a CPU, unless the network counts on PyTorch's usual order.
    """

    def __init__(self, network: nn.Module) -> None:
        self.channels_last = any(isinstance(layer, nn.Conv2d) for layer in network.modules())

    def __call__(self, run: Callable[[Inputs], _T], x: Inputs) -> _T:
        """``run(x)``, which runs the network."""
        if not (self.channels_last and isinstance(x, Tensor) and x.ndim == _IMAGES and x.device.type == "cpu"):
            return run(x)
        try:
            return run(x.to(memory_format=torch.channels_last))  # `contiguous` leaves images of one channel as they are
        except RuntimeError as error:
            if _COUNTS_ON_ORDER not in str(error):
                raise
        self.channels_last = False
        return run(x)


def is_plain(sequence: nn.Sequential) -> bool:
    replaced = type(sequence).forward is not nn.Sequential.forward or "forward" in vars(sequence)
    return not replaced and not has_hooks(sequence)


def is_exactly(layer: object, *types: type[_M]) -> TypeGuard[_M]:
    """Whether the layer is exactly one of these types, without hooks or a replaced forward."""
    if not isinstance(layer, nn.Module) or type(layer) not in types:
        return False
    return not has_hooks(layer) and "forward" not in vars(layer)


class _FusedForward:
    """The forward of a sequence. No module: its layers are in the network, or in `FusedNetwork.fused`."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.layers = layers
        random = [any(map(_may_be_random, layer.modules())) for layer in layers]
        self.first = random.index(True) if True in random else len(layers)  # that differs from draw to draw

    def __call__(self, input: Tensor) -> Tensor:  # as nn.Sequential names it, for calls by keyword
        x = prefix(self, input, lambda x: _run(self.layers[: self.first], x)) if self.first else input
        return _run(self.layers[self.first :], x)


def _may_be_random(layer: nn.Module) -> bool:
    """Dropout, or a layer whose forward was replaced: attention and recurrent layers with masks."""
    forward = vars(layer).get("forward")
    return isinstance(layer, FrozenDropout) or not (forward is None or isinstance(forward, _FusedForward))


def _run(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _unfused(layer: nn.Module) -> list[nn.Module]:
    """A layer that dropout was inserted before, as the two that it is; others as they are."""
    dropout = layer._modules.get(CHILD)
    if dropout is None or layer._forward_hooks or [*layer._forward_pre_hooks.values()] != [drop_first]:
        return [layer]
    plain = copy.copy(layer)  # with the same weights, and hooks of its own
    plain._forward_pre_hooks, plain._forward_hooks, plain._modules = OrderedDict(), OrderedDict(), {}
    return [dropout, plain]


def fuse_neighbours(
    layers: Sequence[nn.Module], fuse: Callable[[nn.Module, nn.Module], nn.Module | None]
) -> list[nn.Module]:
    """``layers`` with each pair of neighbours fused that can be."""
    out: list[nn.Module] = []
    for layer in layers:
        one = fuse(out[-1], layer) if out else None
        if one is None:
            out.append(layer)
        else:
            out[-1] = one
    return out


def _fuse_norm(first: nn.Module, second: nn.Module) -> nn.Module | None:
    if not is_exactly(second, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) or second.running_mean is None:
        return None
    if is_exactly(first, nn.Conv1d, nn.Conv2d, nn.Conv3d):
        return fuse_conv_bn_eval(first, second)
    affine = second.weight is not None and second.bias is not None
    if is_exactly(first, nn.Linear) and affine and first.out_features == second.num_features:
        return NormedLinear(first, second)  # type: ignore[arg-type]
    return None


class NormedLinear(nn.Module):
    """A linear layer and the batch norm after it: for vectors one linear layer; for sequences, where the norm is over
    another axis, both.
    """

    def __init__(self, linear: nn.Linear, norm: nn.BatchNorm1d) -> None:
        super().__init__()
        self.fused = fuse_linear_bn_eval(linear, norm)
        self._unfused = (linear, norm)  # in a tuple, for they have their place in the network

    def forward(self, x: Tensor) -> Tensor:
        linear, norm = self._unfused
        return self.fused(x) if x.ndim == 2 else norm(linear(x))  # type: ignore[no-any-return]


def _fuse_one_by_one(first: nn.Module, second: nn.Module) -> nn.Module | None:
    if not (is_exactly(first, nn.Conv2d) and is_exactly(second, nn.Conv2d)):
        return None
    if first.groups != 1 or not _is_simple(second, (1, 1), (0, 0)):
        return None
    kernel = first.in_channels * first.kernel_size[0] * first.kernel_size[1]
    if kernel * second.out_channels > (kernel + second.out_channels) * first.out_channels:
        return None  # one layer, but more work: the second opens up what the first narrowed
    mix = second.weight[:, :, 0, 0]  # (O, M)
    fused: nn.Conv2d = skip_init(  # type: ignore[no-untyped-call]  # it draws no numbers from the global generator
        nn.Conv2d,
        first.in_channels,
        second.out_channels,
        first.kernel_size,
        first.stride,
        first.padding,
        first.dilation,
        padding_mode=first.padding_mode,
        device=mix.device,
        dtype=mix.dtype,
    ).requires_grad_(False)
    fused.weight.copy_(torch.einsum("om,mihw->oihw", mix, first.weight))
    assert fused.bias is not None
    fused.bias.zero_()
    if first.bias is not None:
        fused.bias += mix @ first.bias
    if second.bias is not None:
        fused.bias += second.bias
    return fused.eval()


def _fuse_upsampling(first: nn.Module, second: nn.Module) -> nn.Module | None:
    if not (is_exactly(first, nn.Upsample) and is_exactly(second, nn.Conv2d)):
        return None
    doubles = first.mode == "nearest" and first.scale_factor in (2, (2.0, 2.0))
    if not (doubles and _is_simple(second, (3, 3), (1, 1))):
        return None
    # An output pixel of even row sees the rows (i - 1, i, i) of the small image, one of odd row (i, i, i + 1): two
    # different ones, so that two of the kernel's rows can be added up beforehand. Likewise for columns.
    weight = _widen(_widen(second.weight, 2), 3).transpose(0, 1)  # (I, O, 4, 4)
    fused: nn.ConvTranspose2d = skip_init(  # type: ignore[no-untyped-call]
        nn.ConvTranspose2d,
        second.in_channels,
        second.out_channels,
        kernel_size=4,
        stride=2,
        padding=1,
        bias=second.bias is not None,
        device=weight.device,
        dtype=weight.dtype,
    ).requires_grad_(False)
    fused.weight.copy_(weight)
    if second.bias is not None:
        assert fused.bias is not None
        fused.bias.copy_(second.bias)
    return fused.eval()


def _fuse_relu(first: nn.Module, second: nn.Module) -> nn.Module | None:
    # What these put out is nobody else's. Linear layers stay apart, as `stacking.StackedLayers` takes them.
    if is_exactly(first, nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d) and is_exactly(second, nn.ReLU):
        return _WithReLU(first)
    return None


class _WithReLU(nn.Module):
    """A layer, and the ReLU after it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu_()  # type: ignore[no-any-return]


def fuse_dropout(first: nn.Module, second: nn.Module) -> nn.Module | None:
    if isinstance(first, FrozenDropout) and not has_hooks(first) and is_exactly(second, nn.Linear):
        return MaskedLinear(first, second)
    return None


def _is_simple(layer: nn.Conv2d, kernel: tuple[int, int], padding: tuple[int, int]) -> bool:
    settings = layer.kernel_size, layer.padding, layer.stride, layer.dilation, layer.groups, layer.padding_mode
    return settings == (kernel, padding, (1, 1), (1, 1), 1, "zeros")


def _widen(kernel: Tensor, axis: int) -> Tensor:
    """Of three lines of a kernel, the four that an input pixel is multiplied with for the output around its pair."""
    a, b, c = kernel.unbind(axis)
    return torch.stack([c, b + c, a + b, a], axis)
