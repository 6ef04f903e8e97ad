"""Likelihoods: what a network's outputs say of the outcome, and of the label that was observed.

The noise model lives here and only here. The likelihood of the data uses the distribution of the label
*as it was observed*; decisions use the distribution of the outcome *as it is*.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from stakes.errors import StakesError
from stakes.outcomes import Outcomes
from stakes.registry import Registry

CLASS_AXIS = 2  # of outputs (S, B, C, ...)
SMALLEST_PROB = 1e-12  # of a label under a mean predictive, which may round to 0

kinds: Registry["Likelihood"] = Registry("likelihood")


class Likelihood(nn.Module, ABC):
    """Network outputs of S draws, ``(S, B, C, ...)``, as `Outcomes`, and as log-probabilities of labels."""

    @abstractmethod
    def outcomes(self, outputs: Tensor) -> Outcomes:
        """``(S, B, C, ...) -> (S, B, ..., K)``: the outcome as it is."""

    @abstractmethod
    def log_prob(self, outputs: Tensor, labels: Tensor, outcomes: Outcomes | None = None) -> Tensor:
        """``(S, B, C, ...), (B, ...) -> (S, B, ...)``: log p(label as it was observed).

        ``outcomes`` are those of the outputs, where they are computed already.
        """

    def mixture_log_prob(self, outcomes: Outcomes, labels: Tensor) -> Tensor | None:
        """``(B, ..., K), (B, ...) -> (B, ...)``: log p(label) under a mixture over draws; None if it has no density."""
        return None

    def settings(self) -> dict[str, Any]:
        """The keyword arguments of its constructor in JSON types."""
        return {}

    def spec(self) -> dict[str, Any]:
        """The name of its kind, and its settings, from which `from_spec` builds it again."""
        return {"kind": kinds.name_of(type(self)), **self.settings()}


@kinds.register("categorical")
class Categorical(Likelihood):
    """The label is the outcome, one of C classes."""

    def outcomes(self, outputs: Tensor) -> Outcomes:
        if outputs.ndim < 3 or outputs.shape[CLASS_AXIS] < 2:
            raise StakesError(
                "expected a network output of shape (B, C, ...) with C >= 2 classes, but got "
                f"{tuple(outputs.shape[1:])}"
            )
        # Half precision gives probabilities of three digits, which do not sum to 1.
        return Outcomes.from_logits(outputs.float() if outputs.itemsize < 4 else outputs, CLASS_AXIS)

    def log_prob(self, outputs: Tensor, labels: Tensor, outcomes: Outcomes | None = None) -> Tensor:
        log_probs = (outcomes or self.outcomes(outputs)).log_weights  # (S, B, ..., C)
        if labels.shape != log_probs.shape[1:-1]:
            raise StakesError(
                f"expected labels of the shape of the predictions, {tuple(log_probs.shape[1:-1])}, "
                f"but got {tuple(labels.shape)}"
            )
        return self._observed(log_probs, labels.expand(log_probs.shape[:-1]))

    def mixture_log_prob(self, outcomes: Outcomes, labels: Tensor) -> Tensor:
        return self._observed(outcomes.weights.clamp_min(SMALLEST_PROB).log(), labels)

    def _observed(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        """``(..., C), (...) -> (...)``: log p(label), from log p(outcome)."""
        try:
            return log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        except RuntimeError:
            raise _bad_labels(labels, log_probs.shape[-1]) from None


def _bad_labels(labels: Tensor, classes: int) -> StakesError:
    return StakesError(
        f"expected int64 labels from 0 to {classes - 1}, but got {labels.dtype} from {labels.min()} to {labels.max()}: "
        "use labels.long() for class numbers"
    )


@kinds.register("noisy")
class NoisyCategorical(Categorical):
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

    def _observed(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        logits = self.logits.to(log_probs.dtype)
        if self.uniform:
            classes = log_probs.new_tensor(log_probs.shape[-1])
            kept, redrawn = nn.functional.logsigmoid(-logits), nn.functional.logsigmoid(logits)
            return torch.logaddexp(kept + super()._observed(log_probs, labels), redrawn - classes.log())
        if logits.shape[0] != log_probs.shape[-1]:
            raise StakesError(f"expected a noise matrix for {log_probs.shape[-1]} classes, but got {logits.shape[0]}")
        if labels.min() < 0 or labels.max() >= len(logits) or labels.is_floating_point():
            raise _bad_labels(labels, len(logits))
        # Only the column of the label that was observed: (..., C), where all columns would be (..., C, C).
        return torch.logsumexp(log_probs + logits.log_softmax(-1).T[labels], -1)

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

    def settings(self) -> dict[str, Any]:
        noise = {"rate": self.rate} if self.uniform else {"matrix": self.matrix.tolist()}
        return {"learn": self.learn, **noise}


def from_spec(spec: dict[str, Any]) -> Likelihood:
    """The likelihood that ``Likelihood.spec`` described."""
    settings = dict(spec)
    return kinds[settings.pop("kind", None)](**settings)


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
