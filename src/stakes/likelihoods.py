"""Likelihoods: from a network's output to the probability of an outcome, and of an observed label.

The noise model lives here and only here. The likelihood of the data uses the distribution of the label
*as it was observed*; decisions use the distribution of the outcome *as it is*.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from stakes.errors import StakesError


class Likelihood(nn.Module, ABC):
    """What turns network outputs ``(B, C, ...)`` into log-probabilities, class last."""

    def outcome_log_probs(self, logits: Tensor) -> Tensor:
        """log p(outcome): ``(B, C, ...) -> (B, ..., C)``."""
        return _classes_last(logits, torch.log_softmax)

    def outcome_probs(self, logits: Tensor) -> Tensor:
        """p(outcome): ``(B, C, ...) -> (B, ..., C)``."""
        return _classes_last(logits, torch.softmax)

    @abstractmethod
    def observed_log_probs(self, log_probs: Tensor) -> Tensor:
        """log p(observed label), from log p(outcome): ``(..., C) -> (..., C)``."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Its kind and settings in JSON types, from which `from_spec` makes it again."""


class Categorical(Likelihood):
    """The label is the outcome."""

    def observed_log_probs(self, log_probs: Tensor) -> Tensor:
        return log_probs

    def spec(self) -> dict[str, Any]:
        return {"kind": "categorical"}


class NoisyCategorical(Likelihood):
    """Labels are wrong at some rate: with ``rate`` e, the label is redrawn uniformly over the C classes,

        p(observed = o) = (1 - e) p(outcome = o) + e / C,

    or, with a row-stochastic ``matrix`` T, ``p(observed = o) = sum_c p(outcome = c) T[c, o]``.

    With ``learn=True`` the rate, or the matrix, is a parameter that starts from the one given.
    """

    def __init__(self, rate: float | None = None, matrix: ArrayLike | None = None, *, learn: bool = False) -> None:
        super().__init__()
        if (rate is None) == (matrix is None):
            raise StakesError("expected either a rate or a matrix of label noise, but got both or neither")
        self.learn = learn
        start = _rate_logit(rate, learn) if rate is not None else _matrix_logits(matrix, learn)
        self.uniform = rate is not None
        if learn:
            self.logits = nn.Parameter(start)
        else:
            self.register_buffer("logits", start)

    def observed_log_probs(self, log_probs: Tensor) -> Tensor:
        logits = self.logits.to(log_probs.dtype)
        if self.uniform:
            classes = log_probs.new_tensor(log_probs.shape[-1])
            kept, redrawn = nn.functional.logsigmoid(-logits), nn.functional.logsigmoid(logits)
            return torch.logaddexp(kept + log_probs, redrawn - classes.log())
        if logits.shape[0] != log_probs.shape[-1]:
            raise StakesError(f"expected a noise matrix for {log_probs.shape[-1]} classes, but got {logits.shape[0]}")
        return torch.logsumexp(log_probs.unsqueeze(-1) + logits.log_softmax(-1), dim=-2)  # (..., C, C) -> (..., C)

    @property
    def rate(self) -> float:
        """The share of labels that are redrawn uniformly."""
        if not self.uniform:
            raise StakesError("a noise matrix has no single rate: see `matrix`")
        return float(self.logits.detach().sigmoid())

    @property
    def matrix(self) -> Tensor:
        """(C, C) p(observed | outcome), a row for each outcome."""
        if self.uniform:
            raise StakesError("a uniform rate has no matrix of its own: see `rate`")
        return self.logits.detach().softmax(-1)

    def spec(self) -> dict[str, Any]:
        noise = {"rate": self.rate} if self.uniform else {"matrix": self.matrix.tolist()}
        return {"kind": "noisy", "learn": self.learn, **noise}


def _classes_last(logits: Tensor, softmax: Callable[[Tensor, int], Tensor]) -> Tensor:
    if not isinstance(logits, Tensor):
        raise StakesError(f"expected the network to return a tensor, but it returned a {type(logits).__name__}")
    if logits.ndim < 2 or logits.shape[1] < 2:
        raise StakesError(
            f"expected a network output of shape (B, C, ...) with C >= 2 classes, but got {tuple(logits.shape)}"
        )
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()  # probabilities of three digits do not sum to 1
    # A softmax over a short last axis takes 15 ns for each number, over any other axis one: classes go first.
    if logits.ndim == 2:
        return softmax(logits.T.contiguous(), 0).T
    return softmax(logits.contiguous(), 1).movedim(1, -1)


def from_spec(spec: dict[str, Any]) -> Likelihood:
    """The likelihood that ``Likelihood.spec`` described."""
    settings = dict(spec)
    kind = settings.pop("kind", None)
    if kind == "categorical":
        return Categorical()
    if kind == "noisy":
        return NoisyCategorical(**settings)
    raise StakesError(f"expected a likelihood of kind 'categorical' or 'noisy', but got {kind!r}")


def _rate_logit(rate: float, learn: bool) -> Tensor:
    if not 0 <= rate < 1:
        raise StakesError(f"expected a rate of label noise in [0, 1), but got {rate}")
    if learn and rate == 0:
        raise StakesError("a learnt rate of label noise cannot start at exactly 0: its gradient is 0 there; try 0.05")
    return torch.logit(torch.tensor(float(rate), dtype=torch.float64)).float()


def _matrix_logits(matrix: ArrayLike | None, learn: bool) -> Tensor:
    table = torch.as_tensor(matrix, dtype=torch.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or table.shape[0] < 2:
        raise StakesError(f"expected a square matrix of label noise, but got the shape {tuple(table.shape)}")
    rows = table.sum(1)
    if not (table.isfinite().all() and (table >= 0).all() and torch.allclose(rows, torch.ones_like(rows), atol=1e-6)):
        raise StakesError(
            "expected the rows of the noise matrix to be probabilities that sum to 1: p(observed | outcome)"
        )
    if learn and (table == 0).any():
        raise StakesError("a learnt noise matrix cannot start from exact zeros: their gradient is 0; mix in a little")
    return table.log().float()
