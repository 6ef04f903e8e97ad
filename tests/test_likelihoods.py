import numpy as np
import pytest
import torch

from stakes import Categorical, NoisyCategorical, StakesError
from stakes.likelihoods import from_spec

LOG_PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.05, 0.05, 0.9]], dtype=torch.float64).log()
MATRIX = [[0.8, 0.1, 0.1], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]]


def test_classes_move_last_and_sum_to_one() -> None:
    logits = torch.randn(2, 5, 3, 4)
    log_probs = Categorical().outcome_log_probs(logits)
    assert log_probs.shape == (2, 3, 4, 5)
    torch.testing.assert_close(log_probs, torch.log_softmax(logits, 1).permute(0, 2, 3, 1))


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_an_output_without_classes_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(StakesError, match="C >= 2"):
        Categorical().outcome_log_probs(torch.zeros(shape))


def test_categorical_believes_the_label() -> None:
    assert Categorical().observed_log_probs(LOG_PROBS) is LOG_PROBS


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.99])
def test_a_uniform_rate_mixes_with_the_uniform_distribution(rate: float) -> None:
    observed = NoisyCategorical(rate).double().observed_log_probs(LOG_PROBS).exp()
    torch.testing.assert_close(observed, (1 - rate) * LOG_PROBS.exp() + rate / 3, atol=1e-7, rtol=1e-6)


def test_a_matrix_is_the_transition_from_outcome_to_label() -> None:
    observed = NoisyCategorical(matrix=MATRIX).double().observed_log_probs(LOG_PROBS).exp()
    expected = LOG_PROBS.exp().numpy() @ np.array(MATRIX)
    np.testing.assert_allclose(observed.numpy(), expected, atol=1e-7)


def test_the_uniform_rate_is_a_special_matrix() -> None:
    rate = 0.3
    matrix = (1 - rate) * np.eye(3) + rate / 3
    by_rate = NoisyCategorical(rate).observed_log_probs(LOG_PROBS)
    by_matrix = NoisyCategorical(matrix=matrix).observed_log_probs(LOG_PROBS)
    torch.testing.assert_close(by_rate, by_matrix, atol=1e-6, rtol=1e-6)


def test_a_learnt_rate_finds_the_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(3, (20000,), generator=generator)
    redrawn = torch.rand(20000, generator=generator) < 0.3
    labels = torch.where(redrawn, torch.randint(3, (20000,), generator=generator), truth)
    log_probs = torch.full((20000, 3), 1e-4).scatter(1, truth[:, None], 1 - 2e-4).log()
    likelihood = NoisyCategorical(0.05, learn=True)
    optimizer = torch.optim.Adam(likelihood.parameters(), lr=0.1)
    for _ in range(200):
        loss = -likelihood.observed_log_probs(log_probs).gather(1, labels[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert likelihood.rate == pytest.approx(0.3, abs=0.02)


def test_extreme_log_probs_stay_finite() -> None:
    log_probs = torch.tensor([[0.0, -1e4, -1e4]], requires_grad=True)
    for likelihood in (NoisyCategorical(0.1), NoisyCategorical(matrix=MATRIX)):
        loss = likelihood.observed_log_probs(log_probs).sum()
        (gradient,) = torch.autograd.grad(loss, log_probs)
        assert loss.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "likelihood",
    [Categorical(), NoisyCategorical(0.2), NoisyCategorical(0.2, learn=True), NoisyCategorical(matrix=MATRIX)],
)
def test_a_spec_makes_it_again(likelihood: Categorical | NoisyCategorical) -> None:
    again = from_spec(likelihood.spec())
    torch.testing.assert_close(again.observed_log_probs(LOG_PROBS), likelihood.observed_log_probs(LOG_PROBS))
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in likelihood.parameters()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "either a rate or a matrix"),
        ({"rate": 0.1, "matrix": MATRIX}, "either a rate or a matrix"),
        ({"rate": 1.0}, r"\[0, 1\)"),
        ({"rate": -0.1}, r"\[0, 1\)"),
        ({"rate": 0.0, "learn": True}, "exactly 0"),
        ({"matrix": [[1, 0]]}, "square"),
        ({"matrix": [[1, 1], [0, 1]]}, "sum to 1"),
        ({"matrix": [[1.0, 0.0], [0.0, 1.0]], "learn": True}, "exact zeros"),
    ],
)
def test_impossible_noise_is_refused(arguments: dict, words: str) -> None:
    with pytest.raises(StakesError, match=words):
        NoisyCategorical(**arguments)


def test_an_unknown_kind_and_a_matrix_of_another_size() -> None:
    with pytest.raises(StakesError, match="'poisson'"):
        from_spec({"kind": "poisson"})
    with pytest.raises(StakesError, match="4 classes, but got 3"):
        NoisyCategorical(matrix=MATRIX).observed_log_probs(torch.zeros(2, 4))
