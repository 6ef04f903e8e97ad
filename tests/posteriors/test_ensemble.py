import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from stakes import Ensemble, StakesError, StakesWarning


def members(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)) for _ in range(count)]


def test_draws_are_the_members_themselves() -> None:
    networks, x = members(3), torch.randn(6, 2)
    expected = torch.stack([network(x).log_softmax(-1) for network in networks]).detach()
    draws = Ensemble(networks).draw(50, seed=0)
    assert draws.samples == 3
    torch.testing.assert_close(draws(x).log_probs(), expected)


def test_members_may_tie_their_weights() -> None:
    def tied() -> nn.Module:
        network = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3, bias=False))
        network[2].weight = network[0].weight
        return network

    posterior, x = Ensemble.of(tied, 3, seed=0), torch.randn(5, 3)
    torch.testing.assert_close(posterior.draw(3, seed=0).outputs(x, 0, 3), posterior.outputs(x).detach())


class Wrapped(nn.Module):
    """A network that cannot be seen into."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


@pytest.mark.parametrize("last", [nn.Linear(4, 3), nn.Linear(4, 3, bias=False)])
@pytest.mark.parametrize("memory", [1, 2**28])
def test_plain_networks_all_at_once_say_what_each_says(last: nn.Module, memory: int) -> None:
    torch.manual_seed(0)
    networks = [
        nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Dropout(0.5), copy.deepcopy(last))
        for _ in range(4)
    ]
    for network in networks:
        network(torch.randn(20, 2))  # so that each has statistics of its own
    x = torch.randn(7, 2)
    with pytest.warns(StakesWarning, match="without that"):
        draws = Ensemble(networks).draw(3, seed=1)
    with pytest.warns(StakesWarning, match="without that"):
        general = Ensemble([Wrapped(net) for net in networks]).draw(3, seed=1)
    assert draws._stacked is not None
    assert general._stacked is None
    torch.testing.assert_close(draws(x, memory).log_probs(), general(x).log_probs(), atol=1e-5, rtol=1e-5)


def test_fewer_samples_are_some_members_without_repetition() -> None:
    networks, x = members(5), torch.randn(1, 2)
    posterior = Ensemble(networks)
    seen = {tuple(posterior.draw(2, seed)(x).log_probs()[:, 0, 0].tolist()) for seed in range(40)}
    assert all(first != second for first, second in seen)
    assert len(seen) == 10


def test_members_made_here_start_apart_and_reproducibly() -> None:
    make = lambda: nn.Linear(2, 3)  # noqa: E731
    torch.manual_seed(123)
    first = Ensemble.of(make, 3, seed=1)
    torch.manual_seed(456)
    second = Ensemble.of(make, 3, seed=1)
    weights = [member.weight for member in first.members]
    assert all(torch.equal(a, b.weight) for a, b in zip(weights, second.members, strict=True))
    assert not torch.equal(weights[0], weights[1])


def test_the_prior_is_the_mean_over_members() -> None:
    networks = members(2)
    squares = [sum(float(p.detach().square().sum()) for p in net.parameters() if p.ndim == 2) for net in networks]
    assert Ensemble(networks, prior_sd=2.0).kl().item() == pytest.approx(sum(squares) / 2 / (2 * 4), rel=1e-6)


def test_dropout_in_members_is_off_in_draws() -> None:
    networks = [nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 3)) for _ in range(2)]
    with pytest.warns(StakesWarning, match="without that"):
        draws = Ensemble(networks).train().draw(2, 0)
    x = torch.randn(3, 2)
    torch.testing.assert_close(draws(x).log_probs(), draws(x).log_probs())


def test_an_ensemble_of_one_or_of_one_network_twice_is_refused() -> None:
    with pytest.raises(StakesError, match="at least 2"):
        Ensemble(members(1))
    network = nn.Linear(2, 3)
    with pytest.raises(StakesError, match="twice"):
        Ensemble([network, network])


def test_members_of_another_shape_are_refused() -> None:
    with pytest.raises(StakesError, match="one architecture"):
        Ensemble([nn.Linear(2, 3), nn.Linear(3, 3)])


def test_members_with_other_layers_are_refused() -> None:
    with pytest.raises(StakesError, match="one architecture"):
        Ensemble([nn.Sequential(nn.Linear(2, 3), activation) for activation in (nn.Tanh(), nn.ReLU())])


def test_a_member_may_work_in_place_and_have_hooks() -> None:
    members = [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)).eval() for _ in range(3)]
    hooked = [nn.Sequential(nn.Linear(4, 3)).eval() for _ in range(3)]
    for member in hooked:
        member[0].register_forward_hook(lambda layer, inputs, output: 2 * output)
    x = torch.randn(5, 4)
    for networks in (members, hooked):
        expected = torch.stack([network(x.clone()).log_softmax(-1) for network in networks])
        torch.testing.assert_close(Ensemble(networks).draw(3, 0)(x.clone()).log_probs(), expected)


class Shifted(nn.Module):
    """A setting of its own that is no weight."""

    def __init__(self, shift: object) -> None:
        super().__init__()
        self.out, self.shift = nn.Linear(4, 3), shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x + self.shift)


@pytest.mark.parametrize(
    "make",
    [
        lambda number: nn.Sequential(nn.Linear(4, 6), nn.Softplus(beta=number), nn.Linear(6, 3)),
        lambda number: nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(number / 5), nn.Linear(6, 3)),
        lambda number: nn.Sequential(
            nn.Unflatten(1, (1, 4)),
            nn.Conv1d(1, 2, 2, dilation=number, padding=2),
            nn.AdaptiveAvgPool1d(3),
            nn.Flatten(),
        ),
        lambda number: Shifted(number),
        lambda number: Shifted(torch.full((4,), float(number))),
        lambda number: Shifted(np.float32(number)),
    ],
    ids=["softplus", "slope", "dilation", "number", "tensor", "numpy"],
)
def test_members_may_differ_in_more_than_their_weights(make: Callable[[int], nn.Module]) -> None:
    torch.manual_seed(0)
    networks, x = [make(number) for number in (1, 2, 3)], torch.randn(5, 4)
    expected = torch.stack([network(x) for network in networks]).detach()
    torch.testing.assert_close(Ensemble(networks).draw(3, seed=0).outputs(x, 0, 3), expected)
    alike = Ensemble([make(2) for _ in range(3)]).draw(3, seed=0)
    assert alike._members is None, "and run as one where they do not"


def test_recurrent_members_run_as_they_are() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gru(x)[0][:, -1]

    networks, x = [Recurrent() for _ in range(3)], torch.randn(5, 2, 4)
    expected = torch.stack([network(x) for network in networks]).detach()
    torch.testing.assert_close(Ensemble(networks).draw(3, seed=0).outputs(x, 0, 3), expected)
