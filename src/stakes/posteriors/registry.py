"""Posteriors by name, for the command line, the estimator and saved models."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from stakes import seeds
from stakes.errors import StakesError, listing
from stakes.likelihoods import Likelihood
from stakes.posteriors.base import Posterior
from stakes.posteriors.dropout import MCDropout
from stakes.posteriors.ensemble import Ensemble
from stakes.posteriors.mean_field import MeanField

FAMILIES = ("dropout", "ensemble", "mean_field")
DEFAULT_MEMBERS = 5


def build(
    spec: Mapping[str, Any], make_network: Callable[[], nn.Module], likelihood: Likelihood, seed: int
) -> Posterior:
    """The posterior that ``spec``, ``{"family": ..., **settings}``, describes, freshly initialised from ``seed``."""
    settings = dict(spec)
    family = settings.pop("family", None)
    if family not in FAMILIES:
        raise StakesError(f"expected a posterior of {listing(FAMILIES)}, but got {family!r}")
    try:
        if family == "ensemble":
            members = settings.pop("members", DEFAULT_MEMBERS)
            return Ensemble.of(make_network, members, seed, likelihood, **settings)
        with seeds.seeded(seed, "network"):
            network = make_network()
        return (MCDropout if family == "dropout" else MeanField)(network, likelihood, **settings)
    except TypeError as error:
        raise StakesError(f"unknown settings for the posterior {family!r}: {error}") from None
