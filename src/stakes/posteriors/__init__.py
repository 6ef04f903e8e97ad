"""Approximate posteriors over the weights of a network."""

from stakes.posteriors.base import Draws, Posterior, families
from stakes.posteriors.batch_ensemble import BatchEnsemble
from stakes.posteriors.dropout import MCDropout
from stakes.posteriors.ensemble import Ensemble
from stakes.posteriors.laplace import Laplace
from stakes.posteriors.mean_field import MeanField

__all__ = ["BatchEnsemble", "Draws", "Ensemble", "Laplace", "MCDropout", "MeanField", "Posterior", "families"]
