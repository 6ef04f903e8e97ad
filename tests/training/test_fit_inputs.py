"""From fit to a saved model, with inputs of several tensors."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from token_networks import CLASSES, Encoder, OneTensorEncoder, TwoBranches, as_one_tensor, customers, sentences
from torch import Tensor
from torch.utils.data import Dataset

from stakes import (
    BoostedTrees,
    Ensemble,
    Examples,
    LossCalibrated,
    MCDropout,
    MeanField,
    SampledPosterior,
    SavedModel,
    StakesError,
    Standard,
    Training,
    Utility,
    decide,
    fit,
    inputs,
)
from stakes.calibration import Calibrated, Temperature
from stakes.objectives import Objective
from stakes.posteriors import Posterior
from stakes.training.examples import Batch, TensorExamples
from stakes.training.stacked import Stack, fit_together

COSTS = Utility.from_costs([[0, 5, 9], [4, 0, 3], [4, 3, 0]], outcomes=["a", "b", "c"])
QUICK = Training(epochs=3, batch_size=16, learning_rate=0.01, samples=3)
OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "standard": Standard,
    "step": lambda: LossCalibrated(COSTS, samples=3),
    "epoch": lambda: LossCalibrated(COSTS, samples=3, refresh="epoch"),
    "running": lambda: LossCalibrated(COSTS, refresh="running"),
}
FAMILIES: dict[str, Callable[[], Posterior]] = {
    "dropout": lambda: MCDropout(TwoBranches()),
    "ensemble": lambda: Ensemble.of(lambda: TwoBranches(0.0), 2, seed=0),
    "mean field": lambda: MeanField(TwoBranches()),
}


@pytest.mark.parametrize("goal", OBJECTIVES)
def test_fit_learns_from_a_dict_what_it_learns_from_one_tensor(goal: str) -> None:
    (x, labels), (held_out, held_out_labels) = sentences(48), sentences(20, seed=1)
    results = []
    for make, form in ((Encoder, dict), (OneTensorEncoder, as_one_tensor)):
        torch.manual_seed(0)
        posterior = MCDropout(make(0.1))
        history = fit(
            posterior, OBJECTIVES[goal](), (form(x), labels), (form(held_out), held_out_labels),
            utility=COSTS, config=QUICK, progress=False,
        )  # fmt: skip
        assert history.epochs[-1].loss < history.epochs[0].loss
        results.append((history, posterior.state_dict()))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(value, results[1][1][key]) for key, value in results[0][1].items())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("goal", OBJECTIVES)
def test_fit_with_a_tuple_decides_better_than_any_constant(family: str, goal: str) -> None:
    torch.manual_seed(0)
    posterior, (x, labels) = FAMILIES[family](), customers(200)
    config = Training(epochs=12, batch_size=20, learning_rate=0.03, samples=5)
    fit(posterior, OBJECTIVES[goal](), (x, labels), (x, labels), utility=COSTS, config=config, progress=False)
    new, truth = customers(100, seed=1)
    worth = COSTS.realised(decide(posterior.draw(10, seed=0)(new), COSTS).choice, truth).mean()
    assert worth > max(COSTS.realised(torch.full_like(truth, d), truth).mean() for d in range(CLASSES)) + 0.5


def test_a_saved_model_decides_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    (x, labels), posterior = sentences(30), MCDropout(Encoder())
    sampled = SampledPosterior(posterior, samples=8, seed=2)
    calibrated = Calibrated(sampled, Temperature.fit(sampled(x).mixture(), labels))
    for name, predictor in {"sampled": sampled, "calibrated": calibrated}.items():
        model = SavedModel(predictor, COSTS)
        model.save(tmp_path / name)
        before, after = (each.decide(x) for each in (model, SavedModel.load(tmp_path / name, network=Encoder())))
        assert torch.equal(before.utilities, after.utilities)
        assert len(after) == 30


def test_a_table_of_costs_for_each_example() -> None:
    tables = torch.rand(30, 2, CLASSES, generator=torch.Generator().manual_seed(0))
    utility = Utility.from_costs(tables.numpy(), decisions=["stay", "go"], outcomes=["a", "b", "c"])
    torch.manual_seed(0)
    (x, labels), posterior = sentences(30), MCDropout(Encoder())
    fit(posterior, LossCalibrated(utility, samples=2), (x, labels), config=QUICK, progress=False)
    draws = posterior.draw(4, seed=0)
    decisions = decide(draws(x, memory=20_000), utility)
    expected = -torch.einsum("bdc,bc->bd", tables, draws(x).mean_probs())
    torch.testing.assert_close(decisions.utilities.float(), expected)
    with pytest.raises(StakesError, match="30"):
        decide(draws(inputs.rows(x, slice(7))), utility)


class Ragged(Examples):
    """Sentences of different lengths, each batch padded to its own longest: what a user's collate does."""

    def __init__(self, count: int) -> None:
        self.x, self.labels = sentences(count, length=9)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        for index in torch.split(order, size):
            longest = int(self.x["attention_mask"][index].sum(1).max())
            x = {key: tensor[index, :longest] for key, tensor in self.x.items()}
            yield Batch(index, x, self.labels[index], None)


@pytest.mark.parametrize("goal", OBJECTIVES)
def test_batches_padded_to_their_own_longest(goal: str) -> None:
    torch.manual_seed(0)
    posterior, examples = MCDropout(Encoder(0.1)), Ragged(40)
    assert len({batch.x["input_ids"].shape for batch in examples.in_order(4)}) > 2  # type: ignore[index, call-overload, union-attr]
    config = Training(epochs=3, batch_size=4, learning_rate=0.01, samples=2)
    history = fit(posterior, OBJECTIVES[goal](), examples, examples, utility=COSTS, config=config, progress=False)
    assert history.epochs[-1].loss < history.epochs[0].loss
    assert len(history.epochs) == 3


def test_a_class_for_every_token() -> None:
    torch.manual_seed(0)
    (x, _), posterior = sentences(40), MCDropout(Encoder(0.1, each_token=True))
    labels = x["input_ids"] % CLASSES  # (B, T)
    config = Training(epochs=12, batch_size=10, learning_rate=0.02, samples=3)
    history = fit(
        posterior, LossCalibrated(COSTS, refresh="running"), (x, labels), (x, labels),
        utility=COSTS, config=config, progress=False,
    )  # fmt: skip
    assert history.epochs[-1].loss < history.epochs[0].loss / 2
    choice = decide(posterior.draw(5, seed=0)(x), COSTS).choice
    assert (choice == labels).float().mean() > 0.9


class Pairs(Dataset):
    """Single examples, whose inputs are a dict or a tuple of tensors."""

    def __init__(self, x: dict[str, Tensor], labels: Tensor, named: bool) -> None:
        self.x, self.labels, self.named = x, labels, named

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[object, Tensor]:
        example = {key: tensor[index] for key, tensor in self.x.items()}
        return example if self.named else tuple(example.values()), self.labels[index]


@pytest.mark.parametrize("named", [True, False])
def test_a_dataset_gives_the_same_as_tensors(named: bool) -> None:
    results = []
    x, labels = sentences(24)
    for data in ((x, labels), Pairs(x, labels, named)):
        torch.manual_seed(0)
        posterior = MCDropout(Encoder())
        fit(posterior, Standard(), data, config=QUICK, progress=False)
        results.append(posterior.state_dict())
    assert all(torch.equal(value, results[1][key]) for key, value in results[0].items())


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_fabric_moves_and_casts_every_tensor(precision: str) -> None:
    torch.manual_seed(0)
    data, posterior = customers(40), MCDropout(TwoBranches())
    objective = LossCalibrated(COSTS, samples=2, refresh="epoch")
    history = fit(posterior, objective, data, data, utility=COSTS, config=QUICK, progress=False, precision=precision)
    assert history.epochs[-1].loss < history.epochs[0].loss
    assert posterior.network.out.weight.dtype == (torch.float64 if precision == "64-true" else torch.float32)
    if precision == "32-true":
        torch.manual_seed(0)
        other = MCDropout(TwoBranches())
        assert history == fit(other, objective, data, data, utility=COSTS, config=QUICK, progress=False)


class Finished(MCDropout):
    def finish(self, batches: object) -> None:
        self.seen = [(x, labels) for x, labels in batches]  # type: ignore[attr-defined]


def test_finish_gets_the_inputs_as_they_are() -> None:
    (x, labels), posterior = customers(40), Finished(TwoBranches())
    fit(posterior, Standard(), (x, labels), config=Training(epochs=1), progress=False, precision="64-true")
    numbers, category = inputs.cat([batch for batch, _ in posterior.seen])
    assert torch.equal(numbers, x[0].double())
    assert torch.equal(category, x[1])


def test_wrong_examples_are_refused() -> None:
    x, labels = sentences(10)
    posterior = MCDropout(Encoder())
    for wrong in ({**x, "attention_mask": x["attention_mask"][:5]}, list(x.values()), {"inner": x}):
        with pytest.raises(StakesError, match="expected inputs as one tensor, or a tuple or dict"):
            fit(posterior, Standard(), (wrong, labels), progress=False)  # type: ignore[arg-type]
    with pytest.raises(StakesError, match="10 examples and 9 labels"):
        fit(posterior, Standard(), (x, labels[:9]), progress=False)
    with pytest.raises(StakesError, match="a weight for each of 10 examples"):
        fit(posterior, Standard(), (x, labels, torch.ones(9)), progress=False)


def test_what_takes_one_tensor_says_so() -> None:
    x, labels = customers(30)
    examples = TensorExamples(x, labels)
    members = [MCDropout(TwoBranches()) for _ in range(2)]
    with pytest.raises(StakesError, match=r"one tensor of inputs for models that are trained together, but got \(\(30"):
        fit_together(members, Standard(), [examples, examples], model_seeds=[0, 1])
    with pytest.raises(StakesError, match="one tensor of inputs for models that are trained together"):
        Stack(members).outputs(x)
    with pytest.raises(StakesError, match="one tensor of inputs for boosted trees"):
        BoostedTrees.fit(examples, None, CLASSES, seed=0)
    trees = BoostedTrees.fit(TensorExamples(x[0], labels), None, CLASSES, seed=0)
    with pytest.raises(StakesError, match="one tensor of inputs for boosted trees"):
        trees(x).mean_probs()
