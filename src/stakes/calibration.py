"""Calibrators: maps from outcomes to outcomes, learnt on rows that the model did not train on."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from stakes import predictors
from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.outcomes import Outcomes, Predictor
from stakes.registry import Registry

calibrators: Registry["Calibrator"] = Registry("calibrator")
COLDEST, HOTTEST = 0.05, 20.0  # temperatures; rows that are all right, or all wrong, ask for one without end
STEPS = 60  # of bisection


class Calibrator(ABC):
    """A map of outcomes, such as `Temperature`; a `Calibrated` predictor holds one."""

    @abstractmethod
    def __call__(self, outcomes: Outcomes) -> Outcomes:
        """``(..., K) -> (..., K)``."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of its constructor in JSON types."""


@calibrators.register("temperature")
@dataclass(frozen=True)
class Temperature(Calibrator):
    """``p ** (1 / temperature)``, normalised: above 1 a model becomes less sure of itself (Guo et al. 2017).

    >>> Temperature(2.0)(Outcomes(torch.tensor([[0.8, 0.2]]))).weights
    tensor([[0.6667, 0.3333]])
    """

    temperature: float

    def __post_init__(self) -> None:
        if not 0 < self.temperature < torch.inf:
            raise StakesError(f"expected a temperature above 0, but got {self.temperature}")

    @classmethod
    def fit(cls, outcomes: Outcomes, labels: Tensor) -> Self:
        """The temperature with the lowest NLL of labels ``(B, ...)``, which is convex in its inverse."""
        if outcomes.numeric or labels.shape != outcomes.shape[:-1]:
            raise StakesError(
                f"expected a class for each of {tuple(outcomes.shape[:-1])}, but got {tuple(labels.shape)}"
            )
        classes = outcomes.shape[-1]
        if labels.is_floating_point() or bool(((labels < 0) | (labels >= classes)).any()):
            raise StakesError(
                f"expected labels as integers from 0 to {classes - 1}, but got {labels.dtype} from {labels.min()} to "
                f"{labels.max()}: number the classes in the order of the outcomes"
            )
        log_probs = outcomes.log_weights.double().clamp_min(-100)
        observed = log_probs.gather(-1, labels.long().unsqueeze(-1)).mean()
        low, high = 1 / HOTTEST, 1 / COLDEST
        for _ in range(STEPS):  # to where the derivative of the NLL, E_p log p - log p(label), is 0
            middle = (low + high) / 2
            slope = ((middle * log_probs).softmax(-1) * log_probs).sum(-1).mean() - observed
            low, high = (low, middle) if slope > 0 else (middle, high)
        return cls(2 / (low + high))

    def __call__(self, outcomes: Outcomes) -> Outcomes:
        if outcomes.numeric:
            raise StakesError(
                "expected named outcomes to apply a temperature to, but these are numbers: calibrate with a Calibrator "
                "of your own"
            )
        return Outcomes(log_weights=(outcomes.log_weights / self.temperature).log_softmax(-1))

    def settings(self) -> dict[str, Any]:
        return asdict(self)


@predictors.kinds.register("calibrated")
class Calibrated(Predictor):
    """A predictor whose outcomes, mixed over its draws, go through a calibrator. It has no Monte-Carlo error."""

    def __init__(self, predictor: Predictor, calibrator: Calibrator) -> None:
        self.predictor, self.calibrator = predictor, calibrator
        self.features, self.classes, self.device = predictor.features, predictor.classes, predictor.device

    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        return self.calibrator(self.predictor(x).mixture()).repeat(last - first)

    def spec(self) -> dict[str, Any]:
        calibrator = {"kind": calibrators.name_of(type(self.calibrator)), **self.calibrator.settings()}
        return {"predictor": predictors.spec_of(self.predictor), "calibrator": calibrator}

    def state_dict(self) -> dict[str, Tensor]:
        return self.predictor.state_dict()

    @classmethod
    def load(cls, spec: Mapping[str, Any], tensors: Mapping[str, Tensor], network: nn.Module | None = None) -> Self:
        settings = dict(spec["calibrator"])
        calibrator = calibrators[settings.pop("kind")](**settings)
        return cls(predictors.load(spec["predictor"], tensors, network), calibrator)
