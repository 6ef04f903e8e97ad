"""The mean predictive of the same network from as many draws: ours, and that of other libraries, in turns.

    python -m benchmarks.others [--save]

Each library is called as its documentation says, in the ways that it offers; the fastest of them counts.
"""

import sys
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from importlib.metadata import distribution, version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.networks import CASES, Case
from benchmarks.timing import seconds
from stakes import MLP, Laplace, MCDropout
from stakes.posteriors.base import Posterior
from stakes.report.words import markdown_table

RESULTS = Path(__file__).parent / "RESULTS.md"
HEADINGS = (
    "network", "library", "its fastest way", "ms", "ours, ms", "times faster", "ours, draws made, ms", "its spread",
)  # fmt: skip
Way = Callable[[Tensor, int], Tensor]  # inputs and draws to (S, B, C), the probabilities of all draws

DROPOUT_CASES = (
    Case("30-128-64-3, 10,000 rows", lambda: MLP(30, 3), lambda: torch.randn(10_000, 30), 100, "-"),
    Case(
        "784-100-10, 2,000 rows",
        lambda: MLP(784, 10, hidden=(100,), dropout=0.2), lambda: torch.randn(2_000, 784), 100, "-",
    ),
    Case(
        "784-100-100-10, 2,000 rows",
        lambda: MLP(784, 10, hidden=(100, 100), dropout=0.2), lambda: torch.randn(2_000, 784), 100, "-",
    ),
    *CASES,
)  # fmt: skip
LAPLACE_CASES = (
    Case(
        "30-128-64-3, 10,000 rows, last layer",
        lambda: MLP(30, 3, dropout=0.0), lambda: torch.randn(10_000, 30), 100, "-",
    ),
    Case(
        "784-100-10, 2,000 rows, last layer",
        lambda: MLP(784, 10, hidden=(100,), dropout=0.0), lambda: torch.randn(2_000, 784), 100, "-",
    ),
)  # fmt: skip
FITTED = 1_000  # examples, to which Laplace is fitted
# For the spread: that of 10 draws, which share their masks among all inputs, is off by a tenth by chance.
SPREAD_INPUTS, SPREAD_DRAWS = 16, 400


class Row(NamedTuple):
    network: str
    library: str
    way: str
    theirs: float  # seconds
    ours: float
    prepared: float  # ours, with draws that are made already
    spread: float | None  # of their draws, against ours

    @property
    def times_faster(self) -> float:
        return self.theirs / self.ours

    def cells(self) -> list[str]:
        times = [f"{1e3 * self.theirs:.1f}", f"{1e3 * self.ours:.1f}", f"{self.times_faster:.1f}"]
        spread = "no draws" if self.spread is None else f"{self.spread:.2f}"
        return [self.network, self.library, self.way, *times, f"{1e3 * self.prepared:.1f}", spread]


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    rows = []
    for case in DROPOUT_CASES:
        rows += _dropout_rows(case)
    for case in LAPLACE_CASES:
        rows += _laplace_rows(case)
    table = markdown_table(HEADINGS, [row.cells() for row in rows])
    print(table)
    if "--save" in arguments:
        RESULTS.write_text(_page(table, rows), encoding="utf-8")
    return 0


def _dropout_rows(case: Case) -> list[Row]:
    torch.manual_seed(0)
    network, x = case.make(), case.inputs()
    posterior, ways = MCDropout(network), {"TorchUncertainty": _torch_uncertainty(network), "BAAL": _baal(network)}
    rows = [_row(case, library, ways[library], posterior, x) for library in ways]
    if any(isinstance(part, nn.TransformerEncoderLayer) for part in network.modules()):
        # In eval mode these layers take a fused path without dropout, and both libraries leave them in eval mode.
        torch.backends.mha.set_fastpath_enabled(False)
        rows += [_row(case, f"{library}, fused path off", ways[library], posterior, x) for library in ways]
        torch.backends.mha.set_fastpath_enabled(True)
    return rows


def _laplace_rows(case: Case) -> list[Row]:
    from laplace import Laplace as Theirs

    torch.manual_seed(0)
    network, x = case.make().eval(), case.inputs()
    with torch.no_grad():
        labels = network(x[:FITTED]).argmax(1)
    batches = DataLoader(TensorDataset(x[:FITTED], labels), batch_size=200)
    posterior = Laplace(network)
    posterior.finish(batches)
    theirs = Theirs(network, "classification", subset_of_weights="last_layer", hessian_structure="full")
    theirs.fit(batches)

    def samples(kind: str) -> Way:
        return lambda x, draws: theirs.predictive_samples(x, pred_type=kind, n_samples=draws)

    def probit(x: Tensor, draws: int) -> Tensor:
        probs: Tensor = theirs(x, pred_type="glm", link_approx="probit")
        return probs.unsqueeze(0)

    ways = {"draws of weights": samples("nn"), "draws of outputs": samples("glm"), "probit approximation": probit}
    return [_row(case, "laplace-torch", {name: way}, posterior, x) for name, way in ways.items()]


def _row(case: Case, library: str, ways: Mapping[str, Way], posterior: Posterior, x: Tensor) -> Row:
    made = posterior.draw(case.draws, seed=0)
    *theirs, ours, prepared = seconds(
        *(lambda way=way: way(x, case.draws).mean(0) for way in ways.values()),
        lambda: posterior.draw(case.draws, seed=0)(x).mean_probs(),
        lambda: made(x).mean_probs(),
        rounds=3,
    )
    best = min(range(len(theirs)), key=theirs.__getitem__)
    name = list(ways)[best]
    some = x[:SPREAD_INPUTS]
    draws = ways[name](some, SPREAD_DRAWS)
    spread = None
    if len(draws) > 1:
        spread = _spread(draws) / _spread(posterior.draw(SPREAD_DRAWS, seed=0)(some).probs())
    row = Row(case.what, library, name, theirs[best], ours, prepared, spread)
    print(*row.cells(), sep=" | ", flush=True)  # the whole takes minutes
    return row


def _spread(probs: Tensor) -> float:
    """``(S, B, C)`` -> their standard deviation over draws."""
    return float(probs.var(0).mean().sqrt())


def _torch_uncertainty(network: nn.Module) -> dict[str, Way]:
    # Its package imports torchvision and Lightning, which mc_dropout does not use: that module alone is loaded.
    path = str(distribution("torch-uncertainty").locate_file("torch_uncertainty/methods/mc_dropout.py"))
    loader = SourceFileLoader("mc_dropout", path)
    module: Any = ModuleType(loader.name)
    loader.exec_module(module)

    def way(on_batch: bool) -> Way:
        @torch.no_grad()
        def run(x: Tensor, draws: int) -> Tensor:
            out: Tensor = module.mc_dropout(network, draws, on_batch=on_batch).eval()(x)  # (S B, C)
            return out.softmax(-1).unflatten(0, (draws, len(x)))

        return run

    return {"inputs repeated in the batch": way(True), "a loop": way(False)}


def _baal(network: nn.Module) -> dict[str, Way]:
    from baal.bayesian.dropout import patch_module
    from baal.modelwrapper import ModelWrapper, TrainingArgs

    patched = patch_module(network, inplace=False).eval()

    def way(replicate: bool) -> Way:
        wrapper: Any = ModelWrapper(patched, TrainingArgs(use_cuda=False, replicate_in_memory=replicate))

        def run(x: Tensor, draws: int) -> Tensor:
            out: Tensor = wrapper.predict_on_batch(x, iterations=draws)  # (B, C, S)
            return out.softmax(1).permute(2, 0, 1)

        return run

    return {"inputs repeated in the batch": way(True), "a loop": way(False)}


def _page(table: str, rows: list[Row]) -> str:
    names = ("torch-uncertainty", "baal", "laplace-torch", "torch")
    behind = [f"{row.network} ({row.library}, {row.way})" for row in rows if row.times_faster < 1]
    text = (Path(__file__).parent / "others.md").read_text(encoding="utf-8").strip()
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    verdict = f"Behind: {'; '.join(behind)}." if behind else "Ahead of each."
    written = f"Written by `make bench-others`: {versions}, one thread."
    return "\n\n".join(["# stakes beside other libraries", written, text, table, verdict]) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
