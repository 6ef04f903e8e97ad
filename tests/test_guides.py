"""The Python of README.md and docs/guides, run as it stands: each section after what precedes the first one.

What a block prints is in the ``text`` block below it, where there is one: the same words and whole numbers, and
decimals within 10 %, or one of their last digit, for other machines round otherwise. Recipes for other packages are run
where these are installed.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stakes.cli.main import main

ROOT = Path(__file__).parents[1]
README, GUIDES = ROOT / "README.md", sorted((ROOT / "docs" / "guides").glob("*.md"))
HEADING = re.compile(r"^(#+) (.*)")
RECIPES = {"TensorBoard", "MLflow"}  # sections of the training guide, whose results are looked at below
DECIMAL = re.compile(r"-?\d+\.\d+")


class Block(NamedTuple):
    first_line: int
    code: str
    printed: str | None  # None where the document does not say


class Section(NamedTuple):
    document: Path
    title: str
    blocks: list[Block]

    def run(self, capture: pytest.CaptureFixture[str]) -> None:
        names: dict[str, Any] = {"__name__": self.document.stem}
        for block in [*sections_of(self.document)[0].blocks, *self.blocks]:
            # Tracebacks then show the lines of the document.
            exec(compile("\n" * block.first_line + block.code, str(self.document), "exec"), names)
            printed = capture.readouterr().out
            if block.printed is not None:
                assert_same(printed, block.printed)


def assert_same(printed: str, expected: str) -> None:
    assert DECIMAL.sub("#", printed).split() == DECIMAL.sub("#", expected).split(), printed
    for number, written in zip(DECIMAL.findall(printed), DECIMAL.findall(expected), strict=True):
        last_digit = 10.0 ** -len(written.partition(".")[2])
        assert float(number) == pytest.approx(float(written), rel=0.1, abs=1.01 * last_digit), printed


def sections_of(document: Path) -> list[Section]:
    """What stands before the first heading below the title, and the section of every heading after it."""
    sections = [Section(document, "", [])]
    for number, language, text in _fences(document):
        if language == "heading":
            sections.append(Section(document, text, []))
        elif language == "python":
            sections[-1].blocks.append(Block(number, text, None))
        elif language == "text" and sections[-1].blocks:
            sections[-1].blocks[-1] = sections[-1].blocks[-1]._replace(printed=text)
    return sections


def _fences(document: Path) -> Iterator[tuple[int, str, str]]:
    """Each heading below the title, and each block of code: its first line (from 0), its language and its text."""
    lines = iter(enumerate(document.read_text(encoding="utf-8").splitlines(keepends=True)))
    for number, line in lines:
        heading = HEADING.match(line)
        if heading and len(heading[1]) > 1:
            yield number, "heading", heading[2].strip()
        if line.startswith("```"):
            inside = []
            for _, code in lines:
                if code.startswith("```"):
                    break
                inside.append(code)
            yield number + 1, line.removeprefix("```").strip(), "".join(inside)


SECTIONS = [section for document in (README, *GUIDES) for section in sections_of(document) if section.blocks]
PLAIN = [section for section in SECTIONS if section.title not in {"", *RECIPES}]
LINKS = [
    (document, link)
    for document in (README, *GUIDES)
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", document.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("section", PLAIN, ids=lambda section: f"{section.document.stem}: {section.title}")
def test_the_code_runs_and_prints_what_it_says(
    section: Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    section.run(capsys)


@pytest.mark.parametrize(("document", "link"), LINKS, ids=lambda value: getattr(value, "stem", value))
def test_what_is_linked_to_is_there(document: Path, link: str) -> None:
    assert (document.parent / link.partition("#")[0]).exists()


def test_documents_are_cut_into_sections(tmp_path: Path) -> None:
    document = tmp_path / "guide.md"
    document.write_text(
        "# Title\n```python\na = 1\n```\n## One\n```python\n# no heading\nprint(a, 2.0)\n```\nIt is:\n```text\n1 2.1\n"
        "```\n### Two\n```sh\nrm\n```\n## Three\n```python\nprint(a)\na = b\n```\n"
    )
    first, one, two, three = sections_of(document)
    assert (first.title, first.blocks) == ("", [Block(2, "a = 1\n", None)])
    assert (one.title, one.blocks) == ("One", [Block(6, "# no heading\nprint(a, 2.0)\n", "1 2.1\n")])
    assert (two.title, two.blocks, three.title) == ("Two", [], "Three")


def test_a_document_that_is_wrong_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "guide.md"
    document.write_text("# Title\n```python\nprint('sum', 1, 2.0)\n```\n## One\n```python\na = b\n```\n")
    with pytest.raises(NameError, match="'b'") as raised:
        sections_of(document)[1].run(capsys)
    assert raised.traceback[-1].lineno == 6  # counted from 0
    assert_same("sum 1  2.0\n", "sum 1 2.1")
    for wrong in ("sum 2 2.0", "sum 1 2.5", "sum 1 2.00 3.00", "sum 1", "total 1 2.0"):
        with pytest.raises(AssertionError):
            assert_same("sum 1 2.0\n", wrong)


def test_the_commands_for_amounts(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand in the guide, but that one model is trained instead of all."""
    guide = ROOT / "docs" / "guides" / "amounts.md"
    blocks = {language: text for _, language, text in _fences(guide) if language in ("csv", "sh")}
    monkeypatch.chdir(tmp_path)
    Path("yaz.csv").write_bytes((data_folder / "newsvendor" / "yaz.csv").read_bytes())
    Path("tomorrow.csv").write_text(blocks["csv"])
    for line in blocks["sh"].splitlines():
        program, command, *options = shlex.split(line)
        assert program == "stakes"
        quick = ["--models", "neighbours", "--folds", "2"] if command == "fit" else []
        monkeypatch.setattr("sys.argv", [program, command, *options, *quick])
        main()
    header, *rows = Path("order.csv").read_text().splitlines()
    assert f"`{header.replace(',', ', ')}`" in guide.read_text(encoding="utf-8")
    assert len(rows) == 2
    assert "every time (95" in Path("run/report.html").read_text(encoding="utf-8")


def recipe(title: str) -> Section:
    return next(section for section in SECTIONS if section.title == title)


def test_the_recipe_for_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    recipe("TensorBoard").run(capsys)
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss/step")] == list(range(1, 25))  # 240 examples by 32, 3 epochs
    assert [event.step for event in events.Scalars("validation/utility")] == [1, 2, 3]


@pytest.mark.filterwarnings("ignore")  # of the packages that MLflow uses
def test_the_recipe_for_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    recipe("MLflow").run(capsys)
    (last,) = mlflow.search_runs(output_format="list")
    assert last.data.params["epochs"] == "3"
    assert {"loss", "utility", "nll"} <= set(last.data.metrics)
    assert len(mlflow.MlflowClient().get_metric_history(last.info.run_id, "loss")) == 24
