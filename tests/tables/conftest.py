"""Small tables of patients, their costs, and the command line in this process."""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from patient_tables import ACTIONS, COSTS, HEADER, patient_rows, write_csv

from stakes.cli.main import main


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


@pytest.fixture
def stakes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., CommandResult]:
    """The command line in this process."""

    def run(*arguments: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["stakes", *map(str, arguments)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as error:
            code = error.code
        said = capsys.readouterr()
        return CommandResult(int(code or 0), said.out, said.err)

    return run


@pytest.fixture
def refused(stakes: Callable[..., CommandResult]) -> Callable[..., str]:
    """The one line with which the command line refuses."""

    def run(*arguments: object) -> str:
        said = stakes(*arguments)
        assert said.code != 0
        lines = said.err.splitlines()
        assert len(lines) == 1, said.err
        assert lines[0].startswith("stakes: error: ")
        assert said.out == ""
        return lines[0]

    return run


@pytest.fixture(scope="session")
def patients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 patients as a CSV, with costs.csv (square) and actions.csv (not square) beside it."""
    folder = tmp_path_factory.mktemp("patients")
    (folder / "costs.csv").write_text(COSTS, encoding="utf-8")
    (folder / "actions.csv").write_text(ACTIONS, encoding="utf-8")
    return write_csv(folder / "patients.csv", HEADER, patient_rows(40))


@pytest.fixture(scope="session")
def costs(patients: Path) -> Path:
    return patients.parent / "costs.csv"


@pytest.fixture(scope="session")
def run_folder(patients: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the patients, with decisions that are not the outcomes."""
    from stakes.tables.fit import fit_table
    from stakes.tables.problem import Recipe
    from stakes.tables.run_folder import RunFolder
    from stakes.tables.task import TableTask
    from stakes.training.config import Training

    training = Training(epochs=12, batch_size=16, learning_rate=0.03, select="nll")
    recipe = Recipe(tabm={"members": 4, "width": 16}, training=training)
    task = TableTask(
        patients,
        "diagnosis",
        patients.parent / "actions.csv",
        test=0.2,
        folds=2,
        models=("logistic", "boosting", "standard", "calibrated", "blend"),
        recipe=recipe,
    )
    out = tmp_path_factory.mktemp("run") / "out"
    fit_table(task, RunFolder(out))
    return out
