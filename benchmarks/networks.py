"""Draws of networks other than MLPs, against the usual loop over each; and what one row of a saved model takes."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.architectures import IMAGE, TOKENS, WIDTH, Recurrent, Transformer, mean_of_passes, residual_network
from benchmarks.timing import Claim, seconds
from stakes import MLP, MCDropout, SavedModel, Utility
from stakes.predictors import SampledPosterior

CALLS = 20  # for one row: a single call is too short to be timed


class Case(NamedTuple):
    """A network, its inputs, and the number of draws."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    draws: int
    promised: str

    @property
    def what(self) -> str:
        return f"{self.name}, {self.draws} draws"


def _sequences(rows: int) -> Tensor:
    return torch.randn(rows, TOKENS, WIDTH)


CASES = (
    Case(
        "residual network with dropout in its 3 blocks of 32 channels, 64 images of 16 x 16",
        residual_network, lambda: torch.rand(64, *IMAGE), 10, ">= 1.5",
    ),
    Case(
        "Transformer, 2 layers, 64 wide, 128 x 32 tokens",
        Transformer, lambda: torch.randint(1_000, (128, TOKENS)), 20, ">= 1.5",
    ),
    Case("LSTM with dropout before it, one row", Recurrent, lambda: _sequences(1), 100, ">= 1"),
    Case("LSTM with dropout before it, 256 rows", Recurrent, lambda: _sequences(256), 20, ">= 1.2"),
)  # fmt: skip


def measure() -> list[Claim]:
    return [*map(_claim, CASES), *_one_row()]


def _claim(case: Case) -> Claim:
    torch.manual_seed(0)
    network, x = case.make(), case.inputs()
    posterior = MCDropout(network)
    slow, fast = seconds(
        lambda: mean_of_passes(network, x, case.draws),
        lambda: posterior.draw(case.draws, seed=0)(x).mean_probs(),
        rounds=5,
    )
    return Claim(f"{case.what}: times faster", f"{case.draws} passes with dropout on", slow / fast, case.promised)


def _one_row() -> list[Claim]:
    """The draws are made once, when the model is first asked: what a service pays is measured."""
    torch.manual_seed(0)
    network, x = MLP(30, 3).eval(), torch.randn(1, 30)
    utility = Utility.diagonal(["a", "b", "c"])
    with tempfile.TemporaryDirectory() as folder:
        SavedModel(SampledPosterior(MCDropout(network), samples=100), utility).save(Path(folder) / "model")
        model = SavedModel.load(Path(folder) / "model")

    @torch.no_grad()
    def plain() -> None:
        for _ in range(CALLS):
            network(x)

    def ours() -> None:
        for _ in range(CALLS):
            model.decide(x)

    once, decided = seconds(plain, ours, rounds=20)
    what = "one row, 30-128-64-3, 100 draws, a saved model's `decide`"
    return [
        Claim(f"{what}: time", "one deterministic pass", decided / once, "-"),
        Claim(f"{what}: milliseconds", "an aim of at most 1", 1e3 * decided / CALLS, "-"),
    ]
