"""Mixes of probabilities: a blend by log-loss, with a temperature."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.calibration import Calibrated, Temperature
from stakes.decisions import decide
from stakes.outcomes import Outcomes, Predictor
from stakes.predictors import Blend, blend_weights
from stakes.tables.mix import HeldOut, Mix, blended_weights
from stakes.tables.models import CLASS_MODELS

TINY = 1e-12  # a probability, so that a log-loss is finite


@dataclass(frozen=True)
class ClassMix(Mix):
    """The weighted mean of probabilities, with a temperature."""

    temperature: Temperature | None = None

    def corrected(self, mixed: Tensor) -> Tensor:
        return mixed if self.temperature is None else self.temperature(Outcomes(mixed)).weights

    def predictor(self, parts: Mapping[str, Sequence[Predictor]]) -> Predictor:
        blend = Blend(*self.shares(parts))
        return blend if self.temperature is None else Calibrated(blend, self.temperature)


class HeldOutClasses(HeldOut):
    """Predictions are probabilities, ``(n, C)``."""

    mix, catalogue, loss_name = ClassMix, CLASS_MODELS, "log-loss"

    def worth(self, predictions: Tensor) -> NDArray[np.float64]:
        return np.asarray(self.utility.realised(decide(predictions, self.utility).choice, self.labels))

    def loss(self, predictions: Tensor) -> float:
        return self.mean(-self._observed(predictions).double().clamp_min(TINY).log().numpy())

    def blend(self, members: Mapping[str, Mix]) -> ClassMix:
        """Weights by the log-loss of the rows held out, then what these rows say of a temperature."""
        if not len(self.labels):
            weights, trained = blended_weights(members, [1 / len(members)] * len(members))
            return ClassMix(trained, details={"weights": weights})
        observed = [self._observed(mix.predictions(self.predictions)) for mix in members.values()]
        fitted = blend_weights(torch.stack(observed), counts=self.weights)
        weights, trained = blended_weights(members, fitted.tolist())
        probs = ClassMix(trained).predictions(self.predictions)
        temperature = Temperature.posterior(Outcomes(probs), self.labels, self.weights)
        return ClassMix(trained, temperature, details={"weights": weights, **temperature.settings()})

    def _observed(self, probs: Tensor) -> Tensor:
        """(n,) the probability of what happened."""
        return probs.gather(1, self.labels.unsqueeze(1)).squeeze(1)
