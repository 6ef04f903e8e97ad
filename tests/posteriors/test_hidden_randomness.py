"""What would be drawn otherwise than it is trained, in ways that no layer shows: each is refused, or right."""

import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stakes import Ensemble, MCDropout, MeanField, StakesError, Standard, Training, fit


class Net(nn.Module):
    """``run(net, x)``, with a linear layer before it, one after it, and two dropout layers to use."""

    def __init__(self, run: Callable[["Net", Tensor], Tensor], inplace: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.run = nn.Linear(4, 8), nn.Linear(8, 3), run
        self.drop, self.other = nn.Dropout(0.1, inplace=inplace), nn.Dropout(0.5)
        self.generators = {"numpy": np.random.default_rng(0), "python": random.Random(0)}

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.run(self, self.first(x).relu()))


def only_in_training(net: Net, h: Tensor) -> Tensor:
    h = net.drop(h)
    return net.other(h) if net.training else h


def skip_by_numpy(net: Net, h: Tensor) -> Tensor:
    return h if net.training and net.generators["numpy"].random() < 0.5 else net.drop(h)


def skip_by_python(net: Net, h: Tensor) -> Tensor:
    return net.drop(h) * (1 if net.training and net.generators["python"].random() < 0.5 else 2)


@pytest.mark.parametrize("make", [MCDropout, MeanField])
@pytest.mark.parametrize("run", [only_in_training, skip_by_numpy, skip_by_python])
def test_randomness_of_training_alone_is_refused(make: type, run: Callable[[Net, Tensor], Tensor]) -> None:
    with pytest.raises(StakesError, match="called in every mode"):
        make(Net(run)).draw(3, seed=0)(torch.randn(2, 4)).mean_probs()


def test_dropout_in_place_is_drawn_where_nobody_else_sees_it() -> None:
    x = torch.randn(5, 4)
    torch.manual_seed(0)
    plain = Net(lambda net, h: net.drop(h))
    in_place = Net(lambda net, h: net.drop(h), inplace=True)
    in_place.load_state_dict(plain.state_dict())
    expected, drawn = (MCDropout(net).draw(6, seed=0)(x).probs() for net in (plain, in_place))
    torch.testing.assert_close(drawn, expected)
    for run in (lambda net, h: h + net.drop(h), lambda net, h: (net.drop(h), net.other(h))[1]):
        with pytest.raises(StakesError, match="inplace=False"):
            MCDropout(Net(run, inplace=True)).draw(3, seed=0)(x).mean_probs()


class Tokens(nn.Module):
    """A linear layer applied to every token, in some order of axes."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.linear, self.order = nn.Linear(4, 3), order

    def forward(self, x: Tensor) -> Tensor:
        if self.order == "B*T":
            return self.linear(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1)
        return self.linear(x.transpose(0, 1)).mean(0) if self.order == "T,B" else self.linear(x).mean(1)


def test_mean_field_wants_the_batch_first() -> None:
    """In training the noise is one for each entry of axis 0: there, the spread was 2.3 times too small."""
    x = torch.randn(3, 16, 4) + 0.5
    for order in ("B*T", "T,B"):
        with pytest.raises(StakesError, match=r"'linear'.*noise of its own"):
            MeanField(Tokens(order)).draw(3, seed=0)(x).mean_probs()
    torch.manual_seed(0)
    posterior = MeanField(Tokens("B,T"), initial_sd=0.3)
    trained = torch.stack([posterior.outputs(x)[0] for _ in range(1500)]).std(0).mean()
    drawn = posterior.draw(1500, seed=0).outputs(x, 0, 1500).std(0).mean()
    assert float((drawn / trained).detach()) == pytest.approx(1, abs=0.06)


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 5 * super().forward(x)


@pytest.mark.parametrize(
    "layer",
    [Scaled(4, 3), nn.utils.spectral_norm(nn.Linear(4, 3)), nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))],
)
def test_mean_field_wants_plain_layers(layer: nn.Module) -> None:
    with pytest.raises(StakesError, match="cannot make"):
        MeanField(nn.Sequential(layer))
    MeanField(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.PReLU()), nn.Linear(4, 3)))


def test_an_ensemble_of_networks_that_count_on_the_usual_order_in_memory() -> None:
    class Viewing(nn.Module):
        def __init__(self, slope: float) -> None:
            super().__init__()
            self.conv, self.out, self.slope = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(48, 3), slope

        def forward(self, x: Tensor) -> Tensor:
            return self.out(F.leaky_relu(self.conv(x), self.slope).view(len(x), -1))

    x = torch.randn(2, 2, 4, 4)
    for slopes in ([0.1, 0.1], [0.1, 0.5]):
        members = [Viewing(slope) for slope in slopes]
        drawn = Ensemble(members).draw(2, seed=0).outputs(x, 0, 2)
        torch.testing.assert_close(drawn, torch.stack([member(x) for member in members]), atol=1e-5, rtol=1e-5)


def test_members_that_tie_their_weights_differently_are_run_as_they_are() -> None:
    members = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(2)]
    members[0][2].weight = members[0][0].weight
    x = torch.randn(3, 4)
    drawn = Ensemble(members).draw(2, seed=0).outputs(x, 0, 2)
    torch.testing.assert_close(drawn, torch.stack([member(x) for member in members]))


def test_a_probe_takes_no_numbers_from_the_generator_of_others() -> None:
    """Another thread may be training: the state of the generator may not even change for a while."""
    states = []

    class Watching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            states.append(torch.get_rng_state())
            return x

    noise = nn.Sequential(Watching(), nn.Dropout(0.5), nn.RReLU(), Watching(), nn.Linear(4, 3))
    before = torch.get_rng_state()
    with pytest.raises(StakesError, match="rrelu"):
        MCDropout(noise).draw(2, seed=0)(torch.randn(2, 4, generator=torch.Generator())).mean_probs()
    assert all(torch.equal(state, before) for state in states)


def test_other_threads_may_use_the_generators_of_python_and_numpy() -> None:
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            random.random(), np.random.rand()  # noqa: NPY002

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(20):
            MCDropout(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))).draw(2, seed=0)(torch.randn(2, 4)).mean_probs()
    finally:
        stop.set()
        thread.join()


def test_folded_codes_are_told_apart_by_valid_inputs() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.drop, self.out = nn.Embedding(5, 4), nn.Dropout(0.5), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            folded = self.drop(self.table(x.long().reshape(-1)))
            return self.out(folded.reshape(len(x), -1))

    x = torch.tensor([[0.0, 1.0, 4.0], [2.0, 3.0, 1.0]])
    assert MCDropout(Embedded()).draw(4, seed=0)(x).probs().shape == (4, 2, 3)


@pytest.mark.parametrize("make", [MCDropout, MeanField])
def test_what_cannot_be_drawn_from_is_not_trained(make: type) -> None:
    posterior = make(Net(only_in_training))
    before = [parameter.clone() for parameter in posterior.parameters()]
    data = torch.randn(20, 4), torch.arange(20) % 3
    with pytest.raises(StakesError, match="called in one mode only"):
        fit(posterior, Standard(), data, config=Training(epochs=1), progress=False)
    assert all(torch.equal(*pair) for pair in zip(before, posterior.parameters(), strict=True))
