"""Likelihoods of numbers: densities against SciPy in the user's unit, standardised labels, refusals, saving."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from stakes import (
    MLP,
    Ensemble,
    Gaussian,
    LogNormal,
    MCDropout,
    Newsvendor,
    SampledPosterior,
    SavedModel,
    StakesError,
    Standard,
    StudentT,
    Training,
    decide,
    fit,
)
from stakes.likelihoods import from_spec

LABELS = torch.tensor([120.0, 80.0, 100.0, 140.0, 60.0])


def softplus(value: float) -> float:
    return float(np.log1p(np.exp(value)))


def test_outputs_are_standardised_and_densities_are_in_the_unit_of_the_labels() -> None:
    likelihood = Gaussian.for_labels(LABELS, scale="input")
    mean, sd = LABELS.mean().item(), LABELS.std(correction=0).item()
    outputs = torch.tensor([[[0.5, 0.0], [-1.0, 1.0]]])  # (S, B, 2)
    scales = [sd * (softplus(raw + np.log(np.expm1(1.0))) + 1e-3) for raw in (0.0, 1.0)]
    expected = stats.norm.logpdf([110.0, 70.0], [mean + 0.5 * sd, mean - sd], scales)
    actual = likelihood.log_prob(outputs, torch.tensor([110.0, 70.0]))
    np.testing.assert_allclose(actual[0], expected, rtol=1e-6)
    outcomes = likelihood.outcomes(outputs)
    np.testing.assert_allclose(outcomes.mean()[0], [mean + 0.5 * sd, mean - sd], rtol=1e-6)
    mixed = likelihood.mixture_log_prob(outcomes.mixture(), torch.tensor([110.0, 70.0]))
    np.testing.assert_allclose(mixed, expected, rtol=1e-6)


def test_the_other_kinds() -> None:
    outputs = torch.tensor([[0.5, -0.2]])  # (S, B): a network without a class axis will do
    logs = LogNormal.for_labels(LABELS, scale=0.3)
    mean, sd = LABELS.log().mean().item(), LABELS.log().std(correction=0).item()
    expected = [stats.lognorm(0.3, scale=np.exp(mean + sd * z)).logpdf(90.0) for z in (0.5, -0.2)]
    np.testing.assert_allclose(logs.log_prob(outputs, torch.tensor([90.0, 90.0]))[0], expected, rtol=1e-6)
    heavy = StudentT.for_labels(LABELS, df=5, scale=12.0)
    mean, sd = LABELS.mean().item(), LABELS.std(correction=0).item()
    expected = [stats.t(5, mean + sd * z, 12.0).logpdf(90.0) for z in (0.5, -0.2)]
    np.testing.assert_allclose(heavy.log_prob(outputs, torch.tensor([90.0, 90.0]))[0], expected, rtol=1e-6)


def test_batches_of_labels_are_as_good_as_all_at_once_and_read_once() -> None:
    whole, parts = Gaussian.for_labels(LABELS), Gaussian()
    parts.prepare(iter([LABELS[:2], LABELS[2:3], LABELS[3:]]))
    torch.testing.assert_close([parts.center, parts.unit], [whole.center, whole.unit])
    parts.prepare([torch.tensor([1.0, 2.0])])
    assert parts.center == whole.center, "what is trained on one standard keeps it"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(scale="both"), "'learnt', 'input', or a number"),
        (lambda: Gaussian(scale=0.0), "a number above 0"),
        (lambda: StudentT(df=2), "3 or more"),
        (lambda: Gaussian.for_labels(torch.ones(4)), "all equal"),
        (lambda: Gaussian.for_labels(torch.tensor([1.0, torch.nan])), "finite"),
        (lambda: LogNormal.for_labels(torch.tensor([1.0, 0.0])), "above 0 for a LogNormal, but got 0"),
        (lambda: Gaussian().outcomes(torch.zeros(1, 2, 1)), "has seen none"),
        (lambda: Gaussian.for_labels(LABELS).outcomes(torch.zeros(1, 2, 2)), "a network with 1 output,"),
        (lambda: Gaussian.for_labels(LABELS, scale="input").outcomes(torch.zeros(1, 2)), "2 outputs"),
        (lambda: Gaussian.for_labels(LABELS).log_prob(torch.zeros(1, 5, 1), LABELS[:, None]), "shape of the pred"),
    ],
)
def test_nonsense_is_refused(make, message: str) -> None:
    with pytest.raises(StakesError, match=message):
        make()


@pytest.mark.parametrize("likelihood", [Gaussian("input"), LogNormal(), StudentT(2.5, df=6)])
def test_a_spec_brings_it_back(likelihood) -> None:
    again = from_spec(likelihood.spec())
    assert type(again) is type(likelihood)
    assert again.settings() == likelihood.settings()


def demand(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    x = torch.rand(count, 1, generator=generator)
    return x, 1000 + 600 * x[:, 0] + (50 + 100 * x[:, 0]) * torch.randn(count, generator=generator)


def test_fit_finds_the_standard_the_scale_and_the_decision_and_a_model_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    likelihood = Gaussian("input")
    posterior = MCDropout(MLP(1, 2, hidden=(16,), dropout=0.02), likelihood)
    data = demand(1000)
    config = Training(epochs=60, batch_size=100, learning_rate=0.02, patience=None, samples=5)
    utility = Newsvendor(under=3, over=1)
    history = fit(posterior, Standard(), data, demand(300), utility=utility, config=config, progress=False)
    assert likelihood.center.item() == pytest.approx(data[1].mean().item(), rel=1e-5)
    assert history.epochs[-1].nll < history.epochs[0].nll
    x = torch.linspace(0.1, 0.9, 9).unsqueeze(1)
    decisions = decide(posterior.draw(50, seed=0)(x), utility)
    best = stats.norm.ppf(0.75, 1000 + 600 * x[:, 0], 50 + 100 * x[:, 0])
    assert np.abs(decisions.choice.numpy() - best).max() < 30
    SavedModel(SampledPosterior(posterior, samples=50, seed=0), utility).save(tmp_path / "model")
    again = SavedModel.load(tmp_path / "model").decide(x)
    torch.testing.assert_close(again.choice, decisions.choice)
    assert SavedModel.load(tmp_path / "model").utility == utility


def test_one_learnt_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(800, 1, generator=generator)
    y = 3 * x[:, 0] + 0.5 * torch.randn(800, generator=generator)
    torch.manual_seed(0)
    posterior = Ensemble([nn.Linear(1, 1), nn.Linear(1, 1)], Gaussian(), prior_sd=10.0)
    fit(posterior, Standard(), (x, y), config=Training(epochs=60, learning_rate=0.05, batch_size=100), progress=False)
    outcomes = posterior.draw(2, seed=0)(x[:3]).mixture()
    assert outcomes.variance().sqrt().mean().item() == pytest.approx(0.5, rel=0.05)
    torch.testing.assert_close(outcomes.mean(), 3 * x[:3, 0].double(), atol=0.1, rtol=0)
