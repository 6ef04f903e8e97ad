"""Boosted trees as arrays: scikit-learn's own predictions are the judge, and damaged arrays are refused."""

import json
from collections.abc import Callable
from timeit import timeit
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier

from stakes import StakesError
from stakes.features import Features
from stakes.predictors import BoostedTrees, _boosting, _tree_arrays
from stakes.predictors import trees as module
from stakes.predictors._tree_arrays import native_columns
from stakes.seeds import derive
from stakes.training.examples import TensorExamples


def examples(
    rows: int, classes: int = 3, *, missing: float = 0.0, seed: int = 0, dtype: Any = np.float32
) -> TensorExamples:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 4)).astype(dtype)
    noisy = x[:, 0] * x[:, 1] + x[:, 2] + generator.normal(size=rows)
    labels = np.digitize(noisy, np.linspace(-1, 1, classes + 1)[1:-1]).astype(np.int64)
    x[generator.random(x.shape) < missing] = np.nan
    return TensorExamples(torch.from_numpy(x), torch.from_numpy(labels))


def sklearn_model(train: TensorExamples, validation: TensorExamples | None, seed: int) -> Any:
    model = HistGradientBoostingClassifier(
        **module.SETTINGS,
        random_state=derive(seed, "boosting") % 2**32,
        early_stopping=validation is not None,
        max_iter=module.BLIND_ITERATIONS if validation is None else module.ITERATIONS,
    )
    held_out = {} if validation is None else {"X_val": validation.x.numpy(), "y_val": validation.labels.numpy()}
    return model.fit(train.x.numpy(), train.labels.numpy(), **held_out)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predicts_as_scikit_learn(classes: int, missing: float, dtype: Any) -> None:
    parts = [examples(300, classes, missing=missing, seed=seed, dtype=dtype) for seed in range(3)]
    trees = BoostedTrees.fit(parts[0], parts[1], classes, seed=7)
    x = torch.cat([parts[2].x, torch.tensor([[np.inf, -np.inf, 0, 1], [np.nan] * 4], dtype=parts[2].x.dtype)])
    theirs = sklearn_model(parts[0], parts[1], 7).predict_proba(x.numpy())
    np.testing.assert_allclose(trees.probs(x.numpy()), theirs, rtol=0, atol=1e-12)
    predictive = trees(x)
    assert predictive.samples == 1
    assert predictive.mean_probs().dtype == x.dtype
    # Exponentials of processors differ in the last digit.
    np.testing.assert_allclose(predictive.mean_probs(), theirs.astype(dtype), rtol=0, atol=4 * np.finfo(dtype).eps)


def test_only_missing_values_tell() -> None:
    """All that is not missing goes left: scikit-learn stores an infinite threshold then."""
    generator = np.random.default_rng(0)
    x = np.where(generator.random((200, 1)) < 0.5, np.nan, 1.0)
    train = TensorExamples(torch.from_numpy(x), torch.from_numpy(np.isnan(x[:, 0]).astype(np.int64)))
    trees = BoostedTrees.fit(train, None, 2, seed=0)
    rows = np.array([[1.0], [np.nan], [1e300], [-np.inf], [np.inf]])
    np.testing.assert_allclose(trees.probs(rows), sklearn_model(train, None, 0).predict_proba(rows), atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_infinite_inputs_in_training(classes: int) -> None:
    train = examples(300, classes, missing=0.1)
    train.x[::4, 2], train.x[1::4, 2] = torch.where(train.labels[::4] == 1, -torch.inf, -9.0), torch.inf
    trees, model = BoostedTrees.fit(train, None, classes, seed=0), sklearn_model(train, None, 0)
    assert np.isneginf(np.concatenate([each.nodes["num_threshold"] for row in model._predictors for each in row])).any()
    rows = np.concatenate([train.x.numpy(), np.full((1, 4), -np.inf), np.full((1, 4), -1e308)])
    np.testing.assert_allclose(trees.probs(rows), model.predict_proba(rows), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.bfloat16, torch.float16])
def test_inputs_of_other_types_are_numbers_all_the_same(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2 if dtype == torch.bool else 10, (300, 4), generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] + x[:, 1] > x.max()).long()
    trees = BoostedTrees.fit(TensorExamples(x.to(dtype), labels), None, 2, seed=0)
    probs = trees(x.to(dtype)).mean_probs()
    assert probs.dtype == torch.float32
    assert torch.equal(probs, trees(x.float()).mean_probs())
    assert (probs.argmax(-1) == labels).float().mean() > 0.9


def test_a_class_that_never_occurs_has_probability_0() -> None:
    train, validation = examples(200), examples(60, seed=1)
    shifted = torch.tensor([0, 2, 3])[train.labels]  # class 1 of 4 is absent in training, not in validation
    trees = BoostedTrees.fit(TensorExamples(train.x, shifted), validation, 4, seed=0)
    probs = trees.probs(validation.x.numpy())
    assert (probs[:, 1] == 0).all()
    np.testing.assert_allclose(probs.sum(1), 1)
    two = BoostedTrees.fit(TensorExamples(train.x, shifted.clamp(min=2)), None, 4, seed=0).probs(train.x.numpy())
    assert (two[:, :2] == 0).all()
    assert (two[:, 2:].argmax(1) == shifted.clamp(min=2).numpy() - 2).mean() > 0.9


def test_one_class_is_refused() -> None:
    with pytest.raises(StakesError, match="at least 2 of 3 classes"):
        BoostedTrees.fit(TensorExamples(torch.randn(5, 2), torch.ones(5, dtype=torch.int64)), None, 3, seed=0)


def test_weights_are_used() -> None:
    parts = [examples(200, 2, seed=seed) for seed in range(2)]
    weights = [torch.where(part.labels == 1, 9.0, 1.0) for part in parts]
    weighted = [TensorExamples(part.x, part.labels, weight) for part, weight in zip(parts, weights, strict=True)]
    probs = BoostedTrees.fit(weighted[0], weighted[1], 2, seed=0).probs(parts[1].x.numpy())
    theirs = HistGradientBoostingClassifier(
        **module.SETTINGS, random_state=derive(0, "boosting") % 2**32, early_stopping=True, max_iter=module.ITERATIONS
    )
    (x, y), (held_x, held_y) = ((part.x.numpy(), part.labels.numpy()) for part in parts)
    theirs.fit(x, y, weights[0].numpy(), X_val=held_x, y_val=held_y, sample_weight_val=weights[1].numpy())
    np.testing.assert_allclose(probs, theirs.predict_proba(held_x), atol=1e-12)
    assert probs[:, 1].mean() > BoostedTrees.fit(*parts, 2, seed=0).probs(held_x)[:, 1].mean() + 0.1


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    trees = BoostedTrees.fit(examples(200), examples(50, seed=1), 3, seed=0)
    x = examples(50, seed=2, missing=0.2).x
    together = trees(x).mean_probs()
    assert torch.equal(torch.cat([trees(row).mean_probs() for row in x.split(1)]), together)
    with pytest.raises(StakesError, match="rows of 4 features"):
        trees(torch.zeros(2, 5)).mean_probs()


def test_other_ways_to_store_trees_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(*given: Any) -> dict[str, torch.Tensor]:
        arrays = original(*given)
        return arrays | {"baseline": arrays["baseline"] + torch.tensor([0.0, 0.0, 1e-4])}

    original = _boosting.Boosting.arrays
    monkeypatch.setattr(_boosting.Boosting, "arrays", shifted)
    with pytest.raises(StakesError, match="scikit-learn"):
        BoostedTrees.fit(examples(100), None, 3, seed=0)


def test_comes_back_as_it_was() -> None:
    trees = BoostedTrees.fit(examples(200), examples(50, seed=1), 3, seed=0)
    again = BoostedTrees.load(trees.spec(), trees.state_dict())
    x = examples(40, seed=3).x
    assert torch.equal(again(x).mean_probs(), trees(x).mean_probs())


def test_trees_of_the_first_format_still_load() -> None:
    """One tree, ``x[1] <= 0.5``, as it was saved before columns were told apart."""
    arrays = {
        "feature": torch.tensor([1, 0, 0]),
        "threshold": torch.tensor([0.5, 0.0, 0.0]).double(),
        "missing_left": torch.tensor([True, False, False]),
        "left": torch.tensor([1, 0, 0]),
        "right": torch.tensor([2, 0, 0]),
        "leaf": torch.tensor([False, True, True]),
        "value": torch.tensor([0.0, -1.0, 2.0]).double(),
        "start": torch.tensor([0]),
        "score": torch.tensor([0]),
        "baseline": torch.tensor([0.5]).double(),
        "known": torch.tensor([True, True]),
    }
    probs = BoostedTrees.load({"features": 2}, arrays).probs(np.array([[9, 0.5], [9, 0.6], [9, np.nan]]))
    np.testing.assert_allclose(probs[:, 1], 1 / (1 + np.exp([0.5, -2.5, 0.5])))


COLUMNS = Features(numbers=2, missing=(1,), levels=(3, 5))


def table(rows: int, seed: int = 0, *, levels: tuple[int, int] = (3, 5), classes: int = 2) -> tuple[Any, Any]:
    """Rows as an encoder gives them, and the same with categories as codes, before the numbers, and gaps as NaN."""
    generator = np.random.default_rng(seed)
    codes = np.stack([generator.integers(0, count + 1, rows) for count in levels])  # the last: a level never seen
    numbers = generator.normal(size=(2, rows)).astype(np.float32)
    gap = generator.random(rows) < 0.3
    score = numbers[0] + 2.0 * gap + np.array([0, 2, -1, 1, -2, 0])[codes[1]] * (1 + codes[0]) / 2
    labels = np.digitize(score + generator.normal(size=rows), np.linspace(-1, 1, classes + 1)[1:-1])
    blocks = [(row[:, None] == np.arange(count)) for row, count in zip(codes, levels, strict=True)]
    x = np.column_stack([numbers[0], np.where(gap, 0.5, numbers[1]), gap, *blocks]).astype(np.float32)
    native = np.column_stack([*np.where(codes == np.array([levels]).T, np.nan, codes), *numbers])
    native[gap, 3] = np.nan
    return TensorExamples(torch.from_numpy(x), torch.from_numpy(labels)), native


@pytest.mark.parametrize("classes", [2, 3])
def test_gaps_and_categories_are_scikit_learns(classes: int) -> None:
    (train, native), (held, held_native), (new, new_native) = (
        table(rows, seed, classes=classes) for seed, rows in enumerate((500, 200, 300))
    )
    trees = BoostedTrees.fit(train, held, classes, seed=5, features=COLUMNS)
    assert {0, 1, 2, 3} == set(trees.arrays["feature"][~trees.arrays["leaf"]].tolist())
    model = HistGradientBoostingClassifier(
        **module.SETTINGS,
        random_state=derive(5, "boosting") % 2**32,
        early_stopping=True,
        max_iter=module.ITERATIONS,
        categorical_features=[0, 1],
    ).fit(native, train.labels.numpy(), X_val=held_native, y_val=held.labels.numpy())
    theirs = model.predict_proba(new_native)
    np.testing.assert_allclose(trees.probs(new.x.numpy()), theirs, rtol=0, atol=1e-12)
    again = BoostedTrees.load(json.loads(json.dumps(trees.spec())), trees.state_dict())
    np.testing.assert_array_equal(again.probs(new.x.numpy()), trees.probs(new.x.numpy()))


def test_a_level_that_only_some_rows_have() -> None:
    """Levels absent in training count as missing ones, and the numbers of those after them shift in scikit-learn."""
    train, native = table(400)
    rows = torch.from_numpy((native[:, 1] != 1) & (native[:, 0] != 0)).nonzero()[:, 0]
    part, part_native = train.subset(rows), native[rows.numpy()]
    trees = BoostedTrees.fit(part, None, 2, seed=0, features=COLUMNS)
    model = HistGradientBoostingClassifier(
        **module.SETTINGS,
        random_state=derive(0, "boosting") % 2**32,
        early_stopping=False,
        max_iter=module.BLIND_ITERATIONS,
        categorical_features=[0, 1],
    ).fit(part_native, part.labels.numpy())
    np.testing.assert_allclose(trees.probs(train.x.numpy()), model.predict_proba(native), rtol=0, atol=1e-12)


def test_a_category_that_no_tree_asks_for() -> None:
    """Its one level, of which there is nothing to learn: no split is of a category then."""
    generator = np.random.default_rng(0)
    x = torch.from_numpy(np.c_[generator.normal(size=200), np.ones(200)]).float()  # a number, a column for the level
    train = TensorExamples(x, (x[:, 0] > 0).long())
    trees = BoostedTrees.fit(train, None, 2, seed=0, features=Features(1, levels=(1,)))
    assert len(trees.state_dict()["level_left"]) == 0
    again = BoostedTrees.load(trees.spec(), trees.state_dict())
    torch.testing.assert_close(again(x).mean_probs(), trees(x).mean_probs())
    assert (trees(x).mean_probs().argmax(1) == train.labels).all()


@pytest.mark.parametrize("pairs", [1, 1000, 2**16])
def test_both_walks_end_in_the_same_leaves(monkeypatch: pytest.MonkeyPatch, pairs: int) -> None:
    trees = BoostedTrees.fit(table(300)[0], table(100, 1)[0], 2, seed=0, features=COLUMNS)
    columns = native_columns(table(50, 2)[0].x.double().numpy(), COLUMNS)
    monkeypatch.setattr(_tree_arrays, "PAIRS", pairs)
    walks = []
    for few in (0, 100):
        monkeypatch.setattr(_tree_arrays, "FEW_ROWS", few)
        walks.append(np.stack(list(_tree_arrays.leaves(trees.arrays, columns, COLUMNS.levels))))
    np.testing.assert_array_equal(walks[0], walks[1])
    assert walks[0].shape == (len(trees.arrays["start"]), 50)


def test_columns_that_do_not_fit_are_refused() -> None:
    train, _ = table(100)
    with pytest.raises(StakesError, match="features of 11 columns, but these have 10"):
        BoostedTrees.fit(train, None, 2, seed=0, features=Features(2, (1,), (3, 4)))
    wide = TensorExamples(torch.zeros(20, 300), torch.arange(20) % 2)
    with pytest.raises(StakesError, match="at most 255 levels"):
        BoostedTrees.fit(wide, None, 2, seed=0, features=Features(0, (), (300,)))


NAN, HUGE = float("nan"), 2**62


@pytest.mark.parametrize(
    ("name", "position", "value", "words"),
    [
        ("left", 0, 0, "children"),  # a cycle of one
        ("left", 1, 0, "children"),  # a cycle of two
        ("left", 0, 2**40, "children"),
        ("left", 0, -1, "children"),
        ("right", 0, 1, "children"),  # both children the same
        ("right", 0, HUGE, "children"),
        ("leaf", 0, True, "children"),  # the rest of the tree has no parent
        ("feature", 0, 4, "features below 4"),
        ("feature", 0, -1, "features below 4"),
        ("threshold", 0, NAN, "finite"),
        ("threshold", 0, float("inf"), "finite"),
        ("value", -1, NAN, "finite"),
        ("baseline", 0, NAN, "finite"),
        ("value", -1, 1.1e6, "within"),  # the last node is a leaf
        ("baseline", 0, -1.7e308, "within"),
        ("start", 0, 1, "follow"),
        ("start", 1, 0, "follow"),
        ("start", -1, HUGE, "follow"),
        ("start", 1, 2, "children"),  # inside the first tree
        ("score", 0, 3, "scores 0 to 2"),
        ("score", 0, -1, "scores 0 to 2"),
        ("known", 0, False, "a score for each class"),
    ],
)
def test_damaged_arrays_are_refused_in_one_line(name: str, position: int, value: Any, words: str) -> None:
    trees = BoostedTrees.fit(examples(100), examples(50, seed=1), 3, seed=0)
    arrays = {key: tensor.clone() for key, tensor in trees.state_dict().items()}
    arrays[name][position] = value
    with pytest.raises(StakesError, match=words) as caught:
        BoostedTrees.load(trees.spec(), arrays)
    assert "\n" not in str(caught.value)


def test_other_shapes_and_settings_are_refused() -> None:
    trees = BoostedTrees.fit(examples(100), examples(50, seed=1), 3, seed=0)
    spec, arrays = trees.spec(), trees.state_dict()
    for name, tensor in arrays.items():
        for other in (tensor[:-1], tensor[:0], tensor.unsqueeze(0), tensor.to(torch.float32), torch.tensor(1)):
            with pytest.raises(StakesError, match="damaged"):
                BoostedTrees.load(spec, arrays | {name: other})
        with pytest.raises(StakesError, match="damaged"):
            BoostedTrees.load(spec, {key: value for key, value in arrays.items() if key != name})
    with pytest.raises(StakesError, match="damaged"):
        BoostedTrees.load(spec, arrays | {"more": torch.zeros(1)})
    for features in (1, 3.5, "many", None, True, [4]):
        with pytest.raises(StakesError, match="damaged"):
            BoostedTrees.load(spec | {"features": features}, arrays)


@pytest.fixture(scope="module")
def categorical() -> BoostedTrees:
    return BoostedTrees.fit(table(300)[0], table(100, 1)[0], 2, seed=0, features=COLUMNS)


@pytest.mark.parametrize("value", [-1, -HUGE, HUGE, 10**5])
def test_rows_of_levels_out_of_range_are_refused(categorical: BoostedTrees, value: int) -> None:
    arrays = {key: tensor.clone() for key, tensor in categorical.state_dict().items()}
    arrays["level_row"][(arrays["level_row"] >= 0).nonzero()[0]] = value
    with pytest.raises(StakesError, match="row of levels"):
        BoostedTrees.load(categorical.spec(), arrays)
    with pytest.raises(StakesError, match="row of levels"):
        BoostedTrees.load(categorical.spec(), arrays | {"level_left": arrays["level_left"][:-1]})


@pytest.mark.parametrize(
    "columns",
    [
        None,  # then there are no levels
        "two",
        7,
        {},
        {"numbers": 2, "missing": [1], "levels": [3, 4]},
        {"numbers": 2, "missing": [1], "levels": [3, 10**30]},
        {"numbers": 10, "missing": [1], "levels": []},
        {"numbers": 2, "missing": [7], "levels": [3, 5]},
        {"numbers": 2.0, "missing": [1], "levels": [3, 5]},
        {"numbers": 2, "missing": None, "levels": [3, 5]},
    ],
)
def test_other_columns_are_refused(categorical: BoostedTrees, columns: Any) -> None:
    with pytest.raises(StakesError, match="damaged") as caught:
        BoostedTrees.load(categorical.spec() | {"columns": columns}, categorical.state_dict())
    assert "\n" not in str(caught.value)


@hypothesis_settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_whatever_loads_also_predicts(categorical: BoostedTrees, data: st.DataObject) -> None:
    """Numbers changed anywhere: the arrays are refused, or every row still ends in a leaf."""
    arrays = {key: tensor.clone() for key, tensor in categorical.state_dict().items()}
    for _ in range(data.draw(st.integers(1, 4))):
        tensor = arrays[data.draw(st.sampled_from(sorted(arrays)))]
        position = data.draw(st.integers(0, len(tensor) - 1))
        kinds = st.floats() if tensor.is_floating_point() else st.integers(-3, 40) | st.integers(-(2**63), 2**63 - 1)
        tensor[position] = data.draw(st.booleans() if tensor.dtype == torch.bool else kinds)
    try:
        trees = BoostedTrees.load(categorical.spec(), arrays)
    except StakesError:
        return
    probs = trees.probs(table(50, 3)[0].x.numpy())
    np.testing.assert_allclose(probs.sum(1), 1)


def seconds_of(*calls: Callable[[], object]) -> list[float]:
    """The least of three times of each call, taken in turns on one thread."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return [
            min(times) for times in zip(*([timeit(call, number=1) for call in calls] for _ in range(3)), strict=True)
        ]


@pytest.mark.slow
def test_not_much_slower_than_scikit_learn_with_categories() -> None:
    (train, native), (held, _), (new, new_native) = (
        table(rows, seed) for seed, rows in enumerate((3000, 500, 100_000))
    )
    trees = BoostedTrees.fit(train, held, 2, 0, COLUMNS)
    model = HistGradientBoostingClassifier(
        **module.SETTINGS, early_stopping=False, max_iter=len(trees.arrays["start"]), categorical_features=[0, 1]
    ).fit(native, train.labels.numpy())
    theirs, ours = seconds_of(lambda: model.predict_proba(new_native), lambda: trees.probs(new.x.numpy()))
    assert ours < 3 * theirs, (ours, theirs)


@pytest.mark.slow
def test_not_much_slower_than_scikit_learn() -> None:
    train, x = examples(3000), examples(100_000, seed=1).x.numpy()
    trees, model = BoostedTrees.fit(train, examples(500, seed=2), 3, 0), sklearn_model(train, examples(500, seed=2), 0)
    theirs, ours = seconds_of(lambda: model.predict_proba(x), lambda: trees.probs(x))
    assert ours < 3 * theirs, (ours, theirs)
