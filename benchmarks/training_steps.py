"""A calibrated training step against a standard one, and ``fit`` against a bare PyTorch loop."""

import torch
from torch import Tensor, nn

from benchmarks.timing import Claim, seconds
from stakes import MLP, LossCalibrated, MCDropout, Standard, Training, Utility, fit
from stakes.networks.segnet import SegNet
from stakes.objectives import Objective
from stakes.paper.roads.experiment import road_utility

EXAMPLES, BATCH, EPOCHS = 2_500, 50, 3  # the check before the first epoch, of 10 to 15 ms, is shared by three


def measure() -> list[Claim]:
    return [*_digits(), *_roads()]


def _digits() -> list[Claim]:
    torch.manual_seed(0)
    x, labels = torch.randn(EXAMPLES, 784), torch.randint(10, (EXAMPLES,))
    utility = Utility.diagonal([str(digit) for digit in range(10)])

    def epochs(objective: Objective) -> None:
        posterior = MCDropout(MLP(784, 10, hidden=(100,), dropout=0.2))
        fit(posterior, objective, (x, labels), config=Training(EPOCHS, BATCH), progress=False)

    def bare() -> None:
        network = MLP(784, 10, hidden=(100,), dropout=0.2)
        optimizer = torch.optim.Adam(network.parameters(), fused=True)
        for index in [rows for _ in range(EPOCHS) for rows in torch.randperm(EXAMPLES).split(BATCH)]:
            loss = nn.functional.cross_entropy(network(x[index]), labels[index])
            loss = loss + 4e-5 / EXAMPLES * sum(p.square().sum() for p in network.parameters() if p.ndim == 2)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    plain, standard, step = seconds(bare, lambda: epochs(Standard()), lambda: epochs(LossCalibrated(utility)), rounds=5)
    return [
        Claim(
            "three epochs of `fit`, 784-100-10, batch 50", "the same in a bare PyTorch loop", standard / plain, "<= 1.3"
        ),
        Claim('calibrated epochs of it, refresh="step", 10 samples', "standard epochs", step / standard, "<= 2"),
    ]


def _roads() -> list[Claim]:
    torch.manual_seed(0)
    x, labels = torch.rand(4, 3, 120, 160), torch.randint(12, (4, 120, 160))
    posterior = MCDropout(SegNet().to(memory_format=torch.channels_last)).train()
    optimizer = torch.optim.Adam(posterior.parameters(), fused=True)

    def step(objective: Objective, index: Tensor) -> None:
        loss = objective(posterior, x, labels, index=index) + posterior.kl() / labels.numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    running = LossCalibrated(road_utility(), refresh="running")
    plain, calibrated = seconds(
        lambda: step(Standard(), torch.arange(4)), lambda: step(running, torch.arange(4)), rounds=5
    )
    what = 'a calibrated step, SegNet 120 x 160, batch 4, refresh="running"'
    return [Claim(what, "a standard step", calibrated / plain, "<= 1.15")]
