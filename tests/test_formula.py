"""Formulas of cost files: a grammar of its own, of which nothing runs as code."""

import ast
import math
import re

import numpy as np
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from stakes import StakesError
from stakes.utility.formula import Formula

COLUMNS = {"amount": np.array([100.0, 2500.0]), "rate": np.array([0.5, -2.0]), "credit amount": np.array([7.0, 8.0])}


@pytest.mark.parametrize(
    ("text", "columns", "values"),
    [
        ("0", (), 0),
        ("-2.5e1", (), -25),
        ("=2 * 3 - 1", (), 5),
        ("=amount", ("amount",), [100, 2500]),
        ("=0.45 * amount + 20", ("amount",), [65, 1145]),
        ("= 20+amount*.45", ("amount",), [65, 1145]),
        ('=0.45 * "credit amount" + 20', ("credit amount",), [23.15, 23.6]),
        ("=[credit amount] * 2", ("credit amount",), [14, 16]),
        ("=-(amount - 50) * 2", ("amount",), [-100, -4900]),
        ("=amount * rate / 2 - -1", ("amount", "rate"), [26, -2499]),
        ("=(amount + rate) * (1 - rate)", ("amount", "rate"), [50.25, 7494]),
    ],
)
def test_a_formula_is_worth_what_a_hand_calculation_says(text: str, columns: tuple[str, ...], values: object) -> None:
    formula = Formula.parse(text)
    assert sorted(formula.columns) == sorted(columns)
    np.testing.assert_allclose(formula(COLUMNS), values, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("=__import__('os')", 'got "\'" at character 13'),
        ("=open(amount)", "got '(' at character 6"),
        ("=amount.__class__()", "got '(' at character 18"),
        ("=amount ** 2", "got '*' at character 10"),
        ("=amount amount", "got 'amount' at character 9"),
        ("=1,5 * amount", "decimals with a point"),
        ("=(amount", "a closing parenthesis"),
        ("=amount)", "got ')' at character 8"),
        ("=", "got its end"),
        ('="amount', "got '\"'"),
        ("=amount * amount * amount", "at most 2 columns"),
        ("=1 / amount", "division by a number"),
        ("=1 / 0", "division by a number"),
        ("=1e999 * amount", "finite"),
        ("=" + "(" * 200 + "1" + ")" * 200, "at most 20 parentheses"),
        ("=" + "1+" * 600 + "1", "at most 1000 characters"),
        ("amount", "begins with =, but got the text 'amount'"),
        ("", "an empty cell"),
    ],
)
def test_what_is_no_formula_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(StakesError, match=re.escape(words)) as raised:
        Formula.parse(text)
    assert "\n" not in str(raised.value)


@given(st.one_of(st.text(), st.text("=+-*/()[]\" '.,;%^eE_0123456789ab\n", max_size=60)))
@example("=\u0665 * a")
@example("=a\x00b")
def test_any_text_is_a_formula_or_refused(text: str) -> None:
    for cell in (text, f"={text}"):
        try:
            formula = Formula.parse(cell)
        except StakesError:
            continue
        formula({name: np.ones(2) for name in formula.columns})


EXPRESSIONS = st.recursive(
    st.one_of(st.integers(0, 9).map(str), st.sampled_from(["a", "b"])),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("-{}".format),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS, st.integers(-5, 5), st.integers(-5, 5))
def test_it_follows_the_rules_of_arithmetic(text: str, a: int, b: int) -> None:
    try:
        value = float(Formula.parse(f"={text}")({"a": np.array(float(a)), "b": np.array(float(b))}))
    except StakesError:
        reject()  # a product of three columns
    assert math.isclose(value, _python_says(ast.parse(text, mode="eval").body, {"a": a, "b": b}), abs_tol=1e-9)


def _python_says(node: ast.AST, names: dict[str, int]) -> float:
    """Python's own parser as the judge of precedence."""
    if isinstance(node, ast.BinOp):
        left, right = _python_says(node.left, names), _python_says(node.right, names)
        kinds = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
        return kinds[type(node.op)]
    if isinstance(node, ast.UnaryOp):
        return -_python_says(node.operand, names)
    return names[node.id] if isinstance(node, ast.Name) else float(ast.literal_eval(node))
