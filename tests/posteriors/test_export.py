"""Frozen draws as programs of PyTorch alone, and on other devices and in other precisions."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stakes import (
    MLP,
    Draws,
    Ensemble,
    Laplace,
    MCDropout,
    MeanField,
    NoisyCategorical,
    Outcomes,
    Posterior,
    StakesError,
)
from stakes.likelihoods import Likelihood

CLASSES = 3
pytestmark = [
    pytest.mark.filterwarnings("ignore:members of the ensemble are random in training"),
    pytest.mark.filterwarnings("ignore:the network is random in training"),
]


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.3))
        self.head = nn.Conv2d(4, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.dropout = nn.LSTM(4, 5, batch_first=True), nn.Dropout(0.3)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.lstm(x)[0][:, -1]))  # type: ignore[no-any-return]


class Words(nn.Module):
    """Called with two tensors, and with an output that holds its logits, as the models of Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.2, batch_first=True)
        self.embed, self.encoder = nn.Embedding(10, 8), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        h = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        return {"logits": self.head((h * attention_mask.unsqueeze(-1)).mean(1))}


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vectors": (lambda: MLP(4, CLASSES, hidden=(8, 8), dropout=0.3), (4,)),
    "images": (Images, (1, 5, 6)),
    "sequences": (Recurrent, (3, 4)),
}


def finished(posterior: Posterior, shape: tuple[int, ...]) -> Posterior:
    x = torch.randn(12, *shape)
    posterior.finish([(x, posterior.network(x).argmax(1))])
    return posterior


FAMILIES: dict[str, Callable[[Callable[[], nn.Module], tuple[int, ...]], Posterior]] = {
    "dropout": lambda make, shape: MCDropout(make(), NoisyCategorical(0.1)),
    "inserted dropout": lambda make, shape: MCDropout.insert(make(), 0.2),
    "ensemble": lambda make, shape: Ensemble.of(make, 3, seed=0),
    "unlike members": lambda make, shape: Ensemble([make(), make().requires_grad_(False).apply(_mark)]),
    "mean field": lambda make, shape: MeanField(make()),
    "laplace": lambda make, shape: finished(Laplace(make()), shape),
    "laplace, all weights": lambda make, shape: finished(Laplace(make(), weights="all", structure="diag"), shape),
}
CASES = [("vectors", family) for family in FAMILIES] + [
    ("images", "dropout"),
    ("images", "mean field"),
    ("images", "laplace"),
    ("sequences", "dropout"),
    ("sequences", "mean field"),
]


def _mark(module: nn.Module) -> None:
    module.note = "a setting in which members differ"  # type: ignore[assignment]


def drawn(kind: str, family: str, samples: int = 4) -> tuple[Draws, tuple[int, ...]]:
    make, shape = NETWORKS[kind]
    torch.manual_seed(0)
    return FAMILIES[family](make, shape).eval().draw(samples, seed=1), shape


# Export ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:draws are computed one by one")
@pytest.mark.parametrize(("kind", "family"), CASES)
def test_a_program_gives_the_numbers_of_the_draws_for_any_number_of_inputs(kind: str, family: str) -> None:
    draws, shape = drawn(kind, family)
    program = draws.export(torch.randn(1, *shape)).module()
    for count in (1, 2, 7):
        x = torch.randn(count, *shape)
        torch.testing.assert_close(program(x), draws(x).probs())


def test_a_program_can_give_the_mean() -> None:
    draws, shape = drawn("vectors", "dropout")
    x = torch.randn(5, *shape)
    torch.testing.assert_close(draws.export(x, mean=True).module()(x), draws(x).mean_probs())


@pytest.mark.parametrize("as_dict", [True, False])
def test_a_program_is_called_as_the_network_is(as_dict: bool) -> None:
    torch.manual_seed(0)
    draws = MCDropout(Words()).draw(3, seed=0)

    def inputs(count: int) -> dict[str, Tensor]:
        return {"input_ids": torch.randint(10, (count, 5)), "attention_mask": torch.ones(count, 5)}

    example, other = inputs(3), inputs(8)
    program = draws.export(example if as_dict else tuple(example.values())).module()
    probs = program(**other) if as_dict else program(*other.values())
    torch.testing.assert_close(probs, draws(other).probs())


def test_a_program_runs_where_there_is_no_stakes(tmp_path: Path) -> None:
    draws, shape = drawn("vectors", "dropout")
    x = torch.randn(5, *shape)
    torch.export.save(draws.export(x), tmp_path / "draws.pt2")
    save_file({"x": x}, tmp_path / "x.safetensors")
    script = f"""
import sys
sys.modules["stakes"] = None  # an import of it fails
import torch
from safetensors.torch import load_file, save_file
program = torch.export.load({str(tmp_path / "draws.pt2")!r}).module()
probs = program(load_file({str(tmp_path / "x.safetensors")!r})["x"])
save_file({{"probs": probs.contiguous()}}, {str(tmp_path / "probs.safetensors")!r})
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
    torch.testing.assert_close(load_file(tmp_path / "probs.safetensors")["probs"], draws(x).probs())


def test_exporting_leaves_the_draws_as_they_are() -> None:
    draws, shape = drawn("images", "mean field")
    x = torch.randn(3, *shape)
    before = draws(x).probs()
    draws.export(x)
    assert torch.equal(draws(x).probs(), before)


class Numbers(Likelihood):
    def outcomes(self, outputs: Tensor) -> Outcomes:
        return Outcomes(torch.ones_like(outputs) / CLASSES, values=outputs)

    def log_prob(self, outputs: Tensor, labels: Tensor, outcomes: Outcomes | None = None) -> Tensor:
        raise NotImplementedError


class ByValue(nn.Module):
    """Control flow that no program has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out if float(x.sum()) > 0 else -out


def test_what_cannot_be_exported_is_refused_with_the_reason() -> None:
    x = torch.rand(3, 4)
    with pytest.raises(StakesError, match="over numbers"):
        MCDropout(MLP(4, CLASSES), Numbers()).draw(2, seed=0).export(x)
    with pytest.raises(StakesError, match=r"torch\.export cannot export these draws: \w+"):
        MCDropout(ByValue()).draw(2, seed=0).export(x)


class Own(Draws):
    def outputs(self, x: object, first: int, last: int) -> Tensor:
        raise NotImplementedError


def test_draws_of_other_kinds_say_that_they_cannot() -> None:
    with pytest.raises(StakesError, match="a Own cannot be exported"):
        Own().export(torch.rand(3, 4))
    with pytest.raises(StakesError, match="a Own cannot be moved"):
        Own().to("cpu")


# Devices and precisions --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:draws are computed one by one")
@pytest.mark.parametrize(("kind", "family"), CASES)
def test_draws_in_double_precision_are_the_same_draws(kind: str, family: str) -> None:
    draws, shape = drawn(kind, family)
    x = torch.randn(6, *shape)
    before = draws(x).probs()
    precise = draws.to(torch.float64)
    assert precise.dtype == torch.float64
    assert precise(x).probs().dtype == torch.float64
    torch.testing.assert_close(precise(x).probs(), before.double(), atol=1e-5, rtol=1e-4)
    assert draws.dtype == torch.float32
    assert torch.equal(draws(x).probs(), before), "those that it was made from stay as they are"
    assert torch.equal(draws.to("cpu")(x).probs(), before)
    assert draws.to("cpu", torch.float64).dtype == torch.float64


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("kind", "family"), CASES)
def test_draws_on_a_gpu_are_the_same_draws(kind: str, family: str) -> None:
    draws, shape = drawn(kind, family)
    x = torch.randn(6, *shape)
    moved = draws.to("cuda")
    assert moved.device.type == "cuda"
    torch.testing.assert_close(moved(x).probs().cpu(), draws(x).probs(), atol=1e-4, rtol=1e-3)
