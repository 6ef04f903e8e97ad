"""Mean predictive and decisions of an MLP over many inputs, against the usual loop over dropout passes."""

import torch

from benchmarks.timing import Claim, seconds
from stakes import MLP, MCDropout, Utility, decide

INPUTS, DRAWS = 10_000, 100


def measure() -> list[Claim]:
    torch.manual_seed(0)
    network, x = MLP(784, 10, hidden=(100,), dropout=0.2), torch.randn(INPUTS, 784)
    utility = Utility.diagonal([str(digit) for digit in range(10)])
    posterior = MCDropout(network)

    def usual() -> torch.Tensor:
        network.train()
        with torch.no_grad():
            return torch.stack([network(x).softmax(-1) for _ in range(DRAWS)]).mean(0)

    def one_pass() -> torch.Tensor:
        network.eval()
        with torch.no_grad():
            return network(x).softmax(-1)

    def ours(draws: int) -> object:
        return decide(posterior.draw(draws, seed=0)(x).mean_probs(), utility)

    slow, once, fast, tenfold = seconds(usual, one_pass, lambda: ours(DRAWS), lambda: ours(10 * DRAWS), rounds=3)
    what = f"mean predictive + decisions, 784-100-10, {INPUTS:,} inputs"
    return [
        Claim(f"{what}, {DRAWS} draws: times faster", f"{DRAWS} passes of model.train()", slow / fast, ">= 20"),
        Claim(f"{what}, {DRAWS} draws: time", "one deterministic pass", fast / once, "<= 5"),
        Claim(f"{what}, {10 * DRAWS} draws: time", f"{DRAWS} draws", tenfold / fast, "<= 12"),
    ]
