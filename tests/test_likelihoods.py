import numpy as np
import pytest
import torch
from torch import Tensor
from watching import LargestTensor

from stakes import Categorical, NoisyCategorical, StakesError
from stakes.likelihoods import Likelihood, from_spec

LOG_PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.05, 0.05, 0.9]], dtype=torch.float64).log()
MATRIX = [[0.8, 0.1, 0.1], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]]


def of_every_label(likelihood: Likelihood, log_probs: Tensor = LOG_PROBS) -> Tensor:
    """(B, C) log p(observed = o), for each o."""
    labels = range(log_probs.shape[1])
    columns = [likelihood.log_prob(log_probs[None], torch.full((len(log_probs),), o))[0] for o in labels]
    return torch.stack(columns, 1)


@pytest.mark.parametrize("shape", [(6, 2, 5), (6, 2, 5, 3, 4)])
def test_classes_move_last_and_sum_to_one(shape: tuple[int, ...]) -> None:
    outputs = torch.randn(shape)
    outcomes = Categorical().outcomes(outputs)
    assert outcomes.log_weights.shape == (6, 2, *shape[3:], 5)
    torch.testing.assert_close(outcomes.log_weights, torch.log_softmax(outputs, 2).movedim(2, -1))
    torch.testing.assert_close(outcomes.weights, torch.softmax(outputs, 2).movedim(2, -1))


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1)])
def test_an_output_without_classes_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(StakesError, match="C >= 2"):
        Categorical().outcomes(torch.zeros(shape))


def test_categorical_believes_the_label() -> None:
    torch.testing.assert_close(of_every_label(Categorical()), LOG_PROBS)


def test_a_mixture_over_draws_is_observed_as_its_mean() -> None:
    outputs, labels = torch.randn(7, 4, 3, dtype=torch.float64), torch.tensor([0, 2, 1, 1])
    for likelihood in (Categorical(), NoisyCategorical(0.2).double(), NoisyCategorical(matrix=MATRIX).double()):
        mixture = likelihood.outcomes(outputs).mixture()
        expected = likelihood.log_prob(outputs, labels).exp().mean(0).log()
        torch.testing.assert_close(likelihood.mixture_log_prob(mixture, labels), expected)


def test_a_matrix_of_a_thousand_classes_takes_no_cube_of_memory() -> None:
    """As `probs @ T`, which is 1 MB a step here: all columns of the logarithms would be a gigabyte."""
    classes, rows = 1000, 256
    generator = torch.Generator().manual_seed(0)
    matrix = torch.rand(classes, classes, generator=generator, dtype=torch.float64)
    matrix /= matrix.sum(1, keepdim=True)
    outputs = torch.randn(1, rows, classes, generator=generator)
    labels = torch.randint(classes, (rows,), generator=generator)
    likelihood = NoisyCategorical(matrix=matrix)
    largest = LargestTensor()
    with largest:
        log_prob = likelihood.log_prob(outputs, labels)[0]
    expected = (outputs[0].double().softmax(-1) @ matrix)[torch.arange(rows), labels].log()
    torch.testing.assert_close(log_prob.double(), expected, atol=1e-5, rtol=1e-5)
    assert largest.numel <= classes * classes


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.99])
def test_a_uniform_rate_mixes_with_the_uniform_distribution(rate: float) -> None:
    observed = of_every_label(NoisyCategorical(rate).double()).exp()
    torch.testing.assert_close(observed, (1 - rate) * LOG_PROBS.exp() + rate / 3, atol=1e-7, rtol=1e-6)


def test_a_matrix_is_the_transition_from_outcome_to_label() -> None:
    observed = of_every_label(NoisyCategorical(matrix=MATRIX).double()).exp()
    expected = LOG_PROBS.exp().numpy() @ np.array(MATRIX)
    np.testing.assert_allclose(observed.numpy(), expected, atol=1e-7)


def test_the_uniform_rate_is_a_special_matrix() -> None:
    rate = 0.3
    matrix = (1 - rate) * np.eye(3) + rate / 3
    by_rate = of_every_label(NoisyCategorical(rate))
    by_matrix = of_every_label(NoisyCategorical(matrix=matrix))
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
        loss = -likelihood.log_prob(log_probs[None], labels).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert likelihood.rate == pytest.approx(0.3, abs=0.02)


def test_extreme_log_probs_stay_finite() -> None:
    log_probs = torch.tensor([[0.0, -1e4, -1e4]], requires_grad=True)
    for likelihood in (NoisyCategorical(0.1), NoisyCategorical(matrix=MATRIX)):
        loss = of_every_label(likelihood, log_probs).sum()
        (gradient,) = torch.autograd.grad(loss, log_probs)
        assert loss.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "likelihood",
    [Categorical(), NoisyCategorical(0.2), NoisyCategorical(0.2, learn=True), NoisyCategorical(matrix=MATRIX)],
)
def test_a_spec_makes_it_again(likelihood: Categorical | NoisyCategorical) -> None:
    again = from_spec(likelihood.spec())
    torch.testing.assert_close(of_every_label(again), of_every_label(likelihood))
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
        of_every_label(NoisyCategorical(matrix=MATRIX), torch.zeros(2, 4))
