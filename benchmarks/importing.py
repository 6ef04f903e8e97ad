"""``import stakes`` against ``import torch``, each in a fresh process."""

import subprocess
import sys

from benchmarks.timing import Claim, seconds


def measure() -> list[Claim]:
    def load(name: str) -> None:
        subprocess.run([sys.executable, "-c", f"import {name}"], check=True)

    torch, stakes = seconds(lambda: load("torch"), lambda: load("stakes"), rounds=3)
    return [Claim("import stakes", "import torch", stakes / torch, "<= 1.25")]
