"""Is the regression network right? RMSE and log-likelihood on the published splits, by the published grid protocol.

The rate of dropout and the precision are chosen on the last fifth of the training rows, then a network is trained on
all of them (Gal and Ghahramani 2016, as re-run in their public code). Mean field is also trained with a precision that
is chosen there.
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


class Setting(NamedTuple):
    """What a network is trained with: one place of the grid."""

    rate: float = 0.0  # of dropout
    trained_scale: float = 0.3  # of the noise while weights are learnt: it weighs the prior against the data


# The prior of dropout is so weak that the scale in training hardly matters; that of mean field is not.
GRIDS = {
    "dropout": [Setting(rate=rate) for rate in (0.005, 0.01, 0.05, 0.1)],
    "ensemble": [Setting()],
    "mean field": [Setting(trained_scale=scale) for scale in (0.02, 0.05, 0.1, 0.2, 0.5)],
}
FAMILIES = tuple(GRIDS)
STEPS = {"mean field": 2}  # times as many as others: it has a spread to learn for each weight
SCALES = tuple(np.geomspace(0.01, 1, 60).tolist())  # of the noise, in standard deviations of the labels
LEARNT_FROM = 0.8  # of the training rows, while the setting and the scale of the noise are chosen


class Chosen(NamedTuple):
    """What was best on the rows held out of training."""

    log_likelihood: float
    scale: float  # of the noise, in the unit of the labels
    setting: Setting


def run_accuracy(
    family: str, splits: Sequence[Split], numbers: Sequence[int], schedule: Schedule, samples: int
) -> list[dict[str, Any]]:
    """RMSE, log-likelihood and what was chosen, for each split."""
    inner = [standardised(split.before(LEARNT_FROM)) for split in splits]
    by_setting = []
    for setting in GRIDS[family]:
        mixtures = _trained(family, setting, inner, numbers, schedule, samples)
        by_setting.append([best_scale(*each, setting) for each in zip(mixtures, inner, strict=True)])
    chosen = [max(candidates) for candidates in zip(*by_setting, strict=True)]
    problems = [standardised(split) for split in splits]
    rows: list[dict[str, Any]] = [{} for _ in splits]
    for setting in sorted({each.setting for each in chosen}):
        places = [place for place, each in enumerate(chosen) if each.setting == setting]
        group, own = [problems[place] for place in places], [numbers[place] for place in places]
        mixtures = _trained(family, setting, group, own, schedule, samples)
        for place, mixture in zip(places, mixtures, strict=True):
            one, scale = problems[place], chosen[place].scale
            scored = scores(GaussianMixture(mixture.location, torch.tensor(scale / one.unit)), one)
            rows[place] = {**scored, **setting._asdict(), "scale": round(scale, 6)}
    return rows


def best_scale(mixture: Mixture, problem: Standardised, setting: Setting) -> Chosen:
    """The scale of the noise under which the held-out labels are most probable."""
    labels = problem.test.labels.double()
    by_scale = [GaussianMixture(mixture.location, torch.tensor(s)).log_prob(labels).mean() for s in SCALES]
    best = int(torch.stack(by_scale).argmax())
    return Chosen(float(by_scale[best]), SCALES[best] * problem.unit, setting)


def scores(mixture: Mixture, problem: Standardised) -> dict[str, float]:
    """RMSE and mean log-likelihood on the test rows, in the unit of the labels."""
    labels: Tensor = problem.test.labels.double()
    rmse = (mixture.mean() - labels).square().mean().sqrt() * problem.unit
    log_likelihood = mixture.log_prob(labels).mean() - np.log(problem.unit)
    return {"rmse": round(float(rmse), 5), "log_likelihood": round(float(log_likelihood), 5)}


def _trained(
    family: str,
    setting: Setting,
    problems: Sequence[Standardised],
    numbers: Sequence[int],
    schedule: Schedule,
    samples: int,
) -> list[Mixture]:
    """What networks trained on each problem say of its test rows."""
    posteriors = [
        make_posterior(family, one.train.x.shape[1], number, rate=setting.rate, scale=setting.trained_scale)  # type: ignore[union-attr]
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
