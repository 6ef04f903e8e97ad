"""One input let through a network says what it takes, and whether the network is random by itself."""

import pytest
import torch
from torch import Tensor, nn

from stakes import MCDropout, StakesError
from stakes.posteriors._sampling.probe import trial

WIDTH = 8


class Branching(nn.Module):
    """Control flow on values, which no device without values can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.drop = nn.Linear(4, WIDTH), nn.Linear(4, 2), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.wide(x)) if bool(x.sum() > 0) else self.drop(self.narrow(x))


class OwnGenerator(nn.Module):
    """Noise from a generator that nobody else knows of."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.generator = nn.Dropout(0.5), torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x) + torch.empty(x.shape, device=x.device).normal_(generator=self.generator)


def test_sizes_are_seen_without_computing() -> None:
    network = nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 3))
    called = []
    network[1].register_forward_hook(lambda module, inputs, output: called.append(output.device.type))
    shown = trial(network, torch.randn(2, 4), is_random=lambda: len(called) > 0)
    assert shown.footprint == (2 * 300 * 4, 2 * 300 * 4)  # before the hook has been called, and after
    assert not shown.draws_numbers
    assert called == ["meta"]


def test_a_network_that_needs_values_gets_them() -> None:
    assert trial(Branching().eval(), torch.ones(1, 4)).footprint.own == WIDTH * 4
    draws = MCDropout(Branching()).draw(3, 0)
    assert draws(torch.ones(1, 4)).log_probs().shape == (3, 1, WIDTH)


def test_numbers_of_any_generator_are_noticed() -> None:
    assert trial(OwnGenerator().eval(), torch.ones(1, 4)).draws_numbers
    with pytest.raises(StakesError, match="two answers"):
        MCDropout(OwnGenerator()).draw(3, 0)(torch.ones(1, 4)).mean_probs()


@pytest.mark.parametrize(
    "layer",
    [nn.RReLU(), nn.TransformerEncoderLayer(4, 2, WIDTH, dropout=0.0, batch_first=True)],
    ids=["rrelu", "transformer"],
)
def test_layers_that_are_random_only_in_training_are_no_reason_to_refuse(layer: nn.Module) -> None:
    network = nn.Sequential(layer, nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 3))
    posterior = MCDropout(network)
    x = torch.randn(2, 3, 4)
    first, second = (posterior.draw(4, 0)(x).log_probs() for _ in range(2))
    torch.testing.assert_close(first, second)
