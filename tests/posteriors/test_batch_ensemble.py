"""The batch ensemble: members of one network as draws."""

import pytest
import torch
from torch import Tensor, nn

from stakes import MLP, BatchEnsemble, StakesError, StakesWarning, TabM
from stakes.features import Features


def network(members: int = 5, dropout: float = 0.0) -> TabM:
    torch.manual_seed(0)
    made = TabM(Features(3, levels=(2,)), 3, members, width=8, bins=4, dropout=dropout)
    made.set_bins(torch.randn(50, 5))
    return made


def test_draws_are_the_members_themselves() -> None:
    made, x = network(), torch.randn(6, 5)
    draws = BatchEnsemble(made).draw(50, seed=0)
    assert draws.samples == 5
    torch.testing.assert_close(draws(x).log_probs(), made(x).log_softmax(-1).detach())


def test_fewer_samples_are_some_members_without_repetition() -> None:
    posterior, x = BatchEnsemble(network()), torch.randn(1, 5)
    everybody = posterior.draw(5, 0)(x).log_probs()[:, 0, 0].tolist()
    seen = {tuple(posterior.draw(2, seed)(x).log_probs()[:, 0, 0].tolist()) for seed in range(60)}
    assert all(first != second and {first, second} <= {*everybody} for first, second in seen)
    assert len(seen) == 10


def test_one_pass_gives_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, x = BatchEnsemble(network()).draw(5, seed=0), torch.randn(6, 5)
    expected = draws(x).probs()
    calls = []
    forward = TabM.forward
    monkeypatch.setattr(TabM, "forward", lambda self, x: calls.append(len(x)) or forward(self, x))
    torch.testing.assert_close(draws(x, memory=4000).probs(), expected)
    assert sum(calls) == 6, "each row passes once, in however many blocks"


def test_the_prior_is_that_of_a_member() -> None:
    made = network()
    assert BatchEnsemble(made, prior_sd=2.0).kl().item() == pytest.approx(made.squared_norm().item() / 8, rel=1e-6)


def test_dropout_is_off_in_draws_and_told_of() -> None:
    with pytest.warns(StakesWarning, match="without that"):
        posterior = BatchEnsemble(network(dropout=0.5)).train()
    x = torch.randn(3, 5)
    assert not torch.equal(posterior.outputs(x), posterior.outputs(x))
    with pytest.warns(StakesWarning, match="without that"):
        draws = BatchEnsemble(network(dropout=0.5)).draw(5, 0)
    torch.testing.assert_close(draws(x).log_probs(), draws(x).log_probs())


def test_draws_move_and_are_exported() -> None:
    draws, x = BatchEnsemble(network()).draw(3, seed=0), torch.randn(7, 5)
    torch.testing.assert_close(draws.to(torch.float64)(x).probs(), draws(x).probs().double(), atol=1e-5, rtol=1e-4)
    many = torch.randn(300, 5)  # more than it was exported with
    torch.testing.assert_close(draws.export(x).module()(many), draws(many).probs(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(draws.export(x, mean=True).module()(x), draws(x).mean_probs(), atol=1e-5, rtol=1e-4)


def test_a_network_without_members_is_refused() -> None:
    with pytest.raises(StakesError, match=r"Ensemble\.of"):
        BatchEnsemble(MLP(3, 2))


class Wrong(nn.Linear):
    """Claims to have members, and returns outputs of one."""

    members = 3

    def squared_norm(self) -> Tensor:
        return self.weight.square().sum()


def test_outputs_of_other_members_are_refused() -> None:
    with pytest.raises(StakesError, match=r"outputs of 3 members for 4 inputs, .* returned \(4, 2\)"):
        BatchEnsemble(Wrong(5, 2)).outputs(torch.randn(4, 5))
