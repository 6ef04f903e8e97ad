"""Numbers with closed forms: equal mixtures of normal, log-normal or Student's t distributions, a component each draw.

A mixture is `Outcomes`, whose atoms are the nodes of a quadrature; they are computed only if they are asked for.
What utilities ask instead, mean, variance, quantiles and E max(y - h, 0), is exact. `Quantiles` are numbers that are
given by their quantiles. Of any other outcomes that are numbers, `numbers` answers the same from the atoms.
"""

from stakes.mixtures.atoms import Atoms, numbers
from stakes.mixtures.base import Distribution, Mixture
from stakes.mixtures.families import GaussianMixture, LogNormalMixture, StudentMixture
from stakes.mixtures.quantiles import LEVELS, Quantiles

__all__ = [
    "LEVELS",
    "Atoms",
    "Distribution",
    "GaussianMixture",
    "LogNormalMixture",
    "Mixture",
    "Quantiles",
    "StudentMixture",
    "numbers",
]
