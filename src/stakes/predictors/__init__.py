"""Predictors: whatever turns inputs into `Outcomes`, saved as settings and tensors, without pickles.

A user's own kind is registered, ``@predictors.kinds.register("name")``, and then saves and loads like ours.
"""

from stakes.outcomes import Predictor
from stakes.predictors.blend import Blend, blend_weights
from stakes.predictors.constant import Constant
from stakes.predictors.forest import Forest
from stakes.predictors.linear import Logistic
from stakes.predictors.registry import kinds, load, spec_of
from stakes.predictors.sampled import SampledPosterior
from stakes.predictors.trees import BoostedTrees

__all__ = [
    "Blend",
    "BoostedTrees",
    "Constant",
    "Forest",
    "Logistic",
    "Predictor",
    "SampledPosterior",
    "blend_weights",
    "kinds",
    "load",
    "spec_of",
]

kinds.register("posterior")(SampledPosterior)
kinds.register("trees")(BoostedTrees)
kinds.register("forest")(Forest)
kinds.register("logistic")(Logistic)
kinds.register("constant")(Constant)
kinds.register("blend")(Blend)
