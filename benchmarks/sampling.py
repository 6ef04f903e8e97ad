"""Mean predictive and decisions of MLPs over many inputs, against the usual loop over dropout passes."""

import torch
from torch import Tensor, nn

from benchmarks.architectures import mean_of_passes
from benchmarks.timing import Claim, seconds
from stakes import MLP, MCDropout, Utility, decide

INPUTS, DRAWS = 10_000, 100


def measure() -> list[Claim]:
    return [*_one_hidden_layer(), *_deeper()]


def _one_hidden_layer() -> list[Claim]:
    torch.manual_seed(0)
    network, x = MLP(784, 10, hidden=(100,), dropout=0.2), torch.randn(INPUTS, 784)
    utility = Utility.diagonal([str(digit) for digit in range(10)])
    posterior = MCDropout(network)

    def one_pass() -> torch.Tensor:
        network.eval()
        with torch.no_grad():
            return network(x).softmax(-1)

    def ours(draws: int) -> object:
        return decide(posterior.draw(draws, seed=0)(x).mean_probs(), utility)

    slow, once, fast, tenfold = seconds(
        lambda: mean_of_passes(network, x, DRAWS), one_pass, lambda: ours(DRAWS), lambda: ours(10 * DRAWS), rounds=3
    )
    what = f"mean predictive + decisions, 784-100-10, {INPUTS:,} inputs"
    return [
        Claim(f"{what}, {DRAWS} draws: times faster", f"{DRAWS} passes of model.train()", slow / fast, ">= 20"),
        Claim(f"{what}, {DRAWS} draws: time", "one deterministic pass", fast / once, "<= 5"),
        Claim(f"{what}, {10 * DRAWS} draws: time", f"{DRAWS} draws", tenfold / fast, "<= 12"),
    ]


def _deeper() -> list[Claim]:
    torch.manual_seed(0)
    return [
        _against_the_loop("30-128-64-3", MLP(30, 3), torch.randn(10_000, 30)),
        _against_the_loop("784-100-100-10", MLP(784, 10, hidden=(100, 100), dropout=0.2), torch.randn(2_000, 784)),
    ]


def _against_the_loop(name: str, network: nn.Module, x: Tensor) -> Claim:
    posterior = MCDropout(network)
    slow, fast = seconds(
        lambda: mean_of_passes(network, x, DRAWS), lambda: posterior.draw(DRAWS, seed=0)(x).mean_probs(), rounds=3
    )
    what = f"mean predictive, {name}, {len(x):,} inputs, {DRAWS} draws: times faster"
    return Claim(what, f"{DRAWS} passes of model.train()", slow / fast, ">= 6")
