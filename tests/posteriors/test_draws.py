"""Draws of every family: the same in all threads and processes, and without a trace in either."""

import copy
import pickle
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from stakes import MLP, Ensemble, MCDropout, MeanField
from stakes.networks.segnet import SegNet
from stakes.outcomes import Footprint, Predictive
from stakes.posteriors.base import Posterior


class Encoder(nn.Module):
    """With the fused path of transformer layers to rule out, and an attention that vmap loops over."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.encoder, self.drop = nn.TransformerEncoder(layer, 2), nn.Dropout(dropout)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.encoder(x))
        return self.out(nn.functional.scaled_dot_product_attention(h, h, h).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(8, 4, num_layers=2, dropout=0.3, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(x)[0][:, -1])


FAMILIES: dict[str, tuple[Callable[[], Posterior], tuple[int, ...]]] = {
    "dropout": (lambda: MCDropout(MLP(4, 3, (8, 8), 0.5)), (4,)),
    "dropout, images": (lambda: MCDropout(SegNet(3, width=1 / 16)), (3, 8, 16)),
    "dropout, encoder": (lambda: MCDropout(Encoder()), (5, 8)),
    "dropout, recurrent": (lambda: MCDropout(Recurrent()), (5, 8)),
    "mean field": (lambda: MeanField(MLP(4, 3, (8,), 0.5)), (4,)),
    "mean field, encoder": (lambda: MeanField(Encoder()), (5, 8)),
    "ensemble": (lambda: Ensemble.of(lambda: MLP(4, 3, (8,), 0.0), 4, seed=0), (4,)),
    "ensemble, encoder": (lambda: Ensemble.of(lambda: Encoder(0.0), 4, seed=0), (5, 8)),
}
families = pytest.mark.parametrize("family", FAMILIES)
pytestmark = pytest.mark.filterwarnings("ignore:draws are computed one by one", "ignore:.*nested tensor")


@families
@pytest.mark.parametrize("ready", [True, False])
def test_draws_asked_by_eight_threads_at_once_are_those_of_one(family: str, ready: bool) -> None:
    torch.manual_seed(0)
    make, shape = FAMILIES[family]
    posterior = make()
    inputs = [torch.randn(3, *shape) for _ in range(24)]
    once = posterior.draw(4, seed=0)
    expected = [once(x).log_probs() for x in inputs]
    state = list(warnings.filters), torch.backends.mha.get_fastpath_enabled(), torch.get_rng_state()
    draws = once if ready else posterior.draw(4, seed=0)
    with ThreadPoolExecutor(8) as pool:
        concurrent = list(pool.map(lambda x: draws(x).log_probs(), inputs))
    assert all(torch.equal(one, other) for one, other in zip(concurrent, expected, strict=True))
    assert (list(warnings.filters), torch.backends.mha.get_fastpath_enabled()) == state[:2]
    assert torch.equal(torch.get_rng_state(), state[2])


@families
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda draws: pickle.loads(pickle.dumps(draws))])
@pytest.mark.parametrize("used", [True, False])
def test_draws_can_be_copied_and_sent_to_another_process(
    family: str, clone: Callable[[object], object], used: bool
) -> None:
    torch.manual_seed(0)
    make, shape = FAMILIES[family]
    draws, x = make().draw(4, seed=0), torch.randn(3, *shape)
    if used:
        draws(x).mean_probs()
    other = clone(draws)
    assert torch.equal(other(x).log_probs(), draws(x).log_probs())  # type: ignore[operator]


def test_posteriors_can_be_copied_after_they_were_used() -> None:
    posterior = MCDropout(MLP(4, 3, (8,), 0.5))
    posterior.mixture(torch.randn(3, 4), 4)
    posterior.outputs(torch.randn(3, 4), 4)
    for other in (copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        assert torch.equal(
            other.draw(3, 0).outputs(torch.ones(1, 4), 0, 3), posterior.draw(3, 0).outputs(torch.ones(1, 4), 0, 3)
        )


@pytest.mark.parametrize(
    ("per_draw", "rows", "shape"),
    [
        (64, 10_000, (1638, 10)),  # all draws of some inputs
        (512, 10_000, (512, 4)),  # enough inputs, and as many of their draws as fit
        (4_096, 10_000, (64, 4)),  # several draws of them
        (32_768, 10_000, (64, 1)),  # one draw
        (32_768, 4, (4, 5)),  # some draws of the few that there are
        (4 * 2**20, 3, (1, 5)),  # inputs larger than the cache
    ],
)
def test_blocks_of_inputs_and_draws(per_draw: int, rows: int, shape: tuple[int, int]) -> None:
    predictor = SimpleNamespace(samples=10, footprint=lambda x: Footprint(4, per_draw))
    assert Predictive(predictor, torch.zeros(rows, 1))._block_shape(10) == shape  # type: ignore[arg-type]
