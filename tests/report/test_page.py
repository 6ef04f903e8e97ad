"""report.html as a file: its words, its numbers, and that nothing in it can run or be fetched."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finished_amounts import amount_run, menu_run
from finished_runs import NUMBERS_START, UTILITY, finished_run, random_probs, three_models, write_report

from stakes import StakesError, Utility
from stakes.evaluation import metrics
from stakes.evaluation.comparison import Choice
from stakes.report import explorer
from stakes.report.alternatives import chosen_because
from stakes.report.amounts import AmountFormat
from stakes.report.words import interval, number, numbers, split_sentence

ODD = ("</script><b>bold</b>", "<img src=x onerror=alert(1)>", "\u2028'\"&amp; ${title}")


class Page(HTMLParser):
    """Every element with its attributes, the text of the page, and what scripts and styles hold."""

    def __init__(self, file: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.source = file.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self.text = ""
        self._open = ""
        self.feed(self.source)
        self.text = " ".join(self.text.replace("\N{NO-BREAK SPACE}", " ").split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style"):
            self.inside.append((self._open, data))
        else:
            self.text += data if data.strip() else " "

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(next(text for kind, text in self.inside if kind == "script"))  # type: ignore[no-any-return]


KINDS = pytest.mark.parametrize("finished", [three_models, amount_run, menu_run])


def made(path: Path) -> Page:
    return Page(write_report(path))


def unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind)


# What it says --------------------------------------------------------------------------------------


def test_it_shows_the_numbers_of_the_summary(tmp_path: Path) -> None:
    three_models(tmp_path, seeds=2)
    page, amounts = made(tmp_path), AmountFormat.of(UTILITY)
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    for row in summary["rows"]:
        if (row["model"], row["rule"]) == ("constant", "argmax"):
            continue
        level = metrics.Interval(*(-row[key] for key in ("utility", "utility_high", "utility_low")))
        shown = [amounts.mean(level), amounts.ends(level), f"{row['ece']:.3f}", f"{row['nll']:.3f}"]
        if row["difference"] is not None:
            saved = metrics.Interval(*(row[key] for key in ("difference", "difference_low", "difference_high")))
            shown += [amounts.difference(saved)] + ([amounts.range(saved)] if saved.low or saved.high else [])
        assert all(text in page.text for text in shown), row
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    for model in ("standard", "calibrated", "boosting"):
        first, second = (line for line in lines if (line["model"], line["rule"]) == (model, "optimal"))
        assert np.sum([first["confusion"], second["confusion"]]) == 240
        expected, actual = (-(first[key] + second[key]) / 2 for key in ("claimed_utility", "utility"))
        assert (
            f'<td data-label="expected">£{expected:.2f}</td><td data-label="actual">£{actual:.2f}</td>' in page.source
        )
    assert "All 2 seeds are counted: every test row stands for 2 decisions." in page.text
    assert "stakes fit" in page.text
    assert "Python 3.11, stakes 0.1.0" in page.text
    assert "400 rows to learn from, in 5 folds, and 120 to test on" in page.text


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"train": 1300, "test": 300, "folds": 5, "tested": "cv"}, "1,300 rows, each a test row once; the others in 5"),
        ({"train": 80, "test": 20, "folds": 3, "tested": "latest"}, "in 3 folds, and 20 to test on, the latest"),
        ({"train": 80, "test": 2000, "folds": 3, "tested": "file"}, "and 2,000 to test on, of another file"),
    ],
)
def test_how_rows_are_divided_in_words(rows: dict[str, Any], words: str) -> None:
    assert words in split_sentence(rows)


@pytest.mark.parametrize(
    ("lead", "words"),
    [
        (
            (2, 1, 3),
            "£2.00 less each than those of standard (95 % interval £1.00 to £3.00 less), beyond chance. The test",
        ),
        ((2, -1, 3), "not beyond chance"),
        ((-2, -3, -1), "beyond chance: a loss, which the choice does not go by"),
        ((0, 0, 0), "standard took the same decisions."),
    ],
)
def test_the_choice_says_why_and_how_sure_it_is(tmp_path: Path, lead: tuple[float, ...], words: str) -> None:
    run = three_models(tmp_path)
    choice = replace(run.comparison.choice, lead=metrics.Interval(*lead))
    said = chosen_because(replace(run, comparison=replace(run.comparison, choice=choice)))
    assert said.startswith("it is the test's. On the rows that the choice was made by, ")
    assert words in said
    alone = replace(run.comparison, choice=Choice("calibrated", "it is the only one"))
    assert chosen_because(replace(run, comparison=alone)) == "it is the only one."


def test_how_numbers_are_shown() -> None:
    assert numbers(12.4, -8.1, 1234.5) == ["12", "-8", "1,234"]
    assert numbers(12.4, -0.001) == ["12.40", "0.00"]
    assert number(0.01234) == "0.0123"
    assert number(0) == "0"
    value = metrics.Interval(1.5, -1, 2)
    assert interval(value, sign=True) == "+1.50 (-1.00 to +2.00)"
    assert interval(value, digits=1) == "1.5 (-1.0 to 2.0)"
    assert interval(metrics.Interval(0, -1e-9, 0), digits=4, sign=True) == "+0.0000 (-0.0000 to +0.0000)"
    assert interval(metrics.Interval(0, 0, 0), sign=True) == "0 (0 to 0)"


# The numbers it computes with ----------------------------------------------------------------------


def test_the_explorer_has_the_saved_model_exactly(tmp_path: Path) -> None:
    three_models(tmp_path, seeds=2)
    page = made(tmp_path)
    probs, labels = random_probs(120, 3, seed=1)
    assert np.array_equal(unpacked(page.data["probs"], "<f4").reshape(120, 3), probs.numpy())
    assert np.array_equal(unpacked(page.data["labels"], "<i4"), labels.numpy())
    assert np.array_equal(unpacked(page.data["rows"], "<i4"), np.arange(120) + NUMBERS_START)
    assert page.data["stated"] == UTILITY.costs.tolist()
    assert "of the calibrated model (seed 0, the one in model/) for the 120 test rows." in page.text
    assert "retraining for them may do better" in page.text


def test_a_large_test_set_is_sampled_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "MOST_NUMBERS", 150)
    three_models(tmp_path)
    page = made(tmp_path)
    rows = unpacked(page.data["rows"], "<i4")
    assert len(rows) == 50
    assert list(rows) == sorted(set(rows))
    probs, labels = random_probs(120, 3, seed=1)
    places = rows - NUMBERS_START
    assert not np.array_equal(places, np.arange(50)), "drawn at random"
    assert np.array_equal(unpacked(page.data["labels"], "<i4"), labels.numpy()[places])
    assert np.array_equal(unpacked(page.data["probs"], "<f4").reshape(50, 3), probs.numpy()[places])
    assert "50 of the 120 test rows, drawn at random (seed 0)" in page.text


def test_ten_thousand_rows_of_ten_classes_stay_below_three_megabytes(tmp_path: Path) -> None:
    probs, labels = random_probs(10_000, 10, seed=0)
    utility = Utility.from_costs(100 * (1 - np.eye(10)))
    finished_run(tmp_path, {"calibrated": [probs], "boosting": [probs]}, labels, utility)
    page = made(tmp_path)
    assert len(unpacked(page.data["rows"], "<i4")) == 10_000
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


# What it cannot do ---------------------------------------------------------------------------------


@KINDS
def test_nothing_in_it_can_run_or_be_fetched(tmp_path: Path, finished: Callable[[Path], Any]) -> None:
    finished(tmp_path)
    page = made(tmp_path)
    (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split(";")}
    assert rules["default-src"] == ["'none'"]
    assert rules["img-src"] == ["data:"]
    for kind in ("script", "style"):
        blocks = [text for tag, text in page.inside if tag == kind and not text.startswith("{")]
        hashes = [base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks]
        assert rules[f"{kind}-src"] == ([f"'sha256-{digest}'" for digest in hashes] or ["'none'"])
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("src", "href", "action", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"\beval\(|new Function|innerHTML|document\.write|fetch\(|XMLHttpRequest", page.source)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page.source)


@pytest.mark.filterwarnings("ignore::stakes.errors.StakesWarning")
def test_names_from_data_are_text(tmp_path: Path) -> None:
    table = np.array([[0.0, 1, 2], [3, 0, 1], [1, 2, 0]])
    utility = Utility.from_costs(table, ODD, ODD, unit="</style><i>")
    three_models(tmp_path, utility, target=ODD[0], changes={"drop": list(ODD)})
    page = made(tmp_path)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"i", "img"}
    assert [text[:8] for text in re.findall(r"<b>(.*?)</b>", page.source)] == ["That is "]
    assert page.data["outcomes"] == list(ODD)
    assert page.source.count("</script>") == len(page.all("script"))
    assert page.source.count("</style>") == 1
    for name in ODD[:2]:
        assert name in page.text
    assert "${title}" in page.text, "names are no templates"


@KINDS
def test_everything_that_is_filled_in_has_a_name(tmp_path: Path, finished: Callable[[Path], Any]) -> None:
    finished(tmp_path)
    page = made(tmp_path)
    labelled = {attributes["for"] for attributes in page.all("label")}
    for tag in ("input", "select", "textarea"):
        for attributes in page.all(tag):
            assert attributes.get("aria-label") or attributes.get("id") in labelled, attributes
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(attributes.get("scope") in ("row", "col") for attributes in page.all("th"))
    assert all(a.get("aria-label") or a.get("aria-hidden") == "true" for a in page.all("svg"))
    identities = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identities) == len(set(identities))
    assert {link["href"] for link in page.all("a")} <= {f"#{name}" for name in identities}
    headings = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert headings[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))


# Made again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (("run.json",), "it holds no run.json"),
        (("summary.json",), "expected a finished run, but it has no summary.json yet; .* --resume"),
        (("cases.safetensors",), "it has no cases.safetensors yet"),
    ],
)
def test_what_is_no_finished_run_is_refused(tmp_path: Path, lost: tuple[str, ...], words: str) -> None:
    three_models(tmp_path)
    for name in lost:
        (tmp_path / name).unlink()
    with pytest.raises(StakesError, match=words):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_damaged_results_are_refused(tmp_path: Path) -> None:
    three_models(tmp_path)
    (tmp_path / "summary.json").write_text('{"rows": [{}]}')
    with pytest.raises(StakesError, match=r"damaged .*--resume"):
        write_report(tmp_path)
    with pytest.raises(StakesError, match=r"expected the folder of a run, .* but there is none"):
        write_report(tmp_path / "nowhere")
