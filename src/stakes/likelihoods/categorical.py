"""Likelihoods of named classes."""

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from stakes.errors import StakesError
from stakes.likelihoods.base import CLASS_AXIS, Likelihood, in_single_precision, kinds
from stakes.outcomes import Outcomes

SMALLEST_PROB = 1e-12  # of a label under a mean predictive, which may round to 0


class _ClassLikelihood(Likelihood):
    """What likelihoods of named classes share: labels are class numbers, or ``ignore_index``, which does not count."""

    def __init__(self, ignore_index: int | None = None) -> None:
        super().__init__()
        if ignore_index is not None and type(ignore_index) is not int:
            raise StakesError(f"expected ignore_index as an integer such as 255 or -100, but got {ignore_index!r}")
        self.ignore_index = ignore_index

    def log_prob(self, outputs: Tensor, labels: Tensor, outcomes: Outcomes | None = None) -> Tensor:
        log_probs = (outcomes or self.outcomes(outputs)).log_weights  # (S, B, ..., C)
        if labels.shape != log_probs.shape[1:-1]:
            same = labels.shape == outputs.shape[1:]  # as BCEWithLogitsLoss has them
            hint = f": use Bernoulli(labels={labels.shape[1]}) for a logit of yes or no for each label" if same else ""
            raise StakesError(
                f"expected labels of the shape of the predictions, {tuple(log_probs.shape[1:-1])}, "
                f"but got {tuple(labels.shape)}{hint}"
            )
        return self._of_counted(log_probs, labels.expand(log_probs.shape[:-1]))

    def mixture_log_prob(self, outcomes: Outcomes, labels: Tensor) -> Tensor:
        return self._of_counted(outcomes.weights.clamp_min(SMALLEST_PROB).log(), labels)

    def counted(self, labels: Tensor) -> Tensor | None:
        if self.ignore_index is None:
            return None
        counted = labels != self.ignore_index
        return None if bool(counted.all()) else counted

    def settings(self) -> dict[str, Any]:
        return {} if self.ignore_index is None else {"ignore_index": self.ignore_index}

    def _of_counted(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        """``(..., C), (...) -> (...)``: log p(label), 0 where it is ignored."""
        if self.ignore_index is None:
            return self._observed(log_probs, labels)
        counted = labels != self.ignore_index
        return self._observed(log_probs, labels.where(counted, 0)).where(counted, 0)

    def _observed(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        """``(..., C), (...) -> (...)``: log p(label), from log p(outcome)."""
        try:
            return log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        except RuntimeError:
            raise _bad_labels(labels, log_probs.shape[-1]) from None


def _bad_labels(labels: Tensor, classes: int) -> StakesError:
    return StakesError(
        f"expected int64 labels from 0 to {classes - 1}, but got {labels.dtype} from {labels.min()} to {labels.max()}: "
        "use labels.long() for class numbers, and ignore_index=, such as 255 or -100, for labels that do not count"
    )


@kinds.register("categorical")
class Categorical(_ClassLikelihood):
    """The label is the outcome, one of C classes.

    Labels of ``ignore_index`` (255 in many segmentations, -100 in PyTorch and Hugging Face) count nowhere: not in
    losses, not in the gain of decisions, not in validation.
    """

    def outcomes(self, outputs: Tensor) -> Outcomes:
        if outputs.ndim < 3 or outputs.shape[CLASS_AXIS] < 2:
            raise StakesError(
                "expected a network output of shape (B, C, ...) with C >= 2 classes, but got "
                f"{tuple(outputs.shape[1:])}: use the likelihood Bernoulli() for a single logit"
            )
        return Outcomes.from_logits(in_single_precision(outputs), CLASS_AXIS)


@kinds.register("bernoulli")
class Bernoulli(_ClassLikelihood):
    """The outcome is no (0) or yes (1), from a single logit: p(yes) = sigmoid(logit), as in BCEWithLogitsLoss.

    The network puts out ``(B, 1, ...)`` or ``(B,)``, for labels and decisions ``(B, ...)``. With ``labels`` L it puts
    out ``(B, L, ...)``: L labels that may hold at once, each with a decision of its own, all of shape ``(B, L, ...)``.
    `Utility.for_labels` gives each of them its own costs. Labels are int64 or floating-point, 0 or 1, or
    ``ignore_index``, which counts nowhere.

    >>> Bernoulli().outcomes(torch.tensor([[[0.0], [2.0]]])).weights
    tensor([[[0.5000, 0.5000],
             [0.1192, 0.8808]]])
    """

    classes = 2

    def __init__(self, labels: int | None = None, *, ignore_index: int | None = None) -> None:
        super().__init__(ignore_index)
        if labels is not None and (type(labels) is not int or labels < 1):
            raise StakesError(f"expected the number of labels of each example, 1 or more, but got {labels!r}")
        self.labels = labels

    def outcomes(self, outputs: Tensor) -> Outcomes:
        logits = in_single_precision(outputs)
        if self.labels is None and outputs.ndim == 2:
            return Outcomes.from_logit(logits)
        if outputs.ndim < 3 or outputs.shape[CLASS_AXIS] != (self.labels or 1):
            shape = "(B, 1, ...) or (B,)" if self.labels is None else f"(B, {self.labels}, ...)"
            raise StakesError(
                f"expected a network output of shape {shape}, but got {tuple(outputs.shape[1:])}: use Bernoulli() for "
                "one logit, Bernoulli(labels=L) for a decision on each of L labels, Categorical() for classes"
            )
        return Outcomes.from_logit(logits.squeeze(CLASS_AXIS) if self.labels is None else logits)

    def settings(self) -> dict[str, Any]:
        return super().settings() | ({} if self.labels is None else {"labels": self.labels})

    def _observed(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        if labels.is_floating_point():
            if bool(((labels != 0) & (labels != 1)).any()):
                raise StakesError(
                    f"expected labels that are 0 or 1, but got {labels.dtype} from {labels.min()} to {labels.max()}: "
                    "use ignore_index=, such as -1, for labels that do not count"
                )
            labels = labels.long()
        return super()._observed(log_probs, labels)


@kinds.register("noisy")
class NoisyCategorical(Categorical):
    """Labels are wrong at some rate: with ``rate`` e, the label is redrawn uniformly over the C classes,

        p(observed = o) = (1 - e) p(outcome = o) + e / C,

    or, with a row-stochastic ``matrix`` T, ``p(observed = o) = sum_c p(outcome = c) T[c, o]``.

    With ``learn=True`` the rate, or the matrix, is a parameter that starts from the one given.
    """

    def __init__(
        self,
        rate: float | None = None,
        matrix: ArrayLike | None = None,
        *,
        learn: bool = False,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(ignore_index)
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
        return super().settings() | {"learn": self.learn, **noise}


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
