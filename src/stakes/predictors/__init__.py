"""Predictors: whatever turns inputs into `Outcomes`, saved as settings and tensors, without pickles.

A user's own kind is registered, ``@predictors.kinds.register("name")``, and then saves and loads like ours.
"""

from stakes.outcomes import Predictor
from stakes.predictors.blend import Blend, QuantileBlend, blend_weights, quantile_weights
from stakes.predictors.constant import Constant
from stakes.predictors.forest import Forest
from stakes.predictors.linear import Logistic
from stakes.predictors.number_trees import MeanTrees, QuantileTrees
from stakes.predictors.past import ForestPast, NearestPast, PastQuantiles
from stakes.predictors.quantile_regression import LinearQuantiles
from stakes.predictors.registry import kinds, load, spec_of
from stakes.predictors.sampled import SampledPosterior
from stakes.predictors.trees import BoostedTrees

__all__ = [
    "Blend",
    "BoostedTrees",
    "Constant",
    "Forest",
    "ForestPast",
    "LinearQuantiles",
    "Logistic",
    "MeanTrees",
    "NearestPast",
    "PastQuantiles",
    "Predictor",
    "QuantileBlend",
    "QuantileTrees",
    "SampledPosterior",
    "blend_weights",
    "kinds",
    "load",
    "quantile_weights",
    "spec_of",
]

kinds.register("posterior")(SampledPosterior)
kinds.register("trees")(BoostedTrees)
kinds.register("forest")(Forest)
kinds.register("logistic")(Logistic)
kinds.register("constant")(Constant)
kinds.register("blend")(Blend)

kinds.register("past")(PastQuantiles)
kinds.register("linear_quantiles")(LinearQuantiles)
kinds.register("nearest_past")(NearestPast)
kinds.register("forest_past")(ForestPast)
kinds.register("quantile_trees")(QuantileTrees)
kinds.register("mean_trees")(MeanTrees)
kinds.register("quantile_blend")(QuantileBlend)
