"""Numbers with closed forms: equal mixtures of normal, log-normal or Student's t distributions, a component each draw.

A mixture is `Outcomes`, whose atoms are the nodes of a quadrature; they are computed only if they are asked for.
What utilities ask instead, mean, variance, quantiles and E max(y - h, 0), is exact. Of any other outcomes that are
numbers, `numbers` answers the same from the atoms.
"""

from stakes.mixtures.base import Atoms, Mixture, numbers
from stakes.mixtures.families import GaussianMixture, LogNormalMixture, StudentMixture

__all__ = ["Atoms", "GaussianMixture", "LogNormalMixture", "Mixture", "StudentMixture", "numbers"]
