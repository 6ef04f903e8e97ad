"""TabM: many multilayer perceptrons for tables in one (Gorishniy et al. 2024).

The members share their weights. Each has scales of its own before and after every layer, biases, and a last layer:

    member m, layer l    h -> relu( s_ml * (W_l (r_ml * h)) + b_ml )

What precedes the first scales is the same for all members, and computed once.
"""

import math
from collections.abc import Mapping
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from stakes.errors import StakesError
from stakes.features import Features
from stakes.networks.piecewise import BINS, PiecewiseLinear

MEMBERS, WIDTH, DEPTH, EMBEDDING = 8, 128, 2, 8  # as chosen on training rows of the example tables
MANY_ROWS = 128  # for so many, it is cheaper to scale the weights than what they are multiplied with


class TabM(nn.Module):
    """Rows of a table, ``(B, features.width)``, to the outputs of every member, ``(members, B, outputs)``.

    >>> network = TabM(Features(numbers=2, levels=(3,)), outputs=2, members=4)
    >>> rows = torch.tensor([[0.5, -1.0, 0, 1, 0], [1.5, 0.0, 1, 0, 0]])
    >>> network.set_bins(rows)
    >>> network(rows).shape
    torch.Size([4, 2, 2])

    Each number has an embedding (`PiecewiseLinear`), whose bins `set_bins` takes from the training rows: before that,
    the network does not run. So has a category with more levels than an embedding has entries; the levels of others,
    and the indicators of missing numbers, are inputs as they are.
    """

    def __init__(
        self,
        features: Features | Mapping[str, Any],
        outputs: int,
        members: int = MEMBERS,
        width: int = WIDTH,
        depth: int = DEPTH,
        embedding: int = EMBEDDING,
        bins: int = BINS,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(features, Features | Mapping):
            raise StakesError(f"expected what the columns are, such as Features(numbers=4), but got {features!r}")
        features = features if isinstance(features, Features) else Features.from_dict(features)
        sizes = {"outputs": outputs, "members": members, "width": width, "depth": depth, "embedding": embedding}
        if not all(type(size) is int and size >= 1 for size in sizes.values()):
            raise StakesError(f"expected sizes of at least 1, but got {sizes}")
        if not 0 <= dropout < 1:
            raise StakesError(f"expected a dropout rate in [0, 1), but got {dropout}")
        self.settings: dict[str, Any] = {"features": features.to_dict(), **sizes, "bins": bins, "dropout": dropout}
        self.inputs, self.outputs, self.members = features.width, outputs, members
        self.numbers = PiecewiseLinear(features.numbers, embedding, bins) if features.numbers else None
        self.others, self._others = _without_numbers(features, embedding)
        columns = [embedding] * features.numbers + [1] * len(features.missing)
        columns += [min(levels, embedding) for levels in features.levels]
        widths = [sum(columns), *[width] * depth]
        self.layers = nn.ModuleList(ScaledLinear(members, before, after) for before, after in pairwise(widths))
        # Members start apart: each sees some of the columns with the other sign.
        signs = torch.randint(2, (members, len(columns))) * 2.0 - 1.0
        self.layers[0].before = nn.Parameter(signs.repeat_interleave(torch.tensor(columns), 1))
        self.dropout = nn.Dropout(dropout)
        bound = 1 / math.sqrt(width)
        self.head_weight = nn.Parameter(torch.empty(members, width, outputs).uniform_(-bound, bound))
        self.head_bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def set_bins(self, x: Tensor) -> None:
        """Take the bins of the numbers from ``x``, rows like those that it will be trained on."""
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise StakesError(f"expected rows of {self.inputs} features, but got a tensor of shape {tuple(x.shape)}")
        if self.numbers is not None:
            self.numbers.set_bins(x[:, : self.numbers.count])

    def forward(self, x: Tensor) -> Tensor:
        count = 0 if self.numbers is None else self.numbers.count
        parts = [] if self.numbers is None else [self.numbers(x[:, :count])]
        others = torch.split(x[:, count:], self._others, 1)
        parts += [layer(part) for layer, part in zip(self.others, others, strict=True)]
        h = torch.cat(parts, 1)  # (B, U)
        for layer in self.layers:
            h = self.dropout(layer(h).relu())  # (members, B, width)
        outputs = torch.baddbmm(self.head_bias, h, self.head_weight)
        # With the rows innermost in memory, a softmax over few classes is fast.
        return outputs.transpose(1, 2).contiguous().transpose(1, 2)

    def squared_norm(self) -> Tensor:
        """The sum of squares of a member's weights, without scales and biases: the mean over members."""
        parts = [self.numbers, *self.others, *self.layers]
        shared = [part.weight for part in parts if isinstance(part, PiecewiseLinear | nn.Linear | ScaledLinear)]
        squares = [weight.square().sum() for weight in shared]
        return sum(squares, self.head_weight.square().sum() / self.members)

    def spec(self) -> dict[str, Any]:
        """Its kind and settings in JSON types."""
        return {"kind": "tabm", **self.settings}


class ScaledLinear(nn.Module):
    """A linear layer that members share, with scales and biases of their own: ``(B, U) or (M, B, U) -> (M, B, V)``."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound))
        self.before = nn.Parameter(torch.ones(members, inputs))
        self.after = nn.Parameter(torch.ones(members, outputs))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound).repeat(members, 1))

    def forward(self, x: Tensor) -> Tensor:
        before, after, bias = self.before.unsqueeze(2), self.after.unsqueeze(1), self.bias.unsqueeze(1)
        # An exported program takes any number of rows, and cannot choose by it.
        if not torch.compiler.is_compiling() and x.shape[-2] < MANY_ROWS:
            return torch.addcmul(bias, (x * before.transpose(1, 2)) @ self.weight, after)
        return torch.baddbmm(bias, x.expand(len(before), *x.shape[-2:]), before * self.weight * after)


def _without_numbers(features: Features, embedding: int) -> tuple[nn.ModuleList, list[int]]:
    """What is done with the columns after the numbers: layers, and how many columns each takes."""
    blocks = [(1, False)] * len(features.missing) + [(levels, levels > embedding) for levels in features.levels]
    layers, sizes = nn.ModuleList(), []
    for wide, group in groupby(blocks, lambda block: block[1]):
        levels = [size for size, _ in group]
        if wide:
            layers.extend(_embedding(size, embedding) for size in levels)
        else:
            layers.append(nn.Identity())
        sizes += levels if wide else [sum(levels)]
    return layers, sizes


def _embedding(levels: int, size: int) -> nn.Linear:
    """Of a one-hot block; of the length that a one-hot vector has."""
    layer = nn.Linear(levels, size, bias=False)
    nn.init.normal_(layer.weight, std=1 / math.sqrt(size))
    return layer
