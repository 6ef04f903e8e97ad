"""Training in two processes: one model, and the same result after an interruption."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from pathlib import Path

import torch
from stakes import LossCalibrated, MCDropout, MLP, Training, Utility, fit
from torch import nn

class Stopping(LossCalibrated):
    epochs_left = 100

    def start_epoch(self, posterior, batches):
        self.epochs_left -= 1
        if self.epochs_left < 0:
            raise KeyboardInterrupt
        super().start_epoch(posterior, batches)

torch.set_num_threads(1)
labels = torch.arange(81) % 3  # an odd number: one example belongs to both processes
x = torch.eye(3)[labels] + 0.3 * torch.randn(81, 3, generator=torch.Generator().manual_seed(0))
utility = Utility.diagonal("abc")
file = Path(__file__).with_name("checkpoint")

def batch_norm():
    return nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))

def train(make, refresh, epochs_left, **options):
    torch.manual_seed(0)
    posterior = MCDropout(make())
    objective = Stopping(utility, refresh=refresh, momentum=0.9)
    objective.epochs_left = epochs_left
    schedulers = []

    def optimizer(parameters):
        schedulers.append(torch.optim.lr_scheduler.ExponentialLR(torch.optim.Adam(parameters, lr=0.03), 0.95))
        return schedulers[0].optimizer

    config = Training(epochs=12, batch_size=16, learning_rate=0.03, checkpoint_seconds=0)
    history = fit(posterior, objective, (x, labels), (x, labels), utility=utility, config=config, devices=2,
                  strategy="ddp", optimizer=optimizer, progress=lambda epoch: schedulers[0].step(), **options)
    total = sum(float(tensor.double().abs().sum()) for tensor in posterior.state_dict().values())
    print(f"{refresh} rank {torch.distributed.get_rank()} utility {history.best_utility:.4f} weights {total:.10f}",
          flush=True)

for make, refresh in ((lambda: MLP(3, 3, hidden=(16,), dropout=0.3), "running"), (batch_norm, "epoch")):
    train(make, refresh, 100)
    try:
        train(make, refresh, 4, checkpoint=file)
    except KeyboardInterrupt:
        train(make, refresh, 100, checkpoint=file, resume=True)
torch.distributed.destroy_process_group()
"""


def test_two_processes_train_one_model_and_resume_to_the_same_result(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240)
    for refresh in ("running", "epoch"):  # the second with batch norm
        pattern = refresh + r" rank (\d) utility (\d\.\d{4}) weights (-?\d+\.\d{10})"
        results = sorted(re.findall(pattern, done.stdout))
        assert [rank for rank, _, _ in results] == ["0", "0", "1", "1"], done.stderr[-2000:]
        assert len({result[1:] for result in results}) == 1, results
        assert float(results[0][1]) > 0.9
