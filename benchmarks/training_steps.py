"""A calibrated training step against a standard one, and ``fit`` against a bare PyTorch loop."""

import torch
from torch import Tensor, nn

from benchmarks.architectures import Transformer, sentences, small_cnn
from benchmarks.timing import Claim, seconds
from stakes import MLP, LossCalibrated, MCDropout, Standard, Training, Utility, fit
from stakes.networks.segnet import SegNet
from stakes.objectives import Objective
from stakes.paper.roads.experiment import road_utility

EXAMPLES, BATCH, EPOCHS = 2_500, 50, 3  # the check before the first epoch, of 10 to 15 ms, is shared by three


def measure() -> list[Claim]:
    return [*_digits(), *_steps(), *_sentences(), *_roads()]


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


def _steps() -> list[Claim]:
    torch.manual_seed(0)
    digits, topics = Utility.diagonal([*"0123456789"]), Utility.diagonal([*"abcde"])
    what = 'a calibrated step, {}, refresh="step", 10 samples'
    images = torch.rand(64, 1, 28, 28), torch.randint(10, (64,))
    cnn = _ratio(small_cnn(), *images, LossCalibrated(digits), rounds=20)
    # At a rate of 0 it stays a network that knows nothing, whose every decision needs every draw.
    transformer = _ratio(Transformer(), *sentences(32), LossCalibrated(topics), rounds=20, learning_rate=0.0)
    return [
        Claim(what.format("two convolutions on 28 x 28, batch 64"), "a standard step", cnn, "<= 1.6"),
        Claim(
            what.format("Transformer 2 x 64 that has learnt nothing, batch 32 of 32 tokens"),
            "a standard step",
            transformer,
            "-",
        ),
    ]


def _sentences() -> list[Claim]:
    """A Transformer that learns: its decisions become clear, and then need fewer draws."""
    torch.manual_seed(0)
    data, utility = sentences(1_024), Utility.diagonal([*"abcde"])
    start = Transformer().state_dict()

    def epochs(objective: Objective) -> None:
        network = Transformer()
        network.load_state_dict(start)
        fit(MCDropout(network), objective, data, config=Training(10, 32), progress=False)

    standard, step = seconds(lambda: epochs(Standard()), lambda: epochs(LossCalibrated(utility)), rounds=2)
    what = 'ten calibrated epochs from the start, Transformer 2 x 64, batch 32 of 32 tokens, refresh="step", 10 samples'
    return [Claim(what, "standard epochs", step / standard, "<= 2.5")]


def _roads() -> list[Claim]:
    torch.manual_seed(0)
    network = SegNet().to(memory_format=torch.channels_last)
    running = LossCalibrated(road_utility(), refresh="running")
    ratio = _ratio(network, torch.rand(4, 3, 120, 160), torch.randint(12, (4, 120, 160)), running, rounds=5)
    what = 'a calibrated step, SegNet 120 x 160, batch 4, refresh="running"'
    return [Claim(what, "a standard step", ratio, "<= 1.15")]


def _ratio(
    network: nn.Module, x: Tensor, labels: Tensor, calibrated: Objective, rounds: int, learning_rate: float = 1e-3
) -> float:
    """The time of a calibrated step, against a standard one of the same network."""
    posterior = MCDropout(network).train()
    optimizer = torch.optim.Adam(posterior.parameters(), learning_rate, fused=True)
    index = torch.arange(len(x))

    def step(objective: Objective) -> None:
        loss = objective(posterior, x, labels, index=index) + posterior.kl() / labels.numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    standard, ours = seconds(lambda: step(Standard()), lambda: step(calibrated), rounds=rounds)
    return ours / standard
