import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from stakes import MLP, DecisionClassifier, MCDropout, StakesError, Utility, families
from stakes.calibration import Calibrated
from stakes.predictors import Blend, BoostedTrees, Constant, Forest, SampledPosterior
from stakes.tables.models import COMPARED
from stakes.tables.problem import FAMILIES, LEARNING_RATES, Recipe

# scikit-learn marks its own minibatch estimators (SGDClassifier, Perceptron, MiniBatchKMeans) the same way.
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "repeating a row moves the minibatches: the weights of a loss "
    "are equivalent to repetition, those of a run of Adam over shuffled batches are not"
}


@pytest.fixture(autouse=True)
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the trees: most of the time of a blend of few rows."""
    monkeypatch.setattr(Forest.fit.__func__, "__defaults__", (20,))


@parametrize_with_checks(
    [
        DecisionClassifier(folds=2, tabm={"members": 2, "width": 16}, epochs=4, batch_size=64, random_state=0),
        DecisionClassifier(
            model="calibrated",
            network="mlp",
            hidden=(16,),
            folds=2,
            epochs=15,
            learning_rate=0.01,
            batch_size=64,
            samples=20,
            random_state=0,
        ),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn_accepts_it(estimator: DecisionClassifier, check: object) -> None:
    check(estimator)


def cancer() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_breast_cancer(return_X_y=True)
    return x, np.where(y == 1, "benign", "malignant")


QUICK = {
    "folds": 2,
    "tabm": {"members": 2, "width": 16},
    "epochs": 15,
    "learning_rate": 0.02,
    "batch_size": 64,
    "random_state": 0,
}
MLP_ONLY = {"model": "standard", "network": "mlp", "folds": 2, "epochs": 3, "samples": 5, "random_state": 0}
COSTS = {"operate": {"malignant": 0, "benign": 100}, "watch": {"malignant": 1000, "benign": 0}}


def test_decisions_follow_the_costs_and_need_not_be_classes() -> None:
    x, y = cancer()
    train_x, test_x, train_y, test_y = train_test_split(x, y, random_state=0)
    model = DecisionClassifier(Utility.from_costs(COSTS, unit="$"), **QUICK).fit(train_x, train_y)
    decisions = model.predict(test_x)
    assert set(decisions) <= {"operate", "watch"}
    mean_cost = np.mean([COSTS[d][truth] for d, truth in zip(decisions, test_y, strict=True)])
    assert model.score(test_x, test_y) == pytest.approx(-mean_cost)
    operate_always = 100 * (test_y == "benign").mean()
    assert mean_cost < operate_always / 2
    probs = model.predict_proba(test_x)
    worth = probs @ model.utility_.values[:, [1, 0]].T  # classes_ are sorted: benign, malignant
    agree = np.array(model.utility_.decisions)[worth.argmax(1)] == decisions
    assert agree.mean() > 0.99


def test_class_labels_of_any_type_come_back_as_they_were() -> None:
    x, y = load_iris(return_X_y=True)
    for classes in (np.array([10, 20, 30]), np.array([1.0, 2.0, 3.0]), np.array(["s", "ve", "vi"])):
        model = DecisionClassifier(model="logistic", random_state=0).fit(x, classes[y])
        predicted = model.predict(x)
        assert predicted.dtype == classes.dtype
        assert (predicted == classes[y]).mean() > 0.9


def test_it_lives_in_pipelines_and_searches() -> None:
    x, y = load_iris(return_X_y=True)
    pipeline = make_pipeline(
        QuantileTransformer(n_quantiles=50), DecisionClassifier(model="forest", folds=2, random_state=0)
    )
    assert cross_val_score(pipeline, x, y, cv=3).mean() > 0.85
    search = GridSearchCV(DecisionClassifier(**MLP_ONLY), {"hidden": [(4,), (32,)]}, cv=2)
    assert search.fit(x, y).best_params_["hidden"] in ((4,), (32,))


def test_a_clone_with_the_same_seed_is_the_same_model() -> None:
    x, y = (part[:150] for part in cancer())
    model = DecisionClassifier(Utility.from_costs(COSTS), **QUICK | {"epochs": 3, "random_state": 3})
    again = clone(model).fit(x, y)
    np.testing.assert_array_equal(model.fit(x, y).predict_proba(x), again.predict_proba(x))
    other = clone(model).set_params(random_state=4).fit(x, y)
    assert not np.array_equal(other.predict_proba(x), again.predict_proba(x))


@pytest.mark.parametrize(
    "settings",
    [
        {"posterior": "ensemble"},
        {"posterior": {"family": "ensemble", "members": 2}},
        {"posterior": "mean_field"},
        {"posterior": "laplace"},
        {"network": "tabm", "tabm": {"members": 4, "width": 16}},
    ],
)
def test_other_posteriors_and_networks(settings: dict) -> None:
    x, y = load_iris(return_X_y=True)
    options = {
        "model": "standard",
        "network": "mlp",
        "folds": 2,
        "epochs": 20,
        "learning_rate": 0.02,
        "random_state": 0,
    } | settings
    assert DecisionClassifier(**options).fit(x, y).score(x, y) > 0.9


@pytest.mark.parametrize("name", COMPARED)
def test_every_model_fits_and_predicts(name: str) -> None:
    x, y = cancer()
    settings = QUICK | {"model": name, "label_noise": 0.1}
    model = DecisionClassifier(Utility.from_costs(COSTS), **settings).fit(x[:300], y[:300])
    decisions = model.predict(x[300:])
    probs = model.predict_proba(x[300:])
    assert probs.shape == (269, 2)
    np.testing.assert_allclose(probs.sum(1), 1)
    always = min(np.mean([COSTS[decision][truth] for truth in y[300:]]) for decision in COSTS)
    cost = -model.score(x[300:], y[300:])
    if name in ("constant", "weighted"):  # whose weights and costs together may ask for one decision everywhere
        assert cost <= always
    else:
        assert cost < always
        assert len(set(decisions)) == 2


def test_a_blend_is_made_of_parts_of_every_fold_and_says_its_weights() -> None:
    x, y = cancer()
    model = DecisionClassifier(Utility.from_costs(COSTS), **QUICK).fit(x, y)
    weights = model.details_["weights"]
    assert set(weights) <= {"logistic", "forest", "boosting", "calibrated"}
    assert sum(weights.values()) == pytest.approx(1)
    blend = model.predictor_.predictor if isinstance(model.predictor_, Calibrated) else model.predictor_
    assert isinstance(blend, Blend)
    assert len(blend.parts) == 2 * len(weights)


def test_groups_stay_on_one_side_of_every_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = cancer()
    groups = np.random.default_rng(0).integers(0, 60, len(y))
    seen = []

    def train_mix(kind: Any, name: str, problem: Any, *rest: Any) -> Any:
        seen.append(problem.folds)
        return Constant.fit(problem.examples.labels, 2), {}

    monkeypatch.setattr("stakes.sklearn.base.train_mix", train_mix)
    used = np.arange(len(y)) % 7 != 0  # weights of 0 leave rows out, of the groups, too
    DecisionClassifier(folds=4, random_state=0).fit(x, y, sample_weight=used.astype(float), groups=groups)
    (folds,) = seen
    assert len(folds) == 4
    assert sorted(np.concatenate([fold.held for fold in folds])) == list(range(used.sum()))
    for fold in folds:
        assert not set(groups[used][fold.train]) & set(groups[used][fold.held])
    with pytest.raises(ValueError, match="inconsistent"):
        DecisionClassifier(random_state=0).fit(x, y, groups=groups[:-1])


def test_groups_may_be_texts() -> None:
    x, y = cancer()
    groups = np.array([f"patient {number % 40}" for number in range(len(y))])
    settings = {"model": "logistic", "random_state": 0}
    by_text = DecisionClassifier(**settings).fit(x, y, groups=groups)
    by_number = DecisionClassifier(**settings).fit(x, y, groups=np.arange(len(y)) % 40)
    np.testing.assert_array_equal(by_text.predict_proba(x), by_number.predict_proba(x))


@families.register("test_sklearn dropout")
class OwnFamily(MCDropout):
    """A user's own."""


def test_a_registered_family_runs_by_its_name() -> None:
    x, y = load_iris(return_X_y=True)
    model = DecisionClassifier(posterior="test_sklearn dropout", **MLP_ONLY).fit(x, y)
    assert [type(part.posterior) for part in model.predictor_.parts] == [OwnFamily] * 2
    # In single precision, for draws of a family that we do not know may not follow their weights to double.
    ours = DecisionClassifier(**MLP_ONLY).fit(x, y)
    np.testing.assert_allclose(model.predict_proba(x), ours.predict_proba(x), atol=1e-5)
    with pytest.raises(StakesError, match="'absent'"):
        DecisionClassifier(**MLP_ONLY | {"posterior": "absent"}).fit(x, y)


def test_boosting_is_a_model_like_the_others() -> None:
    x, y = cancer()
    model = DecisionClassifier(Utility.from_costs(COSTS), model="boosting", folds=2, random_state=0).fit(x, y)
    assert [type(part) for part in model.predictor_.parts] == [BoostedTrees] * 2
    probs = model.predict_proba(x)
    np.testing.assert_allclose(np.concatenate([model.predict_proba(row[None]) for row in x[:20]]), probs[:20])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(x), probs)
    again = clone(model).fit(x, y)
    np.testing.assert_array_equal(again.predict_proba(x), probs)


def test_a_fitted_estimator_that_has_decided_can_be_pickled() -> None:
    x, y = load_iris(return_X_y=True)
    model = DecisionClassifier(**QUICK).fit(x, y)
    probs = model.predict_proba(x)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(x), probs)


def test_the_members_of_an_ensemble_have_no_dropout() -> None:
    x, y = load_iris(return_X_y=True)
    model = DecisionClassifier(posterior="ensemble", dropout=0.4, **MLP_ONLY).fit(x, y)
    for part in model.predictor_.parts:
        assert isinstance(part, SampledPosterior)
        assert [member.settings["dropout"] for member in part.posterior.members] == [0.0] * 5


def test_defaults_are_those_of_the_recipe() -> None:
    recipe = Recipe()
    assert DecisionClassifier()._recipe() == recipe
    mlp = DecisionClassifier(network="mlp")._recipe()
    assert (mlp.posterior, mlp.training.learning_rate) == ({"family": FAMILIES["mlp"]}, LEARNING_RATES["mlp"])
    network = MLP(3, 2).settings
    assert (tuple(network["hidden"]), network["dropout"]) == (recipe.hidden, recipe.dropout)


@pytest.mark.parametrize("model", [name for name in COMPARED if "noise" not in name])
def test_weights_move_decisions(model: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 1))
    y = (x[:, 0] + generator.normal(size=400) > 0).astype(int)
    settings = QUICK | {"model": model}
    even = DecisionClassifier(**settings).fit(x, y)
    weights = np.where(y == 1, 9.0, 1.0)
    heavy = DecisionClassifier(**settings).fit(x, y, sample_weight=weights)
    assert heavy.predict(x).mean() > even.predict(x).mean() + 0.1


def test_a_class_that_the_costs_do_not_name() -> None:
    x, y = load_iris(return_X_y=True)
    with pytest.raises(StakesError, match="'2'"):
        DecisionClassifier(Utility.diagonal(["0", "1"])).fit(x, y)


def test_each_row_may_have_its_own_costs() -> None:
    generator = np.random.default_rng(0)
    X, amounts = generator.normal(size=(90, 2)), 10 ** generator.uniform(1, 4, size=90)
    y = np.where(X[:, 0] + generator.normal(size=90) > 0, "ill", "well")
    costs = np.zeros((90, 2, 2))  # decisions and outcomes are the classes, sorted
    costs[:, 1, 0], costs[:, 0, 1] = amounts, 100
    fitted = DecisionClassifier(model="boosting", random_state=0).fit(X, y, costs=costs)
    probs = fitted.predict_proba(X)  # these need no costs
    expected = np.einsum("ndc,nc->nd", costs, probs)
    np.testing.assert_allclose(-fitted.decide(X, costs=costs).utilities, expected, atol=1e-3)
    assert fitted.predict(X, costs=costs).tolist() == fitted.classes_[expected.argmin(1)].tolist()
    realised = costs[np.arange(90), expected.argmin(1), (y == "well").astype(int)]
    assert fitted.score(X, y, costs=costs) == pytest.approx(-realised.mean())
    with pytest.raises(StakesError, match="pass costs= of these rows"):
        fitted.predict(X)
    with pytest.raises(StakesError, match="expected 89 examples"):
        fitted.predict(X, costs=costs[:89])
    with pytest.raises(StakesError, match="costs of each row, for the decisions 'ill', 'well'"):
        fitted.predict(X, costs=costs[0])


def test_formulas_for_the_rows_train_a_network_and_rows_without_weight_are_left_out() -> None:
    generator = np.random.default_rng(0)
    X, amounts = generator.normal(size=(80, 2)), 10 ** generator.uniform(1, 4, size=80)
    y = np.where(X[:, 0] > 0, "repaid", "lost")
    cells = {"lend": {"repaid": 0, "lost": "=amount"}, "refuse": {"repaid": "=0.1 * amount + 5", "lost": 0}}
    utility = Utility.from_costs(cells)
    settings = QUICK | {"model": "calibrated", "epochs": 3}
    used = np.arange(80) < 60
    tables = utility.for_rows({"amount": amounts})
    first = DecisionClassifier(**settings).fit(X, y, used.astype(float), costs=tables)
    second = DecisionClassifier(**settings).fit(X[used], y[used], costs=tables.rows(used))
    np.testing.assert_allclose(first.predict_proba(X), second.predict_proba(X))
    assert set(first.predict(X, costs=tables)) <= {"lend", "refuse"}
    with pytest.raises(StakesError, match="pass costs= to fit"):
        DecisionClassifier(utility, **settings).fit(X, y)
