"""Balanced draws: each is a draw of independent dropout, and their mean has less noise."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from stakes import MLP, MCDropout, MeanField
from stakes.posteriors._sampling.balance import (
    antithetic_normal,
    balanced_masks,
    fresh_masks,
    group_coverage,
    group_size,
    seeded_masks,
    unpack,
)
from stakes.posteriors.base import Draws, Posterior

RATES = (0.1, 0.2, 0.5, 0.05, 0.25, 0.13, 0.77)
UNITS = 40_000


def masks_of_a_group(p: float, units: int = UNITS, seed: int = 0) -> Tensor:
    size = group_size([p])
    generator = torch.Generator().manual_seed(seed)
    return unpack(seeded_masks(p, size, torch.Size([units]), generator), 0, size)  # (G, U)


@pytest.mark.parametrize("p", RATES)
def test_each_mask_is_bernoulli_and_each_unit_is_dropped_as_often_as_it_should(p: float) -> None:
    masks = masks_of_a_group(p)
    for mask in masks:
        assert scipy.stats.binomtest(int((1 - mask.long()).sum()), UNITS, p).pvalue > 1e-5
    dropped = (1 - masks.long()).sum(0)
    expected = round(p * len(masks), 9)
    assert set(dropped.unique().tolist()) == {math.floor(expected), math.ceil(expected)}
    assert float(dropped.double().mean()) == pytest.approx(expected, abs=0.02)


def test_which_draws_drop_a_unit_is_any_subset_of_them() -> None:
    masks = masks_of_a_group(0.2)  # 2 of 10: 45 subsets
    numbers = (masks.long() * 2 ** torch.arange(10).unsqueeze(1)).sum(0)
    _, counts = numbers.unique(return_counts=True)
    assert len(counts) == math.comb(10, 2)
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("p", [0.1, 0.5, 0.25])
def test_units_are_independent_within_a_draw_and_groups_of_each_other(p: float) -> None:
    masks = torch.stack([masks_of_a_group(p, 2, seed) for seed in range(3000)]).double()  # (N, G, 2)
    assert abs(np.corrcoef(masks[:, 0].T)[0, 1]) < 0.07  # four standard errors
    assert np.corrcoef(masks[:, 0, 0], masks[:, 1, 0])[0, 1] < 0.05  # draws of a group balance each other
    other = torch.stack([masks_of_a_group(p, 2, seed) for seed in range(10_000, 13_000)]).double()
    assert abs(np.corrcoef(masks[:, 0, 0], other[:, 0, 0])[0, 1]) < 0.07


@pytest.mark.parametrize("p", [0.5, 0.15])
def test_the_mean_over_a_group_is_unbiased_by_enumeration(p: float) -> None:
    """Over all subsets of two units, as probable as the formula says, a function of the masks has its true mean."""
    size = group_size([p])
    fewer = math.floor(p * size)
    share = 1 - (p * size - fewer)
    sets: list[tuple[float, int]] = []
    for count, mass in ((fewer, share), (fewer + 1, 1 - share)):
        if mass > 1e-9:
            options = [sum(1 << draw for draw in kept) for kept in itertools.combinations(range(size), size - count)]
            sets += [(mass / len(options), option) for option in options]
    # The middle of each subset's part of [0, 1) has to give this subset.
    ends = np.cumsum([mass for mass, _ in sets])
    middles = torch.tensor(ends - [mass / 2 for mass, _ in sets])
    ours = balanced_masks(p, size, middles)
    assert sorted(ours.tolist()) == sorted(option for _, option in sets)
    kept = unpack(ours, 0, size).double()  # (G, subsets)
    masses = torch.tensor([mass for mass, _ in sets], dtype=torch.float64)

    def function(first: Tensor, second: Tensor) -> Tensor:  # of two units, anything but additive
        return (0.3 * first + 1.7 * second - 1.2 * first * second).sigmoid()

    mean = torch.zeros((), dtype=torch.float64)
    for draw in kept:
        mean += masses @ function(draw.unsqueeze(1), draw.unsqueeze(0)) @ masses / size
    truth = sum(
        (1 - p if a else p) * (1 - p if b else p) * float(function(torch.tensor(float(a)), torch.tensor(float(b))))
        for a, b in itertools.product((0, 1), (0, 1))
    )
    assert float(mean) == pytest.approx(truth, abs=1e-6)


def test_masks_for_training_are_balanced_too() -> None:
    torch.manual_seed(0)
    masks = fresh_masks(0.2, 10, torch.Size([50]), 25, torch.device("cpu"))
    assert masks.shape == (25, 50)
    assert (masks[:10].long().sum(0) == 8).all()
    assert (masks[10:20].long().sum(0) == 8).all()


def test_opposite_noise_in_pairs() -> None:
    first, second, third = (antithetic_normal(torch.Size([1000]), draw, 0, "weight") for draw in range(3))
    assert torch.equal(first, -second)
    assert abs(np.corrcoef(first, third)[0, 1]) < 0.15
    assert scipy.stats.kstest(first.numpy(), "norm").pvalue > 1e-3


# The draws of a posterior ------------------------------------------------------------------------------


class Small(nn.Module):
    """No plain sequence: a convolution, a skip connection and two kinds of dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop2d = nn.Conv2d(1, 6, 3, padding=1), nn.Dropout2d(0.2)
        self.hidden, self.drop, self.out = nn.Linear(6, 12), nn.Dropout(0.3), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop2d(self.conv(x).relu()).mean((2, 3))
        return self.out(self.drop(self.hidden(h).relu()) + self.hidden(h))


POSTERIORS = {
    "dropout .1": (lambda: MCDropout(MLP(4, 3, (20, 10), 0.1)), (4,)),
    "dropout .5": (lambda: MCDropout(MLP(4, 3, (20,), 0.5)), (4,)),
    "dropout .05": (lambda: MCDropout(MLP(4, 3, (20,), 0.05)), (4,)),
    "convolutions": (lambda: MCDropout(Small()), (1, 4, 4)),
    "mean field": (lambda: MeanField(MLP(4, 3, (10,), 0.0), initial_sd=0.2), (4,)),
}


def spread(posterior: Posterior, x: Tensor, samples: int, independent: bool) -> float:
    """The variance of the mean predictive over seeds, averaged over inputs and classes."""

    def mean(seed: int) -> Tensor:
        if not independent:
            return posterior.draw(samples, seed)(x).mean_probs()
        draws = posterior.draw(20 * samples, 1000 + seed)  # the first draw of each group
        outputs = [draws.outcomes(x, s * draws.group, s * draws.group + 1).weights[0] for s in range(samples)]
        return torch.stack(outputs).mean(0)

    return float(torch.stack([mean(seed) for seed in range(60)]).double().var(0).mean())


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_mean_of_balanced_draws_varies_no_more_than_that_of_independent_ones(name: str) -> None:
    torch.manual_seed(0)
    make, shape = POSTERIORS[name]
    posterior, x = make(), 2 * torch.randn(5, *shape)
    samples = posterior.draw(1, 0).group if name != "mean field" else 10
    ratio = spread(posterior, x, samples, independent=False) / spread(posterior, x, samples, independent=True)
    assert ratio < 0.8  # 0.03 to 0.5 as measured
    if name == "dropout .1":
        assert ratio < 0.15


@pytest.mark.parametrize("name", POSTERIORS)
def test_more_draws_begin_with_fewer(name: str) -> None:
    torch.manual_seed(0)
    make, shape = POSTERIORS[name]
    posterior, x = make(), torch.randn(3, *shape)
    few, many = posterior.draw(7, seed=3)(x).probs(), posterior.draw(45, seed=3)(x).probs()
    torch.testing.assert_close(few, many[:7])


def test_draws_for_one_input_are_those_for_many() -> None:
    """Few inputs and many are computed in another order; so is each family's plain network."""
    torch.manual_seed(0)
    for posterior in (MCDropout(MLP(6, 3, (16, 8), 0.3)), MeanField(MLP(6, 3, (16,), 0.2))):
        draws: Draws = posterior.draw(30, seed=1)
        x = torch.randn(200, 6)
        torch.testing.assert_close(draws(x[:3]).probs(), draws(x).probs()[:, :3], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("rates", "shown"),
    [([0.1, 0.5], 1), ([0.05], 1), ([0.02, 0.5], 0.4), ([0.99], 0.2), ([1.0, 0.2], 1), ([1e-12], 1e-11), ([], 1)],
)
def test_a_group_shows_every_unit_dropped_and_kept_if_rates_are_not_extreme(rates: list[float], shown: float) -> None:
    assert group_coverage(rates) == pytest.approx(shown)
    size = group_size(rates)
    for rate in (rate for rate in rates if rate < 1):
        kept = fresh_masks(rate, size, torch.Size([4000]), size, torch.device("cpu")).double().mean(0)
        assert float(((kept > 0) & (kept < 1)).double().mean()) >= shown - 0.03
