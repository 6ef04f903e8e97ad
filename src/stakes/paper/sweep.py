"""Sweeps: many cells, each a few rows, appended as they finish, so that an interrupted sweep goes on."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from stakes._io.files import read_json, write_json, write_text
from stakes._io.parallel import Report, check_backend, side_by_side
from stakes.decisions import RULES
from stakes.errors import StakesError
from stakes.evaluation import metrics
from stakes.evaluation.metrics import Interval
from stakes.tables.models import MODELS, NetworkModel

Row = dict[str, Any]
ALL_METHODS = tuple(known.name for known in MODELS if isinstance(known, NetworkModel))
PAPER_METHODS = ("standard", "weighted", "calibrated")


@dataclass(frozen=True)
class Cell:
    """What is run in one piece: a place in the sweep, by name, and the seeds of the models that are trained there."""

    axes: tuple[tuple[str, Any], ...]
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, *seeds: int, **axes: Any) -> "Cell":
        return cls(tuple(axes.items()), seeds)

    def __getitem__(self, name: str) -> Any:
        return dict(self.axes)[name]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.axes)

    def models(self) -> list[str]:
        """A key for each of its models, which its rows have in common with each other and with no other's."""
        return [_key({**dict(self.axes), "seed": seed}, self) for seed in self.seeds]


class Experiment(Protocol):
    """A frozen config that knows its cells and how to run one of them."""

    name: ClassVar[str]

    def check(self) -> None:
        """Refuse what cannot be run (unknown methods, missing data), before anything is written."""

    def cells(self) -> list[Cell]: ...

    def run_cell(self, cell: Cell, report: Report) -> list[Row]:
        """The rows of one cell; each names the cell's axes, the seed, the rule, the utility and the accuracy."""


@dataclass(frozen=True, eq=False)
class Result:
    """A config and its rows, as they are on disk: all that figures and tables are made from."""

    config: Mapping[str, Any]
    rows: tuple[Row, ...]

    @classmethod
    def load(cls, folder: Path) -> "Result":
        config = read_json(folder / "config.json")
        return cls(config, tuple(_read_rows(folder / "rows.jsonl")))

    def select(self, **wanted: Any) -> list[Row]:
        """The rows that have these values, by seed."""
        found = [row for row in self.rows if all(row.get(key) == value for key, value in wanted.items())]
        return sorted(found, key=lambda row: row["seed"])

    def values(self, key: str, **wanted: Any) -> "np.ndarray[Any, np.dtype[np.float64]]":
        return np.array([row[key] for row in self.select(**wanted)], dtype=np.float64)

    def difference(self, method: str, against: str, key: str = "utility", **wanted: Any) -> Interval:
        """The paired difference between two methods over the seeds they share, with a bootstrap interval."""
        ours, theirs = (
            {row["seed"]: row[key] for row in self.select(method=name, **wanted)} for name in (method, against)
        )
        shared = sorted(set(ours) & set(theirs))
        if not shared:
            raise StakesError(f"expected seeds with both {method!r} and {against!r} for {wanted}, but there are none")
        return metrics.paired_difference([ours[s] for s in shared], [theirs[s] for s in shared], seed=0)


def run(
    experiment: Experiment,
    folder: Path,
    *,
    workers: int = 1,
    backend: str = "loky",
    force: bool = False,
    report: Callable[[Cell, Any], None] = lambda cell, event: None,
) -> Result:
    """Run the cells whose rows are not in ``folder`` yet, appending rows as they come."""
    experiment.check()
    check_backend(backend)
    rows_file = folder / "rows.jsonl"
    if force:
        rows_file.unlink(missing_ok=True)
    _claim(experiment, folder, resumable=not force)
    cells = experiment.cells()
    done = _keep_whole_cells(rows_file, cells)
    for cell in done:
        report(cell, "known")
    waiting = [cell for cell in cells if cell not in done]
    owners = {key: cell for cell in cells for key in cell.models()}
    with rows_file.open("a", encoding="utf-8") as file:
        for rows in side_by_side(experiment.run_cell, waiting, workers=workers, backend=backend, report=report):
            file.write(_lines(rows))
            file.flush()
            report(owners[_key(rows[0], cells[0])], "done")
    _keep_whole_cells(rows_file, cells)
    return Result.load(folder)


def _claim(experiment: Experiment, folder: Path, resumable: bool) -> None:
    """Write the config, or refuse a folder that holds another sweep."""
    settings = {"experiment": experiment.name, **json.loads(json.dumps(asdict(experiment), default=str))}  # type: ignore[call-overload]
    settings.pop("data", None)  # where the files are on this machine is no property of the sweep
    file = folder / "config.json"
    if resumable and file.exists():
        before = read_json(file)
        changed = sorted(key for key in settings if before.get(key) != settings[key])
        if changed:
            raise StakesError(
                f"{folder}: holds another sweep; different: {', '.join(changed)}; choose another --out, or --force"
            )
    versions = {name: version(name) for name in ("stakes", "torch")}
    write_json(file, {**settings, "versions": versions})


def _read_rows(path: Path) -> Iterator[Row]:
    """All whole lines; a last line torn by a kill is left out, and its cell runs again."""
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


def _keep_whole_cells(path: Path, cells: Sequence[Cell]) -> list[Cell]:
    """The cells that have all their rows; the file holds just these after, in the order of the sweep.

    So it does not depend on who finished first, and what a kill tore off runs again.
    """
    found: dict[str, list[Row]] = {}
    for row in _read_rows(path) if path.exists() else ():
        found.setdefault(_key(row, cells[0]), []).append(row)
    whole = [cell for cell in cells if all(len(found.get(key, ())) == len(RULES) for key in cell.models())]
    kept = [row for cell in whole for key in cell.models() for row in found[key]]
    write_text(path, _lines(kept))
    return whole
