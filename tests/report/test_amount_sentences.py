"""What a report of amounts says, read as sentences: each is true of the run that it is about."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from finished_amounts import UTILITY, amount_run, demand, menu_run

from stakes.evaluation.amounts import AmountPredictions, best_seed, compare, score
from stakes.evaluation.comparison import Choice
from stakes.evaluation.metrics import Interval
from stakes.mixtures import LEVELS
from stakes.report.charts import round_numbers
from stakes.report.drivers import drivers
from stakes.report.numbers.claims import cost_bins, coverage, coverage_sentence, covered_sentence
from stakes.report.numbers.fan import MOST_SHOWN, fan, shown_rows
from stakes.report.numbers.headline import caveats, headline, rule, serial_correlation
from stakes.report.numbers.models import actions, mistakes, subgroups
from stakes.report.numbers.ratio import SHOWN, by_ratio, mean_costs, where_it_wins, with_ratio
from stakes.tables.amounts.run import AmountRun
from stakes.utility import Newsvendor


def with_quantiles(run: AmountRun, said: dict[str, torch.Tensor], chosen: str) -> AmountRun:
    """The same test rows, of which models say something else."""
    scored = [
        score(AmountPredictions(model, 0, q.float(), 40.0, {}), run.labels, run.utility) for model, q in said.items()
    ]
    times = None if run.times is None else run.times.numpy()
    return replace(run, scored=tuple(scored), comparison=compare(scored, Choice(chosen, "it is the test's"), 0, times))


def every_time(run: AmountRun, shift: float = 0.0) -> torch.Tensor:
    return torch.quantile(run.labels, LEVELS).expand(len(run.labels), -1) + shift


# The headline --------------------------------------------------------------------------------------


def test_the_headline_is_against_the_same_decision_every_time(tmp_path: Path) -> None:
    run = amount_run(tmp_path, days=600)
    costs = {item.model: item.costs.mean() for item in run.scored}
    answer = headline(run)
    assert answer.finding == "more"
    assert answer.sentence.startswith(
        f"Deciding with this model costs {costs['blend']:.2f} € per decision, "
        f"{costs['constant'] - costs['blend']:.2f} € less than deciding 36 every time (95 % interval "
    )
    assert answer.judgement == (
        "That is beyond chance, on 600 test rows; intervals resample 17 consecutive times together, for neighbouring "
        "ones are alike."
    )
    assert answer.others[0].startswith("The model expected its decisions to cost ")
    assert rule(run) == (
        "At these costs, decide so much that it covers 75 % of what may happen, within the steps and bounds that were "
        "given."
    )


def test_noise_is_not_worth_more_than_the_same_every_time(tmp_path: Path) -> None:
    run = amount_run(tmp_path)
    noise = every_time(run) + 6 * torch.randn(len(run.labels), 1, generator=torch.Generator().manual_seed(0))
    answer = headline(with_quantiles(run, {"constant": every_time(run), "blend": noise}, "blend"))
    assert answer.sentence.startswith(
        "This model is not worth more than deciding the same every time: its decisions cost "
    )
    assert "loss" in answer.judgement
    same = headline(with_quantiles(run, {"constant": every_time(run), "blend": every_time(run)}, "blend"))
    assert "exactly as deciding 35 every time" in same.sentence


def test_where_no_model_was_chosen(tmp_path: Path) -> None:
    run = amount_run(tmp_path)
    said = {"constant": every_time(run), "linear": every_time(run, shift=0.3)}
    answer = headline(with_quantiles(run, said, "constant"))
    assert answer.sentence.startswith(
        "No model is worth more than deciding the same every time, so the decision is 35: that costs "
    )
    assert answer.judgement.startswith("On the test rows the best of the models, linear, cost ")


@pytest.mark.parametrize("timed", [True, False])
def test_a_handful_of_rows_tells_nothing(tmp_path: Path, timed: bool) -> None:
    run = amount_run(tmp_path, days=12, timed=timed)
    answer = headline(run)
    assert answer.finding != "more"
    assert "beyond chance, on" not in answer.text
    assert caveats(run)[0] == "All of this rests on 12 test rows: another 12 may say something else."


def test_a_claim_that_is_far_off_is_said(tmp_path: Path) -> None:
    run = amount_run(tmp_path)
    sure = torch.quantile(run.labels, torch.tensor(0.6, dtype=torch.double)).expand(len(run.labels), 99)
    off = with_quantiles(run, {"constant": every_time(run), "blend": sure}, "blend")
    assert "which is beyond chance: do not rely on what it expects" in headline(off).text
    assert "a difference that these rows cannot tell from chance" in headline(run).text
    assert "beyond chance: outcomes were higher than the model expected" in str(covered_sentence(off))
    assert "which chance explains" in str(covered_sentence(run))


def test_steps_that_are_the_reason_of_what_is_covered(tmp_path: Path) -> None:
    coarse = amount_run(tmp_path, days=400, utility=Newsvendor(15, 5, step=60.0, at_least=0.0))
    assert "the steps and bounds of decisions are the reason" in str(covered_sentence(coarse))


# Before you rely on it -----------------------------------------------------------------------------


def test_costs_beyond_the_levels_are_told(tmp_path: Path) -> None:
    said = caveats(amount_run(tmp_path, utility=replace(UTILITY, under=5000.0)))
    assert any(
        "but the costs ask for the 99.9001 % quantile: beyond these they are extrapolated" in text for text in said
    )
    own = np.where(np.arange(140) < 3, 5000.0, 15.0)
    said = caveats(amount_run(tmp_path / "own", utility=replace(UTILITY, under=own)))
    assert any("the costs of 3 rows ask for others" in text for text in said)
    assert not any("quantiles from" in text for text in caveats(amount_run(tmp_path / "usual")))


def test_decisions_at_a_bound_are_told(tmp_path: Path) -> None:
    run = amount_run(tmp_path, utility=replace(UTILITY, at_most=35.0))
    share = float((best_seed(run.scored, "blend").choice == 35).double().mean())
    assert f"{100 * share:.1f} % of the decisions are the highest that is allowed, 35." in caveats(run)


def test_neighbouring_times_that_go_wrong_together_are_told(tmp_path: Path) -> None:
    run = amount_run(tmp_path, days=280)
    weeks = torch.sin(torch.arange(280) / 20).double()
    drifting = replace(run, labels=(demand(280)[0] + 15 * weeks).round())
    said = caveats(with_quantiles(drifting, {item.model: item.predictions.quantiles for item in run.scored}, "blend"))
    assert any("Decisions of neighbouring times go wrong together (correlation 0." in text for text in said)
    times = np.arange(280.0)
    walk = np.repeat(np.random.default_rng(0).normal(size=28), 10)
    expected = np.corrcoef(walk[:-1], walk[1:])[0, 1]
    assert serial_correlation(walk, times) == pytest.approx(expected, abs=0.02)
    assert serial_correlation(np.repeat(walk, 3), np.repeat(times, 3)) == pytest.approx(serial_correlation(walk, times))
    short = amount_run(tmp_path / "short", days=50)
    assert any("about 6 stretches of 8 neighbouring ones" in text for text in caveats(short))


def test_what_reading_warned_of_comes_last(tmp_path: Path) -> None:
    run = amount_run(tmp_path)
    assert caveats(replace(run, data=SimpleNamespace(notices=("'x' is empty",))))[-1] == "'x' is empty"


# What the decisions came to ------------------------------------------------------------------------


def test_too_little_and_too_much_add_up(tmp_path: Path) -> None:
    run = amount_run(tmp_path, seeds=2)
    shown = mistakes(run)
    assert shown is not None
    assert [each["model"] for each in shown] == ["blend", "constant"]
    order, sold = best_seed(run.scored, "blend").choice.numpy(), run.labels.numpy()
    little, much, right = shown[0]["rows"]
    assert little == (
        "too little", f"{100 * (sold > order).mean():.1f} %", f"{(sold - order)[sold > order].mean():.2f}",
        f"{15 * np.maximum(sold - order, 0).sum():,.0f} €",
    )  # fmt: skip
    assert much[3] == f"{5 * np.maximum(order - sold, 0).sum():,.0f} €"
    assert right[2:] == ("", "0 €")


def test_a_menu_of_actions_is_counted(tmp_path: Path) -> None:
    run = menu_run(tmp_path)
    shown = actions(run)
    assert shown is not None
    choice, sold = best_seed(run.scored, "blend").choice.numpy(), run.labels.numpy()
    small = np.interp(sold, [0, 30, 60], [0, 0, 300])
    assert [row["count"] for row in shown["rows"]] == [str((choice == 0).sum()), str((choice == 1).sum())]
    assert shown["rows"][0]["cells"][2] == f"{small[choice == 0].mean():.2f} €"
    assert [row["always"] for row in shown["rows"]] == [f"{small.mean():.2f} €", "80 €"]
    assert shown["curves"][0] == ("small", "0: 0 €, 30: 0 €, 60: 300 €")
    for same in (run, AmountRun.load(tmp_path)):  # saved, a number is a point
        assert actions(same)["curves"][1] == ("large", "always 80 €")
    assert shown["best"] == ("small" if small.mean() < 80 else "large")
    assert f"deciding “{shown['best']}” every time" in headline(run).sentence
    assert (mistakes(run), fan(run), by_ratio(run), rule(run), covered_sentence(run)) == (None,) * 5
    assert actions(amount_run(tmp_path / "numbers")) is None


def test_costs_by_subgroup(tmp_path: Path) -> None:
    by = tuple("weekend" if place % 7 > 4 else "weekday" for place in range(140))
    run = amount_run(tmp_path, by=by, settings={"by": "kind of day"})
    shown = subgroups(run)
    assert shown is not None
    assert [(row["name"], row["rows"]) for row in shown["rows"]] == [("weekday", 100), ("weekend", 40)]
    costs = {item.model: item.costs[np.array(by) == "weekend"].mean() for item in run.scored}
    assert shown["rows"][1]["level"].mean == pytest.approx(costs["blend"])
    assert shown["rows"][1]["gain"].mean == pytest.approx(costs["constant"] - costs["blend"])
    assert subgroups(amount_run(tmp_path / "without")) is None


def test_what_drives_the_decisions(tmp_path: Path) -> None:
    importance = {
        "columns": {"rain": Interval(1, -1, 3), "weekday": Interval(9, 7, 11)},
        "rows": 140,
        "not_measured": 0,
    }
    shown = drivers(amount_run(tmp_path, importance=importance))
    assert shown is not None
    assert shown["said"].startswith("weekday matters most: without what it tells, decisions cost 9.00 € more each.")


def test_coverage_of_all_rows_is_chance_where_nearly_all_is_asked_for() -> None:
    """Resamples of 100 covered rows are all covered; by the rule of three, 97.5 % may still be the truth."""
    everything = Interval(1.0, 1.0, 1.0)
    assert coverage_sentence(everything, 0.975, 100, None).endswith("ask for 97.5 %, which chance explains.")
    assert "beyond chance: outcomes were lower" in coverage_sentence(everything, 0.9, 100, None)


# Charts --------------------------------------------------------------------------------------------


def times(run: AmountRun) -> np.ndarray | None:
    return None if run.times is None else run.times.numpy()


def test_the_fan_shows_the_latest_rows_in_time(tmp_path: Path) -> None:
    run = amount_run(tmp_path)
    rows, in_time = shown_rows(times(run), best_seed(run.scored, "blend").choice)
    assert in_time
    assert rows.tolist() == list(range(140 - MOST_SHOWN, 140))
    shown = fan(run)
    assert shown is not None
    assert shown["which"] == f"The latest {MOST_SHOWN} of 140 test rows"
    assert [text for *_, text in shown["chart"]["texts"]][-5:-2] == ["26 Jun 2015", "7 Aug 2015", "17 Sep 2015"]
    kinds = {kind: markers for kind, _, _, markers in shown["chart"]["curves"]}
    short = int((run.labels > best_seed(run.scored, "blend").choice)[rows].sum())
    assert len(kinds["happened short"]) == short
    assert len(kinds["happened"]) == MOST_SHOWN - short


@pytest.mark.parametrize("days", [200, 30])
def test_without_a_time_for_each_row_it_goes_by_decisions(tmp_path: Path, days: int) -> None:
    run = amount_run(tmp_path, days=days, timed=False)
    rows, in_time = shown_rows(times(run), best_seed(run.scored, "blend").choice)
    assert not in_time
    assert len(set(rows.tolist())) == min(days, MOST_SHOWN)
    assert (best_seed(run.scored, "blend").choice[rows].diff() >= 0).all()
    shops = replace(amount_run(tmp_path / "shops", days=days), times=torch.arange(days).double() // 2)
    assert not shown_rows(times(shops), best_seed(shops.scored, "blend").choice)[1]


def test_coverage_counts_what_lies_below(tmp_path: Path) -> None:
    run = amount_run(tmp_path, days=400)
    curves = coverage(run)
    quantiles = best_seed(run.scored, "blend").predictions.quantiles.numpy()
    for level, below in curves["blend"]:
        assert below == pytest.approx((run.labels.numpy() <= quantiles[:, round(100 * level) - 1]).mean())
        assert below == pytest.approx(level, abs=0.1)


def test_expected_costs_in_bins(tmp_path: Path) -> None:
    run = amount_run(tmp_path, days=400)
    assert cost_bins(run) == []  # it expects about the same everywhere
    item = best_seed(run.scored, "blend")
    wide = replace(item, expected_costs=np.linspace(10, 70, 400), costs=np.linspace(20, 80, 400)[::-1].copy())
    bins = cost_bins(replace(run, scored=(wide,)))
    assert len(bins) == 10
    assert [round(x) for x, _ in bins] == [13, 19, 25, 31, 37, 43, 49, 55, 61, 67]
    assert [round(y.mean) for _, y in bins] == [77, 71, 65, 59, 53, 47, 41, 35, 29, 23]


def test_costs_against_a_ratio_are_those_of_the_library(tmp_path: Path) -> None:
    run = amount_run(tmp_path)
    costs = mean_costs(run, UTILITY)
    item, place = best_seed(run.scored, "blend"), len(SHOWN) // 2
    assert SHOWN[place] == pytest.approx(1)
    assert costs["blend"][place] == pytest.approx(item.costs.mean())
    other = with_ratio(UTILITY, 2.0)
    assert float(other.under / other.over) == pytest.approx(6.0)
    assert float(other.under + other.over) == pytest.approx(20.0)
    shown = by_ratio(run)
    assert shown is not None
    assert (
        shown["said"][0]
        == "At all of these ratios the model costs less than the best decision that is the same every time."
    )
    wins = np.ones(len(SHOWN))
    wins[:3] = 3
    said = where_it_wins({"constant": 2 * np.ones(len(SHOWN)), "blend": wins}, "blend", 1.0)
    assert said.startswith(
        "The model costs less than the best decision that is the same every time from 1 : 5.01 to 10 : 1;"
    )
    assert by_ratio(amount_run(tmp_path / "own", utility=replace(UTILITY, under=np.full(140, 15.0)))) is None


@pytest.mark.parametrize(
    ("ends", "marks"),
    [
        ((2, 57), [0, 10, 20, 30, 40, 50]),
        ((0, 85), [0, 20, 40, 60, 80]),
        ((-0.3, 0.4), [-0.4, -0.2, 0, 0.2, 0.4]),
        ((30, 30), [30]),
        ((12_000, 980_000), [0, 200_000, 400_000, 600_000, 800_000]),
    ],
)
def test_marks_of_an_axis_are_round(ends: tuple[float, float], marks: list[float]) -> None:
    assert round_numbers(*ends) == pytest.approx(marks)
