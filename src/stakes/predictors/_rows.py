"""What predictors of rows share: models that scikit-learn trains, and NumPy alone predicts with."""

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.errors import StakesError
from stakes.inputs import Inputs, require_tensor
from stakes.outcomes import Footprint, Outcomes, Predictor
from stakes.training.examples import TensorExamples

TOLERANCE = 1e-6  # between our probabilities, or standardised numbers, and scikit-learn's
BLOCK_ROWS = 2**17


class RowPredictor(Predictor):
    """A model of rows ``(B, features)`` without randomness: it has one draw."""

    model_name: ClassVar[str]  # what it is called in messages
    features: int

    def footprint(self, x: Inputs) -> Footprint:
        """Blocks of many rows, however wide: there is a fixed cost for each block."""
        return Footprint(1, 2**21 // BLOCK_ROWS)

    def require_width(self, x: NDArray[Any]) -> None:
        if x.ndim != 2 or x.shape[1] != self.features:
            raise StakesError(f"expected rows of {self.features} features, but got inputs of shape {x.shape}")

    def require_close(self, ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> None:
        """Refuse to be, if our numbers are not those of scikit-learn."""
        error = np.abs(ours - theirs).max()
        if not error <= TOLERANCE:
            raise StakesError(
                f"expected the stored {self.model_name} to predict as scikit-learn's, but they differ by {error:.2g}; "
                "this version of scikit-learn stores them in another way: use the version stakes is tested with"
            )


class ClassPredictor(RowPredictor):
    """Its outcomes are named classes."""

    @abstractmethod
    def probs(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """``(B, C)`` the probabilities of rows ``(B, features)``."""

    def outcomes(self, x: Inputs, first: int, last: int) -> Outcomes:
        x = require_tensor(x, self.model_name)
        probs = torch.from_numpy(self.probs(x.double().numpy()))
        probs = probs if x.dtype == torch.float64 else probs.float()  # inputs may be integers, or of half precision
        return Outcomes(probs.expand(last - first, -1, -1))

    def require_equal(self, x: NDArray[Any], theirs: NDArray[np.float64], known: Tensor) -> None:
        """Refuse to be, if our probabilities are not those of scikit-learn, which knows the ``known`` classes only."""
        self.require_close(self.probs(x)[:, known.numpy()], theirs)


def known_classes(labels: Tensor, classes: int, model_name: str) -> Tensor:
    """``(C,)`` which classes occur in training, at least two; the others get probability 0."""
    known = torch.bincount(labels, minlength=classes) > 0
    if len(known) != classes or int(known.sum()) < 2:
        raise StakesError(
            f"expected labels of at least 2 of {classes} classes to train {model_name} on, but got "
            f"{sorted(set(labels.tolist()))}"
        )
    return known


def scorable(validation: TensorExamples | None, known: Tensor) -> TensorExamples | None:
    """The validation rows of known classes: one that training never saw cannot be scored."""
    if validation is None:
        return None
    rows = known[validation.labels].nonzero()[:, 0]
    return validation.subset(rows) if len(rows) else None


def as_arrays(examples: TensorExamples, model_name: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """The rows in double precision, their labels, and their weights if they have any."""
    x = require_tensor(examples.x, model_name).double().numpy()
    if x.ndim != 2:
        raise StakesError(f"expected rows of features to train {model_name} on, but got inputs of shape {x.shape}")
    return x, examples.labels.numpy(), None if examples.weights is None else examples.weights.numpy()


def spread(present: NDArray[np.float64], known: Tensor) -> NDArray[np.float64]:
    """``(B, K) -> (B, C)``: the probabilities of the known classes, and 0 for the others."""
    probs = np.zeros((len(present), len(known)))
    probs[:, known.numpy()] = present
    return probs


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the first axis."""
    probs: NDArray[np.float64] = np.exp(scores - scores.max(0))
    probs /= probs.sum(0)
    return probs


def damaged(what: str, expected: str, got: str) -> StakesError:
    return StakesError(f"damaged {what}: expected {expected}, but got {got}; save the model again")
