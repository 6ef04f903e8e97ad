"""Dropout inserted into networks that have none."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stakes import MLP, MCDropout, SampledPosterior, SavedModel, StakesError, Standard, Training, Utility, fit

COSTS = Utility.from_costs([[0, 4], [3, 0]], outcomes=["a", "b"])


class Residual(nn.Module):
    """A residual network that looks at a layer's weight, and calls one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.hidden, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x.to(self.head.weight.dtype))
        h = (h + self.block(h)).mean((2, 3))
        return self.head(self.hidden(self.hidden(h).relu()))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))  # type: ignore[no-any-return]


def sequence() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {
    "sequence": (sequence, (3,), ["2", "4"]),
    "MLP": (lambda: MLP(3, 2, hidden=(8, 8), dropout=0.0), (3,), ["3", "6"]),
    "residual": (Residual, (1, 6, 6), ["hidden", "head"]),
    "attention": (
        Attention,
        (5, 8),
        [f"encoder.layers.{n}.linear{k}" for n in (0, 1) for k in (1, 2)] + ["head"],
    ),
}


def inserted(network: nn.Module) -> list[str]:
    return [name.removesuffix(".inserted_dropout") for name, _ in network.named_modules() if "inserted" in name]


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_copy_gets_dropout_before_linear_layers_and_stays_the_same_function(kind: str) -> None:
    make, shape, names = NETWORKS[kind]
    torch.manual_seed(0)
    network, x = make().eval(), torch.randn(7, *shape)
    posterior = MCDropout.insert(network, 0.3)
    assert inserted(posterior.network) == names
    assert inserted(network) == [], "the network itself is as it was"
    torch.testing.assert_close(posterior.network(x), network(x))
    posterior.network.load_state_dict(network.state_dict())
    draws = posterior.draw(6, seed=0)(x).probs()
    assert (draws.std(0) > 0).all()
    assert torch.equal(draws, posterior.draw(6, seed=0)(x).probs())
    trained = posterior.train().outputs(x, 4)
    assert (trained.std(0) > 0).all()


def test_draws_are_those_of_dropout_by_enumeration() -> None:
    torch.manual_seed(1)
    first, second = nn.Linear(3, 2), nn.Linear(2, 2)
    x = torch.randn(4, 3)
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=2)))  # equally likely at p = 1/2
    hidden = first(x).relu()
    outputs = torch.stack([second(hidden * mask / 0.5) for mask in masks]).softmax(-1).detach()
    posterior = MCDropout.insert(nn.Sequential(first, nn.ReLU(), second), 0.5)
    draws = posterior.draw(5000, seed=0)(x).probs()
    torch.testing.assert_close(draws.mean(0), outputs.mean(0), atol=0.01, rtol=0)
    torch.testing.assert_close(draws.var(0), outputs.var(0, unbiased=False), atol=0.01, rtol=0)


class Unfused(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


def test_a_sequence_is_fused_to_the_same_draws() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)]
    x = torch.randn(9, 3)
    fused, plain = (MCDropout.insert(kind(*layers), 0.4).draw(5, seed=2) for kind in (nn.Sequential, Unfused))
    assert "MaskedLinear" in str(fused._network.layers)
    assert plain._network.layers is None
    torch.testing.assert_close(fused(x).probs(), plain(x).probs())


def test_a_layer_called_twice_has_two_masks() -> None:
    layer = nn.Linear(4, 4)
    posterior = MCDropout.insert(nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(4, 2)), 0.5, where="0")
    draws = posterior.draw(3, seed=0)
    layouts = draws._plan(torch.randn(2, 4)).layouts
    assert list(layouts) == ["0.inserted_dropout/0", "0.inserted_dropout/1"]


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (nn.Conv2d, ["conv", "block.0"]),
        ((nn.Conv2d, nn.Linear), ["conv", "block.0", "hidden", "head"]),
        ("head", ["head"]),
        (["block.0", "head"], ["block.0", "head"]),
        (lambda name, module: name.startswith("block") and isinstance(module, nn.Conv2d), ["block.0"]),
    ],
)
def test_where_is_a_type_a_name_or_a_function(where: Any, names: list[str]) -> None:
    posterior = MCDropout.insert(Residual(), 0.2, where, layer=nn.Dropout2d if names == ["block.0"] else nn.Dropout)
    assert inserted(posterior.network) == names
    assert posterior.draw(3, seed=0)(torch.randn(2, 1, 6, 6)).probs().isfinite().all()


def test_a_convolution_can_have_dropout_of_whole_channels() -> None:
    posterior = MCDropout.insert(Residual(), 0.2, nn.Conv2d, layer=nn.Dropout2d)
    layouts = posterior.draw(3, seed=0)._plan(torch.randn(2, 1, 6, 6)).layouts
    assert [layout.shape for layout in layouts.values()] == [(1, 1, 1), (1, 1, 4)]


@pytest.mark.parametrize("kind", ["sequence", "MLP", "residual"])
def test_it_is_trained_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    make, shape, _ = NETWORKS[kind]
    x = torch.randn(20, *shape)
    posterior = MCDropout.insert(make(), 0.3, lengthscale=0.01)
    fit(posterior, Standard(), (x, torch.arange(20) % 2), config=Training(epochs=1), progress=False)
    model = SavedModel(SampledPosterior(posterior, samples=5), COSTS)
    model.save(tmp_path / "model")
    again = SavedModel.load(tmp_path / "model", network=MCDropout.insert(make(), 0.3).network)
    assert torch.equal(again.predictor(x).probs(), model.predictor(x).probs())
    with pytest.raises(StakesError, match="pass network="):
        SavedModel.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"where": nn.Conv1d}, "to tell layers of Sequential, but it has none such"),
        ({"where": lambda name, module: False}, "it has none such"),
        ({"where": ["2", "7"]}, "Sequential has no '7'"),
        ({"p": 0.0}, "a dropout rate between 0 and 1"),
        ({"p": 1.0}, "a dropout rate between 0 and 1"),
        ({"layer": lambda p: nn.ReLU()}, "to make a dropout layer of PyTorch"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(StakesError, match=message):
        MCDropout.insert(sequence(), **{"p": 0.1, **arguments})


def test_dropout_is_inserted_once() -> None:
    with pytest.raises(StakesError, match="start from the original"):
        MCDropout.insert(MCDropout.insert(sequence(), 0.1).network, 0.1)


def test_a_layer_that_is_read_and_not_called_is_refused() -> None:
    posterior = MCDropout.insert(Attention(), 0.1, ["head", "encoder.layers.0.self_attn.out_proj"])
    with pytest.raises(StakesError, match=r"does not call 'encoder\.layers\.0\.self_attn\.out_proj'"):
        posterior.draw(2, seed=0)(torch.randn(2, 5, 8)).mean_probs()


def test_the_only_layer_sees_the_raw_input() -> None:
    with pytest.raises(StakesError, match="none such"):
        MCDropout.insert(nn.Linear(3, 2), 0.1)
