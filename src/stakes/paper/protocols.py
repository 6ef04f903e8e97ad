"""The two protocols: ours, which is even, and the authors'."""

from collections.abc import Sequence
from dataclasses import replace

from stakes.errors import StakesError
from stakes.objectives import LossCalibrated, Objective, Weighted
from stakes.tables.models import NetworkModel, model
from stakes.utility import Utility

PROTOCOLS = ("fair", "authors")


def checked_protocol(protocol: str) -> None:
    if protocol not in PROTOCOLS:
        raise StakesError(f"expected the protocol 'fair' or 'authors', but got {protocol!r}")


def groups(seeds: int, together: int) -> list[range]:
    """The seeds from 0, in groups of models that are trained together."""
    if together < 1:
        raise StakesError(f"expected at least one model to be trained at a time, but got together={together}")
    return [range(first, min(first + together, seeds)) for first in range(0, seeds, together)]


def paper_method(name: str, protocol: str, weights: Sequence[float], samples: int, warmup: int) -> NetworkModel:
    """A method as an experiment uses it: with the paper's class weights, and decisions as the protocol takes them.

    The fair one takes them at every step (Algorithm 1), and lets the likelihood lead in the first ``warmup`` steps;
    the authors' takes them once an epoch, and has no such time.
    """

    def weighted(utility: Utility) -> Objective:
        return Weighted(weights)

    def calibrated(utility: Utility) -> Objective:
        if protocol == "authors":
            return LossCalibrated(utility, samples=samples, refresh="epoch")
        return LossCalibrated(utility, samples=samples, warmup=warmup)

    changed = {"weighted": weighted, "calibrated": calibrated, "noise+calibrated": calibrated}
    found = model(name)
    assert isinstance(found, NetworkModel)
    return replace(found, objective=changed.get(name, found.objective))
