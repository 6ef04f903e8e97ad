import pytest
import torch

from stakes import MLP, StakesError


def test_the_papers_network_is_one_hidden_layer_with_dropout() -> None:
    network = MLP(784, 10, hidden=(100,), dropout=0.2)
    assert [type(layer).__name__ for layer in network] == ["Linear", "ReLU", "Dropout", "Linear"]
    assert sum(p.numel() for p in network.parameters()) == 784 * 100 + 100 + 100 * 10 + 10
    assert network(torch.zeros(3, 784)).shape == (3, 10)


def test_without_hidden_layers_it_is_linear() -> None:
    assert len(MLP(4, 2, hidden=())) == 1


def test_its_spec_makes_it_again() -> None:
    spec = MLP(4, 2, hidden=(8, 8), dropout=0.3, activation="gelu").spec()
    assert spec.pop("kind") == "mlp"
    assert str(MLP(**spec)) == str(MLP(4, 2, (8, 8), 0.3, "gelu"))


def test_some_of_its_layers_are_a_network() -> None:
    network, x = MLP(4, 2, hidden=(8,), dropout=0.0), torch.randn(3, 4)
    assert torch.equal(network[-1](network[:-1](x)), network(x))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden": (0,)}, "sizes"),
        ({"dropout": 1.0}, "dropout"),
        ({"activation": "sine"}, "'sine'"),
        ({"inputs": 0}, "sizes"),
    ],
)
def test_impossible_networks_are_refused(options: dict, words: str) -> None:
    with pytest.raises(StakesError, match=words):
        MLP(**({"inputs": 3, "outputs": 2} | options))
