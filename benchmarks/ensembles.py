"""An ensemble asked about one input at a time: what a service waits for."""

import torch

from benchmarks.timing import Claim, seconds
from stakes import MLP, Ensemble

MEMBERS, CALLS = 10, 200


def measure() -> list[Claim]:
    posterior = Ensemble.of(lambda: MLP(20, 3, hidden=(64, 64), dropout=0.0), MEMBERS, seed=0).eval()
    draws, x = posterior.draw(MEMBERS, seed=0), torch.randn(1, 20)

    def usual() -> None:
        with torch.no_grad():
            for _ in range(CALLS):
                torch.stack([member(x).softmax(-1) for member in posterior.members]).mean(0)

    def ours() -> None:
        for _ in range(CALLS):
            draws(x).mean_probs()

    slow, fast = seconds(usual, ours)
    what = f"ensemble of {MEMBERS} MLPs 20-64-64-3, one input: times faster"
    return [Claim(what, "a loop over members", slow / fast, ">= 2")]
