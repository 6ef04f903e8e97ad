"""The folder of one run, and its rules: one run in a folder, resumed only as it was started.

run.json                  what was asked for
runs/<model>-<seed>/      checkpoint while it trains; then predictions.safetensors, and model/
model/                    the chosen model
cases.safetensors         the test rows: what happened, and their places in the file
summary.json  results.jsonl
report.html  report.md  figures/
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stakes._io.files import read_json, write_json
from stakes.errors import StakesError

_ENTRIES = (
    "run.json",
    "runs",
    "model",
    "cases.safetensors",
    "summary.json",
    "results.jsonl",
    "report.html",
    "report.md",
    "figures",
)


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
    def cases_file(self) -> Path:
        return self.path / "cases.safetensors"

    @property
    def result_files(self) -> tuple[Path, ...]:
        """What a finished run has, in the order in which it is written."""
        return self.cases_file, self.results_file, self.summary_file

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def page(self) -> Path:
        return self.path / "report.html"

    def run(self, model: str, seed: int) -> Path:
        return self.path / "runs" / f"{model}-{seed}"

    def predictions_file(self, model: str, seed: int) -> Path:
        return self.run(model, seed) / "predictions.safetensors"

    def claim(self, settings: Mapping[str, Any], *, resume: bool, force: bool) -> None:
        """Make the folder this run's own, or say why it cannot be. Files of other kinds in it are left alone."""
        self.refuse_if_taken(settings, resume=resume, force=force)
        if force:
            for entry in sorted(self._taken(), key=lambda entry: entry == self.settings_file):  # the claim goes last
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for leftover in self._leftovers():
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.settings_file, settings)

    def refuse_if_taken(self, settings: Mapping[str, Any] | None, *, resume: bool, force: bool) -> None:
        """``settings`` are those that a resumed run has to have; None if they are not known yet."""
        if resume and force:
            raise StakesError("expected --resume, to go on with a run, or --force, to replace it, but got both")
        if self.path.exists() and not self.path.is_dir():
            raise StakesError(f"{self.path}: expected a directory for the results, but it is a file")
        taken = self._taken()
        if taken and not self.settings_file.exists():
            names = ", ".join(entry.name for entry in taken)
            raise StakesError(f"{self.path}: holds {names}, but not from a run of stakes; choose another --out")
        if not taken or force:
            return
        if not resume:
            raise StakesError(
                f"{self.path}: holds a run already: --resume goes on with it, --force replaces it, "
                "or choose another --out"
            )
        if settings is not None:
            self._refuse_another(settings)

    def _refuse_another(self, settings: Mapping[str, Any]) -> None:
        before = read_json(self.settings_file)
        if not isinstance(before, dict):
            raise StakesError(f"{self.settings_file}: damaged; --force starts again")
        changed = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
        if changed:
            first = changed[0]
            raise StakesError(
                f"{self.path}: cannot resume another run; different: {', '.join(changed)} "
                f"({first} was {before.get(first)!r}, now {settings.get(first)!r})"
            )

    def _taken(self) -> list[Path]:
        return [self.path / name for name in _ENTRIES if (self.path / name).exists()]

    def _leftovers(self) -> list[Path]:
        """Temporary files of a run that was killed while it wrote them."""
        own = [found for name in _ENTRIES for found in self.path.glob(f".{name}.*")]
        return own + list((self.path / "runs").glob("*/.*"))
