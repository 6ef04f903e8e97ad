"""The README's Python, run as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    exec(compile("\n".join(blocks), str(README), "exec"), {})
    printed = capsys.readouterr().out
    assert "treat" in printed or "send home" in printed or "test more" in printed


@pytest.mark.parametrize("name", re.findall(r"\]\((?!https?:)([^)#]+)\)", README.read_text(encoding="utf-8")))
def test_what_it_links_to_is_there(name: str) -> None:
    assert (README.parent / name).exists()
