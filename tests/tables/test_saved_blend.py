"""A blend as it is saved: the same decisions as in training, in another process, without scikit-learn; and on noise."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from stakes import SavedModel
from stakes.calibration import Calibrated
from stakes.predictors import Blend
from stakes.tables.fit import fit_table
from stakes.tables.problem import Recipe
from stakes.tables.run import Run
from stakes.tables.run_folder import RunFolder
from stakes.tables.task import TableTask
from stakes.training.config import Training

SMALL = Recipe(tabm={"members": 2, "width": 8}, training=Training(epochs=4, select="nll"))
ELSEWHERE = """
import json, sys
import pandas as pd
from stakes import Decider
decided = Decider(sys.argv[1], settle=1)(pd.read_csv(sys.argv[2]))
assert not [name for name in sys.modules if name.split(".")[0] == "sklearn"]
print(json.dumps(decided.to_dict("list")))
"""


def test_a_saved_blend_decides_as_in_training_in_another_process(run_folder: Path, patients: Path) -> None:
    run, saved = Run.load(run_folder), SavedModel.load(run_folder / "model")
    assert run.comparison.chosen == "blend"
    assert isinstance(saved.predictor, Calibrated)
    assert isinstance(saved.predictor.predictor, Blend)
    (item,) = [each for each in run.scored if (each.model, each.rule) == ("blend", "optimal")]
    frame = pd.read_csv(patients).iloc[run.row_numbers.numpy() - 1]
    assert saved.encoder is not None
    decisions = saved.decide(torch.from_numpy(saved.encoder.transform(frame)))
    assert torch.equal(decisions.choice, item.choice)
    np.testing.assert_allclose(decisions.probs, item.predictions.probs, atol=1e-6)
    command = [sys.executable, "-c", ELSEWHERE, run_folder, patients]
    decided = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    places = run.row_numbers.numpy() - 1
    assert np.array(decided["decision"])[places].tolist() == np.array(run.utility.decisions)[item.choice].tolist()
    probs = np.stack([decided[f"p_{name}"] for name in run.utility.outcomes], 1)[places]
    np.testing.assert_allclose(probs, item.predictions.probs, atol=1e-6)


def test_the_model_of_every_row_tested_once_is_made_of_all_rows(patients: Path, costs: Path, tmp_path: Path) -> None:
    models = ("logistic", "standard", "blend")
    task = TableTask(patients, "diagnosis", costs, test="cv", folds=2, models=models, recipe=SMALL)
    run = fit_table(task, RunFolder(tmp_path))
    assert run.row_numbers.tolist() == list(range(1, 121))
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["1", "2", "3", "4", "5", "all"]
    saved = SavedModel.load(tmp_path / "model")
    everything = SavedModel.load(tmp_path / "parts" / "all" / "logistic-0" / "0" / "model")
    assert saved.encoder == everything.encoder
    # Each test row is predicted by the division that did not see it: the mean over its folds.
    for model in ("logistic", "standard"):
        probs = next(each.probs for each in run.predictions if each.model == model)
        expected = {}
        for division in "12345":
            parts = [SavedModel.load(tmp_path / "parts" / division / f"{model}-0" / fold / "model") for fold in "01"]
            x = torch.from_numpy(parts[0].encoder.transform(pd.read_csv(patients)))
            expected[division] = torch.stack([part.predictor(x).mean_probs() for part in parts]).mean(0)
        gaps = torch.stack([(probs - each).abs().amax(1) for each in expected.values()])
        assert gaps.amin(0).max() < 1e-6


def noise_table(folder: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame(generator.normal(size=(300, 4)), columns=list("abcd"))
    frame.assign(state=generator.choice(["ill", "well"], 300, p=[0.3, 0.7])).to_csv(folder / "noise.csv", index=False)
    (folder / "costs.csv").write_text("cost,ill,well\ntreat,0,4\nwait,9,0\n")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_noise_is_decided_as_for_everybody_or_no_dearer_beyond_chance(tmp_path: Path, seed: int) -> None:
    noise_table(tmp_path, seed)
    models = ("logistic", "calibrated", "blend")
    task = TableTask(
        tmp_path / "noise.csv", "state", tmp_path / "costs.csv", test=0.3, folds=3, models=models, recipe=SMALL
    )
    run = fit_table(task, RunFolder(tmp_path / "run"))
    row = run.comparison.row(run.comparison.chosen, "optimal")
    assert row.model == "constant" or row.difference.high >= 0
