"""Logistic regression as a matrix: scikit-learn's predictions are the judge."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from stakes import StakesError
from stakes.predictors import Logistic
from stakes.predictors.linear import STRENGTHS
from stakes.training.examples import TensorExamples


def examples(rows: int, classes: int = 3, seed: int = 0) -> TensorExamples:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 5, generator=generator)
    noisy = x[:, 0] - x[:, 1] + torch.randn(rows, generator=generator)
    return TensorExamples(x, torch.bucketize(noisy, torch.linspace(-1, 1, classes + 1)[1:-1]))


@pytest.mark.parametrize("classes", [2, 3])
def test_is_scikit_learns_with_the_strength_of_the_lowest_validation_loss(classes: int) -> None:
    train, held, new = (examples(rows, classes, seed) for seed, rows in enumerate((60, 200, 100)))
    x, y = train.x.double().numpy(), train.labels.numpy()
    models = [LogisticRegression(C=strength, max_iter=1000).fit(x, y) for strength in STRENGTHS]
    losses = [log_loss(held.labels, model.predict_proba(held.x.double().numpy())) for model in models]
    best = models[int(np.argmin(losses))]
    ours = Logistic.fit(train, held, classes)
    np.testing.assert_allclose(ours(new.x).mean_probs(), best.predict_proba(new.x.double().numpy()), atol=2e-3)
    assert ours(new.x).samples == 1
    plain = Logistic.fit(train, None, classes)
    theirs = LogisticRegression(C=1.0, max_iter=1000).fit(x, y).predict_proba(new.x.double().numpy())
    np.testing.assert_allclose(plain(new.x.double()).mean_probs(), theirs, atol=1e-6)


def test_weights_are_used_in_training_and_validation() -> None:
    train, held = examples(200, 2), examples(200, 2, seed=1)
    weights = torch.where(train.labels == 1, 9.0, 1.0)
    ours = Logistic.fit(TensorExamples(train.x, train.labels, weights), None, 2)
    theirs = LogisticRegression(max_iter=1000).fit(train.x.double(), train.labels, weights)
    np.testing.assert_allclose(ours(train.x).mean_probs(), theirs.predict_proba(train.x.double().numpy()), atol=1e-5)
    only = TensorExamples(held.x, held.labels, (torch.arange(200) < 10).float())
    first = Logistic.fit(train, TensorExamples(held.x[:10], held.labels[:10]), 2)
    assert torch.equal(Logistic.fit(train, only, 2).weights, first.weights)


def test_a_class_that_never_occurs_has_probability_0() -> None:
    train, held = examples(200), examples(50, 4, seed=1)
    ours = Logistic.fit(TensorExamples(train.x, torch.tensor([0, 2, 3])[train.labels]), held, 4)
    probs = ours(held.x).mean_probs()
    assert (probs[:, 1] == 0).all()
    torch.testing.assert_close(probs.sum(1), torch.ones(50))
    with pytest.raises(StakesError, match="at least 2 of 3 classes"):
        Logistic.fit(TensorExamples(train.x, torch.zeros(200, dtype=torch.int64)), None, 3)


def test_inputs_that_are_not_finite_are_refused() -> None:
    ours = Logistic.fit(examples(100), None, 3)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(StakesError, match="finite"):
            ours(torch.full((1, 5), bad)).mean_probs()
        with pytest.raises(StakesError, match="finite"):
            Logistic.fit(TensorExamples(torch.full((10, 5), bad), torch.arange(10) % 2), None, 2)
    with pytest.raises(StakesError, match="rows of 5 features"):
        ours(torch.zeros(1, 4)).mean_probs()
    assert ours(torch.full((1, 5), 1e30)).mean_probs().isfinite().all()


def test_comes_back_as_it_was_and_damaged_ones_are_refused() -> None:
    ours, new = Logistic.fit(examples(100), None, 3), examples(20, seed=2).x
    spec, tensors = ours.spec(), ours.state_dict()
    assert torch.equal(Logistic.load(spec, tensors)(new).mean_probs(), ours(new).mean_probs())
    nan, huge = (torch.full((3, 5), each, dtype=torch.float64) for each in (float("nan"), 1e300))
    for damage in (
        {"weights": nan},
        {"weights": huge},
        {"weights": tensors["weights"][:2]},
        {"weights": tensors["weights"].float()},
        {"weights": tensors["weights"].flatten()},
        {"bias": nan[:, 0]},
        {"bias": tensors["bias"][:1]},
        {"bias": torch.tensor(1.0).double()},
        {"known": torch.tensor([True, False, True])},
        {"known": torch.tensor(True)},
        {"more": torch.zeros(1)},
    ):
        with pytest.raises(StakesError, match="damaged a logistic"):
            Logistic.load(spec, tensors | damage)
    with pytest.raises(StakesError, match="damaged"):
        Logistic.load(spec, {})
