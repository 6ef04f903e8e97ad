"""The paper's CamVid settings (360 x 480, full width) on this machine: memory, and how long an epoch would take.

    STAKES_DATA=... python -m benchmarks.full_size [steps]

A few calibrated steps with running decisions, as `stakes reproduce roads --preset paper` takes them, with what
it holds beside them: all images, and a running mean for every pixel of the training set. Then one test image.
"""

import os
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from stakes.decisions import decide
from stakes.paper.roads.data import CLASSES, read_roads
from stakes.paper.roads.experiment import Roads, road_utility


def main(steps: int = 3) -> None:
    settings = replace(Roads.preset("paper"), threads=os.cpu_count() or 1)
    torch.set_num_threads(settings.threads)
    train, validation, test = (
        read_roads(Path(os.environ["STAKES_DATA"]), part, settings.shape()) for part in ("train", "val", "test")
    )
    _say(f"{len(train)} + {len(validation)} + {len(test)} images in memory")
    posterior = settings.posterior(seed=0).train()
    objective = settings.objective("calibrated")
    # Running decisions know every pixel after an epoch: here at once, so that the memory is that of a long run.
    means = torch.full((len(train), *settings.shape(), len(CLASSES)), 1 / len(CLASSES), dtype=torch.float16)
    objective.load_state_dict({"memory": means})
    optimizer = torch.optim.Adam(posterior.parameters(), fused=True)
    taken = []
    for number, batch in enumerate(train.batches(torch.randperm(len(train)), settings.batch_size)):
        if number == steps:
            break
        start = time.monotonic()
        loss = objective(posterior, batch.x, batch.labels, index=batch.positions)
        (loss + posterior.kl() / (len(train) * batch.labels[0].numel())).backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(time.monotonic() - start)
        _say(f"step {number + 1} of {settings.batch_size} images: loss {loss.item():.3f}, {taken[-1]:.1f} s")
    batches = -(-len(train) // settings.batch_size)
    _say(f"an epoch of {batches} such steps on {settings.threads} threads: {batches * min(taken) / 60:.0f} min")
    draws = posterior.draw(settings.test_samples, seed=0)
    start = time.monotonic()
    decide(draws(next(test.in_order(1)).x).mean_probs(), road_utility())
    _say(f"decisions for one image from {settings.test_samples} draws: {time.monotonic() - start:.1f} s")


def _say(text: str) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in KiB
    print(f"{text}  (peak so far {peak:.2f} GB)", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
