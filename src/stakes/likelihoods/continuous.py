"""Likelihoods of numbers, whose labels are standardised inside: users see numbers in their own unit."""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from stakes.errors import StakesError, StakesWarning
from stakes.likelihoods.base import CLASS_AXIS, Likelihood, kinds
from stakes.mixtures import GaussianMixture, LogNormalMixture, Mixture, StudentMixture
from stakes.outcomes import Outcomes

SMALLEST_SCALE = 1e-3  # of a component, in standard deviations of the labels: equal labels would ask for 0
FAR = 10  # standard deviations of the labels that a likelihood was made for
ONE = math.log(math.expm1(1.0))  # softplus of it is 1

Scale = float | Literal["learnt", "input"]


class _NumberLikelihood(Likelihood):
    """The outcome is a number, of a distribution with a location and a scale.

    ``scale`` is ``"learnt"``, one for all inputs, and the network puts out a location; or ``"input"``, one for each
    input, and it puts out two numbers: ``(B, 1, ...)`` or ``(B,)``, or ``(B, 2, ...)``. A number is a scale that stays.

    The network puts out standardised numbers: by the mean and the standard deviation of the training labels,
    ``center`` and ``unit``, which `fit` finds, or `for_labels` for a loop of your own. They are saved with the weights.
    """

    center: Tensor
    unit: Tensor

    def __init__(self, scale: Scale = "learnt") -> None:
        super().__init__()
        if scale not in ("learnt", "input") and not (isinstance(scale, int | float) and 0 < scale < math.inf):
            raise StakesError(f"expected a scale that is 'learnt', 'input', or a number above 0, but got {scale!r}")
        self.scale = scale
        if scale == "learnt":
            self.raw_scale = nn.Parameter(torch.tensor(ONE))
        for name in ("center", "unit"):
            self.register_buffer(name, torch.tensor(torch.nan))

    @classmethod
    def for_labels(cls, labels: Tensor, **settings: Any) -> Self:
        """One for such labels, for a training loop of your own."""
        likelihood = cls(**settings)
        likelihood.prepare([labels])
        return likelihood

    @torch.no_grad()
    def prepare(self, labels: Iterable[Tensor]) -> None:
        if not self.unit.isnan():
            self._warn_of_strangers(labels)
            return
        count, mean, squares = 0, 0.0, 0.0  # of deviations from the mean, merged batch by batch
        for batch in labels:
            numbers = self._standard(self._checked(batch.detach().double().flatten()))
            gap = float(numbers.mean()) - mean
            squares += float((numbers - numbers.mean()).square().sum()) + gap**2 * count * len(numbers) / (
                count + len(numbers)
            )
            count += len(numbers)
            mean += gap * len(numbers) / count
        if not squares > 0:
            raise StakesError(f"expected labels that differ, but got {count}, all equal: there is nothing to learn")
        self.center.fill_(mean)
        self.unit.fill_(math.sqrt(squares / count))

    def _warn_of_strangers(self, labels: Iterable[Tensor]) -> None:
        """Say so where it was made for other labels: of the first of these, most are far away, in its unit."""
        first = next(iter(labels))
        numbers = self._standard(self._checked(first.detach().double().flatten()))
        if abs(float((numbers.median() - self.center) / self.unit)) > FAR:
            warnings.warn(
                f"this {type(self).__name__} was made for labels around {float(self.center):.4g}, give or take "
                f"{float(self.unit):.4g}, and these are far from that: if it comes from another model, make a new one",
                StakesWarning,
                stacklevel=4,
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Half precision would move the labels by a part of their spread: only the device of these changes.
        exact = self.center, self.unit
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.center, self.unit = (
            value.to(moved.device) for value, moved in zip(exact, (self.center, self.unit), strict=True)
        )
        return self

    def outcomes(self, outputs: Tensor) -> Mixture:
        width = 2 if self.scale == "input" else 1
        if width == 1 and outputs.ndim == 2:
            outputs = outputs.unsqueeze(CLASS_AXIS)
        if outputs.ndim < 3 or outputs.shape[CLASS_AXIS] != width:
            raise StakesError(
                f"expected a network with {width} output{'s' * (width > 1)}, (B, {width}, ...), for "
                f"{type(self).__name__}(scale={self.scale!r}), but got {tuple(outputs.shape[1:])}"
            )
        if self.unit.isnan():
            raise StakesError(
                f"expected a {type(self).__name__} that knows its labels, but this one has seen none: train with fit, "
                f"or make it with {type(self).__name__}.for_labels(labels)"
            )
        numbers = outputs if outputs.device.type == "mps" else outputs.double()
        location = self.center.to(numbers) + self.unit.to(numbers) * numbers.select(CLASS_AXIS, 0)  # (S, B, ...)
        return self._mixture(location.unsqueeze(-1), self._scales(numbers).unsqueeze(-1))

    def _scales(self, numbers: Tensor) -> Tensor:
        """In the unit of what is standardised, broadcasting to the locations."""
        if isinstance(self.scale, int | float):
            return numbers.new_tensor(float(self.scale))
        raw = numbers.select(CLASS_AXIS, 1) + ONE if self.scale == "input" else self.raw_scale.to(numbers)
        return self.unit.to(numbers) * (nn.functional.softplus(raw) + SMALLEST_SCALE)

    def log_prob(self, outputs: Tensor, labels: Tensor, outcomes: Outcomes | None = None) -> Tensor:
        mixture = outcomes if isinstance(outcomes, Mixture) else self.outcomes(outputs)
        if labels.shape != mixture.shape[1:-1]:
            raise StakesError(
                f"expected labels of the shape of the predictions, {tuple(mixture.shape[1:-1])}, but got "
                f"{tuple(labels.shape)}"
            )
        return mixture.log_prob(self._checked(labels.to(mixture.location)))

    def mixture_log_prob(self, outcomes: Outcomes, labels: Tensor) -> Tensor | None:
        if not isinstance(outcomes, Mixture):
            return None
        return outcomes.log_prob(self._checked(labels.to(outcomes.location)))

    def settings(self) -> dict[str, Any]:
        return {"scale": self.scale}

    @abstractmethod
    def _mixture(self, location: Tensor, scale: Tensor) -> Mixture:
        """From ``(S, B, ..., 1)`` locations and scales."""

    def _standard(self, labels: Tensor) -> Tensor:
        """What is standardised: the labels, or their logarithms."""
        return labels

    def _checked(self, labels: Tensor) -> Tensor:
        if not bool(labels.isfinite().all()):
            raise StakesError("expected labels that are finite numbers, but some are not: leave out what is missing")
        return labels


@kinds.register("gaussian")
class Gaussian(_NumberLikelihood):
    """The outcome is normal around what the network puts out."""

    def _mixture(self, location: Tensor, scale: Tensor) -> GaussianMixture:
        return GaussianMixture(location, scale)


@kinds.register("log_normal")
class LogNormal(_NumberLikelihood):
    """The logarithm of the outcome, an amount above 0, is normal; ``scale`` as a number is that of the logarithm."""

    def _mixture(self, location: Tensor, scale: Tensor) -> LogNormalMixture:
        return LogNormalMixture(location, scale)

    def _standard(self, labels: Tensor) -> Tensor:
        return labels.log()

    def _checked(self, labels: Tensor) -> Tensor:
        if bool((labels <= 0).any()):
            raise StakesError(
                f"expected amounts above 0 for a LogNormal, but got {float(labels.min()):g}: use Gaussian or StudentT"
            )
        return super()._checked(labels)


@kinds.register("student_t")
class StudentT(_NumberLikelihood):
    """The outcome has heavy tails: location + scale T, with T from Student's t of ``df`` degrees of freedom."""

    def __init__(self, scale: Scale = "learnt", df: int = 4) -> None:
        super().__init__(scale)
        if type(df) is not int or df < 3:
            raise StakesError(f"expected degrees of freedom as a whole number of 3 or more, but got {df!r}")
        self.df = df

    def _mixture(self, location: Tensor, scale: Tensor) -> StudentMixture:
        return StudentMixture(location, scale, self.df)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"df": self.df}
