"""stakes: neural networks that know what a mistake costs.

>>> import stakes
>>> utility = stakes.Utility.from_costs(
...     {"treat": {"ill": 0, "well": 40}, "send home": {"ill": 500, "well": 0}}, unit="£"
... )
>>> stakes.decide([[0.1, 0.9]], utility).chosen_names
array(['treat'], dtype='<U9')
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stakes.decisions import Decisions, decide
from stakes.errors import StakesError, StakesWarning
from stakes.likelihoods import Categorical, NoisyCategorical
from stakes.networks.mlp import MLP
from stakes.objectives import LossCalibrated, Standard, Weighted
from stakes.posteriors import Ensemble, MCDropout, MeanField
from stakes.training.config import History, Training
from stakes.utility import Utility

if TYPE_CHECKING:
    from stakes.saved_model import SavedModel
    from stakes.sklearn import DecisionClassifier
    from stakes.training.fit import fit

# These bring Lightning, pandas and scikit-learn with them, and are imported when first used.
_LATER = {
    "DecisionClassifier": "stakes.sklearn",
    "SavedModel": "stakes.saved_model",
    "fit": "stakes.training.fit",
}

__all__ = [
    "MLP",
    "Categorical",
    "DecisionClassifier",
    "Decisions",
    "Ensemble",
    "History",
    "LossCalibrated",
    "MCDropout",
    "MeanField",
    "NoisyCategorical",
    "SavedModel",
    "StakesError",
    "StakesWarning",
    "Standard",
    "Training",
    "Utility",
    "Weighted",
    "decide",
    "fit",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'stakes' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
