"""Training in processes that are started from this one: `fit` returns with the trained weights."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from stakes import LossCalibrated, MCDropout, MLP, StakesError, Training, Utility, fit

labels = torch.arange(81) % 3
x = torch.eye(3)[labels] + 0.3 * torch.randn(81, 3, generator=torch.Generator().manual_seed(0))
utility = Utility.diagonal("abc")
config = Training(epochs=6, learning_rate=0.03, clip_norm=1.0)

def train(strategy, loader, config=config, dropout=0.3, **options):
    torch.manual_seed(0)
    posterior = MCDropout(MLP(3, 3, hidden=(16,), dropout=dropout))
    network = posterior.network
    history = fit(posterior, LossCalibrated(utility, refresh="running"), loader, (x, labels), utility=utility,
                  config=config, devices=2, strategy=strategy, precision="64-true", progress=False, **options)
    assert posterior.network is network and not posterior.training and len(history.epochs) == 6
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float64}
    total = sum(float(tensor.abs().sum()) for tensor in posterior.state_dict().values())
    print(f"utility {history.best_utility:.4f} weights {total:.10f}", flush=True)

def refused(strategy, loader, **options):
    try:
        train(strategy, loader, **options)
    except StakesError as error:
        print(error, flush=True)

if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = TensorDataset(x, labels)
    train("ddp_spawn", DataLoader(rows, 16, shuffle=True))
    train("ddp_fork", DataLoader(rows, 16, shuffle=True), on_step=lambda step: None)
    for size, accumulate in ((16, 1), (4, 4)):
        train("ddp_fork", DataLoader(rows, size), Training(epochs=6, accumulate=accumulate), dropout=1e-12)
    refused("ddp_spawn", DataLoader(rows, 16), on_step=lambda step: None)
    refused("ddp_notebook", DataLoader(rows, batch_sampler=list(BatchSampler(RandomSampler(rows), 16, False))))
"""


@pytest.mark.slow
def test_spawned_and_forked_processes_train_the_posterior_of_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    files = tmp_path / "files"
    files.mkdir()
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=240, env={**os.environ, "TMPDIR": str(files)}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    spawned, forked, large, accumulated, unpicklable, batch_sampler = done.stdout.splitlines()
    assert spawned == forked
    assert float(large.split()[-1]) == pytest.approx(float(accumulated.split()[-1]), rel=1e-6)
    assert float(spawned.split()[1]) > 0.95
    assert "define functions and classes at the top of a module" in unpicklable
    assert "cannot share the batches of a batch_sampler" in batch_sampler
    assert not list(files.rglob("*.safetensors"))
