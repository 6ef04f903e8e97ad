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

    def ours() -> object:
        return decide(posterior.draw(DRAWS, seed=0)(x).mean_probs(), utility)

    slow, fast = seconds(usual, ours, rounds=3)
    what = f"mean predictive and decisions, 784-100-10, {INPUTS} inputs, {DRAWS} draws"
    return [Claim(what, f"{DRAWS} passes of model.train(), times faster", slow / fast, ">= 4")]
