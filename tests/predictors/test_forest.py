"""Forests as arrays: scikit-learn's own predictions are the judge, and damaged arrays are refused."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from stakes import StakesError
from stakes.predictors import Forest, forest
from stakes.training.examples import TensorExamples


def examples(rows: int, classes: int = 3, *, missing: float = 0.0, seed: int = 0) -> TensorExamples:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 4)).astype(np.float32)
    noisy = x[:, 0] * x[:, 1] + x[:, 2] + generator.normal(size=rows)
    labels = np.digitize(noisy, np.linspace(-1, 1, classes + 1)[1:-1])
    x[generator.random(x.shape) < missing] = np.nan
    return TensorExamples(torch.from_numpy(x), torch.from_numpy(labels))


@pytest.mark.parametrize("kind", [ExtraTreesClassifier, RandomForestClassifier])
@pytest.mark.parametrize(("classes", "missing"), [(2, 0.0), (3, 0.0), (3, 0.2)])
def test_predicts_as_scikit_learn(kind: Any, classes: int, missing: float) -> None:
    train, new = examples(300, classes, missing=missing), examples(200, classes, missing=missing, seed=1)
    model = kind(20, random_state=0).fit(train.x.numpy(), train.labels.numpy())
    known = torch.ones(classes, dtype=torch.bool)
    ours = Forest(forest._arrays([each.tree_ for each in model.estimators_], known), 4)
    np.testing.assert_allclose(ours.probs(new.x.numpy()), model.predict_proba(new.x.numpy()), rtol=0, atol=1e-6)


def test_the_same_inputs_are_below_a_threshold_when_it_is_rounded() -> None:
    """Thresholds lie between float32 numbers, in double precision: rounded to the nearest, one would move a row."""
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    above = np.nextafter(x, np.float32(np.inf))
    thresholds = np.concatenate([x, (x.astype(np.float64) + above) / 2, x + 0.4 * (above - x.astype(np.float64))])
    rounded = forest._rounded_down(thresholds)
    assert rounded.dtype == np.float32
    np.testing.assert_array_equal(rounded, np.tile(x, 3))
    assert np.isfinite(forest._rounded_down(np.array([np.inf, -np.inf]))).all()


def test_learns_and_comes_back_as_it_was() -> None:
    train, new = examples(500), examples(300, seed=1)
    trees = Forest.fit(train, 3, seed=0, trees=50)
    again = Forest.load(trees.spec(), trees.state_dict())
    assert torch.equal(again(new.x).mean_probs(), trees(new.x).mean_probs())
    assert torch.equal(Forest.fit(train, 3, seed=0, trees=50)(new.x).mean_probs(), trees(new.x).mean_probs())
    assert (trees(new.x).mean_probs().argmax(-1) == new.labels).float().mean() > 0.5
    rows = torch.cat([trees(row).mean_probs() for row in new.x[:20].split(1)])
    assert torch.equal(rows, trees(new.x).mean_probs()[:20])


def test_weights_are_used() -> None:
    train = examples(300, 2)
    heavy = TensorExamples(train.x, train.labels, torch.where(train.labels == 1, 9.0, 1.0))
    means = [Forest.fit(each, 2, seed=0, trees=20).probs(train.x.numpy())[:, 1].mean() for each in (train, heavy)]
    assert means[1] > means[0] + 0.1


def test_a_class_that_never_occurs_has_probability_0() -> None:
    train = examples(200)
    probs = Forest.fit(TensorExamples(train.x, torch.tensor([0, 2, 3])[train.labels]), 4, seed=0, trees=10)
    assert (probs.probs(train.x.numpy())[:, 1] == 0).all()
    with pytest.raises(StakesError, match="at least 2 of 3 classes"):
        Forest.fit(TensorExamples(train.x, torch.ones(200, dtype=torch.int64)), 3, seed=0)


def test_stays_small_on_disk() -> None:
    train = examples(20_000)
    trees = Forest.fit(train, 3, seed=0, trees=5)
    assert sum(tensor.nbytes for tensor in trees.state_dict().values()) < 5 * 15_000


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("left", 0, "children"),
        ("right", -1, "children"),
        ("left", 2**31 - 1, "children"),
        ("feature", 4, "features below 4"),
        ("threshold", float("nan"), "finite"),
        ("start", 1, "follow"),
        ("value", float("nan"), "sum to 1"),
        ("value", -1.0, "sum to 1"),
        ("value", 2.0, "sum to 1"),
        ("known", False, "share of each class"),
    ],
)
def test_damaged_arrays_are_refused_in_one_line(name: str, value: Any, words: str) -> None:
    trees = Forest.fit(examples(100), 3, seed=0, trees=3)
    arrays = {key: tensor.clone() for key, tensor in trees.state_dict().items()}
    arrays[name].view(-1)[0] = value
    with pytest.raises(StakesError, match=words) as caught:
        Forest.load(trees.spec(), arrays)
    assert "\n" not in str(caught.value)


def test_other_shapes_and_settings_are_refused() -> None:
    trees = Forest.fit(examples(100), 3, seed=0, trees=3)
    spec, arrays = trees.spec(), trees.state_dict()
    for name, tensor in arrays.items():
        for other in (tensor[:-1], tensor[:0], tensor.unsqueeze(0), tensor.double(), torch.tensor(1)):
            with pytest.raises(StakesError, match="damaged"):
                Forest.load(spec, arrays | {name: other})
    for features in (1, 3.5, "many", None, True, 2**40, -4):
        with pytest.raises(StakesError, match="damaged"):
            Forest.load(spec | {"features": features}, arrays)
