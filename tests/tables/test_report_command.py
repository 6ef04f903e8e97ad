"""`stakes report`, and the command that a report names."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patient_tables import TINY

from stakes.cli import main as cli
from stakes.decisions import decide
from stakes.tables.run import Run
from stakes.tables.task import TableTask, command

MODELS = ("--models", "logistic,calibrated,blend")


def test_the_report_is_made_again_without_the_data(
    stakes: Callable[..., Any], patients: Path, costs: Path, tmp_path: Path
) -> None:
    data = tmp_path / "moved.csv"
    data.write_bytes(patients.read_bytes())
    out = tmp_path / "out"
    options = ("--target", "diagnosis", "--costs", costs, "--out", out, "--seeds", 2, *MODELS, *TINY)
    said = stakes("fit", data, *options)
    assert said.code == 0, said.err
    assert f"{out / 'report.html'}: the report" in said.out
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    data.unlink()
    (out / "report.html").unlink()
    said = stakes("report", out)
    assert (said.code, said.out, said.err) == (0, f"{out / 'report.html'}\n", "")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_every_decision_is_taken_once(
    stakes: Callable[..., Any], patients: Path, costs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run that is resumed trains nothing: it is scored, compared and reported, as after training."""
    out = tmp_path / "out"
    options = ("fit", patients, "--target", "diagnosis", "--costs", costs, "--out", out, *MODELS, *TINY)
    assert stakes(*options).code == 0
    calls: list[tuple[str, str]] = []

    def count_in(place: str) -> Any:
        def counted(predictive: Any, utility: Any, rule: Any = "optimal", **rest: Any) -> Any:
            calls.append((place, rule))
            return decide(predictive, utility, rule, **rest)

        return counted

    for name, module in [(name, module) for name, module in sys.modules.items() if name.startswith("stakes")]:
        if getattr(module, "decide", None) is decide:
            monkeypatch.setattr(module, "decide", count_in(name))
    assert stakes(*options, "--resume").code == 0
    models = len(Run.load(out).comparison.models)
    assert models == 4
    # On the test rows by both rules; on the rows held out by the costs, once for the mean utility that the seed is
    # chosen by, once for the choice of the model, and once for each strength of calibration. What the saved model
    # goes by is asked of changed rows, and decided elsewhere.
    test, held = "stakes.evaluation.comparison", "stakes.tables.class_mix"
    assert [rule for place, rule in calls if place == test] == ["argmax", "optimal"] * models
    assert [rule for place, rule in calls if place == held] == ["optimal"] * (2 * models + 3)
    calls.clear()
    assert stakes("report", out).code == 0
    assert {place for place, _ in calls} == {"stakes.report.ratio"}  # at other costs than those of the run


def test_a_saved_run_is_read_back(run_folder: Path, tmp_path: Path) -> None:
    run = Run.load(run_folder)
    run.save(tmp_path / "copy")
    again = Run.load(tmp_path / "copy")
    assert again.comparison == run.comparison
    assert (again.settings, again.utility, again.rows) == (run.settings, run.utility, run.rows)
    for ours, theirs in zip(again.scored, run.scored, strict=True):
        assert ours.to_dict() == theirs.to_dict()
        decisions = decide(theirs.predictions.probs, run.utility, theirs.rule)
        assert torch.equal(ours.choice, decisions.choice)
        assert torch.equal(ours.margin, decisions.margin)
        np.testing.assert_array_equal(ours.utilities, -run.utility.costs[decisions.choice, run.labels])
    for name in ("run.json", "cases.safetensors", "results.jsonl", "summary.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (run_folder / name).read_bytes()


def test_a_case_is_known_by_its_row_in_the_file(run_folder: Path, patients: Path) -> None:
    """The rows under the header, counted from 1, hold the outcomes that were tested on."""
    run = Run.load(run_folder)
    lines = patients.read_text(encoding="utf-8").splitlines()
    outcomes = [lines[number].rpartition(",")[2] for number in run.row_numbers.tolist()]
    assert outcomes == [run.utility.outcomes[label] for label in run.labels.tolist()]
    assert len(set(run.row_numbers.tolist())) == 24


def test_what_is_no_finished_run_is_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "but there is none" in refused("report", tmp_path / "nowhere")
    assert "it holds no run.json" in refused("report", tmp_path)
    (tmp_path / "run.json").write_text("{}")
    said = refused("report", tmp_path)
    assert "no cases.safetensors, details.json, results.jsonl, summary.json yet" in said
    assert "--resume" in said
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--test", "0.3", "--folds", "3", "--group", "ward", "--seeds", "3", "--seed", "7", "--unit", "£ a day"),
        ("--drop", '"age, in years",ward', "--categorical", "ward", "--labels", '0=a,"1=b, c"', "--target=-diagnosis"),
        ("--test", "cv", "--models", "boosting,blend"),
        ("--time", "age", "--network", "mlp", "--learning-rate", "0.004"),
        ("--label-noise", "0.1", "--models", "noise"),
        ("--label-noise", "learnt", "--network", "mlp", "--posterior", "ensemble", "--members", "3"),
        (
            "--network",
            "mlp",
            "--hidden",
            "8,4",
            "--dropout",
            "0.3",
            "--samples",
            "7",
            "--epochs",
            "3",
            "--patience",
            "2",
        ),
        (
            "--batch-size",
            "9",
            "--learning-rate",
            "0.05",
            "--network",
            "mlp",
            "--posterior",
            "mean_field",
            "--hidden",
            "",
        ),
    ],
)
def test_the_command_of_a_run_asks_for_the_same_run(
    stakes: Callable[..., Any],
    patients: Path,
    costs: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    asked: list[tuple[TableTask, Path]] = []
    monkeypatch.setattr(cli, "_fit_and_report", lambda task, out, **rest: asked.append((task, out)))
    assert stakes("fit", patients, "--target", "diagnosis", "--costs", costs, "--out", "o", *options).code == 0
    settings = asked[0][0].settings()
    line = shlex.split(command(settings, "again"))
    assert line[0] == "stakes"
    assert stakes(*line[1:]).code == 0
    assert asked[1][0].settings() == settings
    assert str(asked[1][1]) == "again"
    assert "again" not in json.dumps(settings)


def _edited(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps(change(content)), encoding="utf-8")

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_edited("run.json", lambda settings: [1]), "run.json is a list"),
        (_edited("run.json", lambda settings: {"seed": 0}), "run.json has no "),
        (
            _edited("summary.json", lambda found: found | {"choice": found["choice"] | {"model": "nobody"}}),
            "there are no results of nobody",
        ),
        (
            _edited("summary.json", lambda found: found | {"reference": {"model": "nobody"}}),
            "there are no results of nobody",
        ),
        (_edited("details.json", lambda details: details | {"ids": ["a"]}), "ids: 1 for "),
        (_edited("details.json", lambda details: details | {"by": ["a"]}), "by: 1 for "),
        (
            _edited("details.json", lambda found: found | {"importance": {"columns": {}, "rows": 1}}),
            "importance of no columns",
        ),
    ],
)
def test_a_folder_whose_parts_do_not_fit_together_is_refused(
    run_folder: Path, tmp_path: Path, refused: Callable[..., str], edit: Callable[[Path], None], words: str
) -> None:
    shutil.copytree(run_folder, tmp_path / "run")
    edit(tmp_path / "run")
    assert words in refused("report", tmp_path / "run")
