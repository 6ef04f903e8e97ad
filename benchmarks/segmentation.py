"""Draws of SegNet-Basic for one full-size image, against the usual loop on the same module; and their memory."""

import subprocess
import sys

import torch
from torch import nn

from benchmarks.timing import Claim, seconds
from stakes import MCDropout
from stakes.networks.segnet import SegNet

DRAWS, SIZE = 10, (1, 3, 360, 480)
_MEMORY = """
import torch
from benchmarks.segmentation import DRAWS, SIZE
from benchmarks.timing import peak_memory
from stakes import MCDropout
from stakes.networks.segnet import SegNet
torch.set_num_threads(1)
network, x = SegNet().eval(), torch.rand(SIZE)
with torch.no_grad():
    network(x[..., :8, :8])
before = peak_memory()
MCDropout(network).draw(DRAWS, seed=0)(x).mean_probs()
print((peak_memory() - before) / 2**30)
"""


def measure() -> list[Claim]:
    torch.manual_seed(0)
    network, x = SegNet(), torch.rand(SIZE)
    posterior = MCDropout(network)

    def usual() -> torch.Tensor:
        for layer in network.train().modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.eval()
        with torch.no_grad():
            return torch.stack([network(x).softmax(1) for _ in range(DRAWS)]).mean(0)

    slow, fast = seconds(usual, lambda: posterior.draw(DRAWS, seed=0)(x).mean_probs(), rounds=4)
    memory = subprocess.run([sys.executable, "-c", _MEMORY], check=True, capture_output=True, text=True).stdout
    what = f"SegNet-Basic 360 x 480, one image, {DRAWS} draws"
    return [
        Claim(f"{what}: times faster", f"{DRAWS} passes of the same module", slow / fast, ">= 3"),
        Claim(f"{what}: extra GB at its peak", "the network and the image", float(memory), "<= 1.5"),
    ]
