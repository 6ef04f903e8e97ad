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
unfinished/               a run that replaces this one (--force), until it is finished
.lock                     the process that writes here, while it does
"""

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from stakes._io.files import locked, move_into, read_json, write_json
from stakes.errors import StakesError, StakesWarning, listing

CASES = "cases.safetensors"
RESULTS = (CASES, "details.json", "results.jsonl", "summary.json")  # of a finished run, in the order of writing
UNFINISHED = "unfinished"
# The names that stakes writes, as patterns, and what is in each: nothing else is ever deleted.
_FILE: dict[str, Any] = {}
_MODEL = {r"model\.json": _FILE, r"weights\.safetensors": _FILE}
_PART = {r"(checkpoint|predictions)\.safetensors": _FILE, "model": _MODEL}
_RUN = {
    "parts": {r"\d+|all": {r".+-\d+": {r"\d+": _PART}}},
    "predictions": {r".+-\d+\.safetensors": _FILE},
    "model": _MODEL,
    **{re.escape(name): _FILE for name in ("run.json", *RESULTS, "report.html")},
}
# Where a process is killed while it writes: what `atomic` leaves, and what safetensors leaves in it.
_TEMPORARY = re.compile(r"\.(.+)\.[^.]+")
_SAFETENSORS = r"\.tmp\w{6}"


class _Found(NamedTuple):
    path: Path
    kind: Literal["written", "temporary", "link", "other"]


class RunFolder:
    """Where a run keeps its files, from the first fit on."""

    def __init__(self, path: Path) -> None:
        self.path, self.settings_file = path, path / "run.json"
        self.model, self.page = path / "model", path / "report.html"

    def part(self, model: str, seed: int, division: str, fold: int) -> Path:
        return self.path / "parts" / division / f"{model}-{seed}" / str(fold)

    def predictions_file(self, model: str, seed: int) -> Path:
        return self.path / "predictions" / f"{model}-{seed}.safetensors"

    @contextmanager
    def held(self, settings: Mapping[str, Any], *, resume: bool, force: bool) -> Iterator["RunFolder"]:
        """Make the folder this run's own, or say why it cannot be.

        Yield where it is written: here or, if it replaces another run, which stays whole until then, in ``unfinished``.
        """
        self.refuse_if_taken(settings, resume=resume, force=force)
        with locked(self.path):
            self.refuse_if_taken(settings, resume=resume, force=force)
            self._check_contents()
            unfinished = RunFolder(self.path / UNFINISHED)
            replaces = unfinished._holds(settings) if resume else bool(force and self._entries())
            here = unfinished if replaces else self
            here._delete("temporary", *(("written",) if force else ()))
            write_json(here.settings_file, settings)
            yield here
            if replaces:
                self._delete("written", "temporary")
                os.replace(unfinished.settings_file, self.settings_file)
                move_into(unfinished.path, self.path)
                unfinished._delete("written")
                with suppress(OSError):  # it holds other files
                    unfinished.path.rmdir()

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
        if settings is None or RunFolder(self.path / UNFINISHED)._holds(settings):
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

    def _holds(self, settings: Mapping[str, Any]) -> bool:
        return self.settings_file.exists() and bool(read_json(self.settings_file) == settings)

    def _entries(self) -> list[Path]:
        return [
            path for path, kind in _look(self.path, _RUN) if path.parent == self.path and kind in ("written", "link")
        ]

    def _check_contents(self) -> None:
        """No link is followed, not even to write; files that are not from a run are named, and stay."""
        found = list(_look(self.path, {**_RUN, UNFINISHED: _RUN}))
        links = [path for path, kind in found if kind == "link"]
        if links:
            raise StakesError(
                f"{self.path}: expected files of a run, but stakes follows no symbolic link, and there is "
                f"{listing(map(str, links))}: remove it, or choose another --out"
            )
        others = [str(path) for path, kind in found if kind == "other" and path.parent != self.path]
        if others:
            warnings.warn(
                f"not from a run of stakes, and left as it is: {listing(others)}", StakesWarning, stacklevel=3
            )

    def _delete(self, *kinds: str) -> None:
        """Delete what is here of these kinds, but for the settings, by which a run is known: they are replaced."""
        for path, kind in _look(self.path, _RUN):
            if kind in kinds and path != self.settings_file:
                with suppress(OSError):  # a directory with other files in it
                    path.rmdir() if path.is_dir() else path.unlink()


def _look(folder: Path, names: Mapping[str, Any]) -> Iterator[_Found]:
    """What is in a folder and below, innermost first, and whether it is of these ``names``; no link is followed."""
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        temporary = _TEMPORARY.fullmatch(path.name)
        name = temporary[1] if temporary else path.name
        inside = next((inside for pattern, inside in names.items() if re.fullmatch(pattern, name)), None)
        if inside is None:
            yield _Found(path, "other")
        elif path.is_symlink():
            yield _Found(path, "link")
        else:
            expected = {re.escape(name): inside, _SAFETENSORS: _FILE} if temporary else inside
            below = _look(path, expected) if path.is_dir() else ()
            for found in (*below, _Found(path, "written")):
                yield found._replace(kind="temporary") if temporary and found.kind == "written" else found
