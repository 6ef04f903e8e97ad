"""No text, however long, keeps a pattern busy: files come from strangers."""

import ast
import importlib
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

import stakes
from stakes.tables.formats import Formats
from stakes.tables.number_format import NumberFormat
from stakes.utility.csv import holds_curves, read_cost_file

SOURCE = Path(stakes.__file__).parent
LENGTH, SECONDS = 30_000, 0.1  # of CPU time; a pattern that is quadratic takes seconds
RUNS = ("7", "a", "Z", " ", "\t", "_", "-", "+", ".", ",", "'", '"', "/", "(", ")", "[", "]", "=", "%", "£", "é", "\0")
PAIRS = ("1 ", " 1", "1,", "1.", ".1", "a ", "a_", "_a", '""', "1'", "- ", "( ", "case_", "1e")
STARTS = ("", "1", "-", "£", "cost", "cost [", "curve (", "case", '"', "[", "2026-01-31 ", "1e", ".")
ENDS = ("", "(x", "!", "]")


def patterns() -> Iterator[tuple[str, re.Pattern[str], str]]:
    """Every pattern in the source with each way that it is used: search looks at every position, fullmatch at one."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "re." not in text and "str.fullmatch" not in text:
            continue
        module = importlib.import_module("stakes." + ".".join(path.relative_to(SOURCE).with_suffix("").parts))
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern):
                for method in set(re.findall(rf"\b{name}\.(match|fullmatch|search)\b", text)):
                    yield f"{path.stem}.{name}", value, method
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                owner, method = ast.unparse(node.func.value), node.func.attr
                if (owner == "re" and method != "compile" and method != "escape") or owner.endswith(".str"):
                    pattern = eval(ast.unparse(node.args[0]), {**vars(module), "pattern": r"\d+"})
                    if method in ("match", "fullmatch", "search", "sub"):
                        yield f"{path.stem}:{node.lineno}", re.compile(pattern), method.replace("sub", "search")
    for decimal, thousands in ((".", ""), (".", ","), (",", "."), (",", " ")):
        yield f"{decimal}{thousands}", NumberFormat(decimal, thousands)._body, "fullmatch"


@pytest.mark.parametrize(("pattern", "method"), [pytest.param(*rest, id=name) for name, *rest in patterns()])
def test_no_pattern_has_two_ways_to_match(pattern: re.Pattern[str], method: str) -> None:
    for start, run, end in product(STARTS, RUNS + PAIRS, ENDS):
        text = start + run * (LENGTH // len(run)) + end
        began = time.process_time()
        getattr(pattern, method)(text)
        assert time.process_time() - began < SECONDS, (start, run, end)


def test_the_patterns_are_found() -> None:
    names = {name for name, _, _ in patterns()}
    assert {"csv._QUANTITY", "number_format._WRITTEN", "values._NUMBER", "formula._TOKEN"} <= names


@pytest.mark.filterwarnings("ignore::stakes.errors.StakesWarning")
@pytest.mark.parametrize("run", RUNS)
def test_a_long_cell_of_a_table_is_a_text(run: str) -> None:
    frame = pd.DataFrame(
        {"x": ["1,200", "£3,400", run * 130_000, None] * 5, "y": ["31.01.2026"] * 19 + [run * 130_000]}
    )
    began = time.process_time()
    with suppress(stakes.StakesError):
        Formats.fit(frame).clean(frame)
    assert time.process_time() - began < 5


def test_a_long_heading_of_a_cost_file_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"
    file.write_text(f"cost [{2_000 * ' '}(x,ill,well\ntreat,0,1\n")
    began = time.process_time()
    read_cost_file(file)
    assert not holds_curves(file)
    assert time.process_time() - began < 1
    file.write_text("cost [  £ ],ill,well\ntreat,0,1\n")
    assert read_cost_file(file)[1] == "£"
