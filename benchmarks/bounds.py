"""What bounds sampling: the work that is done, at the rates of this machine's own primitives, and the time it took."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.networks import CASES
from benchmarks.timing import seconds
from stakes import MLP, MCDropout
from stakes.networks.segnet import SegNet
from stakes.outcomes import CACHE_BYTES

RESOURCES = ("matrix products", "exponentials", "random numbers", "memory traffic")
HEADINGS = ("end", *(f"{name}, ms" for name in RESOURCES), "bound, ms", "measured, ms", "times the bound")

_aten = torch.ops.aten
_EXPONENTIALS = {_aten._softmax, _aten._log_softmax, _aten.exp, _aten.exp_}
_RANDOM = {_aten.random, _aten.random_}
_GATES = 5  # exponentials for a unit and a step of an LSTM: its four gates, and its output


@dataclass(frozen=True)
class Rates:
    """Seconds for one of each, on one thread."""

    product: float  # a multiplication or an addition in a large matrix product or convolution
    exponential: float
    random_word: float  # of 64 bits
    near_byte: float  # read or written, in a tensor of the size of a block
    far_byte: float  # the same, in one that no cache holds


def measured_rates() -> Rates:
    matrix, block, large = torch.randn(1024, 1024), torch.randn(CACHE_BYTES // 16), torch.randn(2**26)
    words, out, near, far = torch.empty(2**20, dtype=torch.int64), torch.empty(1024, 1024), block.clone(), large.clone()
    image, exponents = torch.randn(1, 512, 48, 64).to(memory_format=torch.channels_last), torch.randn(2**16)
    convolution = nn.Conv2d(512, 512, 3, padding=1).to(memory_format=torch.channels_last).requires_grad_(False)
    results = torch.empty_like(exponents)
    product, convolved, exponential, random, near_copy, far_copy = seconds(
        lambda: torch.mm(matrix, matrix, out=out),
        lambda: convolution(image),
        lambda: torch.exp(exponents, out=results),
        lambda: words.random_(),
        lambda: near.copy_(block),
        lambda: far.copy_(large),
    )
    return Rates(
        min(product / (2 * 1024**3), convolved / (2 * 9 * 512**2 * 48 * 64)),
        exponential / len(exponents),
        random / len(words),
        near_copy / (2 * block.nbytes),
        far_copy / (2 * large.nbytes),
    )


class Work(TorchDispatchMode):
    """Adds up what all operations inside would take at these rates, by resource.

    A product counts by its arithmetic, and every other operation by the bytes that it reads and writes.
    """

    def __init__(self, rates: Rates) -> None:
        super().__init__()
        self.rates = rates
        self.seconds = dict.fromkeys(RESOURCES, 0.0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        kind, rates = func.overloadpacket, self.rates
        written = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if kind in flop_registry:
            operations = flop_registry[kind](*args, **(kwargs or {}), out_val=out)
            self.seconds["matrix products"] += operations * rates.product
        elif (
            kind is _aten.mkldnn_rnn_layer
        ):  # not in the registry: its input (T, B, F), then weights of input and state
            steps = args[0].numel() // args[0].shape[-1]
            self.seconds["matrix products"] += 2 * steps * (args[1].numel() + args[2].numel()) * rates.product
            self.seconds["exponentials"] += _GATES * written[0].numel() * rates.exponential
        elif kind in _EXPONENTIALS:
            self.seconds["exponentials"] += sum(tensor.numel() for tensor in written) * rates.exponential
        elif kind in _RANDOM:
            self.seconds["random numbers"] += sum(tensor.numel() for tensor in written) * rates.random_word
        elif not func.is_view:
            read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            sizes = [tensor.nbytes for tensor in (*read, *written)]
            rate = rates.near_byte if max(sizes, default=0) <= CACHE_BYTES else rates.far_byte
            self.seconds["memory traffic"] += sum(sizes) * rate
        return out


def measure() -> list[list[str]]:
    """A row for each end, as in `HEADINGS`."""
    torch.manual_seed(0)
    rates = measured_rates()
    ends = {
        "many inputs: 784-100-10, 10,000 inputs, 1 draw": _sampling(_mlp(10), torch.randn(10_000, 784), 1),
        "many draws: 784-100-10, 1,000 inputs, 1,000 draws": _sampling(_mlp(10), torch.randn(1_000, 784), 1_000),
        "many classes: 784-100-300, 1,000 inputs, 100 draws": _sampling(_mlp(300), torch.randn(1_000, 784), 100),
        "tables: 30-128-64-3, 10,000 inputs, 100 draws": _sampling(MLP(30, 3), torch.randn(10_000, 30), 100),
        "two hidden layers: 784-100-100-10, 2,000 inputs, 100 draws": _sampling(
            MLP(784, 10, hidden=(100, 100), dropout=0.2), torch.randn(2_000, 784), 100
        ),
        **{case.what: _sampling(case.make(), case.inputs(), case.draws) for case in CASES},
        "images: SegNet-Basic, 360 x 480, 1 image, 10 draws": _sampling(SegNet(), torch.rand(1, 3, 360, 480), 10),
    }
    rows = []
    for name, run in ends.items():
        (taken,) = seconds(run, rounds=3)
        with Work(rates) as work:
            run()
        bound = sum(work.seconds.values())
        times = [*work.seconds.values(), bound, taken]
        rows.append([name, *(f"{1e3 * value:.1f}" for value in times), f"{taken / bound:.1f}"])
    return rows


def _mlp(classes: int) -> nn.Module:
    return MLP(784, classes, hidden=(100,), dropout=0.2)


def _sampling(network: nn.Module, x: Tensor, draws: int) -> Callable[[], Tensor]:
    posterior = MCDropout(network)
    return lambda: posterior.draw(draws, seed=0)(x).mean_probs()
