"""How soon the mean predictive is as accurate as that of the usual loop of 100 passes, on trained networks.

Error is the root mean square error of the mean predictive, over test inputs and classes, against the truth: 10,000 of
our draws with a seed of their own. That truth is held against 10,000 passes of the plain network on some of the
inputs; it has to be no further from them than such passes are from each other. The loop's error is that of 100
passes, ours that of as many whole groups of draws as it takes to come below it; both are means over repetitions.
"""

from itertools import count

import torch
from torch import Tensor, nn

from benchmarks.architectures import mean_of_passes
from benchmarks.timing import Claim, seconds
from benchmarks.trained import Trained, digits_are_there, tables_are_there, trained_on_digits, trained_on_table
from stakes.posteriors.base import Posterior

PASSES, TRUE_DRAWS, TRUE_SEED, CHECKED_PASSES, CHECKED = 100, 10_000, 12_345, 10_000, 100
LOOPS, SEEDS = 5, range(20)


def measure() -> list[Claim]:
    claims = []
    torch.manual_seed(0)
    if tables_are_there():
        trained = trained_on_table("credit_default")
        claims.append(_claim(f"{trained.x.shape[1]}-128-64-2 trained on credit_default", trained, ">= 40"))
    else:
        print("  (no tabular/ in STAKES_DATA: the accuracy of a network for a table is not measured)")
    if digits_are_there():
        for name, hidden, promised in (("784-100-10", (100,), ">= 60"), ("784-100-100-10", (100, 100), ">= 8")):
            claims.append(_claim(f"{name} trained on digits", trained_on_digits(hidden, 2_000), promised))
    else:
        print("  (no MNIST in STAKES_DATA: the accuracy of networks for digits is not measured)")
    return claims


def _claim(name: str, trained: Trained, promised: str) -> Claim:
    posterior, x, _ = trained
    network = posterior.network
    truth = posterior.draw(TRUE_DRAWS, TRUE_SEED)(x).mean_probs()
    error = _rms([mean_of_passes(network, x, PASSES) - truth for _ in range(LOOPS)])
    _check(network, x[:CHECKED], truth[:CHECKED])
    draws = _enough(posterior, x, truth, error)
    slow, fast = seconds(
        lambda: mean_of_passes(network, x, PASSES), lambda: posterior.draw(draws, seed=0)(x).mean_probs(), rounds=3
    )
    what = f"{name}, {len(x):,} inputs: times faster to an error of {error:.5f} ({draws} draws)"
    return Claim(what, f"{PASSES} passes of model.train()", slow / fast, promised)


def _enough(posterior: Posterior, x: Tensor, truth: Tensor, error: float) -> int:
    """The smallest number of draws, in whole groups, whose error is not above ``error``."""
    group = posterior.draw(1, seed=0).group
    for draws in count(group, group):
        if _rms([posterior.draw(draws, seed)(x).mean_probs() - truth for seed in SEEDS]) <= error:
            return draws
    raise AssertionError("unreachable")


def _check(network: nn.Module, x: Tensor, truth: Tensor) -> None:
    """Refuse a truth that passes of the plain network contradict."""
    halves = [mean_of_passes(network, x, CHECKED_PASSES // 2) for _ in range(2)]
    noise = _rms([halves[0] - halves[1]]) / 2  # of the mean of both
    distance = _rms([(halves[0] + halves[1]) / 2 - truth])
    if distance > 1.5 * noise:
        raise AssertionError(f"the draws are {distance:.6f} from the passes of the plain network, noise {noise:.6f}")


def _rms(differences: list[Tensor]) -> float:
    return float(torch.stack(differences).square().mean().sqrt())
