"""Training in two processes: one model, and the same result after an interruption."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from pathlib import Path

import torch
from stakes import LossCalibrated, MCDropout, MLP, Training, Utility, fit

class Stopping(LossCalibrated):
    epochs_left = 100

    def start_epoch(self, posterior, batches):
        self.epochs_left -= 1
        if self.epochs_left < 0:
            raise KeyboardInterrupt

torch.set_num_threads(1)
labels = torch.arange(81) % 3  # an odd number: one example belongs to both processes
x = torch.eye(3)[labels] + 0.3 * torch.randn(81, 3, generator=torch.Generator().manual_seed(0))
utility = Utility.diagonal("abc")
file = Path(__file__).with_name("checkpoint")

def train(epochs_left, **options):
    torch.manual_seed(0)
    posterior = MCDropout(MLP(3, 3, hidden=(16,), dropout=0.3))
    objective = Stopping(utility, refresh="running", momentum=0.9)
    objective.epochs_left = epochs_left
    config = Training(epochs=12, batch_size=16, learning_rate=0.03, checkpoint_seconds=0)
    history = fit(posterior, objective, (x, labels), (x, labels), utility=utility, config=config, devices=2,
                  strategy="ddp", progress=False, **options)
    total = sum(float(parameter.detach().double().abs().sum()) for parameter in posterior.parameters())
    print(f"rank {torch.distributed.get_rank()} utility {history.best_utility:.4f} weights {total:.10f}", flush=True)

train(100)
try:
    train(4, checkpoint=file)
except KeyboardInterrupt:
    train(100, checkpoint=file, resume=True)
torch.distributed.destroy_process_group()
"""


def test_two_processes_train_one_model_and_resume_to_the_same_result(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240)
    results = sorted(re.findall(r"rank (\d) utility (\d\.\d{4}) weights (-?\d+\.\d{10})", done.stdout))
    assert [rank for rank, _, _ in results] == ["0", "0", "1", "1"], done.stderr[-2000:]
    assert len({result[1:] for result in results}) == 1, results
    assert float(results[0][1]) > 0.95
