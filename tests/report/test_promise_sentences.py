"""What is promised of a mean cost, in words: rounded to the safe side, with all that it rests on, or why not."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from finished_amounts import amount_run, menu_run
from finished_runs import write_report
from test_page import Page

from stakes import Utility
from stakes.evaluation.amounts import best_seed
from stakes.evaluation.promises import Promise, mean_cost_bound
from stakes.report.page import write_page
from stakes.report.promises import promise_of_run, promise_sentence

COSTS = Utility.from_costs({"a": {"x": 0, "y": 50}, "b": {"x": 20, "y": 0}}, unit="£")
UTILITIES = Utility.from_matrix({"a": {"x": 0, "y": 50}, "b": {"x": 20, "y": 0}})


@pytest.mark.parametrize("bound", [10.001, 10.26, 10.254, 13.0, 41.3])
def test_numbers_are_rounded_to_the_safe_side(bound: float) -> None:
    said = promise_sentence(Promise(bound, 9.4, (0.0, 50.0)), COSTS)
    shown = float(re.search(r"cost at most £([\d.]+) each", said)[1])
    assert bound <= shown < bound + 1
    said = promise_sentence(Promise(bound, 9.4, (0.0, 50.0)), UTILITIES)  # a cost of 9.4 is a utility of 40.6
    shown = float(re.search(r"are worth at least ([\d.]+) each", said)[1])
    assert 50 - bound - 1 < shown <= 50 - bound
    assert "no decision can be worth less than 0, by these utilities; rows come independently" in said


def test_a_run_about_amounts_needs_the_worst_that_can_happen(tmp_path: Path) -> None:
    run = amount_run(tmp_path)
    assert promise_of_run(run).startswith(
        "No mean cost can be promised: one decision may cost any amount; "
        "give `stakes report` or `stakes evaluate` a limit with --worst"
    )
    said = promise_of_run(run, worst=600)
    costs = best_seed(run.scored, "blend").costs
    means = [costs[first : first + 11].mean() for first in range(140 % 11, 140, 11)]
    bound = mean_cost_bound(means, 600.0)
    assert f"cost at most {np.ceil(bound):.0f} € each on average; about these it was {costs.mean():.0f} €." in said
    assert "no decision can cost more than 600 €, as was stated; rows are alike in stretches of 11" in said
    write_page(run, tmp_path / "report.html", worst=600)
    assert said in Page(tmp_path / "report.html").text


def test_the_report_of_a_menu_promises_by_its_curves(tmp_path: Path) -> None:
    run = menu_run(tmp_path, timed=False)
    bound = mean_cost_bound(best_seed(run.scored, "blend").costs, 300.0)
    said = Page(write_report(tmp_path)).text
    shown = float(re.search(r"With 95 % confidence, decisions about rows like these cost at most ([\d.]+) €", said)[1])
    assert bound <= shown < bound + 1
    assert "no decision can cost more than 300 €, by these costs; rows come independently of each other" in said


def test_what_is_not_independent_is_not_promised(tmp_path: Path) -> None:
    run = menu_run(tmp_path, timed=False)
    every = replace(run, rows={**run.rows, "tested": "cv"})
    assert "by models that are not the saved one" in promise_of_run(every)
    grouped = replace(run, groups=torch.arange(140).numpy() // 3, settings={**run.settings, "group": "shop"})
    assert "rows of one shop belong together" in promise_of_run(grouped)
