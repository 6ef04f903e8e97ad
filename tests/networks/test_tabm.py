"""TabM: its encoding of numbers, and its members, each a plain network."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stakes import StakesError, TabM, networks
from stakes.features import Features
from stakes.networks.piecewise import PiecewiseLinear
from stakes.networks.tabm import MANY_ROWS

FEATURES = Features(numbers=3, missing=(1,), levels=(2, 6, 3, 7))


def rows(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    levels = [torch.eye(size)[torch.randint(size, (count,), generator=generator)] for size in FEATURES.levels]
    numbers = torch.randn(count, 3, generator=generator)
    return torch.cat([numbers, (numbers[:, 1:2] > 1).float(), *levels], 1)


def network(**settings: float) -> TabM:
    torch.manual_seed(0)
    made = TabM(FEATURES, 3, **{"members": 4, "width": 8, "embedding": 4, "bins": 5, **settings})
    with torch.no_grad():  # as training could leave them
        for layer in made.layers:
            for parameter in layer.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    made.set_bins(rows(200))
    return made


def test_numbers_are_encoded_piecewise_linearly() -> None:
    """The sum over bins is the place among the edges, inside them and outside."""
    column = np.random.default_rng(0).lognormal(size=500)
    layer = PiecewiseLinear(1, 2, bins=7)
    layer.set_bins(torch.from_numpy(column)[:, None])
    edges = np.quantile(column, np.linspace(0, 1, 8))
    values = np.concatenate([column[:50], edges, [-9.0, column.min() - 1, column.max() + 1, 1e6]])
    encoded = layer.double().encoded(torch.from_numpy(values)[:, None])[0]
    np.testing.assert_allclose(encoded.sum(1), np.interp(values, edges, range(8)), atol=1e-4)
    assert (encoded[:, :-1] >= encoded[:, 1:]).all(), "one bin after the other"
    assert (encoded[:, 1:][encoded[:, :-1] < 1] == 0).all(), "a bin counts only once the one before is passed"


def test_a_column_of_few_values_has_a_bin_between_each_two_of_them() -> None:
    layer = PiecewiseLinear(3, 2, bins=4)
    layer.set_bins(torch.tensor([[0.0, 5.0, 1.0], [1.0, 5.0, 1.0], [3.0, 5.0, 1.0], [0.0, 5.0, 2.0]]))
    assert layer.edges.tolist() == [[0, 1, 3, 3, 3], [5] * 5, [1, 2, 2, 2, 2]]
    encoded = layer.encoded(torch.tensor([[2.0, 7.0, 2.0]]))[:, 0]
    assert encoded.tolist() == [[1, 0.5, 0, 0], [0] * 4, [1, 0, 0, 0]], "a constant says nothing, for any value"


def test_a_bin_of_a_value_that_is_most_of_a_column_is_left_out() -> None:
    layer = PiecewiseLinear(1, 1, bins=4)
    layer.set_bins(torch.tensor([0.0] * 90 + list(range(1, 11)))[:, None])
    assert layer.edges[0, 0] == 0
    assert layer.edges[0, -1] == 10
    assert torch.isfinite(layer(torch.tensor([[0.0], [3.0]]))).all()


@pytest.mark.parametrize("count", [5, MANY_ROWS + 3])
def test_a_member_is_a_plain_network_with_scaled_weights(count: int) -> None:
    made, x = network(), rows(count, seed=1)
    assert made.numbers is not None
    wide = [layer for layer in made.others if isinstance(layer, nn.Linear)]
    assert [layer.in_features for layer in wide] == [6, 7]
    levels = [x[:, 3:6], wide[0](x[:, 6:12]), x[:, 12:15], wide[1](x[:, 15:])]
    embedded = torch.cat([made.numbers(x[:, :3]), *levels], 1)
    for member, output in enumerate(made(x)):
        h = embedded
        for layer in made.layers:
            plain = nn.Linear(*layer.weight.shape)
            weight = layer.after[member][:, None] * layer.weight.T * layer.before[member]
            plain.load_state_dict({"weight": weight, "bias": layer.bias[member]})
            h = plain(h).relu()
        expected = h @ made.head_weight[member] + made.head_bias[member]
        torch.testing.assert_close(output, expected)


def test_members_start_apart_by_whole_columns() -> None:
    made = TabM(Features(2, levels=(2, 9)), 2, members=8, embedding=3)
    signs = made.layers[0].before.detach()
    assert signs.abs().eq(1).all()
    for first, last in ((0, 3), (3, 6), (6, 8), (8, 11)):
        assert signs[:, first:last].eq(signs[:, first : first + 1]).all()
    assert len(signs.unique(dim=0)) > 4


def test_a_table_without_numbers_needs_no_bins() -> None:
    made = TabM(Features(0, levels=(2, 3)), 2, members=3)
    made.set_bins(torch.zeros(4, 5))
    assert made(torch.zeros(4, 5)).shape == (3, 4, 2)


def test_bins_are_loaded_with_the_weights() -> None:
    made, other, x = network(), TabM(FEATURES, 3, 4, 8, embedding=4, bins=5), rows(9)
    with pytest.raises(StakesError, match="set_bins"):
        other(x)
    untouched = other.state_dict()
    other.load_state_dict(made.state_dict())
    torch.testing.assert_close(other(x), made(x))
    other.load_state_dict(TabM(FEATURES, 3, 4, 8, embedding=4, bins=5).state_dict())
    with pytest.raises(StakesError, match="set_bins"):
        other(x)
    untouched["numbers.edges"] = -torch.arange(18.0).reshape(3, 6)
    with pytest.raises(StakesError, match="ascend"):
        other.load_state_dict(untouched)


def test_bins_are_those_of_the_rows_in_any_order() -> None:
    made, x = network(), rows(200)
    before = made.numbers.edges.clone()  # type: ignore[union-attr]
    made.set_bins(x.flip(0))
    assert torch.equal(made.numbers.edges, before)  # type: ignore[union-attr]


def test_its_spec_makes_it_again() -> None:
    spec = json.loads(json.dumps(network(dropout=0.1).spec()))
    again = networks.from_spec(spec)
    assert isinstance(again, TabM)
    assert again.spec() == spec
    assert str(again) == str(network(dropout=0.1))


def test_the_norm_is_of_matrices_and_a_mean_over_members() -> None:
    made = network()
    shared = [p for name, p in made.named_parameters() if name.endswith("weight") and "head" not in name]
    expected = (
        sum(float(p.detach().square().sum()) for p in shared) + float(made.head_weight.detach().square().sum()) / 4
    )
    assert made.squared_norm().item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"members": 0}, "sizes"),
        ({"width": 2.5}, "sizes"),
        ({"bins": 0}, "bin"),
        ({"dropout": 1.0}, "dropout"),
        ({"features": {"numbers": -1}}, "at least one feature"),
        ({"features": 4}, r"Features\(numbers=4\), but got 4"),
    ],
)
def test_impossible_networks_are_refused(options: dict, words: str) -> None:
    with pytest.raises(StakesError, match=words):
        TabM(**({"features": FEATURES, "outputs": 2} | options))


def test_rows_without_values_are_refused() -> None:
    made = network()
    with pytest.raises(StakesError, match="22 features"):
        made.set_bins(torch.zeros(3, 4))
    with pytest.raises(StakesError, match="finite"):
        made.set_bins(torch.full((3, 22), torch.nan))
