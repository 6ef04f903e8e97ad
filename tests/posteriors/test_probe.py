"""A probe shows what one input takes, and whether the network is random by itself."""

import pytest
import torch
from torch import Tensor, nn

from stakes import MCDropout, StakesError
from stakes.posteriors._sampling.layers import frozen
from stakes.posteriors._sampling.probe import probe

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
    network = nn.Sequential(nn.Linear(4, 300), nn.Dropout(0.5), nn.Linear(300, 4000))
    devices = set()
    network[0].register_forward_hook(lambda module, inputs, output: devices.add(output.device.type))
    shown = probe(frozen(network), torch.randn(1, 4))
    assert shown.footprint == (300 * 4, 4000 * 4)  # before the dropout layer is called, and after
    assert probe(frozen(network), torch.randn(1, 4), all_random=True).footprint == (4 * 4, 4000 * 4)
    assert shown.random == shown.random_in_training == []
    assert [(key, layout.shape, layout.axis) for key, layout in shown.layouts.items()] == [("1/0", (300,), 0)]
    assert devices == {"meta"}


def test_a_probe_changes_nothing() -> None:
    network = frozen(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    state, hooks = torch.get_rng_state(), [len(module._forward_hooks) for module in network.modules()]
    probe(network, torch.ones(5, 4))
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not any(module.training for module in network.modules())
    assert [len(module._forward_hooks) for module in network.modules()] == hooks
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_that_needs_values_gets_them() -> None:
    assert probe(frozen(Branching()), torch.ones(1, 4)).footprint.per_draw == WIDTH * 4
    draws = MCDropout(Branching()).draw(3, 0)
    assert draws(torch.ones(1, 4)).log_probs().shape == (3, 1, WIDTH)
    with pytest.raises(StakesError, match="by the values"):
        draws(-torch.ones(1, 4)).log_probs()


def test_numbers_of_any_generator_are_noticed() -> None:
    assert probe(frozen(OwnGenerator()), torch.ones(1, 4)).random == ["aten::normal_ in its own forward"]
    with pytest.raises(StakesError, match="also has"):
        MCDropout(OwnGenerator()).draw(3, 0)(torch.ones(1, 4)).mean_probs()


def test_a_refusal_names_the_layer() -> None:
    network = nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.RReLU()), nn.Dropout(0.5), nn.Linear(6, 3))
    with pytest.raises(StakesError, match=r"rrelu.* in layer '0.1'"):
        MCDropout(network).draw(3, 0)(torch.ones(1, 4)).mean_probs()
