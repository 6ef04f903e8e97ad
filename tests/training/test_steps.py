"""Steps of the optimizer: accumulated, clipped, scheduled, watched, and gone on with."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, TensorDataset

from stakes import MLP, Categorical, Laplace, LossCalibrated, MCDropout, StakesError, Standard, Training, Utility, fit
from stakes._io.tensors import read_tensors, write_tensors
from stakes.posteriors import Posterior
from stakes.training import Epoch, Step, TensorExamples
from stakes.training.stacked import fit_together

UTILITY = Utility.diagonal("abc")
CONFIG = Training(epochs=4, batch_size=16, learning_rate=0.05, samples=2, checkpoint_seconds=0)


def data(count: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (count,), generator=generator)
    return torch.eye(3)[labels] + 0.5 * torch.randn(count, 3, generator=generator), labels


def posterior(dropout: float = 0.2) -> Posterior:
    torch.manual_seed(0)
    return MCDropout(MLP(3, 3, hidden=(8,), dropout=dropout))


def weights(of: Posterior) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in of.parameters()])


def sgd(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.1, momentum=0.9)


class PulledPlugError(Exception):
    pass


# Accumulation and clipping ---------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [None, "64-true"])
@pytest.mark.parametrize(("per_pixel", "ignored"), [(False, 0.0), (True, 0.0), (True, 0.6)])
def test_accumulated_batches_make_the_step_of_one_large_batch(
    per_pixel: bool, ignored: float, precision: str | None
) -> None:
    """83 examples in batches of 4: the last group of five has one batch of 3."""
    torch.manual_seed(0)
    x = torch.randn(83, 3, 2, 2, dtype=torch.float64) if per_pixel else torch.randn(83, 3, dtype=torch.float64)
    labels = torch.randint(3, (83, 2, 2) if per_pixel else (83,))
    labels[torch.rand(labels.shape) < ignored] = 255
    example_weights = torch.rand(83, dtype=torch.float64)
    results, losses = [], []
    for size, accumulate in ((20, 1), (4, 5)):
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 3, 1)] if per_pixel else [nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)]
        likelihood = Categorical(ignore_index=255) if ignored else Categorical()
        model = MCDropout(nn.Sequential(nn.Dropout(1e-15), *layers), likelihood, lengthscale=3.0).double()
        config = Training(epochs=3, batch_size=size, accumulate=accumulate)
        steps: list[Step] = []
        history = fit(
            model, Standard(), (x, labels, example_weights), config=config, optimizer=sgd, progress=False,
            on_step=steps.append, precision=precision,
        )  # fmt: skip
        assert [step.number for step in steps] == list(range(1, 16))
        results.append(weights(model))
        losses.append([step.loss for step in steps] + [epoch.loss for epoch in history.epochs])
    exact = 1e-11 if precision is None else 1e-7  # Fabric gives losses, and takes their weights, in single precision
    torch.testing.assert_close(results[0], results[1], rtol=exact, atol=exact)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_gradients_longer_than_clip_norm_are_scaled_down_to_it() -> None:
    x, labels = data()
    for precision in (None, "32-true"):
        model, bare, steps = posterior(1e-12), posterior(1e-12).network, []
        optimizer = SGD(bare.parameters(), lr=0.1)
        norms = []
        for _ in range(6):
            loss = nn.functional.cross_entropy(bare(x), labels)
            loss = loss + sum(p.square().sum() for p in bare.parameters() if p.ndim == 2) * 0.5 * 1e-4 / 40
            optimizer.zero_grad()
            loss.backward()
            gradient = torch.cat([parameter.grad.flatten() for parameter in bare.parameters()])
            norms.append(float(gradient.norm()))
            for parameter in bare.parameters():
                parameter.grad *= min(1.0, 0.35 / norms[-1])
            optimizer.step()
        model.lengthscale = 1e-2
        config = Training(epochs=6, batch_size=40, clip_norm=0.35)
        fit(model, Standard(), (x, labels), config=config, optimizer=lambda ps: SGD(ps, lr=0.1), progress=False,
            on_step=steps.append, precision=precision)  # fmt: skip
        assert min(norms) < 0.35 < max(norms)
        assert [step.gradient_norm for step in steps] == pytest.approx(norms, rel=1e-3)
        torch.testing.assert_close(
            weights(model), torch.cat([p.detach().flatten() for p in bare.parameters()]), atol=1e-4, rtol=1e-4
        )


def test_models_trained_together_have_no_one_norm() -> None:
    examples = [TensorExamples(*data())] * 2
    with pytest.raises(StakesError, match="clip_norm is for one network"):
        fit_together(
            [posterior(), posterior()], Standard(), examples, config=Training(clip_norm=1.0), model_seeds=[0, 1]
        )


# Schedules -------------------------------------------------------------------------------------------------

SCHEDULERS: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=12),
    "milestones": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 3, 5], 0.5),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=12),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2, T_mult=2),
    "triangles": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2),
    "warmup": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.MultiStepLR(optimizer, [4], 0.1)],
        milestones=[3],
    ),
}


def reference_rates(name: str, steps: int) -> list[float]:
    optimizer = sgd([nn.Parameter(torch.zeros(1))])
    scheduler, rates = SCHEDULERS[name](optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("by", ["step", "epoch"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_is_stepped_as_in_a_loop_and_resumes(name: str, by: str, tmp_path: Path) -> None:
    config = replace(CONFIG, schedule_by=by)  # 3 steps in each of 4 epochs
    run = partial(fit, objective=Standard(), train=data(), config=config, optimizer=sgd, scheduler=SCHEDULERS[name])
    whole, resumed = posterior(), posterior()
    steps: list[Step] = []
    run(whole, on_step=steps.append, progress=False)
    expected = reference_rates(name, 12) if by == "step" else [r for r in reference_rates(name, 4) for _ in range(3)]
    assert [step.learning_rate for step in steps] == pytest.approx(expected)

    def stop(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise PulledPlugError

    file, rest = tmp_path / "checkpoint", []
    with pytest.raises(PulledPlugError):
        run(posterior(), on_epoch=stop, checkpoint=file, progress=False)
    run(resumed, checkpoint=file, resume=True, on_step=rest.append, progress=False)
    assert rest == steps[6:], "numbers of steps, losses and rates go on"
    assert torch.equal(weights(resumed), weights(whole))
    with pytest.raises(StakesError, match="expected the scheduler that the checkpoint was written with"):
        run(posterior(), scheduler=None, checkpoint=file, resume=True, progress=False)


@pytest.mark.parametrize("by", ["step", "epoch"])
def test_the_cosine_schedule_falls_by_step_or_epoch(by: str) -> None:
    steps: list[Step] = []
    config = replace(CONFIG, schedule="cosine", schedule_by=by)
    fit(posterior(), Standard(), data(), config=config, on_step=steps.append, progress=False)
    progress = [step / 12 if by == "step" else step // 3 / 4 for step in range(12)]
    expected = [0.05 * (1 + math.cos(math.pi * share)) / 2 for share in progress]
    assert [step.learning_rate for step in steps] == pytest.approx(expected)


def test_schedules_that_do_not_go_together_are_refused() -> None:
    run = partial(fit, posterior(), Standard(), data(), progress=False)
    with pytest.raises(StakesError, match="expected a scheduler, or schedule='cosine', but got both"):
        run(config=replace(CONFIG, schedule="cosine"), scheduler=SCHEDULERS["lambda"])
    with pytest.raises(StakesError, match="ReduceLROnPlateau follows a number"):
        run(config=CONFIG, scheduler=lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer))
    with pytest.raises(StakesError, match="by 'epoch' or 'step'"):
        Training(schedule_by="batch")
    with pytest.raises(StakesError, match="clip_norm to be above 0"):
        Training(clip_norm=0)
    with pytest.raises(StakesError, match="accumulate to be at least 1"):
        Training(accumulate=0)


def test_a_scheduler_whose_state_is_no_json_is_refused_before_it_is_lost(tmp_path: Path) -> None:
    class Odd(lr_scheduler.ConstantLR):
        def state_dict(self) -> dict[str, Any]:
            return {"memory": object()}

    with pytest.raises(StakesError, match="the state of the scheduler cannot be written to a checkpoint"):
        fit(posterior(), Standard(), data(), config=CONFIG, scheduler=Odd, checkpoint=tmp_path / "c", progress=False)


# Callbacks -------------------------------------------------------------------------------------------------


def test_steps_and_epochs_are_reported_as_they_happen() -> None:
    seen: list[Step | Epoch] = []
    history = fit(
        posterior(), LossCalibrated(UTILITY), data(), data(20), utility=UTILITY, config=replace(CONFIG, clip_norm=1e9),
        on_step=seen.append, on_epoch=seen.append, progress=False,
    )  # fmt: skip
    assert [type(each) for each in seen] == [Step, Step, Step, Epoch] * 4
    steps = [each for each in seen if isinstance(each, Step)]
    assert [(step.number, step.epoch) for step in steps] == [(n + 1, n // 3 + 1) for n in range(12)]
    assert all(step.gradient_norm > 0 and step.learning_rate == 0.05 for step in steps)
    assert tuple(each for each in seen if isinstance(each, Epoch)) == history.epochs
    means = [(16 * a.loss + 16 * b.loss + 8 * c.loss) / 40 for a, b, c in zip(*[iter(steps)] * 3, strict=True)]
    assert [epoch.loss for epoch in history.epochs] == pytest.approx(means)


def test_watching_changes_nothing() -> None:
    plain, watched = posterior(), posterior()
    fit(plain, Standard(), data(), config=CONFIG, progress=False)
    fit(watched, Standard(), data(), config=CONFIG, progress=False, on_step=lambda step: None, on_epoch=print)
    assert torch.equal(weights(plain), weights(watched))


# Going on --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.0, 1e9])
@pytest.mark.parametrize("refresh", ["step", "epoch", "running"])
def test_ten_epochs_and_ten_more_are_twenty(refresh: str, seconds: float, tmp_path: Path) -> None:
    objective = LossCalibrated(UTILITY, refresh=refresh, warmup=40)
    run = partial(fit, objective=objective, train=data(), validation=data(20), utility=UTILITY, progress=False)
    config = replace(CONFIG, patience=None, checkpoint_seconds=seconds)
    whole, half, rest = posterior(), posterior(), posterior()
    expected = run(whole, config=replace(config, epochs=20))
    file = tmp_path / "checkpoint"
    assert len(run(half, config=replace(config, epochs=10), checkpoint=file).epochs) == 10
    seen: list[int] = []
    history = run(
        rest, config=replace(config, epochs=20, patience=50, checkpoint_seconds=3), checkpoint=file, resume=True,
        on_epoch=lambda epoch: seen.append(epoch.number),
    )  # fmt: skip
    assert seen == list(range(11, 21)), "the last epoch is in the checkpoint, however few seconds have passed"
    assert history == expected
    assert torch.equal(weights(rest), weights(whole))


def test_a_run_that_stopped_early_goes_on_with_more_patience(tmp_path: Path) -> None:
    config = Training(epochs=200, batch_size=40, learning_rate=1e-6, samples=2, patience=3)
    run = partial(fit, objective=Standard(), train=data(), validation=data(20), utility=UTILITY, progress=False)
    file = tmp_path / "checkpoint"
    first = run(posterior(), config=config, checkpoint=file)
    again = run(posterior(), config=config, checkpoint=file, resume=True)
    assert again == first
    more = run(posterior(), config=replace(config, patience=6), checkpoint=file, resume=True)
    assert more.epochs[: len(first.epochs)] == first.epochs
    assert len(more.epochs) == len(first.epochs) + 3


def test_what_other_epochs_would_change_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    run = partial(fit, posterior(), Standard(), data(), checkpoint=file, progress=False)
    run(config=replace(CONFIG, schedule="cosine"))
    with pytest.raises(StakesError, match=r"schedule='cosine' follow the number of epochs, which was 4 and is 8 now"):
        run(config=replace(CONFIG, schedule="cosine", epochs=8), resume=True)
    run(config=CONFIG)
    with pytest.raises(StakesError, match="at most 3 epochs, but it has 4: resume with more epochs"):
        run(config=replace(CONFIG, epochs=3), resume=True)
    with pytest.raises(StakesError, match="expected the checkpoint of a run with"):
        run(config=replace(CONFIG, accumulate=2), resume=True)


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    file, expected, resumed = tmp_path / "checkpoint", posterior(), posterior()
    fit(expected, Standard(), data(), config=replace(CONFIG, epochs=6), progress=False)
    fit(posterior(), Standard(), data(), config=CONFIG, checkpoint=file, progress=False)
    tensors, metadata = read_tensors(file)
    del metadata["loop"]
    for setting in ("schedule_by", "accumulate", "clip_norm"):
        del metadata["run"][setting]
    write_tensors(file, tensors, json.loads(json.dumps(metadata)))
    fit(resumed, Standard(), data(), config=replace(CONFIG, epochs=6), checkpoint=file, resume=True, progress=False)
    assert torch.equal(weights(resumed), weights(expected))


@pytest.mark.parametrize(("every", "first"), [(4, 3), (2, 5), (4, 6)])
@pytest.mark.parametrize("seed", range(3))
def test_more_epochs_are_chosen_from_as_without_a_break(tmp_path: Path, every: int, first: int, seed: int) -> None:
    """The first part is scored at its end, where the whole run is not."""
    torch.manual_seed(seed)
    held_out = (torch.randn(30, 3), torch.randint(3, (30,)))
    config = replace(CONFIG, validate_every=every, patience=None)
    options = {"utility": UTILITY, "progress": False}
    ran, expected = posterior(), posterior()
    file = tmp_path / "checkpoint"
    part = fit(
        posterior(), Standard(), data(), held_out, config=replace(config, epochs=first), checkpoint=file, **options
    )
    again = posterior()
    same = fit(
        again, Standard(), data(), held_out, config=replace(config, epochs=first), checkpoint=file, resume=True,
        **options,
    )  # fmt: skip
    assert same == part
    assert part.epochs[-1].utility is not None
    history = fit(
        ran, Standard(), data(), held_out, config=replace(config, epochs=8), checkpoint=file, resume=True, **options
    )
    assert history == fit(expected, Standard(), data(), held_out, config=replace(config, epochs=8), **options)
    assert torch.equal(weights(ran), weights(expected))


def test_a_batch_without_labels_that_count_keeps_its_share_of_the_kl() -> None:
    x, labels = data(48)
    labels[::5] = labels[:8] = -100
    results = []
    for size, accumulate in ((24, 1), (8, 3)):
        torch.manual_seed(0)
        model = Laplace(nn.Linear(3, 3), Categorical(ignore_index=-100), prior_sd=0.1)
        loader = DataLoader(TensorDataset(x, labels), batch_size=size)
        config = Training(epochs=2, accumulate=accumulate)
        fit(model, Standard(), loader, config=config, optimizer=sgd, progress=False)
        results.append(weights(model))
    torch.testing.assert_close(*results)
