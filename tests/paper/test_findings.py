"""What the pages of the experiments begin with, from the committed results."""

from pathlib import Path

import pytest

from stakes.paper.findings import CAPTIONS, findings
from stakes.paper.sweep import Result

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", ["diagnosis", "digits", "roads"])
def test_every_figure_says_what_to_see(name: str) -> None:
    figures = [file.stem for file in (RESULTS / name).glob("*.png")]
    assert figures
    assert all(": look at" in CAPTIONS[figure] or "not by any one" in CAPTIONS[figure] or "learn wrongly" in
               CAPTIONS[figure] for figure in figures)  # fmt: skip


@pytest.mark.parametrize("name", ["digits", "roads"])
def test_what_was_found_is_what_the_tables_say(name: str) -> None:
    result = Result.load(RESULTS / name)
    tables = (RESULTS / name / "tables.md").read_text(encoding="utf-8")
    sentences = findings(result)
    assert len(sentences) == (4 if name == "digits" else 2)
    for sentence in sentences:
        gain = sentence.rpartition("a difference in utility of ")[2].rstrip(".")
        assert gain in tables
    if name == "roads":
        assert sentences[0].startswith("weighted cannot be told apart from standard training: ")
    else:
        assert sentences[1].startswith("calibrated against standard training, in 36 settings: better, beyond chance, ")
        assert "It gains most with 50% of labels redrawn and " in sentences[1]
