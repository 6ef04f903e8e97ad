"""Networks made ready for prediction: the same function, in fewer and faster steps.

Only neighbours in an ``nn.Sequential`` are joined, where it is certain what follows what:

    convolution or linear, batch norm             one layer (batch norm is affine in eval mode)
    convolution, 1 x 1 convolution                one convolution
    nearest upsampling by 2, 3 x 3 convolution    one transposed convolution, which multiplies with 2 x 2 weights
                                                  for each output pixel: 4/9 of the multiplications
    dropout, linear                               see `sites.ThinnedLinear`

What precedes the first random layer is kept for the next block of draws of the same input, and convolutions
get their channels last in memory, which CPUs prefer.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from stakes.posteriors.sites import Site, ThinnedLinear

_Join = Callable[[nn.Module, nn.Module], nn.Module | None]


def ready(network: nn.Module) -> nn.Module:
    """``network``, which has to be in eval mode, with its layers joined in place; its parameters are frozen."""
    network.requires_grad_(False)
    joins: tuple[_Join, ...] = (_norm, _one_by_one, _upsampled, _thinned)
    for sequence in [module for module in network.modules() if isinstance(module, nn.Sequential)]:
        for join in joins:
            _join_neighbours(sequence, join)
        _keep_start(sequence)
    if any(isinstance(layer, nn.Conv2d) for layer in network.modules()):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _join_neighbours(sequence: nn.Sequential, join: _Join) -> None:
    layers: list[nn.Module] = []
    for layer in sequence:
        joined = join(layers[-1], layer) if layers else None
        if joined is None:
            layers.append(layer)
        else:
            layers[-1] = joined
    _replace(sequence, layers)


def _keep_start(sequence: nn.Sequential) -> None:
    random = [any(isinstance(part, Site) for part in layer.modules()) for layer in sequence]
    first = random.index(True) if True in random else 0
    if first > 0:
        layers = list(sequence)
        _replace(sequence, [_Once(nn.Sequential(*layers[:first])), *layers[first:]])


def _replace(sequence: nn.Sequential, layers: list[nn.Module]) -> None:
    sequence._modules = {str(place): layer for place, layer in enumerate(layers)}


def _norm(first: nn.Module, second: nn.Module) -> nn.Module | None:
    if not isinstance(second, _BatchNorm) or second.training or second.running_mean is None:
        return None
    if isinstance(first, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return fuse_conv_bn_eval(first, second)
    return fuse_linear_bn_eval(first, second) if isinstance(first, nn.Linear) else None


def _one_by_one(first: nn.Module, second: nn.Module) -> nn.Module | None:
    if not (isinstance(first, nn.Conv2d) and isinstance(second, nn.Conv2d) and _is_plain(second, (1, 1), (0, 0))):
        return None
    if first.groups != 1:
        return None
    mix = second.weight[:, :, 0, 0]  # (O, M)
    joined = nn.Conv2d(
        first.in_channels,
        second.out_channels,
        first.kernel_size,  # type: ignore[arg-type]
        first.stride,  # type: ignore[arg-type]
        first.padding,  # type: ignore[arg-type]
        first.dilation,  # type: ignore[arg-type]
        padding_mode=first.padding_mode,
        device=mix.device,
        dtype=mix.dtype,
    ).requires_grad_(False)
    joined.weight.copy_(torch.einsum("om,mihw->oihw", mix, first.weight))
    assert joined.bias is not None
    joined.bias.zero_()
    if first.bias is not None:
        joined.bias += mix @ first.bias
    if second.bias is not None:
        joined.bias += second.bias
    return joined.eval()


def _upsampled(first: nn.Module, second: nn.Module) -> nn.Module | None:
    doubles = isinstance(first, nn.Upsample) and first.mode == "nearest" and first.scale_factor in (2, (2.0, 2.0))
    if not (doubles and isinstance(second, nn.Conv2d) and _is_plain(second, (3, 3), (1, 1))):
        return None
    # An output pixel of even row sees the rows (i - 1, i, i) of the small image, one of odd row (i, i, i + 1): two
    # different ones, so that two of the kernel's rows can be added up beforehand. Likewise for columns.
    weight = _widened(_widened(second.weight, 2), 3).transpose(0, 1)  # (I, O, 4, 4)
    joined = nn.ConvTranspose2d(
        second.in_channels,
        second.out_channels,
        kernel_size=4,
        stride=2,
        padding=1,
        bias=second.bias is not None,
        device=weight.device,
        dtype=weight.dtype,
    ).requires_grad_(False)
    joined.weight.copy_(weight)
    if second.bias is not None:
        assert joined.bias is not None
        joined.bias.copy_(second.bias)
    return joined.eval()


def _thinned(first: nn.Module, second: nn.Module) -> nn.Module | None:
    return ThinnedLinear(first, second) if isinstance(first, Site) and type(second) is nn.Linear else None


def _is_plain(layer: nn.Conv2d, kernel: tuple[int, int], padding: tuple[int, int]) -> bool:
    settings = layer.kernel_size, layer.padding, layer.stride, layer.dilation, layer.groups, layer.padding_mode
    return settings == (kernel, padding, (1, 1), (1, 1), 1, "zeros")


class _Once(nn.Module):
    """Layers without randomness, which remember what they made of the last input."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self._last: tuple[Tensor, int, Tensor] | None = None  # the input, its version, and what was made of it

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(x) or x.is_inference():  # depends on the draw, or has no version
            return self.layers(x)  # type: ignore[no-any-return]
        if self._last is None or self._last[0] is not x or self._last[1] != x._version:
            self._last = x, x._version, self.layers(x)
        return self._last[2]


def _widened(kernel: Tensor, axis: int) -> Tensor:
    """Of three lines of a kernel, the four that an input pixel is multiplied with for the output around its pair."""
    a, b, c = kernel.unbind(axis)
    return torch.stack([c, b + c, a + b, a], axis)
