"""What running decisions cost in utility, on digits (MNIST from STAKES_DATA), five paired seeds."""

import os
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.timing import Claim
from stakes.decisions import decide
from stakes.evaluation.metrics import paired_difference
from stakes.objectives import LossCalibrated
from stakes.paper.digits.data import FILES
from stakes.paper.digits.experiment import Digits, noisy_digits, paper_utility
from stakes.paper.protocols import train_models
from stakes.tables.network_models import NetworkModel
from stakes.tables.problem import Recipe
from stakes.training.config import Training

SEEDS, NOISE = range(5), 0.25


def measure() -> list[Claim]:
    folder = Path(os.environ.get("STAKES_DATA", "."))
    if not any(folder.rglob(FILES["train"][0])):
        print("  (no MNIST in STAKES_DATA: the utility of running decisions is not measured)")
        return []
    trains, validation, test = noisy_digits(str(folder), NOISE, SEEDS)
    training = Training(50, 50, patience=None, samples=10)
    posterior = {"family": "dropout", "lengthscale": 0.01}
    recipe = Recipe("mlp", hidden=(50,), dropout=0.2, posterior=posterior, training=training, samples=10)
    utility, worth = paper_utility(), {}
    for refresh in ("step", "running"):
        objective = partial(LossCalibrated, refresh=refresh, warmup=Digits.warmup)
        chosen = NetworkModel("calibrated", objective=objective)
        trained = train_models(chosen, recipe, trains, [validation] * len(trains), utility, SEEDS)
        probs = [draws(test.x).mean_probs() for draws, _ in trained]
        worth[refresh] = np.array([utility.realised(decide(p, utility).choice, test.labels) for p in probs])
    gap = paired_difference(worth["running"], worth["step"], seed=0)
    what = f'test utility of refresh="running", digits, {len(SEEDS)} seeds: upper end of the 95 % interval'
    return [Claim(f"{what} ({gap.mean:+.4f}, {gap.low:+.4f} to {gap.high:+.4f})", 'refresh="step"', gap.high, ">= 0")]
