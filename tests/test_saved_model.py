"""Saved models: they come back as they were, or with a clear error, and never run code."""

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from stakes import (
    MLP,
    BatchEnsemble,
    Categorical,
    Ensemble,
    MCDropout,
    MeanField,
    NoisyCategorical,
    SavedModel,
    StakesError,
    TabM,
    Utility,
)
from stakes.features import Features
from stakes.outcomes import Outcomes, Predictor
from stakes.posteriors.base import Posterior, families
from stakes.predictors import BoostedTrees, SampledPosterior, kinds
from stakes.tables.encode import TableEncoder
from stakes.training.examples import TensorExamples

pytestmark = pytest.mark.filterwarnings("ignore:members of the ensemble are random in training")
UTILITY = Utility.from_costs(
    {"go": {"a": 0, "b": 5, "c": 9}, "stay": {"a": 3, "b": 0, "c": 2}, "ask": {"a": 1, "b": 1.5, "c": 1}}, unit="£"
)
X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))


def mlp(dropout: float = 0.3) -> MLP:
    return MLP(4, 3, hidden=(6, 5), dropout=dropout, activation="tanh")


def tabm() -> TabM:
    network = TabM(Features(2, levels=(2,)), 3, members=3, width=6, bins=4)
    network.set_bins(X)
    return network


POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "dropout": lambda: MCDropout(mlp(), lengthscale=0.5),
    "ensemble": lambda: Ensemble([mlp(0.0) for _ in range(3)], prior_sd=2.0),
    "batch_ensemble": lambda: BatchEnsemble(tabm(), prior_sd=2.0),
    "mean_field": lambda: MeanField(mlp()),
    "noisy": lambda: MCDropout(mlp(), NoisyCategorical(0.2)),
    "learnt noise": lambda: MCDropout(mlp(), NoisyCategorical(0.2, learn=True)),
    "noise matrix": lambda: Ensemble(
        [mlp(0.0), mlp(0.0)], NoisyCategorical(matrix=[[0.8, 0.1, 0.1], [0.2, 0.8, 0], [0, 0, 1]])
    ),
}


def trees() -> BoostedTrees:
    rows = torch.randn(90, 4, generator=torch.Generator().manual_seed(2))
    examples = TensorExamples(rows, torch.arange(90) % 3)
    return BoostedTrees.fit(examples, examples, 3, seed=0)


def predictor(name: str) -> Predictor:
    return trees() if name == "trees" else SampledPosterior(POSTERIORS[name](), samples=7, seed=3)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    SavedModel(predictor("dropout"), UTILITY, notes={"from": "a test"}).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", [*POSTERIORS, "trees"])
def test_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    model = SavedModel(predictor(name), UTILITY, notes={"from": "a test"})
    model.save(tmp_path / "deep" / "model")
    again = SavedModel.load(tmp_path / "deep" / "model")
    assert (again.notes, again.utility) == ({"from": "a test"}, UTILITY)
    assert again.predictor.spec() == model.predictor.spec()
    if isinstance(again.predictor, SampledPosterior):
        assert not again.predictor.posterior.training
    before, after = model.decide(X), again.decide(X)
    assert torch.equal(before.probs, after.probs)
    assert torch.equal(before.choice, after.choice)
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["model"]
    assert sorted(path.name for path in (tmp_path / "deep" / "model").iterdir()) == [
        "model.json",
        "weights.safetensors",
    ]


def test_the_encoder_comes_along(tmp_path: Path) -> None:
    frame = pd.DataFrame({"height": [1.0, 2.0, None], "ward": ["n", "s", None], "weight": [3, 4, 9]})
    encoder = TableEncoder.fit(frame)
    model = SavedModel(SampledPosterior(MCDropout(MLP(encoder.width, 3, (4,)))), UTILITY, encoder)
    model.save(tmp_path / "model")
    again = SavedModel.load(tmp_path / "model")
    assert again.encoder == encoder
    narrow = TableEncoder.fit(frame[["height"]])
    with pytest.raises(StakesError, match="1 features, but it has"):
        SavedModel(model.predictor, UTILITY, TableEncoder.fit(frame[["weight"]]))
    description = json.loads((tmp_path / "model" / "model.json").read_text())
    description["encoder"] = narrow.to_dict()
    (tmp_path / "model" / "model.json").write_text(json.dumps(description))
    with pytest.raises(StakesError, match="features"):
        SavedModel.load(tmp_path / "model")
    with pytest.raises(StakesError, match="2 classes, but it has 3"):
        SavedModel(model.predictor, Utility.diagonal(["a", "b"]))


class Wrapped(nn.Module):
    """A network that stakes does not know, with one inside that it does."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner = mlp(dropout)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("dropout", "make"), [(0.3, MCDropout), (0.0, lambda network: Ensemble([network, copy.deepcopy(network)]))]
)
def test_a_custom_network_is_asked_for(tmp_path: Path, dropout: float, make: Callable[[nn.Module], Posterior]) -> None:
    model = SavedModel(SampledPosterior(make(Wrapped(dropout))), UTILITY)
    model.save(tmp_path / "model")
    with pytest.raises(StakesError, match=r"'Wrapped'.*network="):
        SavedModel.load(tmp_path / "model")
    assert torch.equal(SavedModel.load(tmp_path / "model", Wrapped(dropout)).decide(X).probs, model.decide(X).probs)
    with pytest.raises(StakesError, match="do not fit"):
        SavedModel.load(tmp_path / "model", mlp(dropout))


class Scaled(MLP):
    """Has the weights of an MLP, and computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


def test_a_subclass_of_a_known_network_is_not_taken_for_it(tmp_path: Path) -> None:
    network = Scaled(4, 3, (6,), 0.3)
    model = SavedModel(SampledPosterior(MCDropout(network)), UTILITY)
    model.save(tmp_path / "model")
    with pytest.raises(StakesError, match=r"'Scaled'.*network="):
        SavedModel.load(tmp_path / "model")
    assert torch.equal(SavedModel.load(tmp_path / "model", network).decide(X).probs, model.decide(X).probs)


# Users' own kinds ----------------------------------------------------------------------------------


class Unnamed(MCDropout):
    """A posterior family that nobody registered."""


@families.register("test_saved_model named")
class Named(MCDropout):
    """A posterior family of a user's own."""


class OtherNoise(Categorical):
    """A likelihood that nobody registered."""


class Constant(Predictor):
    def __init__(self, probs: Tensor) -> None:
        self.probs = probs

    def outcomes(self, x: Tensor, first: int, last: int) -> Outcomes:
        return Outcomes(self.probs.expand(last - first, len(x), -1))

    def spec(self) -> dict[str, Any]:
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return {"probs": self.probs}

    @classmethod
    def load(cls, spec: Any, tensors: Any, network: Any = None) -> "Constant":
        return cls(tensors["probs"])


def test_a_registered_posterior_saves_and_loads(tmp_path: Path) -> None:
    model = SavedModel(SampledPosterior(Named(mlp(), lengthscale=0.5), 7, 3), UTILITY)
    model.save(tmp_path / "model")
    again = SavedModel.load(tmp_path / "model")
    assert isinstance(again.predictor, SampledPosterior)
    assert type(again.predictor.posterior) is Named
    assert torch.equal(again.decide(X).probs, model.decide(X).probs)


def test_what_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(StakesError, match=r"Unnamed.*register"):
        SavedModel(SampledPosterior(Unnamed(mlp())), UTILITY).save(tmp_path / "new" / "model")
    with pytest.raises(StakesError, match=r"OtherNoise.*register"):
        SavedModel(SampledPosterior(MCDropout(mlp(), OtherNoise())), UTILITY).save(tmp_path / "new" / "model")
    with pytest.raises(StakesError, match="SampledPosterior"):
        SavedModel(MCDropout(mlp()).draw(3, 0), UTILITY).save(tmp_path / "new" / "model")
    with pytest.raises(StakesError, match=r"Constant.*register"):
        SavedModel(Constant(torch.full((3,), 1 / 3)), UTILITY).save(tmp_path / "new" / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_registered_predictor_saves_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_classes", dict(kinds._classes))
    kinds.register("constant")(Constant)
    SavedModel(Constant(torch.tensor([0.2, 0.3, 0.5])), UTILITY).save(tmp_path / "model")
    assert SavedModel.load(tmp_path / "model").decide(X).probs[0].tolist() == pytest.approx([0.2, 0.3, 0.5])


@pytest.mark.parametrize("name", [*POSTERIORS, "trees"])
def test_a_model_that_has_decided_can_be_pickled_and_copied(name: str) -> None:
    model = SavedModel(predictor(name), UTILITY)
    probs = model.decide(X).probs
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(again.decide(X).probs, probs)


def test_format_1_is_read(saved: Path) -> None:
    """As stakes 0.1 wrote it: what is now in the predictor stood beside the utility."""
    description = json.loads((saved / "model.json").read_text())
    before = SavedModel.load(saved).decide(X).probs
    spec = description.pop("predictor")
    assert spec.pop("kind") == "posterior"
    (saved / "model.json").write_text(json.dumps(description | spec | {"format": 1}))
    assert torch.equal(SavedModel.load(saved).decide(X).probs, before)
    del spec["likelihood"]
    (saved / "model.json").write_text(json.dumps(description | spec | {"format": 1}))
    with pytest.raises(StakesError, match="'likelihood' is missing"):
        SavedModel.load(saved)


def test_an_existing_directory_is_refused(saved: Path) -> None:
    before = (saved / "model.json").read_bytes()
    with pytest.raises(StakesError, match="exists"):
        SavedModel(predictor("dropout"), UTILITY).save(saved)
    assert (saved / "model.json").read_bytes() == before


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        SavedModel(predictor("dropout"), UTILITY, notes={"bad": object()}).save(tmp_path / "new" / "model")
    assert list(tmp_path.iterdir()) == []


# Damage --------------------------------------------------------------------------------------------


def test_weights_damaged_anywhere(saved: Path) -> None:
    weights = saved / "weights.safetensors"
    whole = weights.read_bytes()
    for place in [*range(0, len(whole), 37), len(whole) - 1]:
        weights.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(StakesError, match=r"damaged|checksum"):
            SavedModel.load(saved)
    for length in (0, 5, 100, len(whole) - 1):
        weights.write_bytes(whole[:length])
        with pytest.raises(StakesError, match="damaged"):
            SavedModel.load(saved)
    weights.unlink()
    with pytest.raises(StakesError, match="weights"):
        SavedModel.load(saved)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '"model"', "{}", '{"format": "one"}', '{"format": true}', '{"format": 0}', "\udcff"],
)
def test_json_that_is_not_ours(saved: Path, text: str) -> None:
    (saved / "model.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(StakesError, match=r"model\.json"):
        SavedModel.load(saved)


def test_foreign_places(tmp_path: Path, saved: Path) -> None:
    for place in (tmp_path / "absent", tmp_path, saved / "model.json"):
        with pytest.raises(StakesError, match="expected a saved model"):
            SavedModel.load(place)


def test_a_newer_format(saved: Path) -> None:
    described = json.loads((saved / "model.json").read_text())
    (saved / "model.json").write_text(json.dumps({"format": described["format"] + 1, "all": "else is unknown"}))
    with pytest.raises(StakesError, match=r"newer stakes.*upgrade"):
        SavedModel.load(saved)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path] * bool(path) + [found for key, value in items for found in places(value, (*path, key))]


@pytest.mark.filterwarnings("ignore:members of the ensemble are random:stakes.errors.StakesWarning")
@pytest.mark.parametrize("name", ["dropout", "ensemble", "mean_field", "noise matrix", "trees"])
def test_no_edit_of_the_json_gives_anything_but_a_clear_error(tmp_path: Path, name: str) -> None:
    """Every entry in turn is taken out, or replaced by something else of each kind."""
    frame = pd.DataFrame({"a": [1.0, None], "b": [1, 2], "ward": ["n", "s"]})
    encoder = TableEncoder.fit(frame[["a", "ward"]])
    assert encoder.width == 4
    SavedModel(predictor(name), UTILITY, encoder).save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    original = file.read_text()
    for path in places(json.loads(original)):
        for junk in ("out", None, -1, 0.5, "text", [], {}, [["x"]], {"kind": "mlp"}):
            tree = json.loads(original)
            parent = tree
            for key in path[:-1]:
                parent = parent[key]
            if junk == "out":
                del parent[path[-1]]
            else:
                parent[path[-1]] = junk
            file.write_text(json.dumps(tree))
            with suppress(StakesError):  # and nothing else; some edits are harmless
                SavedModel.load(tmp_path / "model").decide(X)


def test_loading_runs_no_code(saved: Path, tmp_path: Path) -> None:
    """A pickle in the place of the weights is not opened as one."""
    shutil.copytree(saved, tmp_path / "evil")
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> Any:
            return (marker.touch, ())

    torch.save({"weight": Evil()}, tmp_path / "evil" / "weights.safetensors")
    with pytest.raises(StakesError, match="damaged"):
        SavedModel.load(tmp_path / "evil")
    assert not marker.exists()
