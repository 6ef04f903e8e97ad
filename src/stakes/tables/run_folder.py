"""The folder that keeps a run: one run, resumed only as it was started.

run.json                  what was asked for
parts/<division>/<model>-<seed>/<fold>/   checkpoint while it trains; then model/, and predictions.safetensors
predictions/<model>-<seed>.safetensors    what the models that are compared say of the test rows
model/                    the chosen model
cases.safetensors         the test rows: outcomes, row numbers, their costs if they have their own, and for each line
                          of results.jsonl the decisions
details.json              names and groups of the test rows, what drives the decisions, the data as read
results.jsonl             the scores of every model, seed and rule
summary.json              the comparison
report.html
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stakes._io.files import read_json, write_json
from stakes.errors import StakesError

CASES = "cases.safetensors"
RESULTS = (CASES, "details.json", "results.jsonl", "summary.json")  # of a finished run, in the order of writing
_ENTRIES = ("run.json", "parts", "predictions", "model", *RESULTS, "report.html")


class RunFolder:
    """Where a run keeps its files, from the first fit on."""

    def __init__(self, path: Path) -> None:
        self.path, self.settings_file = path, path / "run.json"
        self.model, self.page = path / "model", path / "report.html"

    def part(self, model: str, seed: int, division: str, fold: int) -> Path:
        return self.path / "parts" / division / f"{model}-{seed}" / str(fold)

    def predictions_file(self, model: str, seed: int) -> Path:
        return self.path / "predictions" / f"{model}-{seed}.safetensors"

    def claim(self, settings: Mapping[str, Any], *, resume: bool, force: bool) -> None:
        """Make the folder this run's own, or say why it cannot be. Files of other kinds in it are left alone."""
        self.refuse_if_taken(settings, resume=resume, force=force)
        entries = sorted(self._entries(), key=lambda entry: entry == self.settings_file)  # the claim goes last
        # Beside the entries, the temporary files of a run that was killed while it wrote them.
        temporary = [file for name in _ENTRIES for file in self.path.glob(f".{name}.*")]
        for entry in [*(entries if force else ()), *temporary, *self.path.glob("parts/*/*/*/.*")]:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.settings_file, settings)

    def refuse_if_taken(self, settings: Mapping[str, Any] | None, *, resume: bool, force: bool) -> None:
        """``settings`` are those that a resumed run has to have; None if they are not known yet."""
        if resume and force:
            raise StakesError("expected --resume, to go on with a run, or --force, to replace it, but got both")
        if self.path.exists() and not self.path.is_dir():
            raise StakesError(f"{self.path}: expected a directory for the results, but it is a file")
        entries = self._entries()
        if entries and not self.settings_file.exists():
            names = ", ".join(entry.name for entry in entries)
            raise StakesError(f"{self.path}: holds {names}, but not from a run of stakes; choose another --out")
        if not entries or force:
            return
        if not resume:
            raise StakesError(
                f"{self.path}: holds a run already: --resume goes on with it, --force replaces it, "
                "or choose another --out"
            )
        if settings is None:
            return
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

    def refuse_unfinished(self) -> None:
        if not self.settings_file.exists():
            reason = "it holds no run.json" if self.path.is_dir() else "there is none"
            raise StakesError(f"{self.path}: expected the folder of a run, the --out of `stakes fit`, but {reason}")
        absent = [name for name in RESULTS if not (self.path / name).exists()]
        if absent:
            raise StakesError(
                f"{self.path}: expected a finished run, but it has no {', '.join(absent)} yet; "
                "`stakes fit` with the same options and --resume goes on with it"
            )

    def _entries(self) -> list[Path]:
        return [self.path / name for name in _ENTRIES if (self.path / name).exists()]
