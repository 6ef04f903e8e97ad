"""Sweeps over cells; rows are appended as cells finish, and an interrupted sweep resumes."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from stakes._io.files import locked, read_json, write_json, write_text
from stakes._io.parallel import Report, check_backend, side_by_side
from stakes.decisions import RULES
from stakes.errors import StakesError, listing
from stakes.evaluation import metrics
from stakes.evaluation.metrics import Interval
from stakes.report.amounts import rule_names
from stakes.report.words import interval

Row = dict[str, Any]
PAPER_MODELS = ("standard", "weighted", "calibrated")
ALL_MODELS = (*PAPER_MODELS, "noise", "noise+calibrated")
RULE_NAMES = rule_names(costs=False)
_WRITTEN = ("config.json", "rows.jsonl", "tables.md", "report.html")  # and figures, PNG


@dataclass(frozen=True)
class Cell:
    """The unit of work of a sweep: its settings by name (axes), and the seeds of the models trained with them.

    Each seed has as many ``rows``: one for each rule, unless the experiment says otherwise.
    """

    axes: tuple[tuple[str, Any], ...]
    seeds: tuple[int, ...]
    rows: int = len(RULES)

    @classmethod
    def of(cls, *seeds: int, **axes: Any) -> "Cell":
        return cls(tuple(axes.items()), seeds)

    def __getitem__(self, name: str) -> Any:
        return dict(self.axes)[name]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.axes)

    def model_keys(self) -> list[str]:
        """A key for each seed, shared by the rows of that model and by no others."""
        return [_key({**dict(self.axes), "seed": seed}, self) for seed in self.seeds]


class Experiment(Protocol):
    """A frozen config that lists its cells and runs one of them."""

    name: ClassVar[str]

    def check(self) -> None:
        """Refuse what cannot be run (unknown models, missing data) before anything is written."""

    def cells(self) -> list[Cell]: ...

    def run_cell(self, cell: Cell, report: Report) -> list[Row]:
        """The rows of one cell; each holds the cell's axes, the seed, the rule, the utility and the accuracy."""


@dataclass(frozen=True, eq=False)
class Result:
    """A config and its rows as stored on disk; figures and tables are made from it alone."""

    config: Mapping[str, Any]
    rows: tuple[Row, ...]

    @classmethod
    def load(cls, folder: Path) -> "Result":
        config = read_json(folder / "config.json")
        return cls(config, tuple(_read_rows(folder / "rows.jsonl")))

    def select(self, **wanted: Any) -> list[Row]:
        """The rows with these values, sorted by seed."""
        rows = [row for row in self.rows if all(row.get(key) == value for key, value in wanted.items())]
        return sorted(rows, key=lambda row: row["seed"])

    def values(self, key: str, **wanted: Any) -> NDArray[np.float64]:
        """A value of each of these rows, sorted by seed; an error if there are none."""
        rows = self.select(**wanted)
        if not rows:
            raise StakesError(f"expected rows with {wanted}, but there are none: run the sweep to its end first")
        return np.array([row[key] for row in rows], dtype=np.float64)

    def difference(self, model: str, against: str, key: str = "utility", **wanted: Any) -> Interval:
        """The paired difference between two models over the seeds they share, with a bootstrap interval."""
        ours, theirs = (
            {row["seed"]: row[key] for row in self.select(method=name, **wanted)} for name in (model, against)
        )
        shared = sorted(set(ours) & set(theirs))
        if not shared:
            raise StakesError(f"expected seeds with both {model!r} and {against!r} for {wanted}, but there are none")
        return metrics.paired_difference([ours[s] for s in shared], [theirs[s] for s in shared], seed=0)

    def gain(self, model: str, against: str, **wanted: Any) -> str:
        """The difference in utility, deciding by highest expected utility, as text."""
        return interval(self.difference(model, against, rule="optimal", **wanted), digits=4, sign=True)


def run(
    experiment: Experiment,
    folder: Path,
    *,
    workers: int = 1,
    backend: str = "loky",
    force: bool = False,
    report: Callable[[Cell, Any], None] = lambda cell, event: None,
) -> Result:
    """Run the cells whose rows are not in ``folder`` yet, and append rows as they come."""
    experiment.check()
    check_backend(backend)
    cells = experiment.cells()
    cell_of = {key: cell for cell in cells for key in cell.model_keys()}
    with locked(folder):
        rows_file = _claim(experiment, folder, force=force)
        done = _keep_complete_cells(rows_file, cells)
        for cell in done:
            report(cell, "cached")
        pending = [cell for cell in cells if cell not in done]
        with rows_file.open("a", encoding="utf-8") as file:
            for rows in side_by_side(experiment.run_cell, pending, workers=workers, backend=backend, report=report):
                file.write(_lines(rows))
                file.flush()
                report(cell_of[_key(rows[0], cells[0])], "done")
        _keep_complete_cells(rows_file, cells)
    return Result.load(folder)


def _claim(experiment: Experiment, folder: Path, *, force: bool) -> Path:
    """Write the config, and return the file of rows; or refuse a folder that holds another sweep, or other files."""
    settings = {"experiment": experiment.name, **json.loads(json.dumps(asdict(experiment), default=str))}  # type: ignore[call-overload]
    settings.pop("data", None)  # a path of this machine, not a setting of the sweep
    file, rows_file = folder / "config.json", folder / "rows.jsonl"
    stored = read_json(file) if file.exists() else None
    written = [each for each in folder.iterdir() if each.name in _WRITTEN or each.suffix == ".png"]
    foreign = [each.name for each in written if stored is None or each.is_symlink()]
    if foreign or (stored is not None and not _is_config(stored)):
        raise StakesError(
            f"{folder}: expected the folder of a sweep, or none, but it holds "
            f"{listing(foreign) or 'a config.json of another kind'}, which is not from one; choose another --out"
        )
    changed = sorted(key for key in settings if stored and stored.get(key) != settings[key])
    if changed and not force:
        raise StakesError(
            f"{folder}: holds another sweep; different: {', '.join(changed)}; choose another --out, or --force"
        )
    if force:
        rows_file.unlink(missing_ok=True)
    versions = {name: version(name) for name in ("stakes", "torch")}
    write_json(file, {**settings, "versions": versions})
    return rows_file


def _is_config(stored: Any) -> bool:
    """Whether a sweep has written it."""
    return isinstance(stored, dict) and "stakes" in dict(stored.get("versions") or {}) and "experiment" in stored


def _read_rows(path: Path) -> Iterator[Row]:
    """All complete lines; a last line cut short by a kill is left out, and its cell runs again."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            raise StakesError(f"{path}: line {number} is damaged ({error})") from None
        yield row


def _lines(rows: Sequence[Row]) -> str:
    return "".join(json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n" for row in rows)


def _key(row: Row, like: Cell) -> str:
    return repr([row[name] for name, _ in like.axes] + [row["seed"]])


def _keep_complete_cells(path: Path, cells: Sequence[Cell]) -> list[Cell]:
    """The cells that have all their rows. Rewrite the file with just these, in the order of the sweep.

    The file then does not depend on which cell finished first, and incomplete cells run again.
    """
    stored: dict[str, list[Row]] = {}
    for row in _read_rows(path) if path.exists() else ():
        try:
            stored.setdefault(_key(row, cells[0]), []).append(row)
        except (KeyError, TypeError):
            raise StakesError(
                f"{path}: expected rows of this sweep, but got {row!r:.80}; choose another --out"
            ) from None
    complete = [cell for cell in cells if all(len(stored.get(key, ())) == cell.rows for key in cell.model_keys())]
    kept = [row for cell in complete for key in cell.model_keys() for row in stored[key]]
    write_text(path, _lines(kept))
    return complete
