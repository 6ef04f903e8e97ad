from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stakes import StakesError, StakesWarning, Utility
from stakes.outcomes import Outcomes
from stakes.utility import TableUtility
from stakes.utility.checks import swapped, table_warnings

NAMES = ("Healthy", "Mild", "Severe")
POUNDS = [[0, 50, 100], [40, 0, 35], [45, 30, 0]]
TABLE_1 = [[2, 1, 0], [1.2, 2, 1.3], [1.1, 1.4, 2]]

finite = st.floats(-1e6, 1e6, allow_nan=False)
tables = st.tuples(st.integers(1, 5), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=finite)
)


def quiet(table: np.ndarray, **options: float) -> Utility:
    decisions = tuple(f"d{row}" for row in range(table.shape[-2]))
    outcomes = tuple(f"c{column}" for column in range(table.shape[-1]))
    return TableUtility(table, decisions, outcomes, **options)


def test_costs_become_the_utilities_of_the_papers_table_1() -> None:
    utility = Utility.from_costs(POUNDS, NAMES, NAMES, unit="£", best=2, scale=50)
    np.testing.assert_allclose(utility.values, TABLE_1)
    np.testing.assert_allclose(utility.costs, POUNDS)
    assert utility.cost_of(1.3) == pytest.approx(35)


@given(tables, finite, st.floats(1e-3, 1e3))
def test_cost_and_utility_are_two_faces_of_one_number(costs: np.ndarray, best: float, scale: float) -> None:
    utility = quiet(best - costs / scale, best=best, scale=scale)
    np.testing.assert_allclose(utility.costs, costs, atol=1e-6 * scale * (1 + np.abs(best)), rtol=1e-9)


@given(tables, st.floats(1e-6, 1e3))
def test_bounding_makes_positive_and_keeps_regrets(table: np.ndarray, margin: float) -> None:
    bounded = quiet(table).bounded(margin).values
    assert (bounded > 0).all()
    gaps = np.diff(np.sort(table, axis=0), axis=0)[-1:] > 1e-9 * (1 + np.abs(table).max())
    alone = gaps.all(0) if len(gaps) else np.ones(table.shape[1], dtype=bool)
    best = (table == table.max(0))[:, alone].any(1)  # whose regrets are as they were
    regrets = (table.max(0) - table)[best]
    np.testing.assert_allclose(bounded.max(0) - bounded[best], regrets, atol=1e-8 * (1 + np.abs(table).max()))
    assert bounded.max() <= bounded.min() + np.ptp(table) * (1 + 1e-9) + 1e-8


@pytest.mark.parametrize("margin", [0, -1, np.nan, np.inf])
def test_a_margin_has_to_be_positive(margin: float) -> None:
    with pytest.raises(StakesError, match="margin"):
        quiet(np.eye(2)).bounded(margin)


@given(tables)
def test_json_brings_the_same_utility_back(table: np.ndarray) -> None:
    utility = quiet(table, best=3.0, scale=7.0)
    again = Utility.from_dict(utility.to_dict())
    assert again == utility
    assert hash(again) == hash(utility)
    assert again != quiet(table + 1, best=3.0, scale=7.0)


def test_rules_make_the_papers_digit_and_road_tables() -> None:
    digits = Utility.diagonal([str(d) for d in range(10)]).with_row("3", 0.3).with_row("8", 0.3)
    expected = np.eye(10)
    for row in (3, 8):
        expected[row] = np.where(np.arange(10) == row, 1.0, 0.3)
    np.testing.assert_array_equal(digits.values, expected)
    road = Utility.diagonal(["Car", "Pedestrian", "Cyclist"], 0.8, 0.4).with_cell("Cyclist", "Pedestrian", 0.8)
    assert road.values[2].tolist() == [0.4, 0.8, 0.8]
    assert road.best == 0.8


def test_nested_mappings_carry_their_names() -> None:
    utility = Utility.from_costs({"treat": {"ill": 0, "well": 40}, "wait": {"well": 0, "ill": 500}}, unit="£")
    assert (utility.decisions, utility.outcomes) == (("treat", "wait"), ("ill", "well"))
    np.testing.assert_array_equal(utility.costs, [[0, 40], [500, 0]])
    with pytest.raises(StakesError, match=r"'wait', 'well'.*missing"):
        Utility.from_costs({"treat": {"ill": 0, "well": 40}, "wait": {"ill": 500}})


def test_a_per_example_table_is_cut_by_rows() -> None:
    utility = quiet(np.arange(12.0).reshape(3, 2, 2))
    assert utility.rows([2, 0]).values.tolist() == [[[8, 9], [10, 11]], [[0, 1], [2, 3]]]
    shared = quiet(np.eye(2))
    assert shared.rows([2, 0]) is shared
    with pytest.raises(StakesError, match="one per example"):
        _ = utility.best_response


@pytest.mark.parametrize("per_example", [False, True])
@pytest.mark.parametrize(("samples", "middle"), [(3, ()), (4, (2,)), (None, ())])  # as many draws as examples, or not
def test_the_expected_utility_of_one_decision_for_each_input(
    per_example: bool, samples: int | None, middle: tuple[int, ...]
) -> None:
    generator = np.random.default_rng(0)
    table = generator.random((3, 4, 2) if per_example else (4, 2))
    shape = (3, *middle) if samples is None else (samples, 3, *middle)
    probs, choice = generator.dirichlet([1, 1], shape), generator.integers(4, size=(3, *middle))
    expected = np.zeros(shape)
    for index in np.ndindex(*shape):
        of_input = index if samples is None else index[1:]
        own = table[of_input[0]] if per_example else table
        expected[index] = own[choice[of_input]] @ probs[index]
    values = quiet(table).expected_of(Outcomes(torch.from_numpy(probs)), torch.from_numpy(choice))
    np.testing.assert_allclose(values, expected)


def test_the_response_to_a_certain_outcome_is_its_own_name_else_the_best() -> None:
    named = TableUtility(np.full((2, 2), 0.8), ("Pedestrian", "Cyclist"), ("Cyclist", "Pedestrian"))
    assert named.best_response.tolist() == [1, 0]
    refer = Utility.from_costs([[0, 9], [5, 0], [1, 1]], ["grant", "deny", "refer"], ["repaid", "defaulted"])
    assert refer.best_response.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([[1, 1], [1, 1]], "nothing to decide"),
        ([[1, 0], [0, 1], [0, 0.5]], "'decision 2' can never be the best one: 'decision 1'"),
        ([[1, 0, 3], [0, 1, 3]], "outcome '2' does not matter"),
        ([[1, 0, 2], [0, 1, 1]], "'0' and '2' call for the same decisions"),
    ],
)
def test_what_is_probably_a_mistake_is_said(table: list[list[float]], words: str) -> None:
    with pytest.warns(StakesWarning, match=words):
        Utility.from_matrix(table)


def test_a_sound_table_raises_no_concern() -> None:
    assert Utility.from_costs(POUNDS, NAMES, NAMES).warnings() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[1, np.nan], [0, 1]],), "finite numbers, but got nan for decision '0' under outcome '1'"),
        (([[1, np.inf], [0, 1]],), "inf"),
        (([[1, "x"], [0, 1]],), "table of numbers"),
        (([1, 2],), "decisions x outcomes"),
        (([[1, 0], [0, 1]], ["a", "a"]), "'a' more than once"),
        (([[1, 0], [0, 1]], ["a", " "]), "empty one"),
        (([[1, 0], [0, 1]], ["a", "b", "c"]), "3 decisions x 2 outcomes"),
        ((np.zeros((0, 2)),), "empty"),
    ],
)
def test_what_cannot_be_a_utility_is_refused(arguments: tuple, words: str) -> None:
    with pytest.raises(StakesError, match=words):
        Utility.from_matrix(*arguments)


def test_values_are_frozen() -> None:
    table = np.eye(2)
    utility = quiet(table)
    table[0, 0] = 9
    assert utility.values[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        utility.values[0, 0] = 9


def test_it_prints_as_a_table() -> None:
    lines = str(Utility.from_costs(POUNDS, NAMES, NAMES, best=2, scale=50)).splitlines()
    assert lines[0].split() == list(NAMES)
    assert lines[3].split() == ["Severe", "1.1", "1.4", "2"]


# Files ---------------------------------------------------------------------------------------------


LONG = "decision,outcome,cost [£]\n" + "\n".join(
    f"{row},{column},{POUNDS[r][c]}" for r, row in enumerate(NAMES) for c, column in enumerate(NAMES)
)
WIDE = "cost (£),Healthy,Mild,Severe\nHealthy,0,50,100\nMild,40,0,35\nSevere,45,30,0\n"


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        WIDE,
        WIDE.replace("cost (£)", "£"),
        WIDE.replace(",", ";"),
        "\ufeff" + WIDE,
        WIDE.replace("\n", "\r"),
        WIDE.replace("\n", "\r\n\r\n"),
    ],
    ids=["long", "wide", "only a unit", "semicolons", "bom", "old mac", "windows with blank lines"],
)
def test_both_forms_of_a_cost_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "costs.csv"
    file.write_text(text, newline="")
    utility = Utility.from_csv(file)
    np.testing.assert_array_equal(utility.costs, POUNDS)
    assert (utility.decisions, utility.outcomes, utility.unit) == (NAMES, NAMES, "£")


def test_the_unit_of_a_corner_in_any_language(tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"
    for corner, unit in {"Kosten (€)": "€", "coste [EUR]": "EUR", "decision (nurse)": ""}.items():
        file.write_text(f"{corner},a,b\na,0,1.500\nb,1,0\n")
        assert Utility.from_csv(file).unit == unit


def test_a_file_may_hold_utilities_and_more_decisions_than_outcomes(tmp_path: Path) -> None:
    file = tmp_path / "u.csv"
    file.write_text("utility,repaid,defaulted\ngrant,1,-9\ndeny,0,0\nrefer,0.5,-1\n")
    utility = Utility.from_csv(file, unit="k$")
    np.testing.assert_array_equal(utility.values, [[1, -9], [0, 0], [0.5, -1]])
    assert utility.unit == "k$"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "cost,a,b\na,0,\nb,1,0\n",
            "'a' under outcome 'b': expected a number, .* but got an empty cell",
        ),
        ("cost,a,b\na,0,x\nb,1,0\n", "the text 'x'"),
        ("cost,a,b\na,0,nan\nb,1,0\n", "finite numbers"),
        ("cost,a,a\na,0,1\nb,1,0\n", "each outcome once"),
        ("cost,a,b\na,0,1\na,1,0\n", "each decision once"),
        ("cost,a,b\na,0\nb,1,0\n", "2 numbers for decision 'a', but got 1"),
        ("cost\n", "no cells"),
        ("\n\n", "empty"),
        ("decision,outcome,price\na,a,0\n", "cost"),
        ("decision,outcome,cost\na,a,0\na,a,1\n", "stands twice"),
        ("decision,outcome,cost\na,a,0\nb,b,1\n", "missing"),
        ("decision,outcome,cost\na,a\n", "row 2 has 2"),
        ("cost;a;b\na;0;1.500\nb;1;0\n", "'1.500' could mean two: write 1500, or 1.5000"),
        ("cost curve;0;1.500\na;0;1\nb;1;0\n", "'1.500' could mean two"),
    ],
)
def test_a_bad_cost_file_is_refused_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "costs.csv"
    file.write_text(text)
    with pytest.raises(StakesError, match=words) as raised:
        Utility.from_csv(file)
    assert "costs.csv" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("cost;a;b\na;0;1.5000\nb;1;0\n", [[0, -1.5], [-1, 0]]),  # as the refusal of 1.500 asks for it
        ("cost;a;b\na;0;1.500\nb;0.25;0\n", [[0, -1.5], [-0.25, 0]]),  # 0.25 shows what a point is
        ("cost;1.000;b\n1.000;0;3\nb;1;0\n", [[0, -3], [-1, 0]]),  # a name is no number
    ],
)
def test_points_that_are_clear_are_read(tmp_path: Path, text: str, values: list[list[float]]) -> None:
    (tmp_path / "costs.csv").write_text(text)
    assert Utility.from_csv(tmp_path / "costs.csv").values.tolist() == values


def test_letters_in_the_corner_are_a_unit_only_if_they_are_a_currency(tmp_path: Path) -> None:
    for corner, unit in (("decision (ICU)", ""), ("action [MRI]", ""), ("Kosten [EUR]", "EUR")):
        (tmp_path / "costs.csv").write_text(f"{corner},a,b\na,0,1\nb,1,0\n")
        assert Utility.from_csv(tmp_path / "costs.csv").unit == unit


def test_a_missing_cost_file(tmp_path: Path) -> None:
    with pytest.raises(StakesError, match="no such file"):
        Utility.from_csv(tmp_path / "none.csv")


# Mistakes in tables


def greatest_lead_by_grid(table: np.ndarray, row: int, steps: int = 60) -> float:
    """By how much a decision leads the others at the best of many probabilities of three outcomes."""
    leads = []
    for i in range(steps + 1):
        for j in range(steps + 1 - i):
            p = np.array([i, j, steps - i - j]) / steps
            worth = table @ p
            leads.append(worth[row] - np.delete(worth, row).max())
    return max(leads)


@pytest.mark.parametrize("seed", range(6))
def test_never_best_agrees_with_a_grid_of_probabilities(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = np.vstack([10 * np.eye(3), rng.uniform(1, 5.5, (4, 3))])
    names = [f"d{i}" for i in range(7)]
    messages = table_warnings(table, names, ["x", "y", "z"])
    for row, name in enumerate(names):
        lead = greatest_lead_by_grid(table, row)
        if abs(lead) > 0.2:  # else the grid is too coarse to tell
            said = any(m.startswith(f"decision {name!r} is never best") or f"{name!r} can never" in m for m in messages)
            assert said == (lead < 0)


def test_a_decision_that_only_a_mixture_beats_is_never_best() -> None:
    costs = {"treat": {"ill": 0, "well": 40}, "wait": {"ill": 100, "well": 0}, "refer": {"ill": 35, "well": 35}}
    with pytest.warns(StakesWarning, match="decision 'refer' is never best: whatever the probabilities"):
        Utility.from_costs(costs)
    costs["refer"] = {"ill": 25, "well": 25}
    assert Utility.from_costs(costs).warnings() == []


def test_flipped_signs_are_noticed() -> None:
    with pytest.warns(StakesWarning, match="right decisions are worth less than wrong ones under every outcome"):
        Utility.from_matrix([[0, 5], [9, 0]], ["ill", "well"], ["ill", "well"])
    names = ["a", "b", "c"]
    messages = table_warnings(-np.array([[0, 4, 5], [4, 3, 5], [6, 1, 0]]), names, names)
    assert messages[0].startswith("under outcome 'b' the decision of that name is worth less than 'c'")
    assert messages[1].startswith("decision 'b' is never best")
    with pytest.warns(StakesWarning, match="no cost is above zero: the sign seems to be flipped"):
        Utility.from_costs([[0, -40], [-500, 0]], ["treat", "send home"], ["ill", "well"])
    assert Utility.from_costs([[-10, 40], [500, 0]], ["treat", "send home"], ["ill", "well"]).warnings() == []
    with pytest.warns(StakesWarning, match=r"costs less than nothing|can never be the best"):
        one = Utility.from_costs([[0, 40], [-500, 0]], ["treat", "send home"], ["ill", "well"])
    assert one.warnings()[-1].startswith("'send home' under 'ill' alone costs less than nothing, -500, and no other")


def test_swapped_names() -> None:
    assert "swapped" in str(swapped({"ill", "well"}, ["ill", "well"], ["treat", "wait"]))
    for values in ({"treat"}, {"ill", "other"}, set()):
        assert swapped(values, ["ill", "well"], ["treat", "wait"]) is None
    assert swapped({"ill"}, ["ill", "well"], ["ill", "well"]) is None


@pytest.mark.parametrize("axes", [(6,), (6, 2)])
@pytest.mark.parametrize("table_per", ["all", "example"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8, 0.97])
def test_a_decision_is_certain_if_no_other_draws_could_turn_it(share: float, table_per: str, axes: tuple) -> None:
    """The rest of the draws is worst where it says one outcome for sure: all of them are enumerated."""
    generator = np.random.default_rng(0)
    probs = torch.tensor(generator.dirichlet([0.2] * 3, axes))  # (B, ..., C)
    utility = quiet(generator.normal(size=(4, 3) if table_per == "all" else (6, 4, 3)))
    best = utility.best_choice(Outcomes(probs))
    rest = torch.eye(3, dtype=probs.dtype)
    stays = [utility.best_choice(Outcomes(share * probs + (1 - share) * worst)) == best for worst in rest]
    certain = utility.is_certain(Outcomes(probs), share)
    assert torch.equal(certain, torch.stack(stays).all(0))
    if share == 0.97:
        assert bool(certain.any())
