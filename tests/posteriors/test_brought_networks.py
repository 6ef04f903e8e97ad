"""Networks as people bring them: hooks, functions kept in attributes, pruned layers, padding, sorted lengths."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence

from stakes import (
    Bernoulli,
    Categorical,
    Gaussian,
    Laplace,
    LossCalibrated,
    MCDropout,
    MeanField,
    Newsvendor,
    StakesError,
    Utility,
)
from stakes.posteriors.base import Posterior

UTILITY = Utility.from_costs([[0, 10], [1, 0]])
PASSES = 4_000


def plain(p: float = 0.2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(p), nn.Linear(8, 2))


def mean_of_passes(network: nn.Module, *x: Tensor) -> Tensor:
    network.train()
    with torch.no_grad():
        passes = [network(*x).softmax(-1) for _ in range(PASSES)]
    network.eval()
    return torch.stack(passes).mean(0)


def test_hooks_are_called_in_draws() -> None:
    x = 10 * torch.randn(5, 3) + 100
    for add in (
        lambda network: network.register_forward_pre_hook(lambda module, args: ((args[0] - 100) / 10,)),
        lambda network: network.register_forward_hook(lambda module, args, output: 0.1 * output),
        lambda network: network[2].register_forward_hook(lambda module, args, output: 0.3 * output),
    ):
        network = plain()
        posterior = MCDropout(network)
        posterior.shared_outputs(x, 10)  # before there was a hook
        add(network)
        expected = mean_of_passes(network, x)
        torch.testing.assert_close(posterior.draw(1_000, seed=0)(x).mean_probs(), expected, atol=0.02, rtol=0)
        shared = posterior.shared_outputs(x, 1_000).softmax(-1).mean(0)
        torch.testing.assert_close(shared, expected, atol=0.02, rtol=0)


@pytest.mark.parametrize("make", [lambda n: MeanField(n, initial_sd=1e-4), lambda n: Laplace(n, weights="all")])
def test_hooks_are_called_where_weights_are_drawn(make: Callable[[nn.Module], Posterior]) -> None:
    network, x = plain()[::3], torch.randn(6, 3)
    network.register_forward_hook(lambda module, args, output: 50 * output)
    posterior = make(network)
    posterior.finish([(x, torch.tensor([0, 1] * 3))])
    draws = posterior.eval().draw(400, seed=0)
    by_hand = torch.stack([draws.outputs(x, draw, draw + 1)[0] for draw in range(3)])
    assert by_hand.abs().max() > 10  # 50 times what the layers put out
    torch.testing.assert_close(draws.outputs(x, 0, 3), by_hand)


def test_hooks_of_a_layer_with_drawn_weights_are_called() -> None:
    x, posterior = torch.randn(6, 3), MeanField(plain()[::3], initial_sd=1e-6)
    posterior.network[1].register_forward_hook(lambda module, args, output: 50 * output)  # type: ignore[index]
    expected = posterior.outputs(x)[0]
    torch.testing.assert_close(posterior.draw(3, seed=0).outputs(x, 0, 1)[0], expected, rtol=1e-3, atol=1e-3)


class Scaled(nn.Dropout):
    scale = 3.0


class ReadsLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 6), Scaled(0.5), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(self.first(x.view(-1, self.first.in_features))) * self.drop.scale)
        return out


def test_networks_may_read_the_settings_of_their_layers() -> None:
    x = torch.randn(3, 4)
    for posterior in (MCDropout(ReadsLayers()), MeanField(ReadsLayers())):
        assert posterior.outputs(x).shape == posterior.draw(1, seed=0).outputs(x, 0, 1).shape == (1, 3, 2)


class Upsampling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.up(self.down(x).relu(), output_size=x.shape[-2:])
        return out


def test_mean_field_passes_all_arguments_of_a_layer() -> None:
    posterior, x = MeanField(Upsampling()), torch.randn(2, 1, 8, 8)
    assert posterior.outputs(x, 3).shape == (3, 2, 2, 8, 8)
    assert posterior.shared_outputs(x, 3).shape == posterior.draw(3, 0).outputs(x, 0, 3).shape == (3, 2, 2, 8, 8)


class KeepsFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2)
        self.head = lambda h: self.last(self.drop(h))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.first(x).relu())
        return out


def kept_as_default(network: nn.Sequential) -> None:
    network.head = lambda h, last=network[3]: last(h)


def kept_in_a_dict(network: nn.Sequential) -> None:
    network.heads = {"a": [lambda h: network(h)]}


def kept_in_a_list_around(network: nn.Sequential) -> None:
    layers = [network[3]]
    network.head = lambda h: layers[0](h)


def kept_in_another_function(network: nn.Sequential) -> None:
    def inner(h: Tensor) -> Tensor:
        out: Tensor = network[3](h)
        return out

    network.head = lambda h: inner(h)


def kept_in_a_partial(network: nn.Sequential) -> None:
    last = network[3]
    network.head = partial(lambda h, scale: scale * last(h), scale=2)


@pytest.mark.parametrize(
    "keep", [kept_as_default, kept_in_a_dict, kept_in_a_list_around, kept_in_another_function, kept_in_a_partial]
)
def test_wherever_a_function_hides_its_layers(keep: Callable[[nn.Sequential], None]) -> None:
    network = plain()
    keep(network)
    with pytest.raises(StakesError, match="refers to layers by itself"):
        MCDropout(network).draw(3, seed=0)


def test_what_a_copy_has_too_and_modules_from_elsewhere_are_fine() -> None:
    x, scale = torch.randn(4, 3), nn.BatchNorm1d(3).eval()  # no layer of the network, as an image transform is none
    network = plain()
    network.register_forward_pre_hook(lambda module, args: (scale(args[0]),))
    network.parts = {"last": network[3], "forward": network.forward, "partial": partial(nn.Sequential.forward, network)}
    expected = mean_of_passes(network, x)
    torch.testing.assert_close(MCDropout(network).draw(2_000, seed=0)(x).mean_probs(), expected, atol=0.02, rtol=0)


def test_a_function_that_would_call_the_original_is_refused() -> None:
    with pytest.raises(StakesError, match=r"the function in 'head' refers to layers by itself.* write it as a method"):
        MCDropout(KeepsFunction()).draw(3, seed=0)
    hooked = plain()
    hooked[1].register_forward_hook(lambda module, args, output: hooked[0](args[0][:, :3]).repeat(1, 1))
    with pytest.raises(StakesError, match="the function in 'a hook' of '1' refers to layers"):
        MCDropout(hooked).draw(3, seed=0)


def test_pruned_networks_and_lazy_layers() -> None:
    network, x = plain(), torch.randn(4, 3)
    prune.l1_unstructured(network[0], "weight", 0.5)
    draws = MCDropout(network).draw(2_000, seed=0)
    torch.testing.assert_close(draws(x).mean_probs(), mean_of_passes(network, x), atol=0.02, rtol=0)
    assert MCDropout.insert(network, 0.2).draw(3, seed=0)(x).mean_probs().isfinite().all()
    with pytest.raises(StakesError, match="pass a batch through its lazy layers first"):
        MCDropout(nn.Sequential(nn.LazyLinear(8), nn.Dropout(0.3), nn.LazyLinear(2))).draw(3, seed=0)


class LeftPadded(nn.Module):
    """A position that is padding may look at nothing: those before it are padding, those after it later."""

    def __init__(self, own_attention: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 16), nn.Linear(16, 2)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.2, batch_first=True) if own_attention else None

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        causal, padding = torch.ones(6, 6, dtype=torch.bool).triu(1), mask == 0
        x = self.embedding(ids)
        if self.attention is None:
            x = self.encoder(x, mask=causal, src_key_padding_mask=padding)
        else:
            x = x + self.attention(x, x, x, padding, need_weights=False, attn_mask=causal)[0]
        out: Tensor = self.head(x.mean(1))
        return out


@pytest.mark.parametrize("own_attention", [False, True])
def test_positions_that_see_nothing_are_as_in_the_network(own_attention: bool) -> None:
    torch.manual_seed(0)
    network = LeftPadded(own_attention)
    x = {"ids": torch.randint(1, 20, (3, 6)), "mask": torch.tensor([[0, 0, 1, 1, 1, 1]] * 2 + [[1] * 6])}
    draws, expected = MCDropout(network).draw(1_000, seed=0), mean_of_passes(network, *x.values())
    torch.testing.assert_close(draws(x).mean_probs(), expected, atol=0.02, rtol=0)
    assert MCDropout(network).shared_outputs(x, 10).isfinite().all()


class Undefined(nn.Module):
    """Numbers in training, and NaN in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(x)) * (1.0 if self.training else torch.nan)
        return out


def test_decisions_are_not_taken_from_nan() -> None:
    objective, posterior = LossCalibrated(UTILITY), MCDropout(Undefined().train())
    with pytest.raises(StakesError, match="expected draws for a batch to be numbers"):
        objective(posterior, torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))


def test_amounts_are_not_decided_from_nan() -> None:
    x, y = torch.randn(4, 3), torch.randn(4)
    curves = Utility.from_curves({"wait": [(-1.0, 0.0), (1.0, 9.0)], "act": 3.0})
    for utility in (curves, Newsvendor(3, 1).with_limit(5.0), curves.with_limit(5.0)):
        posterior = MCDropout(Undefined().train(), Gaussian.for_labels(y, scale="input"))
        with pytest.raises(StakesError, match="expected draws for a batch to be numbers"):
            LossCalibrated(utility)(posterior, x, y)


def test_a_large_network_may_not_depend_on_the_batch_either() -> None:
    network = nn.Sequential(nn.Linear(8, 1_100), nn.BatchNorm1d(1_100, track_running_stats=False), nn.Dropout(0.2),
                            nn.Linear(1_100, 1_000), nn.ReLU(), nn.Linear(1_000, 2))  # fmt: skip
    with pytest.raises(StakesError, match="not to depend on the other inputs of its batch"):
        MCDropout(network.eval()).draw(3, seed=0)(torch.randn(4, 8)).mean_probs()


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(8, 2)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.drop(self.embedding(ids)), lengths, batch_first=True)
        out: Tensor = self.head(self.drop(self.lstm(packed)[1][0][-1]))
        return out


def test_lengths_that_are_sorted_stay_so() -> None:
    torch.manual_seed(0)
    network, x = Packed(), (torch.randint(1, 20, (5, 6)), torch.tensor([6, 5, 4, 3, 2]))
    draws = MCDropout(network).draw(1_000, seed=0)(x)
    torch.testing.assert_close(draws.mean_probs(), mean_of_passes(network, *x), atol=0.02, rtol=0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, 2, batch_first=True, dropout=0.2), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


def test_recurrent_dropout_is_exported() -> None:
    draws, x = MCDropout(Recurrent()).draw(5, seed=0), torch.randn(6, 5, 4)
    program = draws.export(x).module()
    torch.testing.assert_close(program(x[:3]), draws(x[:3]).probs(), atol=1e-5, rtol=1e-4)


def test_kron_weighs_both_of_its_factors() -> None:
    torch.manual_seed(0)
    x, labels, weights = torch.randn(200, 4), torch.randint(3, (200,)), torch.ones(200)
    x[:100] *= 30
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def sd(*batch: Tensor) -> Tensor:
        posterior = Laplace(network, structure="kron")
        posterior.finish([batch])
        variance: Tensor = posterior.get_buffer("sd").square().sum()
        return variance

    few = weights.clone()
    few[:100] = 1e-9
    torch.testing.assert_close(sd(x, labels, few), sd(x[100:], labels[100:]), rtol=1e-4, atol=0)
    twice = torch.cat([x, x[150:]]), torch.cat([labels, labels[150:]])
    torch.testing.assert_close(sd(x, labels, weights + (torch.arange(200) >= 150)), sd(*twice), rtol=1e-4, atol=0)
    ignored = labels.where(torch.arange(200) >= 100, 255)
    posterior = Laplace(network, Categorical(ignore_index=255), structure="kron")
    posterior.finish([(x, ignored)])
    torch.testing.assert_close(posterior.get_buffer("sd").square().sum(), sd(x[100:], labels[100:]))


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_laplace_needs_labels_that_count(structure: str) -> None:
    segmenter = nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 3, 1))
    posterior = Laplace(segmenter, Categorical(ignore_index=255), structure=structure)  # type: ignore[arg-type]
    images, labels = torch.randn(3, 1, 8, 8), torch.full((3, 8, 8), 255)
    with pytest.raises(StakesError, match="expected training labels that count"):
        posterior.finish([(images, labels)])
    with pytest.raises(StakesError, match="expected training labels that count"):
        posterior.finish([(images, labels * 0, torch.zeros(3))])


class OneLogit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x).squeeze(1)
        return out


def test_laplace_of_a_single_logit() -> None:
    x, labels, network = torch.randn(50, 4), torch.randint(2, (50,)).float(), OneLogit()
    squeezed, whole = Laplace(network, Bernoulli()), Laplace(network.body, Bernoulli())
    for posterior in (squeezed, whole):
        posterior.finish([(x, labels)])
    pair = [posterior.draw(20, seed=0)(x).mean_probs() for posterior in (squeezed, whole)]
    torch.testing.assert_close(*pair)
    with pytest.raises(StakesError, match=r"return \(B, 1\) for a single logit, without squeeze"):
        Laplace(network, Bernoulli(), weights="all").finish([(x, labels)])
