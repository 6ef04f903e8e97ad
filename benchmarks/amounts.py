"""Decisions that are numbers: the quantile of a mixture of all draws, against its mean."""

import torch

from benchmarks.timing import Claim, seconds
from stakes import MLP, MCDropout, Newsvendor, decide
from stakes.likelihoods import Gaussian

ROWS, DRAWS, FEATURES = 100_000, 100, 20


def measure() -> list[Claim]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, FEATURES, generator=generator)
    likelihood = Gaussian.for_labels(100 + 20 * torch.randn(1000, generator=generator), scale="input")
    torch.manual_seed(0)
    posterior = MCDropout(MLP(FEATURES, 2), likelihood).eval()
    draws, utility = posterior.draw(DRAWS, 0), Newsvendor(under=15, over=5)

    def mean() -> None:
        for block in draws(x).blocks():
            block.mixture().mean()

    plain, deciding = seconds(mean, lambda: decide(draws(x), utility), rounds=2)
    what = f"`decide` with `Newsvendor`, {ROWS:,} rows, {DRAWS} draws: time"
    return [Claim(what, "the mean prediction", deciding / plain, "<= 3")]
