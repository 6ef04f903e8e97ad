import copy
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stakes import Categorical, MCDropout, StakesError, StakesWarning
from stakes.posteriors.dropout import DropoutDraws


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Dropout(0.3), nn.Linear(3, 3))


def enumerated_mean(network: nn.Sequential, x: Tensor, p: float) -> Tensor:
    """E over all 2^3 masks of the softmax, exactly."""
    before, after = network[:2], network[3]
    total = torch.zeros(len(x), 3)
    for mask in itertools.product((0.0, 1.0), repeat=3):
        weight = np.prod([1 - p if bit else p for bit in mask])
        total += weight * after(before(x) * torch.tensor(mask) / (1 - p)).softmax(-1)
    return total.detach()


@pytest.mark.parametrize("how", ["frozen draws", "fresh samples"])
def test_the_mean_predictive_is_that_over_all_masks(how: str) -> None:
    network, x = small(), torch.randn(5, 2)
    posterior = MCDropout(network)
    torch.manual_seed(1)
    if how == "frozen draws":
        probs = posterior.draw(4000, seed=1)(x).log_probs().exp()
    else:
        probs = posterior.log_probs(x, 4000).detach().exp()
    error = probs.std(0) / 4000**0.5
    assert ((probs.mean(0) - enumerated_mean(network, x, 0.3)).abs() < 4.5 * error).all()
    assert (error > 0).all()


def test_the_mean_of_masks_shared_by_all_examples_is_right_and_leaves_no_trace() -> None:
    network, x = small(), torch.randn(5, 2)
    posterior = MCDropout(network).train()
    torch.manual_seed(1)
    means = torch.stack([posterior.mixture(x, 50).weights for _ in range(80)])
    error = means.std(0) / 80**0.5
    assert ((means.mean(0) - enumerated_mean(network, x, 0.3)).abs() < 4.5 * error).all()
    twins = torch.stack([x[0], x[0]])
    first, second = posterior.mixture(twins, 3).weights
    torch.testing.assert_close(first, second)
    assert all("forward" not in vars(layer) for layer in network.modules())
    assert posterior.training
    assert network.training


def test_every_draw_is_one_thinned_network_shared_by_all_inputs() -> None:
    network, x = small(), torch.randn(50, 2)
    before, after = network[:2], network[3]
    thinned = [
        after(before(x) * torch.tensor(mask) / 0.7).log_softmax(-1).detach()
        for mask in itertools.product((0.0, 1.0), repeat=3)
    ]
    for draw in MCDropout(network).draw(12, seed=0)(x).log_probs():
        assert sum(torch.allclose(draw, one, atol=1e-6) for one in thinned) == 1


def test_fresh_samples_differ_between_examples() -> None:
    same = torch.ones(64, 2)
    probs = MCDropout(small()).log_probs(same, 2).exp()
    assert len(probs[0].unique(dim=0)) > 2


class Probe(nn.Module):
    """A dropout layer on a constant input: its output is the mask itself."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


LAYERS = [
    (nn.Dropout(0.4), (8, 6)),
    (nn.Dropout(0.4), (8, 6, 5)),
    (nn.Dropout1d(0.4), (8, 6, 5)),
    (nn.Dropout2d(0.4), (8, 6, 5, 5)),
    (nn.Dropout3d(0.4), (8, 6, 5, 5, 5)),
    (nn.AlphaDropout(0.4), (8, 6)),
    (nn.FeatureAlphaDropout(0.4), (8, 6, 5, 5)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "")
def test_frozen_masks_have_the_moments_of_the_layer_itself(layer: nn.Module, shape: tuple[int, ...]) -> None:
    network = Probe(layer)
    x = torch.full((1, *shape[1:]), 0.7)
    draws = DropoutDraws(network, Categorical(), 4000, seed=0)
    ours = draws.outputs(x, 0, 4000)[:, 0]  # (S, ...)
    layer.train()
    torch.manual_seed(0)
    theirs = torch.stack([layer(x)[0] for _ in range(4000)])
    torch.testing.assert_close(ours.unique(), theirs.unique(), atol=1e-5, rtol=1e-5)
    assert float(ours.mean()) == pytest.approx(float(theirs.mean()), abs=0.05)
    assert float(ours.var(0).mean()) == pytest.approx(float(theirs.var(0).mean()), rel=0.1)
    if isinstance(layer, nn.Dropout2d):  # whole channels are dropped
        assert (ours.flatten(2).std(-1) == 0).all()


class Skip(nn.Module):
    """One dropout layer used twice, a skip connection around it, batch norm, a segmentation's output."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Conv2d(6, 4, 1),
        )
        self.norm, self.dropout, self.in_place = nn.BatchNorm2d(6), nn.Dropout2d(0.5), in_place

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        branch = self.dropout(self.norm(self.second(self.dropout(h))))
        if self.in_place:
            h += branch  # vmap cannot do this: a draw by draw loop has to
        else:
            h = h + branch
        return self.last(h)


def test_the_loop_for_networks_that_vmap_cannot_run_gives_the_same_answer() -> None:
    x = torch.randn(2, 3, 8, 8)
    smooth = MCDropout(Skip()).draw(5, seed=3)(x).log_probs()
    draws = MCDropout(Skip(in_place=True)).draw(5, seed=3)
    with pytest.warns(StakesWarning, match="one by one") as caught:
        rough = draws(x).log_probs()
    assert len(caught) == 1
    draws(x, memory=1).mean_probs()  # it is said once
    assert smooth.shape == (5, 2, 8, 8, 4)
    torch.testing.assert_close(smooth, rough)


def test_a_layer_used_twice_has_two_masks() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.out = nn.Dropout(0.5), nn.Linear(40, 40)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.dropout(x), self.dropout(x)], 1)

    first, second = DropoutDraws(Twice(), Categorical(), 1, seed=0).outputs(torch.ones(1, 40), 0, 1)[0, 0]
    assert not torch.equal(first, second)


def test_what_precedes_the_first_random_layer_runs_once() -> None:
    calls = []

    class Counting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(x.shape)
            return super().forward(x)

    network = nn.Sequential(Counting(2, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    draws = MCDropout(network).draw(100, seed=0)
    x = torch.randn(30, 2)
    draws(x).mean_probs()
    calls.clear()
    draws(x).mean_probs()
    assert calls == [torch.Size([30, 2])]


def test_inputs_of_other_sizes_get_masks_of_their_own() -> None:
    draws = MCDropout(Skip()).draw(3, seed=0)
    for size in (8, 12, 8):
        assert draws(torch.randn(1, 3, size, size)).log_probs().shape == (3, 1, size, size, 4)


@pytest.mark.parametrize("network", [nn.Linear(2, 3), nn.Sequential(nn.Dropout(0.0), nn.Linear(2, 3))])
def test_a_network_without_dropout_is_told_what_to_do(network: nn.Module) -> None:
    with pytest.raises(StakesError, match=r"nn.Dropout\(p\).*Ensemble"):
        MCDropout(network)


def test_dropout_that_is_never_called_is_found_out() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.out = nn.Dropout(0.5), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x)

    with pytest.raises(StakesError, match="would all be equal"):
        MCDropout(Unused()).draw(3, 0)(torch.randn(1, 2)).mean_probs()


def test_the_prior_is_the_papers_weight_decay() -> None:
    """l^2 (1 - p) / (2 N tau) ||W||^2 for each weight matrix, N left to fit, tau = 1."""
    network = small()
    squares = sum(float(layer.weight.detach().square().sum()) for layer in (network[0], network[3]))
    assert MCDropout(network, lengthscale=0.5).kl().item() == pytest.approx(0.5**2 * 0.7 / 2 * squares, rel=1e-6)


def test_randomness_that_cannot_be_frozen_is_refused() -> None:
    class Always(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5)

    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.out = nn.Dropout(0.5), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(nn.functional.dropout(self.dropout(x), 0.5))  # on in eval mode too

    for network in (Functional(), nn.Sequential(Always(), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 3))):
        draws, x = MCDropout(network).draw(20, 0), torch.randn(2, 8)
        for _ in range(2):
            with pytest.raises(StakesError, match="also has"):
                draws(x).mean_probs()


def test_the_prior_follows_parameters_that_are_replaced() -> None:
    network = small()
    posterior = MCDropout(network)
    network.load_state_dict({key: torch.zeros_like(value) for key, value in network.state_dict().items()}, assign=True)
    assert posterior.kl().item() == 0


@pytest.mark.parametrize("error", [RuntimeError("a bug of the network"), torch.OutOfMemoryError("out of memory")])
def test_errors_of_a_network_are_no_reason_to_run_it_draw_by_draw(error: RuntimeError) -> None:
    class Broken(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 7:  # and not in a probe
                Broken.calls += 1
                raise error
            return self.dropout(x)

    with pytest.raises(RuntimeError, match=str(error)):
        MCDropout(Broken()).draw(5, 0)(torch.randn(7, 4)).mean_probs()
    assert Broken.calls == 1


def test_five_samples_in_training_update_batch_norm_as_five_passes_do() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 6), nn.BatchNorm1d(6))
    x, looped = torch.randn(8, 4), copy.deepcopy(network).train()
    torch.manual_seed(1)
    sampled = MCDropout(network).train().outputs(x, 5)
    torch.manual_seed(1)
    torch.testing.assert_close(sampled, torch.stack([looped(x) for _ in range(5)]))
    assert int(network[1].num_batches_tracked) == 5
    for mine, theirs in zip(network.buffers(), looped.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_inputs_are_cast_to_the_precision_of_the_weights() -> None:
    draws, x = MCDropout(small()).draw(4, 0), torch.randn(5, 2, dtype=torch.float64)
    assert torch.equal(draws(x).log_probs(), draws(x.float()).log_probs())


@pytest.mark.parametrize("rows", [4, 40])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_inputs_of_another_width_are_refused(rows: int, width: int) -> None:
    drop = nn.Dropout(0.2)
    for layers in ([nn.Linear(3, 8), nn.ReLU(), drop, nn.Linear(8, 2)], [drop, nn.Linear(3, 2)]):
        with pytest.raises(StakesError, match=f"expected 3 numbers .* but got {width}"):
            MCDropout(nn.Sequential(*layers)).draw(10, seed=0)(torch.randn(rows, width)).mean_probs()


@torch.no_grad()
def test_rates_and_layers_may_change_in_training() -> None:
    """The decisions of training are those of the network as it is; a linear network has its mean without dropout."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.1), nn.Linear(50, 2))
    posterior, x = MCDropout(network), torch.randn(40, 3)

    def check(rate: float) -> None:
        expected = network[2](network[0](x))
        torch.testing.assert_close(posterior.shared_outputs(x, 20).mean(0), expected)
        torch.testing.assert_close(posterior.draw(20, seed=0).outputs(x, 0, 20).mean(0), expected)
        norm = sum(float(layer.weight.square().sum()) for layer in (network[0], network[2]))
        assert float(posterior.kl()) == pytest.approx(0.1**2 * (1 - rate) / 2 * norm)

    check(0.1)
    network[1].p = 0.5
    check(0.5)
    network[1].p = 0.25  # with groups of another size
    check(0.25)
    network[2] = nn.Linear(50, 2)
    check(0.25)
    network[1] = nn.Dropout(0.3)
    check(0.3)
    network[1].p = 0.0
    with pytest.raises(StakesError, match="expected a network with dropout layers"):
        posterior.shared_outputs(x, 20)


class ConvolutionThenView(nn.Module):
    """Counts on PyTorch's usual order in memory, by `view`, or not."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.view = view
        self.convolution, self.pool, self.dropout = nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Dropout(0.3)
        self.out = nn.Linear(4 * 3 * 3, 3)
        self.strides: list[tuple[int, ...]] = []  # of what enters, in decisions

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            self.strides.append(x.stride())
        x = self.pool(self.convolution(x))
        x = x.view(len(x), -1) if self.view else x.flatten(1)
        return self.out(self.dropout(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("view", [False, True])
def test_decisions_in_training_have_channels_last_unless_the_network_counts_on_the_usual_order(view: bool) -> None:
    torch.manual_seed(0)
    network, x = ConvolutionThenView(view), torch.randn(5, 1, 8, 8)
    posterior = MCDropout(network).train()
    results = []
    for channels_last in (True, False):
        posterior._image_order.channels_last &= channels_last
        network.strides.clear()
        torch.manual_seed(1)
        results.append(posterior.mixture(x, 10).weights)
        assert network.strides[-1] == ((64, 1, 8, 1) if channels_last and not view else (64, 64, 8, 1))
        assert posterior._image_order.channels_last == (channels_last and not view)
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_other_errors_of_a_network_pass_through_the_order_of_images() -> None:
    posterior = MCDropout(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3)))
    posterior.shared_outputs(torch.randn(2, 2, 5, 5), samples=2)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        posterior._image_order(lambda x: torch.ones(2, 3) @ torch.ones(2, 3), torch.randn(2, 2, 5, 5))
