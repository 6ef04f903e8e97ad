"""The command line as a user meets it: a process of its own, help, costs, the demo."""

import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from stakes.cli.main import main

STAKES = [sys.executable, "-m", "stakes"]
COMMANDS = ((), ("fit",), ("decide",), ("demo",), ("costs",), ("costs", "new"), ("costs", "check"))


def process(*arguments: object, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STAKES, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """The command line in this process, in an empty folder: the exit code, stdout and stderr."""
    import warnings

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def stakes(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stakes", *map(str, arguments)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as error:
            code = int(error.code or 0)
        return code, *capsys.readouterr()

    return stakes


def test_no_traceback_in_a_process_of_its_own(tmp_path: Path) -> None:
    for arguments in (
        ("fit", "a.csv", "--target", "y", "--costs", "c.csv", "--out", "o"),
        ("decide", "m", "d", "--out", "o.csv"),
    ):
        said = process(*arguments, folder=tmp_path)
        assert said.returncode == 1
        assert said.stdout == ""
        assert said.stderr.startswith("stakes: error: ")
        assert said.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help(run, command: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert "Usage: " in out
    assert "[default: (" in out or command not in (("fit",), ("costs", "new"))


def test_version(run) -> None:  # type: ignore[no-untyped-def]
    assert run("--version") == (0, f"stakes {version('stakes')}\n", "")


@pytest.mark.parametrize(
    "arguments", ["fit", "fit a.csv", "nonsense", "--nonsense", "costs", "costs new", "decide m", "fit a b c"]
)
def test_usage_errors_are_one_line_that_says_where_help_is(run, arguments: str) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("stakes: error: ")
    assert err.endswith("--help`\n")
    assert err.count("\n") == 1


def test_an_interrupt_is_one_line(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def interrupt(path: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stakes.utility.Utility.from_csv", interrupt)
    code, out, err = run("costs", "check", "c.csv")
    assert (code, out) == (130, "")
    assert err.startswith("stakes: error: interrupted")


def test_a_mistake_of_ours_keeps_its_traceback(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def fail(path: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("stakes.utility.Utility.from_csv", fail)
    with pytest.raises(ZeroDivisionError):
        run("costs", "check", "c.csv")


# Costs ---------------------------------------------------------------------------------------------


def test_costs_new_then_fill_then_check(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run("costs", "new", "--outcomes", "healthy, ill", "--decisions", "wait,treat,refer", "--unit", "£")
    assert code == 0
    assert "stakes costs check costs.csv" in out
    path = tmp_path / "costs.csv"
    assert path.read_text(encoding="utf-8") == "cost [£],healthy,ill\nwait,,\ntreat,,\nrefer,,\n"
    code, _, err = run("costs", "check", "costs.csv")
    assert code == 1
    assert "empty cell" in err
    path.write_text("cost [£],healthy,ill\nwait,0,500\ntreat,40,0\nrefer,20,20\n", encoding="utf-8")
    code, out, err = run("costs", "check", "costs.csv")
    assert (code, err) == (0, "")
    assert out == (
        "Cost [£]: rows are decisions, columns are outcomes\n"
        "       healthy  ill\nwait         0  500\ntreat       40    0\nrefer       20   20\n\n"
        "Utility: higher is better\n"
        "       healthy   ill\nwait         0  -500\ntreat      -40     0\nrefer      -20   -20\n\n"
        "No warnings.\n"
    ).replace("  -0", "   0")


def test_costs_check_of_curves_names_only_actions_that_are_never_best(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Between the points, or where the outcome is uncertain, an action may be best that is so at none of them."""
    (tmp_path / "c.csv").write_text("cost curve,0,10\na,0,10\nb,10,0\nhedge,4,4\nwaste,6,6\n")
    code, out, _ = run("costs", "check", "c.csv")
    assert code == 0
    assert "decision 'hedge'" not in out
    assert "decision 'waste' can never be the best one: 'hedge' is worth at least as much" in out


def test_costs_check_says_what_looks_wrong(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "c.csv").write_text("cost,a,b\nx,0,1\ny,1,0\nz,1,1\n")
    code, out, err = run("costs", "check", "c.csv", "--unit", "minutes")
    assert (code, err) == (0, "")
    assert "Cost [minutes]" in out
    assert "warning: decision 'z' can never be the best one" in out
    assert "No warnings" not in out


# The demo ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_demo(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """At its smallest: without networks and trees."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stakes.cli.demo.MODELS", ("constant", "logistic", "blend"))
    code, out, err = run("demo", "--workers", 1)
    assert code == 0, err
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text(encoding="utf-8"))
    assert summary["unit"] == "£"
    assert summary["decisions"] == ["send home", "biopsy", "operate"]
    assert summary["rows_used"]["test"] == 569, "every row is a test row once"
    assert out.startswith("Deciding with this model costs £")
    assert "less than deciding “biopsy” for everybody" in out
    assert "That is beyond chance, on 569 test rows." in out
    assert err.startswith("569 breast tumours")
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    for words in ("By mean radius", "What drives the decisions", "Cases are named by the column case."):
        assert words in page


def test_the_demo_is_the_fit_that_it_prints(run, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    tasks = []
    monkeypatch.setattr(
        "stakes.cli.main._fit_and_report", lambda task, out, **options: tasks.append((task, out, options))
    )
    _, out, err = run("demo")
    assert out.startswith("\nOpen demo/report.html: ")
    (line,) = (line for line in err.splitlines() if line.startswith("stakes fit "))
    assert run(*shlex.split(line)[1:])[0] == 0
    assert tasks[0] == tasks[1]


def test_the_next_step_is_said(run) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run()
    assert (code, err) == (0, "")
    for command in ("stakes demo", "stakes costs new", "stakes fit", "stakes decide", "stakes --help"):
        assert command in out
    for arguments, words in (
        (("fit",), "stakes fit patients.csv --target"),
        (("fit", "a.csv"), "name the column with the outcome"),
        (("fit", "a.csv", "--target", "y", "--out", "o"), "`stakes costs new --outcomes healthy,ill` writes a file"),
        (("fit", "a.csv", "--target", "y", "--costs", "c.csv"), "as in --out run"),
    ):
        code, _, err = run(*arguments)
        assert code == (1 if "o" in arguments else 2)
        assert words in err


def test_help_and_decisions_come_without_scikit_learn_and_the_compiler() -> None:
    """Both take seconds to import, and neither is needed to show help, or to draw from a network for tables."""
    code = """
import sys
import stakes.cli.main
import torch
from stakes import TabM
from stakes.features import Features
from stakes.posteriors import BatchEnsemble

network, x = TabM(Features(2), 2, members=2, width=4), torch.randn(8, 2)
network.set_bins(x)
BatchEnsemble(network).draw(2, seed=0)(x).mean_probs()
print([name for name in ("sklearn", "torch._dynamo", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
