"""The folder of one run, and its rules: one run in a folder, resumed only as it was started.

run.json                  what was asked for
runs/<model>-<seed>/      checkpoint while it trains; then predictions.safetensors, and model/
model/                    the chosen model
summary.json  results.jsonl  report.md  figures/
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stakes.errors import StakesError
from stakes.files import read_json, write_json

_ENTRIES = ("run.json", "runs", "model", "summary.json", "results.jsonl", "report.md", "figures")


@dataclass(frozen=True)
class RunFolder:
    """Where one run keeps its files."""

    path: Path

    @property
    def settings_file(self) -> Path:
        return self.path / "run.json"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def results_file(self) -> Path:
        return self.path / "results.jsonl"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    def run(self, model: str, seed: int) -> Path:
        return self.path / "runs" / f"{model}-{seed}"

    def claim(self, settings: Mapping[str, Any], *, resume: bool, force: bool) -> None:
        """Make the folder this run's own, or say why it cannot be. Files of other kinds in it are left alone."""
        self.refuse_if_taken(settings, resume=resume, force=force)
        if force:
            for entry in self._taken():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.settings_file, settings)

    def refuse_if_taken(self, settings: Mapping[str, Any], *, resume: bool, force: bool) -> None:
        if self.path.is_file():
            raise StakesError(f"{self.path}: expected a directory for the results, but it is a file")
        if force or not self._taken():
            return
        if not resume:
            raise StakesError(
                f"{self.path}: holds a run already: --resume goes on with it, --force replaces it, "
                "or choose another --out"
            )
        before = read_json(self.settings_file)
        changed = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
        if changed:
            first = changed[0]
            raise StakesError(
                f"{self.path}: cannot resume another run; different: {', '.join(changed)} "
                f"({first} was {before.get(first)!r}, now {settings.get(first)!r})"
            )

    def _taken(self) -> list[Path]:
        return [self.path / name for name in _ENTRIES if (self.path / name).exists()]
