"""Tests in JavaScript, run by Node's own test runner."""

import os
import shutil
import subprocess
from pathlib import Path

NODE = shutil.which("node")


def run_tests(name: str, examples: Path, passed: int) -> None:
    """All tests of a file beside this one pass on the numbers in ``examples``, and there are as many as expected."""
    assert NODE is not None
    run = subprocess.run(
        [NODE, "--test", str(Path(__file__).with_name(name))],
        env={**os.environ, "STAKES_EXAMPLES": str(examples)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"# pass {passed}\n" in run.stdout, run.stdout
