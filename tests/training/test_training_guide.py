"""The Python of docs/guides/training.md, run as it stands; what needs another package, where it is installed."""

import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "training.md"
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
PLAIN = [block for block in BLOCKS if "tensorboard" not in block and "mlflow" not in block]


def run(blocks: list[str], folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile("\n".join(blocks), str(GUIDE), "exec"), names)
    return names


def recipe(package: str) -> list[str]:
    """The block that uses a package, and those that it builds on."""
    return [*PLAIN[:2], *[block for block in BLOCKS if package in block]]


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(PLAIN) >= 5
    names = run(PLAIN, tmp_path, monkeypatch)
    assert len(names["history"].epochs) == 10


def test_the_recipe_for_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(recipe("tensorboard"), tmp_path, monkeypatch)
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss/step")] == list(range(1, 25))  # 240 examples by 32, 3 epochs
    assert [event.step for event in events.Scalars("validation/utility")] == [1, 2, 3]


@pytest.mark.filterwarnings("ignore")  # of the packages that MLflow uses
def test_the_recipe_for_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    run(recipe("mlflow"), tmp_path, monkeypatch)
    (last,) = mlflow.search_runs(output_format="list")
    assert last.data.params["epochs"] == "3"
    assert {"loss", "utility", "nll"} <= set(last.data.metrics)
    assert len(mlflow.MlflowClient().get_metric_history(last.info.run_id, "loss")) == 24
