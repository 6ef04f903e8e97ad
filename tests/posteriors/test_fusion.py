"""Fused networks are the same functions, and their draws the same draws."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from stakes import MLP, Categorical, MCDropout
from stakes.networks.segnet import SegNet
from stakes.posteriors._sampling.fusion import FusedNetwork
from stakes.posteriors._sampling.layers import frozen
from stakes.posteriors._sampling.masks import ActiveMasks, MaskedLinear, active
from stakes.posteriors.dropout import DropoutDraws


def with_statistics(network: nn.Module) -> nn.Module:
    """Batch norms as after training: no mean of 0 and variance of 1."""
    generator = torch.Generator().manual_seed(0)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor in (layer.running_mean, layer.running_var, layer.weight, layer.bias):
                if tensor is not None:
                    tensor.data.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return network.eval()


NETWORKS = {
    "linear and norm": (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)), (5, 4)),
    "convolution and norm": (nn.Sequential(nn.Conv2d(2, 6, 3, bias=False), nn.BatchNorm2d(6)), (2, 2, 7, 9)),
    "1 x 1": (nn.Sequential(nn.Conv2d(2, 6, 3, 2, 1), nn.Conv2d(6, 4, 1)), (2, 2, 7, 9)),
    "1 x 1 without biases": (
        nn.Sequential(nn.Conv2d(2, 6, 3, bias=False), nn.Conv2d(6, 4, 1, bias=False)), (2, 2, 7, 9),
    ),
    "upsampling": (nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(3, 4, 3, padding=1)), (2, 3, 5, 7)),
    "upsampling, no bias": (
        nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(3, 4, 3, padding=1, bias=False)), (1, 3, 1, 2),
    ),
    "norm, ReLU, convolution, ReLU": (
        nn.Sequential(nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 4, 3), nn.ReLU()), (2, 2, 7, 9),
    ),
    "transposed convolution, ReLU": (nn.Sequential(nn.ConvTranspose2d(2, 4, 3), nn.ReLU()), (2, 2, 7, 9)),
    "segnet": (SegNet(5, width=1 / 16), (2, 3, 16, 24)),
}  # fmt: skip
LEFT_ALONE = {
    "3 x 3 after 3 x 3": (nn.Sequential(nn.Conv2d(2, 6, 3), nn.Conv2d(6, 4, 3)), (2, 2, 7, 9)),
    "smooth upsampling": (
        nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(3, 4, 3, padding=1)), (2, 3, 5, 7),
    ),
    "upsampling by 3": (nn.Sequential(nn.Upsample(scale_factor=3), nn.Conv2d(3, 4, 3, padding=1)), (2, 3, 5, 7)),
    "strided": (nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(3, 4, 3, 2, 1)), (2, 3, 5, 7)),
    "grouped": (nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Conv2d(6, 4, 1)), (2, 4, 7, 9)),
    "norm before": (nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), (5, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*NETWORKS, *LEFT_ALONE])
def test_a_fused_network_is_the_same_function(name: str) -> None:
    network, shape = copy.deepcopy({**NETWORKS, **LEFT_ALONE}[name])
    network, x = with_statistics(network), torch.randn(shape)
    with torch.no_grad():
        expected = network(x)
        fused = FusedNetwork(network)
        outputs = fused(x)
    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-5)
    assert bool(fused.fused) == (name in NETWORKS)


class Residual(nn.Module):
    """Uses what enters, and what leaves, a sequence more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.part(x)
        x = x + self.part(self.dropout(out)) - 2 * out
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def test_relu_in_place_changes_nothing_that_is_used_elsewhere() -> None:
    torch.manual_seed(0)
    network, x = with_statistics(Residual()), torch.randn(5, 3, 6, 6)
    draws, before = MCDropout(network).draw(4, seed=1), x.clone()
    assert draws._network.fused, "the ReLUs are fused"
    drawn, plan = draws.outputs(x, 0, 4), draws._plan(x)
    for draw in range(4):
        masks = {key: value[0] for key, value in plan.masks(draw, draw + 1).items()}
        with torch.no_grad(), active(ActiveMasks(masks, plan.layouts, len(x))):
            torch.testing.assert_close(drawn[draw], frozen(network)(x), atol=1e-5, rtol=1e-5)
    assert torch.equal(x, before)


def is_fused(draws: DropoutDraws) -> bool:
    layers = draws._network.layers
    assert layers is not None
    return isinstance(layers[-1], MaskedLinear)


@pytest.mark.parametrize("layer", [nn.Dropout(0.3), nn.AlphaDropout(0.3), nn.Dropout1d(0.3)])
@pytest.mark.parametrize("before", [[], [nn.Linear(4, 6), nn.ReLU()], [nn.Dropout(0.5), nn.Linear(4, 6)]])
@pytest.mark.parametrize("bias", [True, False])
def test_draws_of_a_linear_layer_are_those_of_its_parts(layer: nn.Module, before: list[nn.Module], bias: bool) -> None:
    """Exactly, with the same masks: once joined to the dropout before it, once not."""
    torch.manual_seed(0)
    width = 6 if before else 4
    joined = nn.Sequential(*before, layer, nn.Linear(width, 3, bias=bias))
    apart = nn.Sequential(*before, layer, nn.Identity(), joined[-1])
    x = torch.randn(7, 4)
    draws = DropoutDraws(joined, Categorical(), 9, seed=3)
    assert is_fused(draws)
    names = [name for name, part in joined.named_modules() if part is layer]
    assert names == [name for name, part in apart.named_modules() if part is layer], "masks go by name"
    expected = DropoutDraws(apart, Categorical(), 9, seed=3)
    assert not is_fused(expected)
    torch.testing.assert_close(draws(x).log_probs(), expected(x).log_probs(), atol=1e-5, rtol=1e-5)


def test_a_linear_layer_on_sequences_has_masks_by_position() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3), nn.Flatten(), nn.Linear(15, 3))
    x = torch.ones(2, 5, 4)
    drawn = MCDropout(network).draw(4, seed=0)(x).log_probs()
    torch.testing.assert_close(drawn[:, 0], drawn[:, 1])
    assert len(drawn[:, 0].unique(dim=0)) == 4


@pytest.mark.parametrize("memory", [1, 2**28])
def test_draws_of_a_segmenter_are_those_of_the_plain_network_with_the_same_masks(memory: int) -> None:
    """Batch norm folded, upsampling fused, channels last: against a pass of the network as it was."""
    network, x = with_statistics(SegNet(5, width=1 / 16)), torch.randn(3, 3, 16, 24)
    draws = MCDropout(network).draw(4, seed=1)
    drawn, plan = draws(x, memory=memory).log_probs(), draws._plan(x)
    for draw in range(4):
        masks = {key: value[0] for key, value in plan.masks(draw, draw + 1).items()}
        with torch.no_grad(), active(ActiveMasks(masks, plan.layouts, len(x))):
            expected = frozen(network)(x).movedim(1, -1).log_softmax(-1)
        torch.testing.assert_close(drawn[draw], expected, atol=1e-5, rtol=1e-5)


class _AsItIs(nn.Module):
    """In place of `FusedNetwork`: the general mechanism, without any faster path."""

    layers = None

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.channels_last = network.requires_grad_(False), False

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def with_layout_fallback(self, run: Callable[[], Tensor]) -> Tensor:
        return run()


class _Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class _Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = x + layer(x)
        return x


class _Looking(nn.Module):
    """Takes the layers of its sequence one by one, as VGG-like networks do that want features from the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        middle = self.layers[:2](x.to(self.layers[0].weight.dtype))
        for index, layer in enumerate(self.layers):
            x = layer(x) + (middle if index == 2 else 0)
        return x


class _Viewing(nn.Module):
    """Counts on PyTorch's usual order in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Dropout(0.5))
        self.end = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.start(x).view(-1, 12))


class _InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return self.drop(x)


class _Keeping(nn.Module):
    """Makes a tensor at its first pass, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.scale = nn.Dropout(0.5), None

    def forward(self, x: Tensor) -> Tensor:
        self.scale = torch.arange(4.0, device=x.device) if self.scale is None else self.scale
        return self.drop(x) * self.scale


def _hooked() -> nn.Module:
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    for index in (0, 3):
        network[index].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return network


def _repeated() -> nn.Module:
    linear = nn.Linear(4, 4)
    block = nn.Sequential(linear, nn.BatchNorm1d(4), nn.Dropout(0.5))
    return nn.Sequential(block, linear, nn.Tanh(), block, linear)


SURPRISING: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "subclass of a layer": lambda: (nn.Sequential(_Twice(4, 4), nn.BatchNorm1d(4), nn.Dropout(), _Twice(4, 3)), (6, 4)),
    "subclass of a sequence": lambda: (_Residual(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4)), (6, 4)),
    "looking into a sequence": lambda: (_Looking(), (6, 4)),
    "hooks": lambda: (_hooked(), (6, 4)),
    "weight norm": lambda: (
        nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3)),
        (6, 4),
    ),
    "one layer in several places": lambda: (_repeated(), (6, 4)),
    "norm over another axis": lambda: (
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Flatten(), nn.Linear(16, 3)), (6, 4, 4),
    ),
    "norm without weights": lambda: (
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Dropout(), nn.Linear(4, 3)), (6, 4),
    ),
    "view": lambda: (_Viewing(), (6, 1, 4, 4)),
    "work in place": lambda: (nn.Sequential(nn.Linear(4, 4), _InPlace(), nn.Linear(4, 3)), (6, 4)),
    "kept tensors": lambda: (nn.Sequential(nn.Linear(4, 4), _Keeping()), (6, 4)),
    "everything dropped": lambda: (nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0), nn.Linear(4, 3)), (6, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", SURPRISING)
@pytest.mark.parametrize("memory", [1, 2**26])
def test_networks_that_are_not_what_they_seem_are_left_as_they_are(
    name: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network, shape = SURPRISING[name]()
    network, x = with_statistics(network), torch.randn(shape)
    drawn = DropoutDraws(network, Categorical(), 5, seed=0)(x, memory=memory).log_probs()
    monkeypatch.setattr("stakes.posteriors.dropout.FusedNetwork", _AsItIs)
    expected = DropoutDraws(network, Categorical(), 5, seed=0)(x).log_probs()
    torch.testing.assert_close(drawn, expected, atol=1e-5, rtol=1e-5)
    assert (len(drawn.unique(dim=0)) == 1) == (name == "everything dropped")


def test_a_second_layer_that_opens_up_what_the_first_narrowed_is_not_joined() -> None:
    assert not FusedNetwork(nn.Sequential(nn.Conv2d(64, 4, 3), nn.Conv2d(4, 256, 1)).eval()).fused


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: MLP(4, 3, (16,), 0.3), (5, 4)),
        (lambda: MLP(4, 3, (16, 16), 0.3), (5, 4)),
        (lambda: SegNet(3, width=1 / 16), (1, 3, 8, 16)),
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)), (5, 4)),
    ],
    ids=["thinned", "two layers", "segnet", "norm"],
)
def test_draws_have_the_mean_and_variance_of_the_usual_loop(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    """Against passes of the network as it is, dropout on and batch norm off, within Monte-Carlo error."""
    torch.manual_seed(1)
    passes, network, x = 3000, with_statistics(make()), torch.randn(shape)
    drawn = torch.cat([block.weights.double() for block in MCDropout(network).draw(passes, seed=0)(x).blocks()], 1)
    for layer in network.modules():
        layer.training = isinstance(layer, nn.Dropout)
    with torch.no_grad():
        looped = torch.stack([network(x).softmax(1).movedim(1, -1) for _ in range(passes)]).double()
    ours, theirs = drawn.var(0), looped.var(0)
    assert (theirs > 1e-6).any()
    assert ((drawn.mean(0) - looped.mean(0)).abs() < 6 * ((ours + theirs) / passes).sqrt() + 1e-6).all()
    fourth = (looped - looped.mean(0)).pow(4).mean(0)
    error = (
        (fourth - theirs.square()).clamp_min(0) * 2 / passes
    ).sqrt()  # of the difference between two sample variances
    assert ((ours - theirs).abs() < 6 * error + 1e-6).all()


class _OneByOne(nn.Module):
    """What vmap cannot run: control flow on values."""

    def forward(self, x: Tensor) -> Tensor:
        return x if bool(x.sum() > -torch.inf) else -x


@pytest.mark.filterwarnings("ignore:draws are computed one by one")
@pytest.mark.parametrize("alone", [False, True], ids=["vmap", "one by one"])
@pytest.mark.parametrize("kind", ["dropout", "attention", "recurrent"])
def test_what_precedes_randomness_is_used_again_and_nothing_else(kind: str, alone: bool) -> None:
    """In blocks of one draw each, against all draws at once; counted in the first layer."""
    torch.manual_seed(0)
    random: dict[str, nn.Module] = {
        "dropout": nn.Dropout(0.5),
        "attention": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True),
        "recurrent": _First(nn.GRU(4, 4, num_layers=2, dropout=0.5, batch_first=True)),
    }
    calls: list[int] = []
    network = nn.Sequential(_Counted(calls), random[kind], _OneByOne() if alone else nn.Identity(), nn.Flatten())
    x = torch.randn(3, 5, 4)
    draws = MCDropout(nn.Sequential(network, nn.Linear(20, 3))).draw(6, seed=0)
    together = draws(x).probs()
    assert len(together.unique(dim=0)) == 6
    calls.clear()
    torch.testing.assert_close(draws(x, memory=1).probs(), together)
    once = kind != "recurrent" and not alone  # only under vmap can it be seen that nothing depends on the draw
    assert sum(calls) == (3 if once else 18), "once for each block of inputs, or for each draw of it"
    torch.testing.assert_close(torch.cat([draws.outcomes(x, s, s + 1).weights for s in range(6)]), together)


class _First(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class _Counted(nn.Module):
    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(1)
        return x.sin()

    def __deepcopy__(self, memo: dict) -> "_Counted":
        return _Counted(self.calls)


class _Hyper(nn.Module):
    """The weights of its sequence depend on the draw, though the input does not."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(3, 6))
        self.recurrent = nn.GRU(6, 6, 2, dropout=0.4, batch_first=True)
        self.body = nn.Sequential(nn.Linear(6, 3), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        weight = self.recurrent(self.start.unsqueeze(0))[0][0] * 4
        return torch.func.functional_call(self.body, {"0.weight": weight}, (x,))


@pytest.mark.filterwarnings("ignore:draws are computed one by one")
def test_a_sequence_that_depends_on_the_draw_by_its_weights_is_run_for_each() -> None:
    torch.manual_seed(0)
    probs = MCDropout(_Hyper()).draw(20, seed=0)(torch.randn(4, 6)).probs()
    assert len(probs.unique(dim=0)) == 20
