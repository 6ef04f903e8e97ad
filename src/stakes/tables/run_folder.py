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
unfinished/               a run that is to replace this one (--force); replacing/ while its files are moved
.lock                     the process that writes here, while it does
"""

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from stakes._io.files import LOCK, locked, read_json, write_json
from stakes.errors import StakesError, StakesWarning

CASES = "cases.safetensors"
RESULTS = (CASES, "details.json", "results.jsonl", "summary.json")  # of a finished run, in the order of writing
UNFINISHED, REPLACING = "unfinished", "replacing"
# The names that stakes writes, as patterns, and what is in each: nothing else is ever moved or deleted.
_FILE: dict[str, Any] = {}
_MODEL = {r"model\.json": _FILE, r"weights\.safetensors": _FILE}
_PART = {r"(checkpoint|predictions)\.safetensors": _FILE, "model": _MODEL}
_NAME = (
    r"(constant|logistic|forest|boosting|linear|neighbours|mean|standard|weighted|noise|blend|(noise\+)?calibrated)"
    r"(-[\d.]+)?-\d+"  # a strength, and the seed
)
_RUN = {
    "parts": {r"\d+|all": {_NAME: {r"\d+": _PART}}},
    "predictions": {rf"{_NAME}\.safetensors": _FILE},
    "model": _MODEL,
    **{re.escape(name): _FILE for name in ("run.json", *RESULTS, "report.html")},
}
# Where a process is killed while it writes: what `atomic` leaves, and what safetensors leaves in it.
_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}")
_SAFETENSORS = r"\.tmp\w{6}"


class _Found(NamedTuple):
    path: Path
    kind: Literal["written", "temporary", "blocked", "other"]


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
        with locked(self.path):
            self._check_contents()
            self._finish_replacing()
            self._refuse_taken(settings, resume=resume, force=force)
            unfinished = RunFolder(self.path / UNFINISHED)
            replaces = unfinished._holds(settings) if resume else bool(force and self._entries())
            if resume and not replaces and unfinished.settings_file.exists():
                warnings.warn(
                    f"{unfinished.path}: holds a run of other options, which was to replace this one: --resume with "
                    "these options goes on with it",
                    StakesWarning,
                    stacklevel=3,
                )
            here = unfinished if replaces else self
            here._delete("temporary", *(("written",) if force else ()))
            write_json(here.settings_file, settings)
            yield here
            self._finish_replacing()

    def refuse_if_taken(self, settings: Mapping[str, Any] | None, *, resume: bool, force: bool) -> None:
        """``settings`` are those that a resumed run has to have; None if they are not known yet."""
        if resume and force:
            raise StakesError("expected --resume, to go on with a run, or --force, to replace it, but got both")
        if self.path.exists() and not self.path.is_dir():
            raise StakesError(f"{self.path}: expected a directory for the results, but it is a file")
        if (self.path / LOCK).exists():
            with locked(self.path):  # or say by which process it is
                pass
        self._refuse_taken(settings, resume=resume, force=force)

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

    def _refuse_taken(self, settings: Mapping[str, Any] | None, *, resume: bool, force: bool) -> None:
        entries = self._entries()
        if not entries:
            return
        if not self.settings_file.exists():
            names = ", ".join(entry.name for entry in entries)
            raise StakesError(f"{self.path}: holds {names}, but not from a run of stakes; choose another --out")
        before = read_json(self.settings_file)
        if not isinstance(before, dict) or not {"data", "target", "recipe"} <= before.keys():
            raise StakesError(f"{self.settings_file}: damaged, or not from a run of stakes; choose another --out")
        if force:
            return
        if not resume:
            raise StakesError(
                f"{self.path}: holds a run already: --resume goes on with it, --force replaces it, "
                "or choose another --out"
            )
        later = (RunFolder(self.path / name) for name in (UNFINISHED, REPLACING))
        if settings is None or any(folder._holds(settings) for folder in later):
            return
        changed = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
        if changed:
            first = changed[0]
            raise StakesError(
                f"{self.path}: cannot resume another run; different: {', '.join(changed)} "
                f"({first} was {before.get(first)!r}, now {settings.get(first)!r})"
            )

    def _holds(self, settings: Mapping[str, Any]) -> bool:
        try:
            return bool(read_json(self.settings_file) == settings)
        except StakesError:  # there is none, or it is damaged
            return False

    def _entries(self) -> list[Path]:
        return [path for path, kind in _look(self.path, _RUN) if path.parent == self.path and kind != "other"]

    def _check_contents(self) -> None:
        """Refuse what is in the way: no link is followed, not even to write. Name what is not from a run: it stays."""
        found = list(_look(self.path, {**_RUN, UNFINISHED: _RUN, REPLACING: _RUN}))
        blocked = [str(path) for path, kind in found if kind == "blocked"]
        if blocked:
            raise StakesError(
                f"{', '.join(blocked)}: expected a file or folder of a run, but it is a symbolic link, which is not "
                "followed, or of another kind: remove it, or choose another --out"
            )
        folders = [self.path, *(path for path, kind in found if kind == "written" and path.is_dir())]
        closed = [str(path) for path in folders if not os.access(path, os.W_OK | os.X_OK)]
        if closed:
            raise StakesError(f"{', '.join(closed)}: no permission to write there; choose another --out")
        others = [str(path) for path, kind in found if kind == "other" and path.parent != self.path]
        if others:
            warnings.warn(
                f"not from a run of stakes, and left as it is: {', '.join(others)}", StakesWarning, stacklevel=4
            )

    def _finish_replacing(self) -> None:
        """Let a finished run in ``unfinished`` take the place of the one here; again from wherever that was killed."""
        unfinished, replacing = RunFolder(self.path / UNFINISHED), RunFolder(self.path / REPLACING)
        if (unfinished.path / RESULTS[-1]).exists():
            self._delete("temporary", "written")
            os.rename(unfinished.path, replacing.path)
        new = [path for path, kind in _look(replacing.path, _RUN) if kind == "written"]
        for path in sorted(
            new, key=lambda path: path == replacing.settings_file
        ):  # the old settings stay until the end
            if path.is_dir():
                _remove_empty(path)
            else:
                target = self.path / path.relative_to(replacing.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
        if new:
            _remove_empty(replacing.path)

    def _delete(self, *kinds: str) -> None:
        """Delete what is here of these kinds, but for the settings, by which a run is known: they are replaced."""
        for path, kind in _look(self.path, _RUN):
            if kind in kinds and path != self.settings_file:
                _remove_empty(path) if path.is_dir() else path.unlink()


def _remove_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()


def _look(folder: Path, names: Mapping[str, Any]) -> Iterator[_Found]:
    """What is in a folder and below, innermost first, and whether it is of these ``names``; no link is followed."""
    for path in sorted(folder.iterdir(), reverse=True) if folder.is_dir() else ():  # predictions before their model
        temporary = _TEMPORARY.fullmatch(path.name) if path.is_dir() else None
        name = temporary[1] if temporary else path.name
        inside = next((inside for pattern, inside in names.items() if re.fullmatch(pattern, name)), None)
        if inside is None:
            yield _Found(path, "other")
        elif path.is_symlink() or (path.is_dir() != bool(inside or temporary)):
            yield _Found(path, "blocked")
        else:
            expected = {re.escape(name): inside, _SAFETENSORS: _FILE} if temporary else inside
            below = _look(path, expected) if path.is_dir() else ()
            for found in (*below, _Found(path, "written")):
                yield found._replace(kind="temporary") if temporary and found.kind == "written" else found
