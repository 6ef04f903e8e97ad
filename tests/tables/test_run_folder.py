"""Folders of runs, as a user meets them: links, kills, and two commands at once."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patient_tables import COSTS, HEADER, patient_rows, write_csv

from stakes import StakesError
from stakes._io.files import locked
from stakes.tables import run_folder
from stakes.tables.amounts.models import AMOUNT_MODELS
from stakes.tables.models import CLASS_MODELS
from stakes.tables.run_folder import RESULTS, RunFolder

STAKES = [sys.executable, "-m", "stakes"]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fit(tmp_path: Path) -> list[str]:
    data = write_csv(tmp_path / "patients.csv", HEADER, patient_rows(40))
    (tmp_path / "costs.csv").write_text(COSTS, encoding="utf-8")
    options = "--target diagnosis --models logistic,boosting --test 0.2 --folds 2 --workers 1 --out"
    return ["fit", str(data), "--costs", str(tmp_path / "costs.csv"), *options.split(), str(tmp_path / "run")]


@pytest.fixture
def amounts(tmp_path: Path) -> list[str]:
    rows = "".join(f"{i % 7},{i},{20 + 3 * (i % 7) + i * 37 % 11}\n" for i in range(120))
    (tmp_path / "demand.csv").write_text(f"day,number,sold\n{rows}")
    options = "--target sold --under 15 --over 5 --models linear,neighbours --test 0.2 --folds 2 --workers 1 --out"
    return ["fit", str(tmp_path / "demand.csv"), *options.split(), str(tmp_path / "run")]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A stand-in for a home; nothing in it may change."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / "model").mkdir()
    for name in (".bashrc", ".ssh/id", "notes.txt", "model/model.json", "predictions.safetensors", ".model.half"):
        (home / name).write_text("mine")
    before = files(home)
    yield home
    assert files(home) == before


def files(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stakes(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STAKES, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def said_in_one_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("stakes: error: ")]
    assert "Traceback" not in result.stderr
    return line


@pytest.mark.parametrize("kind", ["fit", "amounts"])
def test_links_are_never_followed(kind: str, home: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    command, run = request.getfixturevalue(kind), tmp_path / "run"
    stakes(*command)
    model = next((run / "parts" / "1").iterdir()).name
    for place in (f"parts/1/{model}/0", f"parts/1/{model}", "parts", "model", "predictions", "unfinished"):
        shutil.copytree(run, tmp_path / "kept")
        shutil.rmtree(run / place, ignore_errors=True)
        (run / place).symlink_to(home)
        whole = files(run)
        for option in ("--resume", "--force"):
            assert str(run / place) in said_in_one_line(stakes(*command, option))
            assert files(run) == whole
        shutil.rmtree(run)
        (tmp_path / "kept").rename(run)


@pytest.mark.parametrize("option", ["--resume", "--force"])
def test_what_is_not_from_a_run_stays_and_is_named(option: str, fit: list[str], home: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert stakes(*fit).returncode == 0
    before = files(run)
    (run / "parts" / "1" / "other").mkdir()
    (run / "parts" / "1" / "other" / "0").symlink_to(home)
    (run / "unfinished").mkdir()
    (run / "unfinished" / "work").symlink_to(home)
    mine = {"notes.txt", "model/notes.txt", "parts/.bashrc", "parts/1/logistic-0/0/model/.secret", "predictions/x.png"}
    for name in mine:
        (run / name).write_text("mine")
    half = run / "parts" / "1" / "logistic-0" / "0" / ".model.k3_9xa7q" / "model" / ".weights.safetensors.3tigb10n"
    half.mkdir(parents=True)  # as a kill leaves it
    (half / ".tmphP0Qpl").touch()
    result = stakes(*fit, option)
    assert result.returncode == 0, result.stderr
    for name in mine - {"notes.txt"}:
        assert str(run / name) in result.stderr
    assert str(run / "parts" / "1" / "other") in result.stderr
    (run / "parts" / "1" / "other" / "0").unlink()
    assert [path.readlink() for path in run.glob("*/work")] == [home]
    after = files(run)
    assert {str(name) for name in after.keys() - before.keys()} == mine
    assert after.items() >= before.items()
    assert not list(run.rglob(".model.*"))


def test_a_sweep_follows_no_link_and_replaces_no_foreign_file(home: Path, tmp_path: Path) -> None:
    reproduce = ("reproduce", "diagnosis", "--seeds", 1, "--epochs", 1, "--corrupted", 5, "--workers", 1, "--out")
    out = tmp_path / "sweep"
    out.mkdir()
    (out / "config.json").write_text('{"name": "mine"}')
    (out / "rows.jsonl").write_text("mine\n")
    before = files(out)
    for options in ((), ("--force",)):
        assert str(out) in said_in_one_line(stakes(*reproduce, out, *options))
        assert files(out) == before
    shutil.rmtree(out)
    out.mkdir()
    (out / "rows.jsonl").symlink_to(home / "notes.txt")
    for options in ((), ("--force",)):
        assert "rows.jsonl" in said_in_one_line(stakes(*reproduce, out, *options))


def test_the_demo_replaces_no_foreign_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "costs.csv").write_text("mine")
    for options in ((), ("--force",)):
        assert "costs.csv" in said_in_one_line(stakes("demo", "--out", tmp_path, *options))
    assert {str(name) for name in files(tmp_path)} == {"data/costs.csv"}


def test_foreign_files_of_a_sweep_or_of_a_run_are_not_replaced(tmp_path: Path, fit: list[str]) -> None:
    reproduce = ("reproduce", "diagnosis", "--seeds", 1, "--epochs", 1, "--corrupted", 5, "--workers", 1, "--out")
    foreign = {
        "tables.md": "mine",
        "config.json": '{"experiment": "bert", "lr": 3}',
        "rows.jsonl": '{"mine": 1}\n',
    }
    for name, text in foreign.items():
        out = tmp_path / f"of {name}"
        out.mkdir()
        (out / name).write_text(text)
        for options in ((), ("--force",)):
            assert str(out) in said_in_one_line(stakes(*reproduce, out, *options))
            assert files(out) == {Path(name): text.encode()}
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "notes.txt").write_text("mine")
    assert stakes(*reproduce, beside).returncode == 0
    assert (beside / "notes.txt").read_text() == "mine"
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"tool": "mlflow"}')
    (run / "summary.json").write_text("mine")
    before = files(run)
    for options in ((), ("--force",), ("--resume",)):
        assert "run.json" in said_in_one_line(stakes(*fit, *options))
        assert files(run) == before


def test_only_names_that_stakes_writes_are_known() -> None:
    names = {*CLASS_MODELS.trained, *CLASS_MODELS.compared, *AMOUNT_MODELS.trained, *AMOUNT_MODELS.compared}
    assert all(re.fullmatch(run_folder._NAME, f"{name}-12") for name in names)
    assert not re.fullmatch(run_folder._NAME, "mydata-2024")


# The end of --force ----------------------------------------------------------------------------------

SETTINGS = {"data": "a", "target": "b", "recipe": "c"}


class KilledError(BaseException):
    """Stands for the end of the process."""


def write_run(folder: RunFolder, settings: dict[str, str], seed: int) -> None:
    part = folder.part("logistic", seed, "1", 0)
    for path in (part / "predictions.safetensors", part / "model" / "model.json", folder.model / "model.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(seed))
    folder.predictions_file("logistic", seed).parent.mkdir(exist_ok=True)
    folder.predictions_file("logistic", seed).write_text(str(seed))
    folder.settings_file.write_text(json.dumps(settings))
    for name in RESULTS:
        (folder.path / name).write_text(str(seed))


def test_the_old_run_or_the_new_one_whichever_step_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before each deletion and each move of the end; the next start of a run ends it."""
    old, new = {**SETTINGS, "seed": "1"}, {**SETTINGS, "seed": "2"}
    write_run(RunFolder(tmp_path / "fresh"), new, 2)
    wanted = files(tmp_path / "fresh")
    step = 0
    finished = False
    while not finished:
        folder = RunFolder(tmp_path / str(step))
        folder.path.mkdir()
        write_run(folder, old, 1)
        folder.page.write_text("1")
        (folder.path / "parts" / "mine.txt").write_text("mine")
        left = step

        def count(operation: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise KilledError
                return operation(*arguments, **options)

            return counted

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with folder.held(new, resume=False, force=True) as here:
                    assert here.path == folder.path / "unfinished"
                    write_run(here, new, 2)
                    (here.path / "other.txt").write_text("mine, too")
                    before = files(folder.path)
                    for owner, name in ((os, "replace"), (os, "rename"), (Path, "unlink"), (Path, "rmdir")):
                        monkeypatch.setattr(owner, name, count(getattr(owner, name)))
                finished = True
            except KilledError:
                pass
            monkeypatch.undo()
            if step == 0:
                assert files(folder.path) == before
            with pytest.raises(StakesError), folder.held(old, resume=True, force=False):
                pass
            with folder.held(new, resume=True, force=False) as here:
                assert here.path == folder.path
        found = files(folder.path)
        assert found.pop(Path("parts/mine.txt")) == b"mine"
        assert found.pop(Path("replacing/other.txt")) == b"mine, too"
        assert {path: json.loads(text) if path.name == "run.json" else text for path, text in found.items()} == {
            path: json.loads(text) if path.name == "run.json" else text for path, text in wanted.items()
        }
        step += 1
    assert step > 20


@pytest.mark.slow
def test_a_run_stays_whole_until_its_replacement_is_done(fit: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert stakes(*fit).returncode == 0
    (run / "notes.txt").write_text("mine")
    before = files(run)
    other = [*fit, "--models", "logistic,boosting,forest", "--seed", "7"]
    process = subprocess.Popen([*STAKES, *other, "--force"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for(lambda: len([*run.glob("unfinished/parts/*/*/*/predictions.safetensors")]) > 2)
    process.kill()
    process.wait()
    left = files(run)
    assert {name: text for name, text in left.items() if name.parts[0] not in ("unfinished", ".lock")} == before
    assert stakes("decide", run, tmp_path / "patients.csv", "--out", tmp_path / "decisions.csv").returncode == 0

    done = [path.stat().st_mtime_ns for path in run.glob("unfinished/parts/*/*/*/predictions.safetensors")]
    assert stakes(*other, "--resume").returncode == 0
    assert {path.name for path in run.glob("predictions/*")} == {
        f"{m}-7.safetensors" for m in ("constant", "logistic", "boosting", "forest")
    }
    assert set(done) & {path.stat().st_mtime_ns for path in run.glob("parts/*/*/*/predictions.safetensors")}
    assert not (run / "unfinished").exists()
    assert not (run / ".lock").exists()
    assert (run / "notes.txt").read_text() == "mine"
    # Once more, killed and started again with --force: the same as if it had been the first.
    process = subprocess.Popen([*STAKES, *fit, "--force"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for(lambda: (run / "unfinished" / "run.json").exists())
    process.kill()
    process.wait()
    assert stakes(*fit, "--force").returncode == 0
    assert files(run) == before


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_one_process_at_a_time(fit: list[str], tmp_path: Path) -> None:
    """Held by a process that lives, named; taken over from one that is gone, however it went."""
    run = tmp_path / "run"
    assert stakes(*fit).returncode == 0
    shutil.move(run, tmp_path / "finished")
    hold = "with locked(Path(sys.argv[1])): print(1, flush=True); time.sleep(600)"
    imports = "import sys, time; from pathlib import Path; from stakes._io.files import locked"
    holder = subprocess.Popen([sys.executable, "-c", f"{imports}\n{hold}", run], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        for content in ((), RESULTS[:1], ("run.json",)):
            for name in content:
                shutil.copy(tmp_path / "finished" / name, run)
            for options in ((), ("--force",), ("--resume",)):
                message = said_in_one_line(stakes(*fit, *options))
                assert str(run) in message
                assert f"process {holder.pid} " in message
        assert "process" in said_in_one_line(stakes("demo", "--out", run))
        assert {str(name) for name in files(run)} == {".lock", RESULTS[0], "run.json"}
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    assert (run / ".lock").exists()
    assert stakes(*fit, "--force").returncode == 0
    assert not (run / ".lock").exists()


def test_a_lock_is_no_way_through_a_link(tmp_path: Path, home: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(home / ".bashrc")
    with pytest.raises(StakesError, match="lock"), locked(tmp_path / "run"):
        pass
    (tmp_path / "run" / ".lock").unlink()
    os.link(home / ".bashrc", tmp_path / "run" / ".lock")
    with pytest.raises(StakesError, match="lock"), locked(tmp_path / "run"):
        pass
