"""Outcomes: what a model says about inputs; predictors, which say it; and predictions, computed in blocks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from stakes import inputs
from stakes.errors import StakesError
from stakes.inputs import Inputs

# Predictions are computed in blocks of inputs and draws, sized for speed:
CACHE_BYTES = 2 * 2**20  # target size of a block's draws, so that they stay in the CPU cache
ENOUGH_INPUTS = 512  # if a block of all draws has fewer inputs, the draws are split instead
# From FEW_INPUTS on, a block computes SEVERAL_DRAWS, which share what precedes the first random layer. Below, it
# computes one draw of twice as many inputs: larger products gain more than leaving the cache costs.
FEW_INPUTS, SEVERAL_DRAWS = 128, 4
MEMORY_BYTES = 64 * 2**20  # upper limit of a block, where a single input exceeds the cache


class Outcomes:
    """Weights over atoms, the last axis.

    >>> Outcomes(torch.tensor([[0.2, 0.8]])).weights
    tensor([[0.2000, 0.8000]])

    Named classes are C atoms without values. A number is a set of atoms with ``values``, of the shape of the weights
    or one that broadcasts to it: the nodes of a quadrature, say (`stakes.mixtures` has closed forms behind them).
    Construct it from ``weights``, ``log_weights`` or logits (`from_logits`); the other form is computed on first use
    and cached.
    """

    values: Tensor | None

    def __init__(
        self, weights: Tensor | None = None, *, log_weights: Tensor | None = None, values: Tensor | None = None
    ) -> None:
        if (weights is None) == (log_weights is None):
            raise StakesError("expected either weights or log_weights, but got both or neither")
        self._weights, self._log_weights, self.values = weights, log_weights, values
        self._make: Callable[[bool], Tensor] | None = None  # of whether logarithms are wanted

    @classmethod
    def from_logits(cls, logits: Tensor, axis: int) -> "Outcomes":
        """From unnormalised log-weights, the atoms on ``axis``."""

        def softmax(log: bool) -> Tensor:
            function = torch.log_softmax if log else torch.softmax
            if logits.stride(axis) > 1:  # as it lies in memory
                order = sorted(range(logits.ndim), key=logits.stride, reverse=True)
                back = [order.index(number) for number in range(logits.ndim)]
                return function(logits.permute(order), order.index(axis)).permute(back).movedim(axis, -1)
            # Over a short last axis a softmax takes 15 ns for each number, over any other axis 1 ns.
            if axis == logits.ndim - 1:
                return function(logits.transpose(-2, -1).contiguous(), axis - 1).transpose(-2, -1)
            return function(logits.contiguous(), axis).movedim(axis, -1)

        return cls._lazy(softmax)

    @classmethod
    def from_logit(cls, logit: Tensor) -> "Outcomes":
        """Two atoms, ``(S, B, ...) -> (S, B, ..., 2)``, from the log-odds of the second."""

        def sigmoid(log: bool) -> Tensor:
            function = nn.functional.logsigmoid if log else torch.sigmoid
            return torch.stack([function(-logit), function(logit)], 1).movedim(1, -1)

        return cls._lazy(sigmoid)

    @classmethod
    def _lazy(cls, make: Callable[[bool], Tensor], values: Tensor | None = None) -> "Outcomes":
        outcomes = cls.__new__(cls)
        outcomes._weights, outcomes._log_weights, outcomes.values, outcomes._make = None, None, values, make
        return outcomes

    @classmethod
    def from_probs(cls, probs: Tensor | ArrayLike) -> "Outcomes":
        """From probabilities over the last axis, checked: a mean predictive, or any ``predict_proba``."""
        tensor = probs.detach() if isinstance(probs, Tensor) else torch.as_tensor(np.asarray(probs))
        if tensor.ndim < 2:
            raise StakesError(f"expected probabilities of shape (B, ..., C), but got {tuple(tensor.shape)}")
        tensor = tensor if tensor.is_floating_point() else tensor.float()
        totals = tensor.sum(-1)
        if not (bool((tensor >= 0).all()) and torch.allclose(totals, torch.ones_like(totals), atol=1e-3)):
            raise StakesError(
                "expected probabilities that are not negative and sum to 1 over the last axis, but these do not: "
                "are they logits, or log-probabilities? Apply softmax, or exp, first"
            )
        return cls(tensor)

    @property
    def weights(self) -> Tensor:
        """``(..., K)`` the probability of each atom: of each class, or of each of some numbers (``values``)."""
        if self._weights is None:
            self._weights = self._make(False) if self._make else self.log_weights.exp()
        return self._weights

    @property
    def log_weights(self) -> Tensor:
        """``(..., K)`` the logarithms of `weights`."""
        if self._log_weights is None:
            self._log_weights = self._make(True) if self._make else self.weights.log()
        return self._log_weights

    @property
    def shape(self) -> torch.Size:
        """The shape of the weights, atoms last."""
        return (self.weights if self._log_weights is None else self._log_weights).shape

    @property
    def numeric(self) -> bool:
        """Whether they are numbers, with values."""
        return self.values is not None

    @property
    def has_nan(self) -> bool:
        """Whether some of it is not known."""
        return any(bool(each.isnan().any()) for each in (self.weights, self.values) if each is not None)

    def mixture(self) -> "Outcomes":
        """``(S, ..., K)`` -> the equal mixture of the draws: ``(..., K)`` for classes, ``(..., S K)`` for numbers."""
        if self.values is None:
            return Outcomes(_sum_of_draws(self.weights) / len(self.weights))
        weights = self.weights / len(self.weights)
        pooled = [tensor.movedim(0, -2).flatten(-2) for tensor in (weights, self.values.expand(self.shape))]
        return Outcomes(pooled[0], values=pooled[1])

    def rows(self, index: Tensor, dim: int = 0) -> "Outcomes":
        """Some of them, by numbers or a mask along an axis other than the last."""
        numbers = index.nonzero().flatten() if index.dtype == torch.bool else index
        values = None if self.values is None else self.values.expand(self.shape).index_select(dim, numbers)
        return Outcomes(self.weights.index_select(dim, numbers), values=values)

    def repeat(self, count: int) -> "Outcomes":
        """``(..., K) -> (count, ..., K)``: the same for each of ``count`` draws."""
        shape = (count, *self.shape)
        return Outcomes(self.weights.expand(shape), values=None if self.values is None else self.values.expand(shape))

    @staticmethod
    def cat(parts: Sequence["Outcomes"], dim: int = 0) -> "Outcomes":
        """Some outcomes as one, along an axis other than the last."""
        return parts[0] if len(parts) == 1 else parts[0]._joined(parts, dim)

    def _joined(self, parts: Sequence["Outcomes"], dim: int) -> "Outcomes":
        """Several parts, of which this is the first, as one."""
        values = [part.values.expand(part.shape) for part in parts if part.values is not None]

        def join(log: bool) -> Tensor:
            return torch.cat([part.log_weights if log else part.weights for part in parts], dim)

        return Outcomes._lazy(join, torch.cat(values, dim) if values else None)


class Footprint(NamedTuple):
    """The bytes of the largest activation of one input: before the first random layer, and after it, for one draw."""

    shared: int
    per_draw: int


class Predictor(ABC):
    """Whatever turns inputs into `Outcomes`: draws of a posterior, boosted trees, a blend.

    The same draw of the same input gives the same answer, always. A model without randomness has one draw. Called with
    inputs, it returns a `Predictive`, which `decide` takes, and which computes when it is asked.

    Attributes
    ----------
    samples : int
        The number of draws.
    group : int
        Draws that may depend on each other: groups of so many are independent.
    features, classes : int or None
        The numbers of an input, and of outcomes, where they are known.
    names : tuple of str or None
        Of the outcomes, where their order need not be that of a utility.

    Examples
    --------
    The shortest of your own; it needs `spec`, `state_dict` and `load` only to be saved.

    >>> class Coin(Predictor):
    ...     def outcomes(self, x, first, last):
    ...         return Outcomes(torch.full((last - first, len(x), 2), 0.5))
    >>> Coin()(torch.zeros(1, 3)).mean_probs()
    tensor([[0.5000, 0.5000]])
    """

    samples: int = 1
    group: int = 1  # draws that may depend on each other: groups of so many are independent
    group_coverage: float = 1.0  # the least probability that a unit is both dropped and kept within a group of draws
    device: torch.device = torch.device("cpu")
    features: int | None = None  # of an input, where that is known
    classes: int | None = None  # how many outcomes there are, where that is known
    names: tuple[str, ...] | None = None  # of the outcomes, where their order need not be that of a utility

    @staticmethod
    def from_samples(
        probs: Any = None, *, logits: Any = None, log_probs: Any = None, classes: Sequence[Any] | None = None
    ) -> "Predictive | Predictor":
        """Draws of a posterior that was made elsewhere, such as by NumPyro, laplace-torch or TorchUncertainty.

        Parameters
        ----------
        probs, logits, log_probs : array of shape (S, B, C, ...), or list of S functions
            One of the three: what each of S draws says of B inputs, the classes on axis 2; or a function of inputs for
            each draw, which returns ``(B, C, ...)``.
        classes : sequence, optional
            The names of the classes, in this order, by which `decide` finds its outcomes; what ``mixture()`` and
            ``probs()`` return stays in this order. By default it is that of the utility's outcomes.

        Returns
        -------
        Predictive or Predictor
            Of an array, what `decide` and `value_of_information` take; of functions, a predictor to be called with
            inputs. Draws are taken to be independent of each other: that gives the Monte-Carlo error.

        Examples
        --------
        >>> from stakes import Utility, decide
        >>> draws = [[[0.9, 0.1]], [[0.7, 0.3]]]  # two draws about one input
        >>> decide(Predictor.from_samples(probs=draws), Utility.diagonal(["ill", "well"])).chosen_names
        array(['ill'], dtype='<U4')
        """
        from stakes.samples import from_samples

        return from_samples(probs, logits=logits, log_probs=log_probs, classes=classes)

    @abstractmethod
    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        """``(last - first, B, ..., K)``: the draws from ``first`` up to ``last``."""

    def draw_blocks(self, x: Inputs, size: int, first: int = 0, last: int | None = None) -> Iterator[Outcomes]:
        """``(size, B, ..., K)`` the draws from ``first`` up to ``last``, some after the others."""
        x = inputs.cast(x, self.device)
        last = self.samples if last is None else last
        for start in range(first, last, size):
            yield self.outcomes(x, start, min(start + size, last))

    def footprint(self, x: Inputs) -> Footprint:
        """What one input takes, by which blocks are cut."""
        row = inputs.rows(x, slice(1))
        return Footprint(inputs.nbytes(row), self.outcomes(row, 0, 1).weights.nbytes)

    def __call__(self, x: Inputs, memory: int = MEMORY_BYTES) -> "Predictive":
        inputs.count(x)
        return Predictive(self, x, memory)

    def spec(self) -> dict[str, Any]:
        """Its settings in JSON types, from which `load` builds it again."""
        raise StakesError(
            f"a {type(self).__name__} cannot be saved by itself: save a SampledPosterior(posterior, samples, seed)"
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Its numbers, to be saved beside `spec`."""
        return {}

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        """From `spec` and `state_dict`; ``network`` is one like a network that only the user can build."""
        raise StakesError(f"a {cls.__name__} cannot be loaded: give it a class method `load`")


@dataclass(frozen=True, eq=False)
class Predictive:
    """The outcomes of some inputs, not yet computed: it is asked for blocks, or for the mean."""

    predictor: Predictor
    x: Inputs
    memory: int = MEMORY_BYTES

    @property
    def samples(self) -> int:
        return self.predictor.samples

    @torch.no_grad()
    def blocks(self, first: int = 0, last: int | None = None) -> Iterator[Outcomes]:
        """``(S, b, ..., K)`` the draws from ``first`` up to ``last``, for one block of inputs after the other."""
        last = self.samples if last is None else last
        rows, size = self._block_shape(last - first)
        for x in inputs.split(self.x, rows):
            yield Outcomes.cat(list(self.predictor.draw_blocks(x, size, first, last)))

    def probs(self) -> Tensor:
        """``(S, B, ..., C)`` all draws of all inputs."""
        return torch.cat([block.weights for block in self.blocks()], dim=1)

    def log_probs(self) -> Tensor:
        """``(S, B, ..., C)`` the same as logarithms."""
        return torch.cat([block.log_weights for block in self.blocks()], dim=1)

    @torch.no_grad()
    def mixture(self) -> Outcomes:
        """``(B, ..., K)`` the mixture over draws; that of classes is accumulated without keeping the draws."""
        rows, size = self._block_shape(self.samples)
        parts = []
        for x in inputs.split(self.x, rows):
            blocks = self.predictor.draw_blocks(x, size)
            first = next(blocks)
            if first.numeric:
                parts.append(Outcomes.cat([first, *blocks]).mixture())
                continue
            total = _sum_of_draws(first.weights)
            for block in blocks:
                total += _sum_of_draws(block.weights)
            parts.append(Outcomes(total / self.samples))
        return Outcomes.cat(parts)

    def mean_probs(self) -> Tensor:
        """``(B, ..., C)`` the mean predictive."""
        return self.mixture().weights

    def _block_shape(self, samples: int) -> tuple[int, int]:
        """How many inputs, and how many of their ``samples`` draws, are computed at once."""
        per_draw = 2 * self._footprint.per_draw
        cache, most = min(self.memory, CACHE_BYTES), self._fitting(samples)
        rows = min(most, cache // (samples * per_draw))
        if rows >= ENOUGH_INPUTS:
            return rows, samples
        at_once = cache // per_draw  # inputs times draws
        several = min(samples, SEVERAL_DRAWS) if FEW_INPUTS <= at_once < ENOUGH_INPUTS else 1
        wanted = 2 * at_once if at_once < FEW_INPUTS else at_once // several
        rows = max(1, min(most, wanted, ENOUGH_INPUTS, inputs.count(self.x)))
        size = max(1, at_once // rows if at_once else self.memory // per_draw)
        parts = -(-samples // size)
        return rows, -(-samples // parts)

    def _fitting(self, samples: int) -> int:
        # A layer's input and output count; what is shared is computed once, all draws of a block may be wanted at once.
        shared, per_draw = self._footprint
        return self.memory // (2 * (shared + samples * per_draw))

    @cached_property
    def _footprint(self) -> Footprint:
        return self.predictor.footprint(inputs.rows(self.x, slice(8)))


def _sum_of_draws(block: Tensor) -> Tensor:
    """``(S, ...) -> (...)``, as a product with ones in the order of memory: four times as fast as `sum` on a CPU, and
    where a draw takes a multiple of 2048 bytes, twenty times.
    """
    axes = [0, *sorted(range(1, block.ndim), key=block.stride, reverse=True)]
    ordered = block.permute(axes)
    total = block.new_ones(len(block)) @ ordered.flatten(1)
    return total.view(ordered.shape[1:]).permute([axes.index(axis) - 1 for axis in range(1, block.ndim)])
