"""Networks as an engineer brought them: mixed precision, sorted lengths, compiled, frozen, normed, or zero at first."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import spectral_norm as spectral_norm_by_hook
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from stakes import Ensemble, LossCalibrated, MCDropout, MeanField, StakesError, StakesWarning, Training, Utility, fit

UTILITY = Utility.from_costs([[0, 10, 5], [1, 0, 5], [2, 2, 0]])
QUICK = {"config": Training(epochs=1, batch_size=8), "progress": False}


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout2d(0.2), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)
    )


@pytest.mark.filterwarnings("ignore:draws are computed one by one")
@pytest.mark.parametrize("refresh", ["step", "epoch"])
@pytest.mark.parametrize("family", [MCDropout, MeanField])
def test_convolutions_after_dropout_train_in_mixed_precision(family: type, refresh: str) -> None:
    """vmap hides tensors from autocast, so that two precisions meet."""
    x, y = torch.randn(16, 1, 8, 8), torch.randint(3, (16,))
    posterior = family(convolutions())
    fit(posterior, LossCalibrated(UTILITY, refresh=refresh), (x, y), precision="bf16-mixed", **QUICK)
    with torch.autocast("cpu"):
        probs = posterior.draw(10, seed=0)(x).mean_probs()
    torch.testing.assert_close(probs.float(), posterior.draw(10, seed=0)(x).mean_probs(), atol=0.02, rtol=0)


class SortsByLength(nn.Module):
    """Packs as most do: sorted by length, and put back. Equal lengths come in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.drop = nn.Embedding(20, 8, padding_idx=0), nn.Dropout(0.3)
        self.rnn, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        lengths, order = lengths.sort(descending=True)
        packed = pack_padded_sequence(self.drop(self.embedding(ids[order])), lengths, batch_first=True)
        out: Tensor = self.head(self.drop(self.rnn(packed)[1][0][-1]))[order.argsort()]
        return out


def test_inputs_that_are_sorted_inside_have_the_answers_they_have_alone() -> None:
    torch.manual_seed(1)
    network, rows = SortsByLength().eval(), 32
    lengths, ids = torch.randint(1, 6, (rows,)), torch.randint(1, 20, (rows, 5))
    draws = MCDropout(network).draw(10, seed=0)
    alone = [draws((ids[row : row + 1], lengths[row : row + 1])).probs() for row in range(rows)]
    torch.testing.assert_close(draws((ids, lengths)).probs(), torch.cat(alone, 1), atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        passes = torch.stack([network.train()(ids, lengths).softmax(1) for _ in range(3_000)]).mean(0)
    shared = MCDropout(network).shared_outputs((ids, lengths), 1_000).softmax(-1).mean(0)
    torch.testing.assert_close(shared, passes, atol=0.02, rtol=0)


class DropsPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.drop, self.head = nn.LSTM(4, 6, batch_first=True), nn.Dropout(0.3), nn.Linear(6, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        out, _ = self.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        dropped = PackedSequence(self.drop(out.data), *out[1:])
        padded: Tensor = self.head(pad_packed_sequence(dropped, batch_first=True, total_length=x.shape[1])[0].sum(1))
        return padded


def test_dropout_of_packed_numbers_is_refused() -> None:
    with pytest.raises(StakesError, match="its size, 6 or 8, depends on the values of the inputs"):
        MCDropout(DropsPacked()).draw(5, seed=0)((torch.randn(3, 5, 4), torch.tensor([3, 5, 1]))).mean_probs()


class ClassToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.patch, self.head = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat([self.token.expand(len(x), -1, -1), self.patch(x)], 1).mean(1))
        return out


def test_the_first_layer_is_not_the_network_itself() -> None:
    network = MCDropout.insert(ClassToken(), 0.1).network
    assert [name for name, part in network.named_modules() if "inserted_dropout" in part._modules] == ["head"]


def test_an_export_that_fixes_the_number_of_inputs_says_so() -> None:
    with pytest.raises(StakesError, match=r"write x.shape\[0\] in place of len\(x\)"):
        MCDropout.insert(ClassToken(), 0.1).draw(5, seed=0).export(torch.randn(4, 3, 5))


class FrozenBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 3))

    def train(self, mode: bool = True) -> "FrozenBackbone":
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(x))
        return out


def test_dropout_that_a_network_keeps_off_is_told() -> None:
    network = FrozenBackbone().eval()
    with pytest.warns(StakesWarning, match=r"leaves the dropout layers 'backbone.2' in eval mode"):
        MCDropout(network)
    assert not any(part.training for part in network.modules())


@pytest.mark.slow
@pytest.mark.parametrize("refresh", ["step", "epoch", "running"])
def test_compiled_networks_are_trained_and_drawn_from(refresh: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    x, y = torch.randn(42, 4), torch.randint(3, (42,))
    compiled = MCDropout(torch.compile(network, backend="eager"))  # type: ignore[arg-type]
    fit(compiled, LossCalibrated(UTILITY, refresh=refresh), (x, y), **QUICK)  # type: ignore[arg-type]
    expected = MCDropout(network).draw(10, seed=0)(x).mean_probs()
    torch.testing.assert_close(compiled.draw(10, seed=0)(x).mean_probs(), expected)


def test_members_may_have_parametrized_layers() -> None:
    members = Ensemble.of(lambda: nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2)), 3, seed=0)
    x = torch.randn(5, 4)
    by_hand = torch.stack([member(x).softmax(-1) for member in members.members])
    torch.testing.assert_close(members.draw(3, seed=0)(x).probs(), by_hand)


class ZeroBranch(nn.Module):
    """Frames in the batch, and a residual branch that starts as zero."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.branch, self.drop = nn.Linear(6, 8), nn.Linear(8, 8), nn.Dropout(0.2)
        self.head = nn.Linear(8, 2)
        nn.init.zeros_(self.branch.weight)
        nn.init.zeros_(self.branch.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.flatten(0, 1))
        h = h + self.drop(self.branch(h.relu()))
        out: Tensor = self.head(h.view(x.shape[0], -1, 8).mean(1))
        return out


def test_a_branch_that_starts_as_zero_shows_its_batch_with_other_weights() -> None:
    torch.manual_seed(0)
    network, x = ZeroBranch(), torch.randn(20, 3, 6)
    (layout,) = MCDropout(network).draw(5, seed=0)._plan(x).layouts.values()
    assert (layout.outer, layout.inner) == (1, 3)
    assert not network.branch.weight.any()


@pytest.mark.parametrize("norm", [spectral_norm, spectral_norm_by_hook])
def test_spectral_norms_estimate_in_training_as_batch_norms_do(norm: type) -> None:
    torch.manual_seed(0)
    MCDropout(nn.Sequential(norm(nn.Linear(64, 64)), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 3))).check(
        torch.randn(5, 64)
    )


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.head, self.before = nn.Dropout(0.2), nn.Linear(4, 3), torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.before = self.before + 1
        out: Tensor = self.head(self.drop(x)) * self.before
        return out


def test_a_network_that_keeps_something_between_calls_is_refused() -> None:
    with pytest.raises(StakesError, match="noise, or what it keeps between calls"):
        MCDropout(Remembers()).check(torch.randn(5, 4))


def test_the_examples_of_a_batch_have_to_be_known() -> None:
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    posterior = MCDropout(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3)))
    running, epoch = (
        LossCalibrated(UTILITY, refresh="running"),
        LossCalibrated(UTILITY, refresh="epoch", start="network"),
    )
    epoch.start_epoch(posterior, [(torch.tensor([0, 5]), x[[0, 5]])])
    assert epoch(posterior, x[[0, 5]], y[[0, 5]], index=torch.tensor([0, 5])).isfinite()
    for unknown in (torch.arange(6), torch.arange(6) + 30):
        with pytest.raises(StakesError, match="expected examples that start_epoch has seen"):
            epoch(posterior, x, y, index=unknown)
    for wrong in (None, list(range(6)), torch.arange(6) - 3, torch.arange(6.0)):
        with pytest.raises(StakesError, match="as a tensor of whole numbers from 0 on, but got"):
            running(posterior, x, y, index=wrong)  # type: ignore[arg-type]
    with pytest.raises(StakesError, match="a position for each of 6 examples, but got 5"):
        running(posterior, x, y, index=torch.arange(5))
