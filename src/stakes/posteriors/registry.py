"""Posteriors by name, for the command line, the estimator and saved models."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from stakes.errors import StakesError
from stakes.likelihoods import Likelihood
from stakes.posteriors.base import Posterior, families


def build(
    spec: Mapping[str, Any], make_network: Callable[[], nn.Module], likelihood: Likelihood, seed: int
) -> Posterior:
    """The posterior that ``spec``, ``{"family": ..., **settings}``, describes, freshly initialised from ``seed``."""
    settings = dict(spec)
    family = families[settings.pop("family", None)]
    try:
        return family.build(make_network, likelihood, seed, **settings)
    except TypeError as error:
        raise StakesError(f"unknown settings for the posterior {spec['family']!r}: {error}") from None
