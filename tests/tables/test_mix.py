"""Strengths of calibration, blends, and the choice of a model, from the rows that folds held out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stakes import Utility
from stakes.calibration import Calibrated, Temperature
from stakes.evaluation.comparison import Choice
from stakes.features import Features
from stakes.outcomes import Predictor
from stakes.predictors import Blend, Constant
from stakes.tables.class_mix import ClassMix, HeldOutClasses
from stakes.tables.classes import Classes
from stakes.tables.mix import Mix, Solution
from stakes.tables.problem import Problem, Recipe
from stakes.tables.split import folds
from stakes.tables.train import train_mix
from stakes.training.config import Training
from stakes.training.examples import TensorExamples
from stakes.utility import TableUtility

COSTS = np.array([[0.0, 5.0], [1.0, 0.0]])
UTILITY = Utility.from_costs(COSTS, ["well", "ill"], ["well", "ill"])
RECIPE = Recipe(tabm={"members": 2, "width": 8}, training=Training(epochs=3, select="nll"))


def said(chances: Sequence[float]) -> Tensor:
    """(n, 2) of the chances of being ill."""
    ill = torch.tensor(chances)
    return torch.stack([1 - ill, ill], 1)


def held_out(probs: dict[str, Tensor], labels: Tensor, **rest: Any) -> HeldOutClasses:
    return HeldOutClasses(probs, labels, UTILITY, **rest)


def random_labels(count: int) -> Tensor:
    return torch.randint(2, (count,), generator=torch.Generator().manual_seed(0))


# Strengths of calibration --------------------------------------------------------------------------


def strength(standard: Tensor, weak: Tensor, strong: Tensor, labels: Tensor, **rest: Any) -> float:
    held = held_out({"standard": standard, "calibrated-0.1": weak, "calibrated-1": strong}, labels, **rest)
    chosen = held.mixes(["calibrated"])["calibrated"]
    assert isinstance(chosen, ClassMix)
    (name,) = chosen.weights
    assert chosen.weights == {name: 1.0}
    assert chosen.temperature is None
    assert name == {0: "standard", 0.1: "calibrated-0.1", 1: "calibrated-1"}[chosen.details["strength"]]
    return float(chosen.details["strength"])


def test_calibration_that_does_not_pay_is_none() -> None:
    labels = random_labels(100)
    right = said((0.8 * labels + 0.1).tolist())
    wrong = said((0.9 - 0.8 * labels).tolist())
    assert strength(right, right, right, labels) == 0
    assert strength(right, wrong, wrong, labels) == 0
    assert strength(wrong, right, wrong, labels) == 0.1
    assert strength(wrong, wrong, right, labels) == 1
    assert strength(wrong, right, right, labels) == 0.1  # the weaker of two that are alike


@pytest.mark.parametrize(("worse", "expected"), [(2, 0), (0, 1)])
def test_a_gain_has_to_be_above_its_standard_error(worse: int, expected: float) -> None:
    """Three of 100 rows cost 1 less; with two that cost 1 more, the mean is below its standard error."""
    labels = torch.zeros(100, dtype=torch.long)
    alarm, none = 0.9, 0.01
    standard = said([alarm] * 3 + [none] * 97)
    strong = said([none] * 3 + [alarm] * worse + [none] * (97 - worse))
    gain = np.array([1.0] * 3 + [-1.0] * worse + [0.0] * (97 - worse))
    assert (gain.mean() > gain.std() / 10) == bool(expected)
    assert strength(standard, standard, strong, labels) == expected


def test_a_gain_of_rows_that_belong_together_is_less_certain() -> None:
    """One patient of eight rows, where calibration was right: as rows alone it would be beyond its standard error."""
    labels = torch.tensor([1] * 8 + [0] * 40)
    plain, calibrated = said([0.1] * 48), said([0.9] * 18 + [0.1] * 30)
    assert strength(plain, plain, calibrated, labels) == 1
    together = {"groups": np.array([0] * 8 + [*range(1, 41)])}
    assert strength(plain, plain, calibrated, labels, dependence=together) == 0


def test_without_rows_held_out_there_is_no_calibration() -> None:
    empty = torch.empty(0, 2)
    assert strength(empty, empty, empty, torch.empty(0, dtype=torch.long)) == 0


def test_rows_count_by_their_weights() -> None:
    labels = torch.zeros(100, dtype=torch.long)
    first, second = said([0.9] * 50 + [0.01] * 50), said([0.01] * 50 + [0.9] * 50)
    heavy = torch.tensor([10.0] * 50 + [0.1] * 50)
    assert strength(first, second, second, labels, weights=heavy) == 0.1
    assert strength(second, first, first, labels, weights=heavy) == 0


# Blends --------------------------------------------------------------------------------------------


def test_models_that_say_the_same_have_the_same_weight() -> None:
    labels = random_labels(80)
    probs = said((0.5 * labels + 0.25).tolist())
    held = held_out(dict.fromkeys(("logistic", "forest", "boosting"), probs), labels)
    blend = held.mixes(["logistic", "forest", "boosting", "blend"])["blend"]
    assert isinstance(blend, ClassMix)
    assert blend.details["weights"] == pytest.approx({"logistic": 1 / 3, "forest": 1 / 3, "boosting": 1 / 3})
    assert blend.weights == blend.details["weights"]
    # Said with 0.75 and always right: less heat than 1.
    assert blend.temperature is not None
    assert blend.temperature.temperature == blend.details["temperature"] < 1
    assert blend.temperature.spread == blend.details["spread"] > 0


def test_a_model_that_says_nothing_has_no_weight_where_rows_are_many() -> None:
    labels = random_labels(3000)
    held = held_out({"logistic": said((0.9 * labels + 0.05).tolist()), "forest": said([0.5] * 3000)}, labels)
    assert held.mixes(["logistic", "forest", "blend"])["blend"].details["weights"] == pytest.approx({"logistic": 1})


def test_a_blend_has_the_calibrated_network_at_its_strength() -> None:
    labels = random_labels(100)
    right, wrong = said((0.4 * labels + 0.1).tolist()), said((0.5 - 0.4 * labels).tolist())
    probs = {"logistic": right, "standard": wrong, "calibrated-0.1": wrong, "calibrated-1": right}
    mixed = held_out(probs, labels).mixes(["logistic", "calibrated", "blend"])
    assert mixed["calibrated"].details == {"strength": 1.0}
    assert set(mixed["blend"].weights) == {"logistic", "calibrated-1"}
    assert set(mixed["blend"].details["weights"]) == {"logistic", "calibrated"}
    assert mixed["blend"].details["strength"] == 1


def test_without_rows_held_out_weights_are_equal() -> None:
    empty = held_out(dict.fromkeys(("logistic", "forest"), torch.empty(0, 2)), torch.empty(0, dtype=torch.long))
    blend = empty.mixes(["logistic", "forest", "blend"])["blend"]
    assert isinstance(blend, ClassMix)
    assert (blend.weights, blend.temperature) == ({"logistic": 0.5, "forest": 0.5}, None)


@pytest.mark.parametrize("temperature", [None, Temperature(0.7), Temperature(1.9), Temperature(0.8, 0.2)])
def test_probs_are_those_of_the_predictor(temperature: Temperature | None) -> None:
    """Of parts that say different things: their mean for a model, then the weights, then the temperature."""
    generator = np.random.default_rng(0)
    parts: dict[str, list[Predictor]] = {
        name: [Constant(torch.from_numpy(generator.dirichlet(np.ones(3)))) for _ in range(count)]
        for name, count in (("logistic", 2), ("forest", 3))
    }
    own = ClassMix({"logistic": 0.3, "forest": 0.7}, temperature)
    x = torch.zeros(4, 2)
    trained = {name: torch.stack([part(x).mean_probs() for part in each]).mean(0) for name, each in parts.items()}
    predictor = own.predictor(parts)
    assert isinstance(predictor, Calibrated if temperature else Blend)
    torch.testing.assert_close(predictor(x).mean_probs(), own.predictions(trained), atol=1e-6, rtol=0)
    blended = 0.3 * np.mean([part.frequencies.numpy() for part in parts["logistic"]], 0)
    blended += 0.7 * np.mean([part.frequencies.numpy() for part in parts["forest"]], 0)
    center, spread = (temperature.temperature, temperature.spread) if temperature else (1.0, 0.0)
    sampled = blended ** (1 / center / np.exp(spread * generator.normal(size=(200_000, 1))))
    by_hand = (sampled / sampled.sum(1, keepdims=True)).mean(0)
    np.testing.assert_allclose(own.predictions(trained)[0], by_hand, atol=1e-3 if spread else 1e-6)


# In one go -----------------------------------------------------------------------------------------


def small_problem(utility: TableUtility = UTILITY) -> Problem:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(90, 2)).astype(np.float32)
    y = (x[:, 0] + generator.normal(size=90) > 0).astype(np.int64)
    examples = TensorExamples(torch.from_numpy(x), torch.from_numpy(y))
    return Problem(examples, folds(y, np.arange(90), 3, seed=0), utility, Features(2))


def test_a_trained_blend_weighs_what_its_parts_said_of_the_rows_held_out() -> None:
    problem = small_problem()
    finished: list[Predictor] = []

    def finish(predictor: Predictor) -> Predictor:
        finished.append(predictor)
        return predictor

    predictor, details = train_mix(Classes(), "blend", problem, RECIPE, seed=0, finish=finish)
    assert sum(details["weights"].values()) == pytest.approx(1)
    assert len(finished) == 3 * len(details["weights"])
    assert isinstance(predictor, Calibrated)
    assert isinstance(predictor.predictor, Blend)
    shares = np.repeat(list(details["weights"].values()), 3) / 3
    np.testing.assert_allclose(sorted(predictor.predictor.weights), sorted(shares))


def test_rows_held_out_keep_their_own_costs() -> None:
    tables = np.random.default_rng(0).random((90, 2, 2))
    problem = small_problem(Utility.from_costs(tables, ["well", "ill"], ["well", "ill"]))
    rows = np.concatenate([fold.held for fold in problem.folds])
    held = HeldOutClasses.of(problem, {})
    np.testing.assert_array_equal(held.utility.costs, tables[rows])
    assert held.labels.tolist() == problem.examples.labels[rows].tolist()
    choice = tables[rows].mean(2).argmin(1)
    realised = held.worth(torch.full((90, 2), 0.5))
    np.testing.assert_allclose(realised, -tables[rows, choice, held.labels])


# The choice ----------------------------------------------------------------------------------------


def choose(mixes: Mapping[str, Mix], held: HeldOutClasses) -> Choice:
    return Solution(held, mixes, {}).choose(seed=0)


def test_the_blend_is_chosen_before_better_ones_and_says_how_it_did() -> None:
    labels = random_labels(200)
    right, unsure = said((0.98 * labels + 0.01).tolist()), said((0.3 * labels + 0.1).tolist())
    held = held_out({"forest": right, "logistic": unsure, "constant": said([0.5] * 200)}, labels)
    mixes = {name: ClassMix({name: 1.0}) for name in ("constant", "forest")} | {"blend": ClassMix({"logistic": 1.0})}
    choice = choose(mixes, held)
    assert (choice.model, choice.rival) == ("blend", "forest")
    assert choice.lead is not None
    costs = [COSTS[(each.double().numpy() @ COSTS.T).argmin(1), labels] for each in (right, unsure)]
    assert choice.lead.mean == pytest.approx(float((costs[0] - costs[1]).mean()))


def test_without_a_blend_the_lowest_log_loss_is_chosen() -> None:
    labels = random_labels(200)
    right, unsure = said((0.98 * labels + 0.01).tolist()), said((0.8 * labels + 0.1).tolist())
    held = held_out({"forest": right, "logistic": unsure, "constant": said([0.5] * 200)}, labels)
    choice = choose({name: ClassMix({name: 1.0}) for name in held.predictions}, held)
    assert choice.model == "forest"
    assert "log-loss" in choice.why


def test_noise_chooses_the_constant() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = random_labels(200)
    noise = torch.rand(200, generator=generator)
    held = held_out({"logistic": said(noise.tolist()), "constant": said([0.5] * 200)}, labels)
    choice = choose({"constant": ClassMix({"constant": 1.0}), "blend": ClassMix({"logistic": 1.0})}, held)
    assert (choice.model, choice.rival) == ("constant", "blend")
    assert "one decision for everybody" in choice.why
    assert choice.lead is not None
    assert choice.lead.mean > 0


def test_as_good_as_the_constant_is_the_constant() -> None:
    labels = random_labels(50)
    probs = said([0.5] * 50)
    held = held_out({"logistic": probs, "constant": probs}, labels)
    assert choose({name: ClassMix({name: 1.0}) for name in ("constant", "logistic")}, held).model == "constant"


def test_one_model_has_no_rival() -> None:
    held = held_out({"constant": said([0.5] * 4)}, random_labels(4))
    choice = choose({"constant": ClassMix({"constant": 1.0})}, held)
    assert (choice.model, choice.why, choice.rival, choice.lead) == ("constant", "it is the only one", None, None)


def test_the_lead_of_the_choice_counts_groups_not_their_rows() -> None:
    """Four patients with fifty equal rows each say what four rows say."""
    labels = torch.tensor([0, 1, 1, 1])
    held = {"standard": said([0.9, 0.9, 0.9, 0.1]), "constant": said([0.9] * 4)}
    many = {name: each.repeat_interleave(50, 0) for name, each in held.items()}
    mixes = {name: ClassMix({name: 1.0}) for name in held}
    of_rows = choose(mixes, held_out(many, labels.repeat_interleave(50))).lead
    groups = {"groups": np.arange(4).repeat(50)}
    of_groups = choose(mixes, held_out(many, labels.repeat_interleave(50), dependence=groups)).lead
    of_four = choose(mixes, held_out(held, labels)).lead
    assert of_rows is not None
    assert of_groups is not None
    assert of_four is not None
    assert of_groups.mean == of_rows.mean
    assert of_groups.high - of_groups.low == pytest.approx(of_four.high - of_four.low, rel=0.2)
    assert of_groups.high - of_groups.low > 3 * (of_rows.high - of_rows.low)
    times = {"times": np.arange(200.0)}
    in_time = choose(mixes, held_out(many, labels.repeat_interleave(50), dependence=times)).lead
    assert in_time is not None
    assert in_time.high - in_time.low > 2 * (of_rows.high - of_rows.low)
