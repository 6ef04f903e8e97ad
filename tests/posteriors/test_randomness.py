"""What is random in training is random in draws, with the same distribution, or it is refused."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stakes import Ensemble, MCDropout, MeanField, StakesError, StakesWarning
from stakes.posteriors._sampling.layers import frozen
from stakes.posteriors._sampling.masks import active
from stakes.posteriors._sampling.probe import _Recorder

PASSES = 1000
SLOW_PASSES = 400  # of networks that vmap cannot run
WIDTH, TOKENS = 4, 3


class Net(nn.Module):
    """``run(net, x)`` with some layers, and a linear layer after it."""

    def __init__(self, run: Callable[["Net", Tensor], Tensor], inputs: int, **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.run, self.out = run, nn.Linear(inputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.run(self, x))


def encoder(**settings: object) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.3, **settings)  # type: ignore[arg-type]
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def attend(net: Net, x: Tensor) -> Tensor:
    return net.attention(x, x, x, need_weights=False)[0].flatten(1)


def masked_attend(net: Net, x: Tensor) -> Tensor:
    padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    padding[:, -1] = True
    causal = nn.Transformer.generate_square_subsequent_mask(TOKENS, device=x.device).isinf()
    out, weights = net.attention(x, x, x, key_padding_mask=padding, attn_mask=causal)
    return torch.cat([out.flatten(1), weights.flatten(1)], 1)


def attention(**settings: object) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, 2, dropout=0.3, batch_first=True, **settings)  # type: ignore[arg-type]


def recur(net: Net, x: Tensor) -> Tensor:
    out, last = net.recurrent(x)
    states = last if isinstance(last, tuple) else (last,)
    return torch.cat([out.flatten(1), *[state.transpose(0, 1).flatten(1) for state in states]], 1)


FLAT = WIDTH * TOKENS
# Networks whose dropout is drawn, and whether vmap can run them.
DRAWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vectors": (lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.3), nn.Linear(8, 3)), (WIDTH,)),
    "attention": (lambda: Net(attend, FLAT, attention=attention()), (TOKENS, WIDTH)),
    "attention, masks, weights": (lambda: Net(masked_attend, FLAT + 9, attention=attention()), (TOKENS, WIDTH)),
    "attention with extras": (
        lambda: Net(attend, FLAT, attention=attention(add_bias_kv=True, add_zero_attn=True, kdim=WIDTH, vdim=WIDTH)),
        (TOKENS, WIDTH),
    ),
    "encoder, batch first": (
        lambda: Net(lambda net, x: net.encoder(x).flatten(1), FLAT, encoder=encoder(batch_first=True)),
        (TOKENS, WIDTH),
    ),
    "encoder, batch second": (
        lambda: Net(
            lambda net, x: net.encoder(x.transpose(0, 1)).transpose(0, 1).flatten(1), FLAT, encoder=encoder()
        ),
        (TOKENS, WIDTH),
    ),
    "decoder": (
        lambda: Net(
            lambda net, x: net.decoder(x, x).flatten(1),
            FLAT,
            decoder=nn.TransformerDecoderLayer(WIDTH, 2, 8, dropout=0.3, batch_first=True),
        ),
        (TOKENS, WIDTH),
    ),
    "batch second": (
        lambda: Net(lambda net, x: net.drop(x.transpose(0, 1)).sum(0), WIDTH, drop=nn.Dropout(0.3)), (TOKENS, WIDTH),
    ),
    "frames in the batch": (
        lambda: Net(
            lambda net, x: net.drop(x.flatten(0, 1)).unflatten(0, (-1, TOKENS)).sum(1), WIDTH, drop=nn.Dropout(0.3)
        ),
        (TOKENS, WIDTH),
    ),
    "frames around the batch": (
        lambda: Net(
            lambda net, x: net.drop(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (TOKENS, -1)).sum(0),
            WIDTH,
            drop=nn.Dropout(0.3),
        ),
        (TOKENS, WIDTH),
    ),
    "channels of frames": (
        lambda: Net(
            lambda net, x: net.drop(x.flatten(0, 1)).unflatten(0, (-1, 2)).mean((1, 3)), WIDTH, drop=nn.Dropout1d(0.3)
        ),
        (2, WIDTH, 5),
    ),
    "one dropout for all channels": (
        lambda: Net(lambda net, x: net.drop(x), WIDTH, drop=nn.Dropout1d(0.3)), (WIDTH,),
    ),
    "positions": (
        lambda: Net(lambda net, x: (x + net.drop(torch.ones(WIDTH, device=x.device))), WIDTH, drop=nn.Dropout(0.3)),
        (WIDTH,),
    ),
    "one dropout layer twice in a sequence": (
        lambda: (lambda drop: nn.Sequential(nn.Linear(WIDTH, 6), drop, nn.Linear(6, 6), drop, nn.Linear(6, 3)))(
            nn.Dropout(0.3)
        ),
        (WIDTH,),
    ),
}  # fmt: skip
RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Net(
        recur, 5 * TOKENS + 30, recurrent=nn.LSTM(WIDTH, 5, num_layers=3, dropout=0.4, batch_first=True)
    ),
    "lstm, projected": lambda: Net(
        recur, 2 * TOKENS + 14, recurrent=nn.LSTM(WIDTH, 5, num_layers=2, dropout=0.4, batch_first=True, proj_size=2)
    ),
    "gru, both ways": lambda: Net(
        recur, 10 * TOKENS + 20, recurrent=nn.GRU(WIDTH, 5, 2, dropout=0.4, batch_first=True, bidirectional=True)
    ),
    "rnn, batch second": lambda: Net(
        lambda net, x: net.recurrent(x.transpose(0, 1), torch.ones(2, len(x), 5, device=x.device))[0][-1],
        5,
        recurrent=nn.RNN(WIDTH, 5, num_layers=2, dropout=0.4, nonlinearity="relu", bias=False),
    ),
}


def same_moments(drawn: Tensor, looped: Tensor) -> None:
    """Mean and variance over the first axis, within six standard errors of their differences."""
    passes, drawn, looped = len(drawn), drawn.double(), looped.double()
    ours, theirs = drawn.var(0), looped.var(0)
    assert (theirs > 1e-9).any()
    assert ((drawn.mean(0) - looped.mean(0)).abs() < 6 * ((ours + theirs) / passes).sqrt() + 1e-6).all()
    fourth = torch.maximum(*[(one - one.mean(0)).pow(4).mean(0) for one in (drawn, looped)])
    error = ((fourth - theirs.square()).clamp_min(0) * 2 / passes).sqrt()
    assert ((ours - theirs).abs() < 6 * error + 1e-6).all()


def loop(network: nn.Module, x: Tensor, passes: int = PASSES) -> Tensor:
    network.train()
    with torch.no_grad():
        return torch.stack([network(x) for _ in range(passes)])


@pytest.mark.parametrize("name", [*DRAWN, *RECURRENT])
@pytest.mark.filterwarnings("ignore:draws are computed one by one", "ignore:LSTM with projections")
def test_draws_have_the_moments_of_a_loop_over_the_network_in_training(name: str) -> None:
    torch.manual_seed(0)
    make, shape = DRAWN[name] if name in DRAWN else (RECURRENT[name], (TOKENS, WIDTH))
    network, x = make(), torch.randn(2, *shape)
    passes = PASSES if name in DRAWN else SLOW_PASSES
    drawn = MCDropout(network).draw(passes, seed=0).outputs(x, 0, passes)
    same_moments(drawn, loop(network, x, passes))
    # In training for decisions, too, where the network is in eval mode.
    posterior = MCDropout(network)
    network.eval()
    with torch.no_grad():
        same_moments(posterior.shared_outputs(x, passes), drawn)
    assert not any(layer.training for layer in network.modules())


@pytest.mark.parametrize("name", DRAWN)
def test_a_draw_is_one_function_in_every_batch(name: str) -> None:
    torch.manual_seed(0)
    make, shape = DRAWN[name]
    x = torch.randn(7, *shape)
    draws = MCDropout(make()).draw(5, seed=0)
    together = draws.outputs(x, 0, 5)
    apart = torch.cat([draws.outputs(x[row : row + 1], 0, 5) for row in range(7)], 1)
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)
    same = draws.outputs(x[:1].expand_as(x), 0, 5)
    torch.testing.assert_close(same, same[:, :1].expand_as(same), atol=1e-5, rtol=1e-5)


def test_tokens_in_a_folded_batch_are_drawn_for() -> None:
    torch.manual_seed(0)
    network = Net(
        lambda net, x: net.drop(net.embed(x).flatten(0, 1)).unflatten(0, (-1, TOKENS)).sum(1),
        WIDTH,
        embed=nn.Embedding(9, WIDTH),
        drop=nn.Dropout(0.3),
    )
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    same_moments(MCDropout(network).draw(PASSES, 0).outputs(tokens, 0, PASSES), loop(network, tokens))
    with pytest.raises(StakesError, match="values do not tell"):
        MCDropout(network).draw(3, 0).outputs(torch.ones(2, 3, dtype=torch.int64), 0, 3)


@pytest.mark.filterwarnings("ignore:draws are computed one by one")
@pytest.mark.parametrize("name", ["vectors", "attention"])
def test_mean_field_draws_masks_together_with_weights(name: str) -> None:
    torch.manual_seed(0)
    make, shape = DRAWN[name]
    network, x = make(), torch.randn(2, *shape)
    posterior = MeanField(network, initial_sd=0.05).eval()
    drawn = posterior.draw(SLOW_PASSES, 0).outputs(x, 0, SLOW_PASSES)
    same_moments(drawn, posterior.outputs(x, SLOW_PASSES).detach())
    same_moments(drawn, posterior.train().outputs(x, SLOW_PASSES).detach())


class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        kept = torch.rand(len(x), 1, device=x.device) < 0.9 if self.training else torch.ones(len(x), 1, device=x.device)
        return x * kept


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) if self.training else x


class PythonLayerDrop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if self.training and random.random() < 0.5 else 2 * x


class NumpyLayerDrop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if self.training and np.random.rand() < 0.5 else 2 * x  # noqa: NPY002


class AlwaysOn(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, True)


HIDDEN: dict[str, Callable[[], nn.Module]] = {
    "F.dropout": lambda: Net(lambda net, x: F.dropout(x, 0.3, net.training), WIDTH),
    "F.dropout in eval mode": lambda: Net(lambda net, x: F.dropout(x, 0.3), WIDTH),
    "stochastic depth": lambda: Net(lambda net, x: net.path(x), WIDTH, path=DropPath()),
    "attention": lambda: Net(
        lambda net, x: F.scaled_dot_product_attention(
            x[:, None], x[:, None], x[:, None], dropout_p=0.3 if net.training else 0.0
        )[:, 0],
        WIDTH,
    ),
    "rrelu": lambda: nn.Sequential(nn.Linear(WIDTH, 6), nn.RReLU(), nn.Linear(6, 3)),
    "noise": lambda: nn.Sequential(nn.Linear(WIDTH, 6), Noise(), nn.Linear(6, 3)),
    "Python's random": lambda: nn.Sequential(PythonLayerDrop(), nn.Linear(WIDTH, 3)),
    "NumPy's random": lambda: nn.Sequential(NumpyLayerDrop(), nn.Linear(WIDTH, 3)),
    "derived from nn.Dropout": lambda: nn.Sequential(AlwaysOn(0.3), nn.Linear(WIDTH, 3)),
}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("family", [lambda net: MCDropout(nn.Sequential(net, nn.Dropout(0.5))), MeanField])
def test_other_randomness_is_refused(name: str, family: Callable[[nn.Module], MCDropout | MeanField]) -> None:
    draws = family(HIDDEN[name]()).draw(4, seed=0)
    for _ in range(2):
        random.seed(0), np.random.seed(0)  # noqa: NPY002 (passes that happen to agree, once in 128 times, are missed)
        with pytest.raises(StakesError, match=r"also has .*Put nn.Dropout modules"):
            draws(torch.randn(2, WIDTH)).mean_probs()


def test_attention_without_dropout_and_layers_at_rate_zero_are_not_random() -> None:
    torch.manual_seed(0)

    def run(net: Net, x: Tensor) -> Tensor:
        h = F.scaled_dot_product_attention(x, x, x).flatten(1)
        return F.dropout(net.drop(net.off(h)), 0.0, net.training) * bool(h.sum() < 1e9)  # it needs values

    network = Net(run, FLAT, drop=nn.Dropout(0.5), off=nn.Dropout(0.0))
    probs = MCDropout(network).draw(4, 0)(torch.randn(2, TOKENS, WIDTH)).log_probs()
    assert len(probs.unique(dim=0)) == 4


def test_an_ensemble_says_that_its_draws_are_without_dropout() -> None:
    quiet = lambda: nn.Sequential(nn.Linear(WIDTH, 6), nn.Dropout(0.0), nn.Linear(6, 3))  # noqa: E731
    Ensemble.of(quiet, 2, seed=0)
    with pytest.warns(StakesWarning, match="'Dropout'.*without that"):
        Ensemble.of(DRAWN["vectors"][0], 2, seed=0)
    with pytest.warns(StakesWarning, match="'MultiheadAttention'"):
        Ensemble.of(DRAWN["attention"][0], 2, seed=0)
    draws = Ensemble([HIDDEN["rrelu"](), HIDDEN["rrelu"]()]).draw(2, 0)
    with pytest.warns(StakesWarning, match="rrelu"):
        draws(torch.randn(2, WIDTH)).mean_probs()
    draws(torch.randn(2, WIDTH)).mean_probs()
    with pytest.raises(StakesError, match="also has"):
        Ensemble([HIDDEN["F.dropout in eval mode"]() for _ in range(2)]).draw(2, 0)(torch.randn(2, WIDTH)).mean_probs()


def test_draws_of_an_ensemble_are_members_in_eval_mode() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, TOKENS, WIDTH)
    with pytest.warns(StakesWarning, match="without that"):
        posterior = Ensemble.of(DRAWN["encoder, batch first"][0], 3, seed=0)
    expected = torch.stack([member.eval()(x) for member in posterior.members]).detach()
    torch.testing.assert_close(posterior.draw(3, 0).outputs(x, 0, 3), expected, atol=1e-5, rtol=1e-5)


UNCLEAR: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "pairs of inputs": lambda net, x: net.drop(x @ x.T) @ x,
    "one row more": lambda net, x: net.drop(torch.cat([x, x[:1]]))[:-1],
    "inputs mixed": lambda net, x: net.drop(x.mean(0) + x.repeat(2, 1)).unflatten(0, (2, -1)).sum(0),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_batch_axis_that_cannot_be_told_is_refused(name: str) -> None:
    draws = MCDropout(Net(UNCLEAR[name], WIDTH, drop=nn.Dropout(0.5))).draw(3, 0)
    with pytest.raises(StakesError, match=r"which axis.*'drop' is the batch.*axis of its own"):
        draws(torch.randn(4, WIDTH)).mean_probs()


def test_a_network_that_treats_a_batch_of_one_otherwise_is_refused() -> None:
    network = Net(lambda net, x: net.drop(x.squeeze(0)).reshape(-1, WIDTH), WIDTH, drop=nn.Dropout(0.5))
    draws = MCDropout(network).draw(3, 0)
    assert draws(torch.randn(4, WIDTH)).mean_probs().shape == (4, 3)
    with pytest.raises(StakesError, match="number of its inputs"):
        draws(torch.randn(1, WIDTH)).mean_probs()


def test_packed_sequences_are_refused() -> None:
    def run(net: Net, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, [TOKENS] * len(x), batch_first=True)
        return net.recurrent(packed)[1][-1]

    network = Net(run, 5, recurrent=nn.GRU(WIDTH, 5, 2, dropout=0.4, batch_first=True))
    with pytest.raises(StakesError, match="padded"):
        MCDropout(network).draw(3, 0)(torch.randn(2, TOKENS, WIDTH)).mean_probs()


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_without_dropout_between_them_recurrent_layers_are_as_they_were() -> None:
    """The layers run one by one are the layers run at once."""
    for make in RECURRENT.values():
        network, x = make(), torch.randn(4, TOKENS, WIDTH)
        with torch.no_grad(), active(_Recorder()):
            torch.testing.assert_close(frozen(network)(x), network.eval()(x))
