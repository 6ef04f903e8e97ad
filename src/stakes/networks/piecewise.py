"""Numbers by where they stand among bins, piecewise linearly (Gorishniy, Rubachev and Babenko 2022)."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stakes.errors import StakesError

BINS = 24


class PiecewiseLinear(nn.Module):
    """Embeddings of numbers: ``(B, count) -> (B, count * size)``.

    A number passes the bins of its column one after the other: each counts 1 if the number is beyond it, 0 if it is
    before it, and within it the share that is passed. The embedding is a linear function of these. Beyond the first and
    the last edge it is constant, so that an outlier cannot decide alone.

    The edges are quantiles of the training rows, or all the values of a column that has few. They are part of the
    state, and saved and loaded with the weights.
    """

    edges: Tensor  # (count, bins + 1), ascending; a column with fewer bins repeats its last edge; NaN before `set_bins`

    def __init__(self, count: int, size: int, bins: int = BINS) -> None:
        super().__init__()
        if not all(type(value) is int and value >= 1 for value in (count, size, bins)):
            raise StakesError(f"expected at least one number, entry and bin, but got {count}, {size} and {bins}")
        self.count, self.bins = count, bins
        bound = 1 / math.sqrt(bins)
        self.weight = nn.Parameter(torch.empty(count, bins, size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, size).uniform_(-bound, bound))
        self.register_buffer("edges", torch.full((count, bins + 1), torch.nan))
        self._has_bins = False
        self.register_load_state_dict_post_hook(_check_loaded)  # type: ignore[no-untyped-call]

    def set_bins(self, x: Tensor) -> None:
        """Take the edges from the rows of ``x``, ``(N, count)``."""
        values = x.detach().cpu().double().numpy()
        if not (len(values) and np.isfinite(values).all()):
            raise StakesError("expected rows of finite numbers to take bins from: fill in what is missing")
        edges = torch.from_numpy(np.stack([_edges(column, self.bins) for column in values.T]))
        self.edges.copy_(edges)
        self._has_bins = True

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, self.encoded(x), self.weight).transpose(0, 1).flatten(1)

    def encoded(self, x: Tensor) -> Tensor:
        """``(count, B, bins)`` how much of each bin each number has passed."""
        if not self._has_bins:
            raise StakesError("expected the bins of the numbers to be known: call set_bins(x) with the training rows")
        width = self.edges.diff(dim=1).unsqueeze(1)  # (count, 1, bins)
        slope = torch.where(width > 0, 1 / width, 0)
        return ((x.T.unsqueeze(2) - self.edges[:, :-1].unsqueeze(1)) * slope).clamp(0, 1)


def _edges(column: "np.ndarray[Any, np.dtype[np.float64]]", bins: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    values = np.unique(column)
    edges = values if len(values) <= bins + 1 else np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)))
    return np.pad(edges, (0, bins + 1 - len(edges)), mode="edge")


def _check_loaded(module: nn.Module, _: object) -> None:
    """Whether edges came with a state that was loaded; those of a file may be anything."""
    assert isinstance(module, PiecewiseLinear)
    known = not bool(module.edges.isnan().any())
    if known and not (bool(module.edges.isfinite().all()) and bool((module.edges.diff(dim=1) >= 0).all())):
        raise StakesError("damaged, expected edges of bins that ascend, but they do not")
    module._has_bins = known
