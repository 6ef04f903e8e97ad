"""Likelihoods: what a network's outputs say of the outcome, and of the label that was observed.

The noise model lives here and only here. The likelihood of the data uses the distribution of the label
*as it was observed*; decisions use the distribution of the outcome *as it is*.
"""

from stakes.likelihoods.base import Likelihood, from_spec, kinds
from stakes.likelihoods.categorical import Bernoulli, Categorical, NoisyCategorical
from stakes.likelihoods.continuous import Gaussian, LogNormal, StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "LogNormal",
    "NoisyCategorical",
    "StudentT",
    "from_spec",
    "kinds",
]
