import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stakes import MLP, LossCalibrated, MCDropout, StakesError, Standard, Training, Utility, fit
from stakes._io.tensors import read_tensors, write_tensors
from stakes.posteriors import Posterior
from stakes.training import DatasetExamples, Epoch, History, TensorExamples
from stakes.training._loop import score
from stakes.training.stacked import fit_together

UTILITY = Utility.from_costs([[0, 50, 100], [40, 0, 35], [45, 30, 0]], ["a", "b", "c"], ["a", "b", "c"])
OTHER = Utility.from_costs([[0, 50, 100], [40, 0, 35], [45, 31, 0]], ["a", "b", "c"], ["a", "b", "c"])
QUICK = Training(epochs=6, batch_size=16, learning_rate=0.01, samples=4, checkpoint_seconds=0)


def data(count: int = 80) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (count,), generator=generator)
    return torch.eye(3)[labels] + 0.5 * torch.randn(count, 3, generator=generator), labels


def posterior() -> Posterior:
    torch.manual_seed(0)
    return MCDropout(MLP(3, 3, hidden=(8,), dropout=0.2))


def weights(of: Posterior) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in of.parameters()])


class PulledPlugError(Exception):
    pass


@pytest.mark.parametrize("refresh", [None, "step", "epoch", "running"])
@pytest.mark.parametrize("after", [1, 4])
def test_an_interrupted_run_resumes_to_the_same_result(tmp_path: Path, refresh: str | None, after: int) -> None:
    objective = lambda: Standard() if refresh is None else LossCalibrated(UTILITY, refresh=refresh)  # noqa: E731
    whole = posterior()
    expected = fit(whole, objective(), data(), data(30), utility=UTILITY, config=QUICK, progress=False)

    def stop(epoch: Epoch) -> None:
        if epoch.number == after:
            raise PulledPlugError

    file = tmp_path / "checkpoint.safetensors"
    with pytest.raises(PulledPlugError):
        fit(posterior(), objective(), data(), data(30), utility=UTILITY, config=QUICK, checkpoint=file, progress=stop)
    torch.manual_seed(99)  # whatever the state of the global generator is in the new process
    resumed, seen = posterior(), []
    history = fit(
        resumed, objective(), data(), data(30), utility=UTILITY, config=QUICK, checkpoint=file, resume=True,
        progress=lambda epoch: seen.append(epoch.number),
    )  # fmt: skip
    assert seen == list(range(after + 1, 7))
    assert history == expected
    assert torch.equal(weights(resumed), weights(whole))


def test_a_run_is_decided_by_its_seed_alone() -> None:
    results = []
    for noise, seed in ((1, 0), (2, 0), (3, 1)):
        model = posterior()
        torch.manual_seed(noise)
        fit(model, LossCalibrated(UTILITY), data(), config=QUICK, seed=seed, progress=False)
        results.append(weights(model))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_the_global_generator_is_left_alone() -> None:
    model = posterior()
    before = torch.get_rng_state()
    fit(model, Standard(), data(), config=QUICK, progress=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_best_epoch_by_validation_utility_is_kept() -> None:
    held_out = TensorExamples(*data(40))
    states: dict[int, Tensor] = {}
    model = posterior()
    config = Training(epochs=25, batch_size=16, learning_rate=0.1, samples=4, patience=None)
    history = fit(
        model, Standard(), data(), held_out, utility=UTILITY, config=config,
        progress=lambda epoch: states.update({epoch.number: weights(model)}),
    )  # fmt: skip
    utilities = [epoch.utility for epoch in history.epochs]
    last_best = max(number for number, value in enumerate(utilities, 1) if value == max(utilities))
    assert history.best == last_best
    assert torch.equal(weights(model), states[last_best])
    assert score(model, held_out, UTILITY, 4, 0, 16)[0] == pytest.approx(history.best_utility)


def test_the_score_is_the_utility_of_the_optimal_decisions() -> None:
    class Certain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.scale = nn.Dropout(0.5), nn.Parameter(torch.tensor(40.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * (x - 0.1) + 0 * self.dropout(x)

    labels = torch.tensor([0, 1, 2, 2])
    seen = torch.tensor([0, 1, 2, 0])  # the last one is taken for a: it costs 100
    examples = TensorExamples(torch.eye(3)[seen], labels)
    assert score(MCDropout(Certain()), examples, UTILITY, 3, 0, 2)[0] == pytest.approx(-25)


def test_validation_examples_count_by_their_weight_in_the_score() -> None:
    model, (x, labels) = posterior(), data(40)
    halves = [score(model, TensorExamples(x[rows], labels[rows]), UTILITY, 4, 0, 16)
              for rows in (slice(None, 20), slice(20, None))]  # fmt: skip
    weights = torch.cat([torch.full((20,), 3.0), torch.full((20,), 1.0)])
    weighted = score(model, TensorExamples(x, labels, weights), UTILITY, 4, 0, 16)
    assert halves[0] != halves[1]
    assert weighted == pytest.approx([0.75 * first + 0.25 * second for first, second in zip(*halves, strict=True)])


def test_validation_weights_choose_the_best_epoch() -> None:
    (x, labels), history = data(40), []
    for rows in (slice(None, 20), slice(20, None)):
        weights = torch.zeros(40)
        weights[rows] = 2.0
        history += [
            fit(posterior(), Standard(), data(), held_out, utility=UTILITY, config=QUICK, progress=False)
            for held_out in ((x, labels, weights), (x[rows], labels[rows]))
        ]
    for weighted, part in (history[:2], history[2:]):
        assert weighted.best == part.best
        assert [epoch.utility for epoch in weighted.epochs] == pytest.approx([epoch.utility for epoch in part.epochs])
    assert [epoch.utility for epoch in history[0].epochs] != [epoch.utility for epoch in history[2].epochs]


def test_patience_counts_epochs_without_a_strictly_better_one() -> None:
    history = History()
    for number, utility in enumerate([1.0, 3.0, 2.0, 3.0, 2.5], 1):
        assert not history.stalled(3)
        history = history.with_epoch(Epoch(number, 0.0, utility))
    assert history.stalled(3)
    assert not history.stalled(4)
    assert not history.stalled(None)
    assert history.best == 4, "a tie goes to the later epoch"


def test_epochs_that_were_not_validated_are_never_the_best() -> None:
    history = History()
    for number, utility in enumerate([None, 2.0, None, 1.0, None], 1):
        history = history.with_epoch(Epoch(number, 0.0, utility, None))
    assert history.best == 2
    config = Training(epochs=7, batch_size=40, samples=2, validate_every=3)
    history = fit(posterior(), Standard(), data(), data(20), utility=UTILITY, config=config, progress=False)
    assert [epoch.number for epoch in history.epochs if epoch.utility is not None] == [3, 6, 7]


def test_the_lowest_nll_can_be_the_rule() -> None:
    history = History(select="nll")
    for number, nll in enumerate([0.5, 0.3, 0.4], 1):
        history = history.with_epoch(Epoch(number, 0.0, float(number), nll))
    assert history.best == 2
    assert history.best_utility == 2.0


def test_training_stops_early() -> None:
    config = Training(epochs=200, batch_size=40, learning_rate=1e-6, samples=2, patience=5)
    history = fit(posterior(), Standard(), data(), data(20), utility=UTILITY, config=config, progress=False)
    assert len(history.epochs) < 60


def test_the_learning_rate_follows_its_schedule() -> None:
    cosine = Training(epochs=10, learning_rate=0.2, schedule="cosine")
    assert cosine.factor(0) == pytest.approx(1)
    assert cosine.factor(5) == pytest.approx(0.5)
    assert 0 < cosine.factor(9) < 0.05
    model, start = posterior(), weights(posterior())
    seen: list[float] = []

    class Recording(torch.optim.SGD):
        def step(self, closure: None = None) -> None:
            seen.append(self.param_groups[0]["lr"])
            super().step()

    fit(model, Standard(), data(16), config=Training(epochs=4, batch_size=16, learning_rate=0.2, schedule="cosine"),
        optimizer=lambda parameters: Recording(parameters, lr=0.4), progress=False)  # fmt: skip
    assert seen == [pytest.approx(rate) for rate in (0.4, 0.341421356, 0.2, 0.058578644)]
    assert not torch.equal(weights(model), start)


def test_a_scheduler_of_the_caller_is_left_alone() -> None:
    rates: list[float] = []
    schedulers: list[torch.optim.lr_scheduler.LRScheduler] = []

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        chosen = torch.optim.SGD(parameters, lr=0.4)
        schedulers.append(torch.optim.lr_scheduler.ExponentialLR(chosen, 0.5))
        return chosen

    def step(epoch: Epoch) -> None:
        rates.append(schedulers[-1].get_last_lr()[0])
        assert schedulers[-1].optimizer.param_groups[0]["lr"] == rates[-1]
        schedulers[-1].step()

    fit(posterior(), Standard(), data(), config=replace(QUICK, epochs=4), optimizer=optimizer, progress=step)
    assert rates == [0.4, 0.2, 0.1, 0.05]


def test_the_rate_that_a_scheduler_sets_is_in_the_checkpoint(tmp_path: Path) -> None:
    """Even if its step is the last thing before an interruption."""
    schedulers: list[torch.optim.lr_scheduler.LRScheduler] = []

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        schedulers.append(torch.optim.lr_scheduler.ExponentialLR(torch.optim.SGD(parameters, lr=0.4), 0.5))
        return schedulers[-1].optimizer

    def step(epoch: Epoch, stop: int = 0) -> None:
        schedulers[-1].step()
        if epoch.number == stop:
            raise PulledPlugError

    whole, resumed = posterior(), posterior()
    fit(whole, Standard(), data(), config=QUICK, optimizer=optimizer, progress=step)
    options = {"config": QUICK, "optimizer": optimizer, "checkpoint": tmp_path / "run.safetensors"}
    with pytest.raises(PulledPlugError):
        fit(posterior(), Standard(), data(), progress=lambda epoch: step(epoch, 3), **options)
    fit(resumed, Standard(), data(), resume=True, progress=step, **options)
    assert torch.equal(weights(resumed), weights(whole))


def test_the_prior_is_divided_by_the_number_of_examples_once() -> None:
    """One full-batch SGD step moves the weights by the gradient of mean NLL + KL / N, whatever the batch size."""

    class Deterministic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.dropout = nn.Linear(3, 3, bias=False), nn.Dropout(1e-9)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.dropout(x))

    x, labels = data(40)
    torch.manual_seed(0)
    model = MCDropout(Deterministic(), lengthscale=3.0)
    start = weights(model).reshape(3, 3).requires_grad_(True)
    loss = nn.functional.cross_entropy(x @ start.T, labels) + 9 / 2 * start.square().sum() / 40
    (gradient,) = torch.autograd.grad(loss, start)
    config = Training(epochs=1, batch_size=40, learning_rate=0.1)
    fit(model, Standard(), (x, labels), config=config, progress=False,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))  # fmt: skip
    torch.testing.assert_close(weights(model).reshape(3, 3), (start - 0.1 * gradient).detach(), atol=1e-6, rtol=1e-5)


class Pairs(Dataset):
    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, labels = data()
        return x[index], int(labels[index])


class Diverging(Standard):
    """Its loss is NaN, or its gradient, from a step on."""

    def __init__(self, steps: int, gradient_only: bool = False) -> None:
        self.steps, self.gradient_only = steps, gradient_only

    def losses(self, posterior: Posterior, x: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        losses = super().losses(posterior, x, labels, index)
        self.steps -= 1
        if self.steps >= 0:
            return losses
        return losses + (0 * losses).sqrt() if self.gradient_only else losses * torch.nan


@pytest.mark.parametrize("gradient_only", [False, True])
@pytest.mark.parametrize("validated", [False, True])
@pytest.mark.parametrize(("steps", "kept"), [(3, 0), (14, 2), (19, 3)])  # 5 steps in an epoch
def test_after_a_loss_that_is_nan_the_best_weights_are_restored(
    steps: int, kept: int, validated: bool, gradient_only: bool
) -> None:
    states: list[Tensor] = [weights(posterior())]
    model = posterior()
    epoch = f"of epoch {kept}" if kept and not validated else "of epoch" if kept else "from before training"
    with pytest.raises(StakesError, match=f"NaN in epoch {steps // 5 + 1} .*lower learning rate.*weights {epoch}"):
        fit(
            model, Diverging(steps, gradient_only), data(), data(30) if validated else None, utility=UTILITY,
            config=QUICK, progress=lambda epoch: states.append(weights(model)),
        )  # fmt: skip
    assert len(states) == kept + 1
    assert any(torch.equal(weights(model), state) for state in states[min(1, kept) :])
    assert validated or torch.equal(weights(model), states[-1])
    assert weights(model).isfinite().all()
    assert not model.training


def with_batch_norm() -> Posterior:
    torch.manual_seed(0)
    return MCDropout(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3)))


def test_batch_norm_leaves_out_a_last_batch_of_one() -> None:
    """A random example in every epoch: no example is left out for good."""
    sizes: list[int] = []
    positions: list[Tensor] = []

    class Counting(Standard):
        def losses(self, posterior: Posterior, x: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
            sizes.append(len(x))
            positions.append(index)
            return super().losses(posterior, x, labels, index)

    for model, count, expected in ((with_batch_norm(), 17, [16]), (with_batch_norm(), 18, [16, 2]),
                                   (posterior(), 17, [16, 1])):  # fmt: skip
        sizes.clear()
        positions.clear()
        fit(model, Counting(), data(count), config=QUICK, progress=False)
        assert sizes == expected * 6
        assert len(torch.cat(positions).unique()) == count


@pytest.mark.parametrize(("examples", "batch_size"), [(1, 16), (5, 1)])
def test_batch_norm_on_batches_of_one_is_refused(examples: int, batch_size: int) -> None:
    with pytest.raises(StakesError, match=r"batch norm needs more than one value .* batch_size of 2"):
        fit(with_batch_norm(), Standard(), data(examples), config=replace(QUICK, batch_size=batch_size), progress=False)


@pytest.mark.parametrize("refresh", ["epoch", "running"])
def test_an_objective_can_be_used_again(refresh: str) -> None:
    """The memory and the warmup of a run belong to the run."""
    objective = LossCalibrated(UTILITY, refresh=refresh, warmup=20)
    first, second = posterior(), posterior()
    fit(first, objective, data(), config=QUICK, progress=False)
    assert int(objective.state_dict()["steps"]) == 0
    assert "memory" not in objective.state_dict()
    fit(second, objective, data(), config=QUICK, progress=False)
    assert torch.equal(weights(first), weights(second))


class Finishing(MCDropout):
    def finish(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.was_training, self.at_finish = self.training, weights(self)
        self.passes = [[(x.clone(), labels.clone()) for x, labels in batches] for _ in range(2)]


def finishing() -> Finishing:
    torch.manual_seed(0)
    return Finishing(MLP(3, 3, hidden=(8,), dropout=0.2))


@pytest.mark.parametrize("precision", [None, "64-true"])
def test_a_posterior_is_finished_on_all_training_examples_with_its_best_weights(precision: str | None) -> None:
    model, (x, labels) = finishing(), data()
    states: list[Tensor] = []
    history = fit(
        model, Standard(), (x, labels), data(30), utility=UTILITY, precision=precision,
        config=replace(QUICK, epochs=12, learning_rate=0.1), progress=lambda epoch: states.append(weights(model)),
    )  # fmt: skip
    assert torch.equal(model.at_finish, states[history.best - 1])
    assert not model.was_training
    for batches in model.passes:
        assert torch.equal(torch.cat([batch for batch, _ in batches]), x.to(states[0].dtype))
        assert torch.equal(torch.cat([batch for _, batch in batches]), labels)


def test_posteriors_that_are_trained_together_are_finished_each_on_its_own_examples() -> None:
    models = [finishing(), finishing()]
    trains = [TensorExamples(*data()), TensorExamples(data()[0] + 1, data()[1])]
    fit_together(models, Standard(), trains, config=QUICK, model_seeds=[0, 1])
    for model, train in zip(models, trains, strict=True):
        assert torch.equal(torch.cat([x for x, _ in model.passes[1]]), train.x)
        assert torch.equal(model.at_finish, weights(model))


def test_a_dataset_is_as_good_as_tensors() -> None:
    from_tensors, from_dataset = posterior(), posterior()
    fit(from_tensors, Standard(), data(), data(), utility=UTILITY, config=QUICK, progress=False)
    fit(from_dataset, Standard(), Pairs(), DatasetExamples(Pairs()), utility=UTILITY, config=QUICK, progress=False)
    torch.testing.assert_close(weights(from_tensors), weights(from_dataset))


def test_example_weights_reach_the_loss() -> None:
    x, labels = data()
    even, zero_first = posterior(), posterior()
    fit(even, Standard(), (x, labels), config=QUICK, progress=False)
    fit(zero_first, Standard(), (x, labels, (labels != 0).float()), config=QUICK, progress=False)
    shares = [model.draw(20, 0)(x).mean_probs()[:, 0].mean() for model in (even, zero_first)]
    assert shares[1] < shares[0] - 0.05


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    fit(posterior(), Standard(), data(), config=QUICK, checkpoint=file, progress=False)
    assert read_tensors(file)[1]["run"]["epochs"] == 6
    with pytest.raises(StakesError, match="expected the checkpoint of a run with"):
        fit(posterior(), Standard(), data(), config=QUICK, seed=5, checkpoint=file, resume=True, progress=False)
    other = MCDropout(MLP(3, 3, hidden=(9,), dropout=0.2))
    with pytest.raises(StakesError, match="another network"):
        fit(other, Standard(), data(), config=QUICK, checkpoint=file, resume=True, progress=False)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(StakesError, match="damaged"):
        fit(posterior(), Standard(), data(), config=QUICK, checkpoint=file, resume=True, progress=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"objective": LossCalibrated(UTILITY, weight=2.0)}, "'weight': 2.0"),
        ({"objective": LossCalibrated(OTHER)}, "'utility': "),
        ({"objective": Standard()}, "'kind': 'Standard'"),
        ({"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.5)}, "'kind': 'SGD'"),
        ({"optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.5)}, "'lr': '0.5'"),
    ],
)
def test_a_run_goes_on_with_what_it_began_with(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    file, options = tmp_path / "checkpoint.safetensors", {"config": QUICK, "progress": False}
    fit(posterior(), LossCalibrated(UTILITY), data(), checkpoint=file, **options)
    again = {"objective": LossCalibrated(UTILITY), **options, **changed}
    with pytest.raises(StakesError, match=f"expected the checkpoint of a run with .*{message}"):
        fit(posterior(), train=data(), checkpoint=file, resume=True, **again)


@pytest.mark.parametrize(("rows", "utility"), [(30, OTHER), (20, UTILITY), (None, UTILITY)])
def test_epochs_are_not_chosen_by_scores_of_two_kinds(tmp_path: Path, rows: int | None, utility: Utility) -> None:
    options = {"config": QUICK, "checkpoint": tmp_path / "checkpoint.safetensors", "progress": False}
    fit(posterior(), Standard(), data(), data(30), utility=UTILITY, **options)
    validation = None if rows is None else data(rows)
    with pytest.raises(StakesError, match=r"expected the checkpoint of a run with .*'validation': "):
        fit(posterior(), Standard(), data(), validation, utility=utility, resume=True, **options)


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Examples without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(*data(30), strict=True)


def test_a_stream_can_be_validated_with_a_checkpoint(tmp_path: Path) -> None:
    options = {
        "utility": UTILITY,
        "config": QUICK,
        "progress": False,
        "checkpoint": tmp_path / "checkpoint.safetensors",
    }
    fit(posterior(), Standard(), data(), DataLoader(Stream(), 10), **options)
    fit(posterior(), Standard(), data(), DataLoader(Stream(), 10), resume=True, **options)


def test_a_checkpoint_of_an_earlier_version_resumes_with_validation(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    options = {"utility": UTILITY, "config": QUICK, "progress": False, "checkpoint": file}
    fit(posterior(), Standard(), data(), data(30), **options)
    tensors, metadata = read_tensors(file)
    del metadata["run"]["validation"]
    write_tensors(file, tensors, metadata)
    fit(posterior(), Standard(), data(), data(30), resume=True, **options)


def test_layers_frozen_since_are_refused_by_name(tmp_path: Path) -> None:
    file, frozen = tmp_path / "checkpoint.safetensors", posterior()
    fit(posterior(), Standard(), data(), config=QUICK, checkpoint=file, progress=False)
    next(frozen.parameters()).requires_grad_(False)
    with pytest.raises(StakesError, match="another network"):
        fit(frozen, Standard(), data(), config=QUICK, checkpoint=file, resume=True, progress=False)


def test_a_module_with_a_slash_in_its_name_resumes(tmp_path: Path) -> None:
    class Slashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleDict({"age/sex": nn.Linear(3, 3), "drop": nn.Dropout(0.2)})

        def forward(self, x: Tensor) -> Tensor:
            return self.layers["drop"](self.layers["age/sex"](x))

    file = tmp_path / "checkpoint.safetensors"
    model, resumed = MCDropout(Slashed()), MCDropout(Slashed())
    fit(model, Standard(), data(), config=QUICK, checkpoint=file, progress=False)
    fit(resumed, Standard(), data(), config=QUICK, checkpoint=file, resume=True, progress=False)
    assert torch.equal(weights(resumed), weights(model))


class Stateful(torch.optim.SGD):
    """SGD whose state holds more than tensors of the precision of the weights, and decides the step."""

    def step(self, closure: None = None) -> None:
        super().step()
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state.setdefault("bits", torch.zeros(2, dtype=torch.int64))
            state.update(calls=state.get("calls", 0) + 1, nothing=None, past=[1, 2.5], flag=True)
            state["bits"] |= 1 << state["calls"] % 40
            parameter.data -= 1e-6 * (state["calls"] + int(state["bits"][0]) % 7)


OPTIMIZERS = {
    "integers": lambda parameters: Stateful(parameters, lr=0.01, momentum=0.9),
    "plain SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
    "tensor rate": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)),
    "ASGD": lambda parameters: torch.optim.ASGD(parameters, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_resumes_to_the_same_result(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file given by its name; a rate that the caller has changed stays changed."""
    monkeypatch.chdir(tmp_path)
    optimizers: list[torch.optim.Optimizer] = []

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizers.append(OPTIMIZERS[name](parameters))
        return optimizers[-1]

    def decay(epoch: Epoch, stop: int = 0) -> None:
        if epoch.number == stop:
            raise PulledPlugError
        if epoch.number == 2:
            optimizers[-1].param_groups[0]["lr"] *= 0.5

    whole, resumed = posterior(), posterior()
    fit(whole, Standard(), data(), config=QUICK, optimizer=make, progress=decay)
    options = {"config": QUICK, "optimizer": make, "checkpoint": "run.safetensors"}
    with pytest.raises(PulledPlugError):
        fit(posterior(), Standard(), data(), progress=lambda epoch: decay(epoch, 4), **options)
    fit(resumed, Standard(), data(), resume=True, progress=decay, **options)
    assert torch.equal(weights(resumed), weights(whole))


def test_an_optimizer_whose_state_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    class Opaque(torch.optim.SGD):
        def step(self, closure: None = None) -> None:
            super().step()
            self.state[self.param_groups[0]["params"][0]]["thing"] = object()

    with pytest.raises(StakesError, match=r"the state of Opaque cannot be written .* train without checkpoint="):
        fit(
            posterior(), Standard(), data(), config=QUICK, checkpoint=tmp_path / "run.safetensors", progress=False,
            optimizer=lambda parameters: Opaque(parameters, lr=0.1),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": 0.0}, "learning rate"),
        ({"learning_rate": float("inf")}, "learning rate"),
        ({"schedule": "linear"}, "'linear'"),
        ({"validate_every": 0}, "validate_every"),
        ({"select": "accuracy"}, "'accuracy'"),
    ],
)
def test_impossible_settings_are_refused(options: dict, words: str) -> None:
    with pytest.raises(StakesError, match=words):
        Training(**options)


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(StakesError, match="utility="):
        fit(posterior(), Standard(), data(), data(), config=QUICK, progress=False)
    with pytest.raises(StakesError, match="a label for each"):
        fit(posterior(), Standard(), (torch.zeros(3, 3), torch.zeros(2).long()), config=QUICK, progress=False)
    with pytest.raises(StakesError, match="int64"):
        fit(posterior(), Standard(), (torch.zeros(3, 3), torch.zeros(3)), config=QUICK, progress=False)
    with pytest.raises(StakesError, match="pass checkpoint="):
        fit(posterior(), Standard(), data(), config=QUICK, resume=True, progress=False)
    with pytest.raises(StakesError, match=r"LBFGS.*use Adam or SGD"):
        fit(posterior(), Standard(), data(), config=QUICK, optimizer=torch.optim.LBFGS, progress=False)


def test_missing_values_in_validation_inputs_are_refused(tmp_path: Path) -> None:
    x, labels = data(30)
    x[7, 1] = torch.nan
    options = {"utility": UTILITY, "config": QUICK, "progress": False, "checkpoint": tmp_path / "run.safetensors"}
    with pytest.raises(StakesError, match=r"30 validation examples: .* 1 of 30 inputs, the first at index 7, are NaN"):
        fit(posterior(), Standard(), data(), (x, labels), **options)


def test_the_batch_size_grows_with_the_data() -> None:
    assert [Training().batch(count) for count in (10, 150, 5000, 10**6)] == [32, 32, 64, 256]
    assert Training(batch_size=7).batch(10**6) == 7


def test_one_cpu_without_fabric_trains_as_with_it() -> None:
    plain, wrapped = posterior(), posterior()
    settings = {"utility": UTILITY, "config": QUICK, "progress": False}
    alone = fit(plain, LossCalibrated(UTILITY), data(), data(30), **settings)
    carried = fit(wrapped, LossCalibrated(UTILITY), data(), data(30), precision="32-true", **settings)
    assert torch.equal(weights(plain), weights(wrapped))
    assert alone == carried


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("refresh", ["step", "epoch"])
def test_training_in_other_precisions(precision: str, refresh: str) -> None:
    objective = LossCalibrated(UTILITY, refresh=refresh)
    history = fit(
        posterior(), objective, data(), data(30), utility=UTILITY, config=QUICK, precision=precision, progress=False
    )
    assert history.best_utility is not None
    assert history.best_utility > -30  # deciding at random costs 33


def test_gradients_from_elsewhere_do_not_count() -> None:
    clean, used = posterior(), posterior()
    (1000 * used.kl()).backward()
    for model in (clean, used):
        fit(model, Standard(), data(), config=QUICK, progress=False)
    assert torch.equal(weights(clean), weights(used))


def test_training_on_one_cpu_does_not_wait_for_fabric_to_be_imported() -> None:
    script = (
        "import sys, torch; from stakes import MLP, MCDropout, Standard, Training, fit\n"
        "data = torch.randn(20, 2), torch.zeros(20).long()\n"
        "fit(MCDropout(MLP(2, 2, hidden=(4,), dropout=0.1)), Standard(), data, config=Training(epochs=1))\n"
        "print('lightning_fabric' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
