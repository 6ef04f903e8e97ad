"""Is the regression network right? RMSE and log-likelihood on the published splits, by the published grid protocol.

The rate of dropout and the precision are chosen on the last fifth of the training rows, then a network is trained on
all of them (Gal and Ghahramani 2016, as re-run in their public code).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stakes import seeds
from stakes.mixtures import GaussianMixture, Mixture
from stakes.objectives import Standard
from stakes.paper.amounts.data import Split, Standardised, standardised
from stakes.paper.amounts.networks import Schedule, make_posterior, train
from stakes.posteriors.base import Posterior

FAMILIES = ("dropout", "ensemble", "mean field")
RATES = (0.005, 0.01, 0.05, 0.1)
SCALES = tuple(np.geomspace(0.01, 1, 60).tolist())  # of the noise, in standard deviations of the labels
TRAINED_SCALE = 0.3  # while the weights are learnt: it only weighs the prior, which is weak, against the data
SLOWNESS = (1.0, 5.0, 25.0)  # of mean field: its learning rate is the schedule's, divided by one of these
LEARNT_FROM = 0.8  # of the training rows, while rate and precision are chosen


class Chosen(NamedTuple):
    """The settings that were best on the rows held out of training."""

    log_likelihood: float
    rate: float
    slowness: float
    scale: float  # in the unit of the labels; NaN where it is learnt


def run_accuracy(
    family: str, splits: Sequence[Split], numbers: Sequence[int], schedule: Schedule, samples: int
) -> list[dict[str, Any]]:
    """RMSE, log-likelihood and the settings chosen, for each split."""
    inner = [standardised(split.before(LEARNT_FROM)) for split in splits]
    chosen = [Chosen(-np.inf, 0.0, 1.0, np.nan) for _ in splits]
    for rate in RATES if family == "dropout" else (0.0,):
        for slowness in SLOWNESS if family == "mean field" else (1.0,):
            mixtures = _trained(family, inner, numbers, schedule.slowed(slowness), samples, rate)
            for place, (mixture, one) in enumerate(zip(mixtures, inner, strict=True)):
                chosen[place] = max(chosen[place], _judged(family, mixture, one, rate, slowness))
    problems = [standardised(split) for split in splits]
    rows: list[dict[str, Any]] = [{} for _ in splits]
    for rate, slowness in sorted({(each.rate, each.slowness) for each in chosen}):
        places = [place for place, each in enumerate(chosen) if (each.rate, each.slowness) == (rate, slowness)]
        group, own = [problems[place] for place in places], [numbers[place] for place in places]
        mixtures = _trained(family, group, own, schedule.slowed(slowness), samples, rate)
        for place, mixture in zip(places, mixtures, strict=True):
            one, scale = problems[place], chosen[place].scale
            if family == "mean field":
                rows[place] = {**scores(mixture, one), "learning_rate": schedule.learning_rate / slowness}
            else:
                scored = scores(GaussianMixture(mixture.location, torch.tensor(scale / one.unit)), one)
                rows[place] = {**scored, "rate": rate, "scale": round(scale, 6)}
    return rows


def _judged(family: str, mixture: Mixture, problem: Standardised, rate: float, slowness: float) -> Chosen:
    """How probable the held-out labels are: under the best scale, or, of mean field, under the one that it learnt."""
    if family == "mean field":
        log_likelihood = float(mixture.log_prob(problem.test.labels.double()).mean())
        return Chosen(log_likelihood, rate, slowness, np.nan)
    return best_scale(mixture, problem, rate)


def best_scale(mixture: Mixture, problem: Standardised, rate: float) -> Chosen:
    """The scale of the noise under which the held-out labels are most probable."""
    labels = problem.test.labels.double()
    by_scale = [GaussianMixture(mixture.location, torch.tensor(s)).log_prob(labels).mean() for s in SCALES]
    best = int(torch.stack(by_scale).argmax())
    return Chosen(float(by_scale[best]), rate, 1.0, SCALES[best] * problem.unit)


def scores(mixture: Mixture, problem: Standardised) -> dict[str, float]:
    """RMSE and mean log-likelihood on the test rows, in the unit of the labels."""
    labels: Tensor = problem.test.labels.double()
    rmse = (mixture.mean() - labels).square().mean().sqrt() * problem.unit
    log_likelihood = mixture.log_prob(labels).mean() - np.log(problem.unit)
    return {"rmse": round(float(rmse), 5), "log_likelihood": round(float(log_likelihood), 5)}


def _trained(
    family: str,
    problems: Sequence[Standardised],
    numbers: Sequence[int],
    schedule: Schedule,
    samples: int,
    rate: float,
) -> list[Mixture]:
    """What networks trained on each problem say of its test rows.

    The scale of mean field is learnt, one for each input, for its prior is not weak.
    """
    scale: float | str = "input" if family == "mean field" else TRAINED_SCALE
    posteriors = [
        make_posterior(family, one.train.x.shape[1], number, rate=rate, scale=scale)  # type: ignore[union-attr]
        for one, number in zip(problems, numbers, strict=True)
    ]
    train(posteriors, Standard(), [one.train for one in problems], schedule, numbers)
    return [
        predicted(posterior, one.test.x, samples, number)  # type: ignore[arg-type]
        for posterior, one, number in zip(posteriors, problems, numbers, strict=True)
    ]


@torch.no_grad()
def predicted(posterior: Posterior, x: Tensor, samples: int, number: int) -> Mixture:
    mixture = posterior.draw(samples, seeds.derive(number, "predict"))(x).mixture()
    assert isinstance(mixture, Mixture)
    return mixture
