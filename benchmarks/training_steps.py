"""A calibrated training step against a standard one, and ``fit`` against a bare PyTorch loop."""

import torch
from torch import nn

from benchmarks.timing import Claim, seconds
from stakes import MLP, LossCalibrated, MCDropout, Standard, Training, Utility, fit

EXAMPLES, BATCH = 2_500, 50


def measure() -> list[Claim]:
    torch.manual_seed(0)
    x, labels = torch.randn(EXAMPLES, 784), torch.randint(10, (EXAMPLES,))
    utility = Utility.diagonal([str(digit) for digit in range(10)])

    def posterior() -> MCDropout:
        return MCDropout(MLP(784, 10, hidden=(100,), dropout=0.2))

    def one_epoch(objective: Standard | LossCalibrated) -> None:
        fit(posterior(), objective, (x, labels), config=Training(epochs=1, batch_size=BATCH), progress=False)

    def bare() -> None:
        network = MLP(784, 10, hidden=(100,), dropout=0.2)
        optimizer = torch.optim.Adam(network.parameters())
        for index in torch.randperm(EXAMPLES).split(BATCH):
            loss = nn.functional.cross_entropy(network(x[index]), labels[index])
            loss = loss + 4e-5 / EXAMPLES * sum(p.square().sum() for p in network.parameters() if p.ndim == 2)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    plain, standard, step, running = seconds(
        bare,
        lambda: one_epoch(Standard()),
        lambda: one_epoch(LossCalibrated(utility)),
        lambda: one_epoch(LossCalibrated(utility, refresh="running")),
    )
    return [
        Claim(
            "an epoch of `fit`, 784-100-10, batch 50", "a bare PyTorch loop doing the same", standard / plain, "<= 1.6"
        ),
        Claim("a calibrated epoch, refresh=step, 10 samples", "a standard epoch", step / standard, "<= 4"),
        Claim("a calibrated epoch, refresh=running", "a standard epoch", running / standard, "<= 1.6"),
    ]
