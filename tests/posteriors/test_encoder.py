"""Fused encoder layers are the layers that they stand for, with the same masks."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stakes import MCDropout
from stakes.posteriors._sampling import encoder

WIDTH, TOKENS, ROWS, DRAWS = 8, 5, 6, 10
CAUSAL = nn.Transformer.generate_square_subsequent_mask(TOKENS)
BY_HEAD = torch.arange(2.0 * ROWS)[:, None, None] * CAUSAL.exp()
PADDING = torch.arange(TOKENS) >= torch.tensor([[5], [4], [3], [5], [2], [1]])  # (B, T)


class Network(nn.Module):
    """Two encoder layers, with dropout before them or not; ``masks`` are the arguments of the encoder for B inputs."""

    def __init__(
        self, masks: Callable[[int], dict[str, Tensor]] | None = None, before: float = 0.2, **settings: object
    ) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(**{**SETTINGS, **settings})  # type: ignore[arg-type]
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.dropout, self.head = nn.Dropout(before), nn.Linear(WIDTH, 3)
        self.masks, self.batch_first = masks, layer.self_attn.batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(x)
        x = x if self.batch_first else x.transpose(0, 1)
        out = self.encoder(x, **(self.masks(len(x)) if self.masks else {}))
        logits: Tensor = self.head(out.mean(1 if self.batch_first else 0))
        return logits


SETTINGS = {"d_model": WIDTH, "nhead": 2, "dim_feedforward": 16, "dropout": 0.3, "batch_first": True}
NETWORKS: dict[str, Callable[[], Network]] = {
    "plain": Network,
    "nothing dropped before": lambda: Network(before=0.0),
    "norm first": lambda: Network(norm_first=True),
    "norm first, nothing dropped before": lambda: Network(norm_first=True, before=0.0),
    "batch second": lambda: Network(batch_first=False),
    "gelu": lambda: Network(activation="gelu"),
    "another activation": lambda: Network(activation=nn.functional.silu),
    "no bias": lambda: Network(bias=False),
    "no dropout inside": lambda: Network(dropout=0.0),
    "causal": lambda: Network(lambda rows: {"mask": CAUSAL}),
    "causal, as truth values": lambda: Network(lambda rows: {"mask": CAUSAL.isinf()}),
    "a mask for each head": lambda: Network(
        lambda rows: {"mask": torch.arange(2.0 * rows)[:, None, None] * CAUSAL.exp()}
    ),
    "padding": lambda: Network(lambda rows: {"src_key_padding_mask": PADDING[:rows]}),
    "both": lambda: Network(lambda rows: {"mask": CAUSAL.isinf(), "src_key_padding_mask": PADDING[:rows]}),
}


@pytest.fixture
def without_fusion(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(encoder, "_fuse", lambda network: [])


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of draws of each call of a fused layer."""
    calls, run = [], encoder.FusedEncoderLayer._run

    def count(self: encoder.FusedEncoderLayer, bias: Tensor | None, x: Tensor, *kept: Tensor | None) -> Tensor:
        out = run(self, bias, x, *kept)
        calls.append(len(out))
        return out

    monkeypatch.setattr(encoder.FusedEncoderLayer, "_run", count)
    return calls


def posterior_of(name: str) -> MCDropout:
    torch.manual_seed(0)
    return MCDropout(NETWORKS[name]())


@pytest.mark.parametrize("block", [1, 2**30], ids=["draw by draw", "all at once"])
@pytest.mark.parametrize("name", NETWORKS)
def test_draws_are_those_of_the_plain_layers(
    name: str,
    block: int,
    monkeypatch: pytest.MonkeyPatch,
    fused_calls: list[int],
    without_fusion: Callable[[], None],
) -> None:
    monkeypatch.setattr(encoder, "BLOCK_BYTES", block)
    posterior, x = posterior_of(name), torch.randn(ROWS, TOKENS, WIDTH)
    fused = posterior.draw(DRAWS, seed=1).outputs(x, 0, DRAWS)
    assert len(fused_calls) == 2  # layers
    without_fusion()
    plain = posterior.draw(DRAWS, seed=1).outputs(x, 0, DRAWS)
    assert len(fused_calls) == 2
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    assert fused.std(0).min() > 1e-3  # the draws differ


@pytest.mark.parametrize("name", NETWORKS)
def test_decisions_in_training_are_those_of_the_plain_layers(
    name: str, fused_calls: list[int], without_fusion: Callable[[], None]
) -> None:
    posterior, x = posterior_of(name).train(), torch.randn(ROWS, TOKENS, WIDTH)
    torch.manual_seed(2)
    fused = posterior.mixture(x, DRAWS).weights
    assert len(fused_calls) == 2
    assert not any("forward" in vars(layer) for layer in posterior.modules())  # it is put back
    without_fusion()
    torch.manual_seed(2)
    torch.testing.assert_close(fused, posterior.mixture(x, DRAWS).weights, rtol=1e-5, atol=1e-5)


def test_one_draw_alone_is_that_of_the_plain_layers(without_fusion: Callable[[], None]) -> None:
    posterior, x = posterior_of("both"), torch.randn(ROWS, TOKENS, WIDTH)
    fused = posterior.draw(DRAWS, seed=1).outputs(x, 3, 4)
    without_fusion()
    torch.testing.assert_close(fused, posterior.draw(DRAWS, seed=1).outputs(x, 3, 4), rtol=1e-5, atol=1e-5)


def test_what_draws_share_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, weights = [], encoder.FusedEncoderLayer._weights

    def count(self: encoder.FusedEncoderLayer, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        shared.append(len(x))
        return weights(self, x, bias)

    monkeypatch.setattr(encoder.FusedEncoderLayer, "_weights", count)
    monkeypatch.setattr(encoder, "BLOCK_BYTES", 1)
    x = torch.randn(ROWS, TOKENS, WIDTH)
    posterior_of("nothing dropped before").draw(3, seed=0).outputs(x, 0, 3)
    assert shared == [1, 1, 1, 1]  # once in the first layer, for each draw in the second


def test_gradients_flow_where_they_are_wanted() -> None:
    posterior, x = posterior_of("plain"), torch.randn(ROWS, TOKENS, WIDTH)
    posterior.shared_outputs(x, samples=3).sum().backward()
    assert all(parameter.grad is not None for parameter in posterior.parameters())


def test_with_mixed_precision_the_layers_own_forward_runs(
    monkeypatch: pytest.MonkeyPatch, fused_calls: list[int]
) -> None:
    own = []

    def forward(layer: nn.Module, src: Tensor, *args: object, **kwargs: object) -> Tensor:
        own.append(layer)
        return src

    posterior = MCDropout(nn.Sequential(nn.TransformerEncoderLayer(**SETTINGS), nn.Identity()))  # type: ignore[arg-type]
    draws, x = posterior.draw(DRAWS, seed=0), torch.randn(ROWS, TOKENS, WIDTH)
    draws.outputs(x, 0, DRAWS)
    assert len(fused_calls) == 1
    monkeypatch.setattr(nn.TransformerEncoderLayer, "forward", forward)
    with torch.autocast("cpu", torch.bfloat16):  # in which some processors cannot multiply
        draws.outputs(x, 0, DRAWS)
    assert len(own) == 1 == len(fused_calls)


class Doubled(nn.TransformerEncoderLayer):
    def _ff_block(self, x: Tensor) -> Tensor:
        return 2 * super()._ff_block(x)


def with_another_dropout(layer: nn.TransformerEncoderLayer) -> nn.TransformerEncoderLayer:
    layer.dropout1 = nn.AlphaDropout(0.2)
    return layer


def with_a_hook(layer: nn.TransformerEncoderLayer) -> nn.TransformerEncoderLayer:
    layer.linear1.register_forward_hook(lambda module, args, out: 2 * out)
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        Doubled(**SETTINGS),  # type: ignore[arg-type]
        with_another_dropout(nn.TransformerEncoderLayer(**SETTINGS)),  # type: ignore[arg-type]
        with_a_hook(nn.TransformerEncoderLayer(**SETTINGS)),  # type: ignore[arg-type]
    ],
    ids=["a subclass", "another dropout", "a hook"],
)
def test_layers_that_are_not_plain_run_as_they_are(layer: nn.Module, fused_calls: list[int]) -> None:
    posterior = MCDropout(nn.Sequential(layer, nn.Flatten(), nn.Linear(TOKENS * WIDTH, 3)))
    out = posterior.draw(DRAWS, seed=0).outputs(torch.randn(ROWS, TOKENS, WIDTH), 0, DRAWS)
    assert not fused_calls
    assert out.std(0).min() > 0
