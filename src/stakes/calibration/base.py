"""The contract of a calibrator, and a predictor that holds one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor, nn

from stakes import predictors
from stakes.errors import StakesError
from stakes.inputs import Inputs
from stakes.outcomes import Outcomes, Predictor
from stakes.registry import Registry

calibrators: Registry["Calibrator"] = Registry("calibrator")


class Calibrator(ABC):
    """A map of outcomes, such as `Temperature`; a `Calibrated` predictor holds one."""

    @abstractmethod
    def __call__(self, outcomes: Outcomes) -> Outcomes:
        """``(..., K) -> (..., K)``."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of its constructor in JSON types."""


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


def require_classes(outcomes: Outcomes, labels: Tensor) -> None:
    """Refuse labels that are no class of each of the outcomes."""
    if outcomes.numeric or labels.shape != outcomes.shape[:-1]:
        raise StakesError(f"expected a class for each of {tuple(outcomes.shape[:-1])}, but got {tuple(labels.shape)}")
    classes = outcomes.shape[-1]
    if labels.is_floating_point() or bool(((labels < 0) | (labels >= classes)).any()):
        raise StakesError(
            f"expected labels as integers from 0 to {classes - 1}, but got {labels.dtype} from {labels.min()} to "
            f"{labels.max()}: number the classes in the order of the outcomes"
        )
