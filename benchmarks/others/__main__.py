"""Make the environment, unless it is there already, and run the comparison in it; needs pip and its package index."""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "others"
PACKAGES = ("torch==2.13.0", "torch-uncertainty==0.13.0", "baal==2.1.0", "laplace-torch==0.3")
# laplace-torch requires it and does without. As pip chooses it, it is built for CUDA and does not load beside a CPU
# build of torch; torchmetrics, which imports it where it is there, then fails too.
UNWANTED = "torchvision"


def main() -> int:
    python, ready = FOLDER / "bin" / "python", FOLDER / ".ready"
    if not ready.exists():
        print(f"installing {', '.join(PACKAGES)} into {FOLDER.relative_to(ROOT)} ...", flush=True)
        venv.create(FOLDER, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--editable", str(ROOT), *PACKAGES], check=True)
        subprocess.run([*pip, "uninstall", "--yes", UNWANTED], check=True)
        ready.touch()
    command = [str(python), "-m", "benchmarks.others.compare", *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
