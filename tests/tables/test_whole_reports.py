"""Tables that mislead, from the file to the report: what a user reads, in the terminal and on the page."""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.filterwarnings("always::stakes.errors.StakesWarning")  # printed, as for a user
COSTS = "cost [£],well,ill\nwait,0,500\ntreat,40,0\n"
NEARLY_EVEN = "cost [£],well,ill\nwait,0,60\ntreat,40,0\n"
QUICK = ("--models", "logistic,blend", "--folds", "2", "--workers", "1")
FOREST = ("--models", "forest")
BEYOND = "That is beyond chance, on"


@dataclass(frozen=True)
class Read:
    """What a user reads of a run."""

    terminal: str
    warnings: str
    page: str  # its text
    folder: Path

    @property
    def headline(self) -> str:
        return self.terminal.splitlines()[0]

    @property
    def caveats(self) -> str:
        return self.page.partition("Before you rely on it")[2].partition("The alternatives")[0]


@pytest.fixture
def fitted(stakes: Callable[..., Any], tmp_path: Path) -> Callable[..., Read]:
    """Fit a table with outcomes ill and well in the column state, and read all that is said."""

    def fit(frame: pd.DataFrame, *options: str, costs: str = COSTS) -> Read:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        frame.to_csv(tmp_path / "table.csv", index=False)
        (tmp_path / "costs.csv").write_text(costs, encoding="utf-8")
        files = (tmp_path / "table.csv", "--target", "state", "--costs", tmp_path / "costs.csv", "--out", folder)
        said = stakes("fit", *files, *QUICK, *options)
        assert said.code == 0, said.err
        page = (folder / "report.html").read_text(encoding="utf-8")
        text = re.sub(r"<(style|script)\b.*?</\1>", " ", page, flags=re.S)
        text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).replace("\xa0", " ").split())
        return Read(said.out, said.err, text, folder)

    return fit


def measured(rows: int, seed: int, columns: int = 4, offset: float = 2.0) -> pd.DataFrame:
    """The first two tests tell of the illness, the others of nothing; about one in five is ill at an offset of 2."""
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame(generator.normal(size=(rows, columns)).round(4), columns=[f"test {i}" for i in range(columns)])
    ill = generator.random(rows) < 1 / (1 + np.exp(offset - 2 * frame["test 0"] - 1.5 * frame["test 1"]))
    return frame.assign(state=np.where(ill, "ill", "well"))


def test_noise_is_not_worth_a_model(fitted: Callable[..., Read]) -> None:
    frame = measured(1000, seed=1)
    read = fitted(frame.assign(state=np.random.default_rng(2).permutation(frame["state"])))
    assert re.match("No model is worth more than|This model (is not|cannot be shown to be) worth more", read.headline)
    assert "deciding the same for everybody" in read.headline
    assert BEYOND not in read.terminal + read.page
    assert read.headline in read.page


def test_a_leak_is_named_where_the_result_is_read(fitted: Callable[..., Read]) -> None:
    frame = measured(600, seed=3)
    codes = np.random.default_rng(3).integers(3, 5, len(frame))
    read = fitted(frame.assign(discharge=np.where(frame["state"] == "ill", codes, 1)), "--test", "0.3")
    sentence = "the outcome leaks: 'discharge' alone decides it"
    assert sentence in read.warnings
    assert f"Note: {sentence}" in read.terminal
    assert sentence in read.caveats
    assert "--drop discharge" in read.caveats
    assert "do not rely on what it expects" not in read.page, "it expected what came"


def test_one_in_two_hundred(fitted: Callable[..., Read]) -> None:
    frame = measured(2400, seed=4)
    score = 2 * frame["test 0"] + frame["test 1"]
    rare = score + np.random.default_rng(4).normal(size=len(frame)) * 0.3 >= np.sort(score)[-12]
    read = fitted(frame.assign(state=np.where(rare, "ill", "well")))
    assert BEYOND not in read.terminal + read.page
    assert re.search(r"\d cases of ill among 480 test rows: what is said of the cost of mistakes", read.caveats)
    assert read.terminal.count("cases of ill among") >= 1
    assert "few cases of some outcomes" in read.warnings
    assert "few cases of some outcomes" not in read.page, "it is said once"


def test_twelve_rows(fitted: Callable[..., Read]) -> None:
    read = fitted(measured(12, seed=5).assign(state=["ill", "well", "well"] * 4))
    assert BEYOND not in read.terminal + read.page
    assert "All of this rests on 12 test rows: another 12 may say something else." in read.caveats


def test_two_thousand_columns(fitted: Callable[..., Read]) -> None:
    frame = measured(300, seed=6, columns=2000)
    ill = np.random.default_rng(6).permutation(300) < 100
    frame.iloc[:, :10] += 3 * ill[:, None]  # ten columns tell it
    read = fitted(frame.assign(state=np.where(ill, "ill", "well")), "--test", "0.4", *FOREST, costs=NEARLY_EVEN)
    assert "2000 features" in read.warnings
    assert "1900 columns that differ least between the outcomes were not measured." in read.page
    assert re.search(r"test \d matters most: without|No column alone makes a difference beyond chance", read.page)
    assert "85 columns that matter less are not shown." in read.page
    assert re.search(" less than deciding “(treat|wait)” for everybody", read.headline)


def test_repeated_patients(fitted: Callable[..., Read]) -> None:
    """Eight visits each of patients whose illness has nothing to do with their tests: only who it is can be learnt."""
    generator = np.random.default_rng(7)
    owner = generator.permutation(np.repeat(np.arange(60), 8))
    visits = generator.normal(size=(60, 4))[owner] + 0.05 * generator.normal(size=(480, 4))
    frame = pd.DataFrame(visits, columns=[f"test {i}" for i in range(4)])
    frame = frame.assign(patient=[f"P{i:03}" for i in owner], state=np.where(owner % 3 == 0, "ill", "well"))
    apart = fitted(frame, "--test", "0.4", *FOREST, costs=NEARLY_EVEN)
    assert BEYOND in apart.terminal, "which is what the warning is about"
    for said in (apart.warnings, apart.terminal, apart.caveats):
        assert "column 'patient' seems to name what several rows belong to (60 values in 480 rows; " in said
        assert "Keep them together with --group patient" in said
    together = fitted(frame, "--test", "0.4", *FOREST, "--group", "patient", costs=NEARLY_EVEN)
    assert BEYOND not in together.terminal + together.page
    assert "--group" not in together.warnings
    assert "values of patient, whose test rows belong together" in together.page


def test_shuffled_ids(fitted: Callable[..., Read]) -> None:
    frame = measured(400, seed=8)
    frame.insert(0, "record", np.random.default_rng(8).permutation(400) + 10_000)
    read = fitted(frame, "--test", "0.3")
    sentence = "column 'record' looks like a row identifier (its whole numbers are all different)"
    for said in (read.warnings, read.terminal, read.caveats):
        assert sentence in said
        assert "drop it with --drop record" in said
    named = fitted(frame, "--test", "0.3", "--id", "record")
    assert "identifier" not in named.warnings + named.page
    assert "Cases are named by the column record." in named.page


def test_celsius_in_place_of_fahrenheit(
    fitted: Callable[..., Read], stakes: Callable[..., Any], tmp_path: Path
) -> None:
    frame = measured(500, seed=9)
    frame["temperature"] = (98.4 + 1.2 * frame["test 0"]).round(1)
    read = fitted(frame.drop(columns="test 0"), "--test", "0.3")
    new = frame.drop(columns=["test 0", "state"]).iloc[:20]
    new = new.assign(temperature=((new["temperature"] - 32) / 1.8).round(1))
    new.to_csv(tmp_path / "new.csv", index=False)
    arguments = ("decide", read.folder, tmp_path / "new.csv", "--out", tmp_path / "decisions.csv")
    said = stakes(*arguments)
    assert said.code == 0, said.err
    assert "20 of 20 rows are unlike" in said.err
    assert "'temperature'" in said.err
    decided = pd.read_csv(tmp_path / "decisions.csv")
    assert decided["unusual"].str.startswith("temperature ").all()
    assert stakes(*arguments, "--on-unusual", "refer", "--refer", "treat").code == 0
    assert (pd.read_csv(tmp_path / "decisions.csv")["decision"] == "treat").all()
    stopped = stakes(*arguments, "--on-unusual", "stop")
    assert stopped.code == 1
    assert "row 1: temperature " in stopped.err
