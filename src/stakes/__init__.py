"""stakes: decisions whose mistakes have a price, and models trained for them.

>>> import stakes
>>> utility = stakes.Utility.from_costs(
...     {"treat": {"ill": 0, "well": 40}, "send home": {"ill": 500, "well": 0}}, unit="£"
... )
>>> stakes.decide([[0.1, 0.9]], utility).chosen_names
array(['treat'], dtype='<U9')
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stakes.decisions import AmountDecisions, Decisions, decide, value_of_information
from stakes.errors import StakesError, StakesWarning
from stakes.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Likelihood,
    LogNormal,
    NoisyCategorical,
    StudentT,
)
from stakes.networks import MLP, TabM
from stakes.objectives import LossCalibrated, Objective, Standard, Weighted
from stakes.outcomes import Outcomes, Predictor
from stakes.posteriors import BatchEnsemble, Draws, Ensemble, Laplace, MCDropout, MeanField, Posterior, families
from stakes.training.config import History, Training
from stakes.training.examples import Examples
from stakes.utility import FormulaUtility, Linex, Newsvendor, Range, Squared, TableUtility, Utility

if TYPE_CHECKING:
    from stakes.calibration import Calibrated, Temperature
    from stakes.predictors import Blend, BoostedTrees, Constant, Forest, Logistic, SampledPosterior
    from stakes.saved_model import SavedModel
    from stakes.sklearn import DecisionClassifier, DecisionRegressor
    from stakes.tables.decider import Decider
    from stakes.training.fit import fit

# These bring pandas and scikit-learn with them, and are imported when first used.
_LATER = {
    "Blend": "stakes.predictors",
    "BoostedTrees": "stakes.predictors",
    "Calibrated": "stakes.calibration",
    "Constant": "stakes.predictors",
    "Decider": "stakes.tables.decider",
    "DecisionClassifier": "stakes.sklearn",
    "DecisionRegressor": "stakes.sklearn",
    "Forest": "stakes.predictors",
    "Logistic": "stakes.predictors",
    "SampledPosterior": "stakes.predictors",
    "SavedModel": "stakes.saved_model",
    "Temperature": "stakes.calibration",
    "fit": "stakes.training.fit",
}

__all__ = [
    "MLP",
    "AmountDecisions",
    "BatchEnsemble",
    "Bernoulli",
    "Blend",
    "BoostedTrees",
    "Calibrated",
    "Categorical",
    "Constant",
    "Decider",
    "DecisionClassifier",
    "DecisionRegressor",
    "Decisions",
    "Draws",
    "Ensemble",
    "Examples",
    "Forest",
    "FormulaUtility",
    "Gaussian",
    "History",
    "Laplace",
    "Likelihood",
    "Linex",
    "LogNormal",
    "Logistic",
    "LossCalibrated",
    "MCDropout",
    "MeanField",
    "Newsvendor",
    "NoisyCategorical",
    "Objective",
    "Outcomes",
    "Posterior",
    "Predictor",
    "Range",
    "SampledPosterior",
    "SavedModel",
    "Squared",
    "StakesError",
    "StakesWarning",
    "Standard",
    "StudentT",
    "TabM",
    "TableUtility",
    "Temperature",
    "Training",
    "Utility",
    "Weighted",
    "decide",
    "families",
    "fit",
    "value_of_information",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'stakes' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
