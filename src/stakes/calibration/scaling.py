"""Scaling of log-probabilities by the NLL: one temperature, or a scale and an offset for each class."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from stakes.calibration.base import Calibrator, calibrators, require_classes
from stakes.errors import StakesError
from stakes.outcomes import Outcomes

COLDEST, HOTTEST = 0.05, 20.0  # temperatures; rows that are all right, or all wrong, ask for one without end
STEPS = 60  # of bisection
PRIOR_SD = 0.2  # of the logarithm of a temperature, before any rows are seen
_ROUNDS, _POINTS, _REACH = 6, 41, 6.0  # to sum over a posterior: points within so many standard deviations
_NODES, _SHARES = np.polynomial.hermite_e.hermegauss(5)  # of a normal distribution
ROWS_PER_CLASS = 100  # for vector scaling


@calibrators.register("temperature")
@dataclass(frozen=True)
class Temperature(Calibrator):
    """``p ** (1 / temperature)``, normalised: above 1 a model becomes less sure of itself (Guo et al. 2017).

    With a ``spread``, the temperature is uncertain: its logarithm is normal with this standard deviation, and the
    probabilities are their mean over it.

    >>> Temperature(2.0)(Outcomes(torch.tensor([[0.8, 0.2]]))).weights
    tensor([[0.6667, 0.3333]])
    """

    temperature: float
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < torch.inf:
            raise StakesError(f"expected a temperature above 0, but got {self.temperature}")
        if not 0 <= self.spread < torch.inf:
            raise StakesError(f"expected a spread of at least 0, but got {self.spread}")

    @classmethod
    def fit(cls, outcomes: Outcomes, labels: Tensor, weights: Tensor | None = None) -> Self:
        """The temperature with the lowest NLL of labels ``(B, ...)``, which is convex in its inverse.

        ``weights``, of the shape of the labels, say how much each of them counts.
        """
        log_probs, observed, share = _scored(outcomes, labels, weights)
        low, high = 1 / HOTTEST, 1 / COLDEST
        for _ in range(STEPS):  # to where the derivative of the NLL, E_p log p - log p(label), is 0
            middle = (low + high) / 2
            slope = (share * (((middle * log_probs).softmax(-1) * log_probs).sum(-1) - observed)).sum()
            low, high = (low, middle) if slope > 0 else (middle, high)
        return cls(2 / (low + high))

    @classmethod
    def posterior(cls, outcomes: Outcomes, labels: Tensor, weights: Tensor | None = None) -> Self:
        """What labels ``(B, ...)`` say of the temperature, whose logarithm is near 0 beforehand: N(0, 0.2^2).

        On few rows the temperature with the lowest NLL is often far too sure; the mean of the probabilities over this
        posterior (as a normal distribution with its mean and standard deviation) is not.
        """
        log_probs, observed, share = _scored(outcomes, labels, weights)
        count = 1 / float(share.square().sum())  # as many rows of equal weight say as much
        center, spread = 0.0, math.log(HOTTEST) / _REACH
        for _ in range(_ROUNDS):  # of summing over points around the last mean, ever closer to each other
            logs = center + spread * torch.linspace(-_REACH, _REACH, _POINTS, dtype=torch.double)
            fit = [
                (share * (observed * inverse - (log_probs * inverse).logsumexp(-1))).sum() for inverse in (-logs).exp()
            ]
            density = (count * torch.stack(fit) - (logs / PRIOR_SD).square() / 2).softmax(0)
            center = float((density * logs).sum())
            deviation = float((density * (logs - center).square()).sum().sqrt())
            spread = max(deviation, float(logs[1] - logs[0]))
        return cls(math.exp(center), deviation)

    def __call__(self, outcomes: Outcomes) -> Outcomes:
        if outcomes.numeric:
            raise StakesError(
                "expected named outcomes to apply a temperature to, but these are numbers: calibrate them with a Shift"
            )
        if not self.spread:
            return Outcomes(log_weights=(outcomes.log_weights / self.temperature).log_softmax(-1))
        inverses, shares = np.exp(-self.spread * _NODES) / self.temperature, _SHARES / _SHARES.sum()
        scaled = [
            share * (outcomes.log_weights * inverse).softmax(-1)
            for inverse, share in zip(inverses.tolist(), shares.tolist(), strict=True)
        ]
        return Outcomes(torch.stack(scaled).sum(0))

    def settings(self) -> dict[str, Any]:
        return asdict(self)


def _scored(outcomes: Outcomes, labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities ``(B, ..., C)`` in float64, those of the labels, and how much each label counts, with sum 1."""
    require_classes(outcomes, labels)
    if not labels.numel():
        raise StakesError("expected labels to learn a temperature from, but got none")
    log_probs = outcomes.log_weights.double().clamp_min(-100)
    observed = log_probs.gather(-1, labels.long().unsqueeze(-1)).squeeze(-1)
    share = torch.ones_like(labels, dtype=torch.double) if weights is None else weights.double()
    if not share.sum() > 0:
        raise StakesError("expected labels that count, but all have the weight 0")
    return log_probs, observed, share / share.sum()


@calibrators.register("vector")
@dataclass(frozen=True)
class VectorScaling(Calibrator):
    """``softmax(scales * log p + offsets)``, a scale and an offset for each class (Guo et al. 2017).

    It has many numbers to learn, and does harm on few rows: `fit` refuses fewer than 100 for each class.
    """

    scales: tuple[float, ...]
    offsets: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("scales", "offsets"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        if len(self.scales) != len(self.offsets) or not all(map(math.isfinite, self.scales + self.offsets)):
            raise StakesError(f"expected a finite scale and offset for each class, but got {self.settings()}")

    @classmethod
    def fit(cls, outcomes: Outcomes, labels: Tensor) -> Self:
        """The scales and offsets with the lowest NLL of labels ``(B, ...)``, with a weak pull to 1 and 0."""
        require_classes(outcomes, labels)
        classes = outcomes.shape[-1]
        if labels.numel() < ROWS_PER_CLASS * classes:
            raise StakesError(
                f"expected at least {ROWS_PER_CLASS * classes} rows, {ROWS_PER_CLASS} for each class, for vector "
                f"scaling, but got {labels.numel()}: use Temperature"
            )
        log_probs = outcomes.log_weights.detach().double().clamp_min(-100).reshape(-1, classes)
        parameters = torch.tensor([[1.0] * classes, [0.0] * classes], dtype=torch.float64, requires_grad=True)
        start, targets = parameters.detach().clone(), labels.long().flatten()
        optimizer = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            logits = log_probs * parameters[0] + parameters[1]
            # A hundredth of a row: a class that no row has would ask for an offset without end.
            pull = 0.01 * (parameters - start).square().sum() / len(targets)
            value = nn.functional.cross_entropy(logits, targets) + pull
            value.backward()  # type: ignore[no-untyped-call]
            return value

        with torch.enable_grad():
            optimizer.step(loss)  # type: ignore[no-untyped-call]
        return cls(*(tuple(row) for row in parameters.detach().tolist()))

    def __call__(self, outcomes: Outcomes) -> Outcomes:
        if outcomes.numeric or outcomes.shape[-1] != len(self.scales):
            raise StakesError(f"expected outcomes of {len(self.scales)} classes, but got {tuple(outcomes.shape)}")
        scales, offsets = (outcomes.log_weights.new_tensor(values) for values in (self.scales, self.offsets))
        return Outcomes(log_weights=(outcomes.log_weights.clamp_min(-100) * scales + offsets).log_softmax(-1))

    def settings(self) -> dict[str, Any]:
        return {"scales": list(self.scales), "offsets": list(self.offsets)}
