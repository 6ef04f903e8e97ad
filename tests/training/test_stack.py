"""Models that are trained together come out as they would alone."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stakes import (
    MLP,
    BatchEnsemble,
    Ensemble,
    Laplace,
    LossCalibrated,
    MCDropout,
    MeanField,
    NoisyCategorical,
    StakesError,
    Standard,
    TabM,
    Training,
    Utility,
    Weighted,
    fit,
    seeds,
)
from stakes.features import Features
from stakes.objectives import Objective
from stakes.posteriors.base import Posterior
from stakes.training import TensorExamples
from stakes.training.stacked import Stack, StackedExamples, fit_together

UTILITY = Utility.from_costs([[0, 50, 100], [40, 0, 35], [45, 30, 0]], outcomes=["a", "b", "c"])


def networks(count: int, dropout: float = 0.3) -> list[nn.Module]:
    torch.manual_seed(0)
    return [MLP(4, 3, (8,), dropout) for _ in range(count)]


def pair(seed: int) -> Ensemble:
    """Two networks, neither of them random: what they learn can be compared to the last digit."""
    return Ensemble.of(lambda: MLP(4, 3, (8,), 0.0), 2, seed)


def tables(seed: int) -> BatchEnsemble:
    torch.manual_seed(seed)
    network = TabM(Features(4), 3, members=3, width=8, bins=6)
    network.set_bins(examples(seed).x)
    return BatchEnsemble(network)


def examples(seed: int, count: int = 60) -> TensorExamples:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return TensorExamples(x, (x[:, :3] + 0.5 * torch.randn(count, 3, generator=generator)).argmax(1))


def whole_batch(stack: Stack) -> tuple[Tensor, Tensor, Tensor]:
    sets = [examples(seed) for seed in range(len(stack.members))]
    rows = torch.arange(60)
    (batch,) = StackedExamples(sets, [rows] * len(sets)).batches(rows, 60)
    return batch.x, batch.labels, batch.positions


@pytest.mark.filterwarnings("ignore:members of the ensemble are random in training")
@pytest.mark.parametrize(
    "make", [lambda net: MCDropout(net, NoisyCategorical(0.2)), MeanField, lambda net: Ensemble([net, MLP(4, 3, (8,))])]
)
def test_a_stack_has_an_axis_for_its_members(make: type[Posterior]) -> None:
    stack = Stack([make(network) for network in networks(3)])
    x, _, _ = whole_batch(stack)
    samples = 2 if isinstance(stack.members[0], Ensemble) else 5
    assert stack.log_probs(x, samples).shape == (samples, 60, 3, 3)
    probs = stack.mixture(x, samples).weights
    assert probs.shape == (60, 3, 3)
    torch.testing.assert_close(probs.sum(-1), torch.ones(60, 3))
    expected = sum(member.kl() for member in stack.members)
    torch.testing.assert_close(stack.kl(), expected)


def test_members_and_stack_share_their_memory() -> None:
    stack = Stack([pair(seed) for seed in range(3)])
    x, _, _ = whole_batch(stack)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter += 0.1
    for index, member in enumerate(stack.members):
        torch.testing.assert_close(stack.log_probs(x)[:, :, index], member.log_probs(x[:, index]))


@pytest.mark.parametrize("make", [pair, tables])
@pytest.mark.parametrize(
    "goal",
    [
        Standard,
        lambda: Weighted([1.0, 2.0, 2.0]),
        lambda: LossCalibrated(UTILITY, samples=2),
        lambda: LossCalibrated(UTILITY, samples=2, refresh="epoch"),
        lambda: LossCalibrated(UTILITY, refresh="running"),
    ],
)
def test_a_member_learns_as_if_it_were_alone(goal: type[Objective], make: Callable[[int], Posterior]) -> None:
    config = Training(epochs=4, batch_size=60, learning_rate=0.03, patience=None, samples=2)
    alone, together = ([make(seed) for seed in range(3)] for _ in range(2))
    trains, validations = ([examples(start + seed) for seed in range(3)] for start in (0, 100))
    histories = [
        fit(posterior, goal(), train, held, utility=UTILITY, config=config, seed=seed)
        for seed, (posterior, train, held) in enumerate(zip(alone, trains, validations, strict=True))
    ]
    histories_together = fit_together(
        together, goal(), trains, validations, utility=UTILITY, config=config, model_seeds=range(3)
    )
    for ours, theirs in zip(together, alone, strict=True):
        for key, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[key], value, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(histories_together, histories, strict=True):
        assert ours.best == theirs.best
        assert [epoch.utility for epoch in ours.epochs] == pytest.approx([epoch.utility for epoch in theirs.epochs])
    losses = [sum(history.epochs[number].loss for history in histories) / 3 for number in range(4)]
    assert [epoch.loss for epoch in histories_together[0].epochs] == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("make", [pair, tables])
@pytest.mark.parametrize("goal", [Standard, lambda: LossCalibrated(UTILITY, refresh="running")])
def test_smaller_sets_go_round_again(goal: type[Objective], make: Callable[[int], Posterior]) -> None:
    """As if their first rows, in the order of their seeds, stood in them twice; weights are each set's own."""
    config = Training(epochs=3, batch_size=60, learning_rate=0.03, patience=None)
    alone, together = ([make(seed) for seed in range(3)] for _ in range(2))
    trains = [examples(seed, count) for seed, count in enumerate((60, 57, 59))]
    trains[1] = TensorExamples(trains[1].x, trains[1].labels, torch.linspace(0.5, 1.5, 57))
    for seed, (posterior, train) in enumerate(zip(alone, trains, strict=True)):
        order = torch.randperm(len(train), generator=seeds.generator(seed, "rows"))
        fit(posterior, goal(), train.subset(torch.cat([order, order])[:60]), config=config, seed=seed, progress=False)
    fit_together(together, goal(), trains, config=config, model_seeds=range(3))
    for ours, theirs in zip(together, alone, strict=True):
        for key, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[key], value, rtol=1e-4, atol=1e-5)


def test_each_member_keeps_its_own_best_epoch_and_stops_for_itself() -> None:
    config = Training(epochs=40, batch_size=20, learning_rate=0.1, patience=3, samples=2)
    together = [pair(seed) for seed in range(4)]
    sets = [examples(seed, 40) for seed in range(4)]
    histories = fit_together(
        together, Standard(), sets, sets[::-1], utility=UTILITY, config=config, model_seeds=range(4)
    )
    lengths = [len(history.epochs) for history in histories]
    assert len(set(lengths)) > 1
    assert all(history.stalled(3) or len(history.epochs) == 40 for history in histories)
    assert len({history.best for history in histories}) > 1


def test_models_with_large_steps_are_trained_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Training(epochs=2, batch_size=16)
    alone, together = ([tables(seed) for seed in range(2)] for _ in range(2))
    trains = [examples(0, 60), examples(1, 50)]
    for seed, (posterior, train) in enumerate(zip(alone, trains, strict=True)):
        fit(posterior, Standard(), train, config=config, seed=seed, progress=False)
    weights = sum(parameter.numel() for parameter in together[0].parameters() if parameter.ndim > 1)
    monkeypatch.setattr("stakes.training.stacked.LARGE_STEP", 16 * weights * 3 - 1)
    fit_together(together, Standard(), trains, config=config, model_seeds=range(2))
    for ours, theirs in zip(together, alone, strict=True):
        assert all(torch.equal(value, theirs.state_dict()[key]) for key, value in ours.state_dict().items())


@pytest.mark.parametrize("make", [pair, tables])
@pytest.mark.parametrize("goal", [Standard, lambda: LossCalibrated(UTILITY, refresh="running", warmup=9)])
def test_models_that_have_stopped_cost_nothing_and_change_nothing(
    goal: type[Objective], make: Callable[[int], Posterior], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Training(epochs=60, batch_size=60, learning_rate=0.1, patience=2, samples=3, select="nll")
    alone, together = ([make(seed) for seed in range(4)] for _ in range(2))
    trains, validations = ([examples(start + seed) for seed in range(4)] for start in (0, 100))
    histories = [
        fit(posterior, goal(), train, held, utility=UTILITY, config=config, seed=seed, progress=False)
        for seed, (posterior, train, held) in enumerate(zip(alone, trains, validations, strict=True))
    ]
    seen = []
    outputs = Stack.outputs
    monkeypatch.setattr(Stack, "outputs", lambda self, x, samples=1: seen.append(x.shape[1]) or outputs(self, x))
    fit_together(together, goal(), trains, validations, utility=UTILITY, config=config, model_seeds=range(4))
    lengths = [len(history.epochs) for history in histories]
    assert seen == [sum(length > epoch for length in lengths) for epoch in range(max(lengths))]
    assert len({*seen}) > 1
    for ours, theirs in zip(together, alone, strict=True):
        for key, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[key], value, rtol=1e-3, atol=1e-4)


def test_no_two_models_see_the_same_batches_and_each_sees_all_rows() -> None:
    sets = [TensorExamples(torch.arange(50.0)[:, None], torch.arange(50)) for _ in range(2)]
    orders = [torch.randperm(50, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    batches = list(StackedExamples(sets, orders).batches(torch.arange(50), 10))
    for batch in batches:
        assert set(batch.labels[:, 0].tolist()) != set(batch.labels[:, 1].tolist())
        torch.testing.assert_close(batch.x[..., 0], batch.labels.float())
    for model in range(2):
        assert sorted(label for batch in batches for label in batch.labels[:, model].tolist()) == list(range(50))


def test_the_randomness_of_members_is_their_own() -> None:
    (network,) = networks(1, 0.5)
    stack = Stack([MCDropout(copy.deepcopy(network)) for _ in range(2)]).train()
    x = torch.ones(30, 2, 4)
    first, second = stack.log_probs(x)[0].unbind(1)
    assert not torch.equal(first, second)
    assert len(first.unique(dim=0)) > 5, "and every example's"


def test_what_cannot_be_stacked_is_refused() -> None:
    with pytest.raises(StakesError, match="one kind"):
        Stack([MCDropout(MLP(4, 3, (8,), 0.1)), MCDropout(MLP(4, 3, (9,), 0.1))])
    with pytest.raises(StakesError, match="one kind"):
        Stack([MCDropout(MLP(4, 3, (8,), 0.1), lengthscale=s) for s in (0.1, 0.2)])
    with pytest.raises(StakesError, match="batch norm"):
        Stack([MCDropout(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 3)))])
    with pytest.raises(StakesError, match="learns"):
        Stack([MCDropout(MLP(4, 3, (8,), 0.1), NoisyCategorical(0.1, learn=True))])
    with pytest.raises(StakesError, match="members"):
        Stack([pair(0)]).draw(3, 0)
    with pytest.raises(StakesError, match="as many sets"):
        fit_together([pair(0), pair(1)], Standard(), [examples(0)] * 2, model_seeds=[0])
    with pytest.raises(StakesError, match="pass utility="):
        fit_together([pair(0)], Standard(), [examples(0)], [examples(1)], model_seeds=[0])
    each = Utility.from_costs([[[0, 5, 9], [4, 0, 3]]] * 60, outcomes=["a", "b", "c"])
    with pytest.raises(StakesError, match="one by one"):
        fit_together([pair(0)], LossCalibrated(each), [examples(0)], model_seeds=[0])


def test_decisions_of_a_stack_share_their_masks() -> None:
    """A mask for all examples, as for a posterior alone: a mask for each would take many more random numbers."""
    stack = Stack([MCDropout(MLP(4, 3, (8,), 0.5)) for _ in range(3)])
    x = torch.randn(1, 3, 4).expand(6, 3, 4)
    probs = stack.mixture(x, 5).weights  # (6, 3, C)
    assert torch.equal(probs, probs[:1].expand(probs.shape)), "equal inputs, equal masks"


def test_posteriors_that_are_fitted_after_training_are_chosen_by_their_network_and_finished() -> None:
    """A Laplace posterior has no draws before its last step; alone and together, each epoch is scored by its mode."""

    def fresh() -> list[Laplace]:
        return [Laplace(network) for network in networks(2, dropout=0.0)]

    sets, held = [examples(seed) for seed in (0, 1)], [examples(seed) for seed in (2, 3)]
    config = Training(epochs=4, batch_size=60, learning_rate=0.05, select="nll")
    together, alone = fresh(), fresh()
    fit_together(together, Standard(), sets, held, utility=UTILITY, config=config, model_seeds=[5, 6])
    for posterior, other, train, validation, seed in zip(together, alone, sets, held, [5, 6], strict=True):
        fit(other, Standard(), train, validation, utility=UTILITY, config=config, seed=seed, progress=False)
        ours, theirs = (each.draw(20, seed=0)(validation.x).mean_probs() for each in (posterior, other))
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
