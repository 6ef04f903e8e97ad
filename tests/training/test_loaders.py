"""What a user's loader, dataset or stream yields is what the network is trained on."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)  # fmt: skip

from stakes import MLP, LossCalibrated, MCDropout, StakesError, Standard, Training, Utility, fit
from stakes.errors import StakesWarning
from stakes.posteriors import Posterior
from stakes.training import Epoch
from stakes.training.examples import Shard
from stakes.training.loaders import LoaderExamples, as_examples

UTILITY = Utility.diagonal("abc")
CONFIG = Training(epochs=3, samples=2, checkpoint_seconds=0)
N = 20


def rows(count: int = N) -> tuple[Tensor, Tensor]:
    """Rows that begin with their own index."""
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    x[:, 0] = torch.arange(count)
    return x, torch.arange(count) % 3


def posterior(inputs: int = 3) -> Posterior:
    torch.manual_seed(0)
    return MCDropout(MLP(inputs, 3, (4,), 0.2))


def weights(of: Posterior) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in of.parameters()])


class Recording(Standard):
    """Keeps the batches of a run."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor | None, Any, Tensor]] = []

    def losses(self, posterior: Posterior, x: Any, labels: Tensor, index: Tensor | None) -> Tensor:
        self.seen.append((index, x, labels))
        return super().losses(posterior, x, labels, index)


def seen(train: Any, model: Posterior | None = None, **options: Any) -> list[tuple[Tensor | None, Any, Tensor]]:
    objective = Recording()
    fit(model or posterior(), objective, train, **{"config": CONFIG, "progress": False, **options})
    return objective.seen


# The loader's own batches ----------------------------------------------------------------------------------


def test_a_loader_trains_as_the_same_loader_in_a_bare_loop() -> None:
    x, labels = rows(N)
    loader = DataLoader(TensorDataset(x, labels), batch_size=6)
    network = nn.Sequential(nn.Dropout(1e-12), nn.Linear(3, 3, bias=False))
    start = network[1].weight.detach().clone().requires_grad_(True)
    for inputs, targets in itertools.chain(*[loader] * 3):
        loss = nn.functional.cross_entropy(inputs @ start.T, targets) + 4 / 2 * start.square().sum() / N
        (gradient,) = torch.autograd.grad(loss, start)
        start = (start - 0.01 * gradient).detach().requires_grad_(True)
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.01)  # noqa: E731
    fit(MCDropout(network, lengthscale=2.0), Standard(), loader, config=CONFIG, optimizer=sgd, progress=False)
    torch.testing.assert_close(network[1].weight.detach(), start.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_examples_are_known_by_their_index_in_the_dataset(workers: int, shuffle: bool) -> None:
    loader = DataLoader(TensorDataset(*rows()), 6, shuffle=shuffle, num_workers=workers, drop_last=True)
    batches = seen(loader)
    assert [len(labels) for _, _, labels in batches] == [6, 6, 6] * 3
    assert all(torch.equal(index, x[:, 0].long()) for index, x, _ in batches)
    orders = [torch.cat([index for index, _, _ in batches[3 * epoch : 3 * epoch + 3]]) for epoch in range(3)]
    assert torch.equal(orders[0], torch.arange(18)) != shuffle
    assert torch.equal(orders[0], orders[1]) != shuffle


class ByLength(Sampler[list[int]]):
    """Batches of sequences of about the same length, in another order each epoch."""

    def __init__(self, lengths: tuple[int, ...], size: int) -> None:
        self.lengths, self.size, self.epochs = lengths, size, []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        chunks = [order[first : first + self.size] for first in range(0, len(order), self.size)]
        random.shuffle(chunks)
        return iter(chunks)

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.size)


class Sentences(Dataset[dict[str, Tensor]]):
    """Sequences of the number of the example, of different lengths, as Hugging Face has them."""

    lengths = tuple(2 + number % 5 for number in range(N))

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": torch.full((self.lengths[index],), index), "labels": torch.tensor(index % 3)}


def padded(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    ids = nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True, padding_value=-1)
    return {
        "input_ids": ids.clamp_min(0),
        "attention_mask": ids >= 0,
        "labels": torch.stack([item["labels"] for item in items]),
        "weights": torch.ones(len(items)),
    }


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dropout, self.out = nn.Embedding(N, 8), nn.Dropout(0.1), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        tokens = self.embedding(input_ids) * attention_mask.unsqueeze(-1)
        return {"logits": self.out(self.dropout(tokens.sum(1) / attention_mask.sum(1, keepdim=True)))}


@pytest.mark.parametrize("refresh", ["step", "epoch", "running"])
def test_a_batch_sampler_and_a_collate_function_of_the_user_work_with_every_refresh(refresh: str) -> None:
    torch.manual_seed(0)
    model, sampler = MCDropout(Reader()), ByLength(Sentences.lengths, 4)
    loader = DataLoader(Sentences(), batch_sampler=sampler, collate_fn=padded)
    config = Training(epochs=30, batch_size=4, learning_rate=0.1, samples=2)
    objective = LossCalibrated(UTILITY, refresh=refresh, samples=2)
    history = fit(model, objective, loader, loader, utility=UTILITY, config=config, progress=False)
    assert history.best_utility == 1.0, "every example has its own word, and its own decision"
    assert [epoch for epoch in sampler.epochs if epoch] == list(range(1, len(history.epochs) + 1))


def test_batches_of_a_batch_sampler_are_as_it_made_them() -> None:
    loader = DataLoader(Sentences(), batch_sampler=ByLength(Sentences.lengths, 4), collate_fn=padded)
    batches = seen(loader, MCDropout(Reader()))
    for index, x, labels in batches:
        assert len({Sentences.lengths[number] for number in index.tolist()}) == 1
        assert torch.equal(x["input_ids"][:, 0], index)
        assert torch.equal(labels, index % 3)
        assert set(x) == {"input_ids", "attention_mask"}
    orders = [[int(index[0]) for index, _, _ in batches[5 * epoch : 5 * epoch + 5]] for epoch in range(3)]
    assert orders[0] != orders[1], "the sampler shuffles with Python's generator"
    assert orders == _firsts(loader)


def _firsts(loader: DataLoader[Any]) -> list[list[int]]:
    torch.manual_seed(7)
    random.seed(7)
    batches = seen(loader, MCDropout(Reader()))
    return [[int(index[0]) for index, _, _ in batches[5 * epoch : 5 * epoch + 5]] for epoch in range(3)]


@pytest.mark.parametrize("refresh", ["epoch", "running"])
def test_decisions_are_kept_by_index_whatever_the_sampler_chooses(refresh: str) -> None:
    """A sampler with replacement shows some examples twice and others not at all."""
    x, labels = rows()
    sampler = WeightedRandomSampler([1.0] * 10 + [5.0] * 10, 15)
    taken: list[tuple[Tensor, Tensor]] = []

    class Watching(LossCalibrated):
        def _decisions(self, posterior: Posterior, x: Any, *rest: Any) -> Tensor:
            choice = super()._decisions(posterior, x, *rest)
            taken.append((rest[-1], choice))
            return choice

    table = np.zeros((N, 3, 3))  # one table for each example: only one decision pays
    table[np.arange(N), np.arange(N) % 3] = 1.0
    utility = Utility.from_matrix(table, "abc", "abc")
    objective = Watching(utility, refresh=refresh)
    fit(posterior(), objective, DataLoader(TensorDataset(x, labels), 5, sampler=sampler), config=CONFIG, progress=False)
    assert len(taken) == 9
    assert all(torch.equal(choice, index % 3) for index, choice in taken)


@pytest.mark.parametrize("refresh", ["epoch", "running"])
def test_what_an_objective_remembers_stands_at_the_index_of_the_example(refresh: str) -> None:
    """Of a network that does not change: its own prediction for each example."""
    runs: list[LossCalibrated] = []

    class Kept(LossCalibrated):
        def fresh(self) -> "Kept":
            runs.append(super().fresh())
            return runs[-1]

    torch.manual_seed(0)
    network = nn.Sequential(nn.Dropout(1e-12), nn.Linear(3, 3))
    x, labels = rows()
    x[:, 0] /= N
    expected = network.eval()(x).softmax(-1).detach()
    loader = DataLoader(TensorDataset(x, labels), 6, shuffle=True)
    config = Training(epochs=2, learning_rate=1e-12)
    fit(MCDropout(network), Kept(UTILITY, refresh=refresh), loader, config=config, progress=False)
    memory = runs[0].state_dict()["memory"][:N]
    if refresh == "running":
        torch.testing.assert_close(memory.float(), expected, atol=2e-3, rtol=0)
    else:
        assert len(expected.argmax(-1).unique()) > 1
        assert torch.equal(memory.long(), expected.argmax(-1))


# Items -----------------------------------------------------------------------------------------------------


class AsDicts(Dataset[dict[str, Tensor]]):
    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return dict(zip(("x", "labels", "weights"), (tensor[index] for tensor in self.tensors), strict=False))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = MLP(3, 3, (4,), 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


@pytest.mark.parametrize("weighted", [False, True])
def test_tuples_dicts_datasets_loaders_and_tensors_train_the_same_network(weighted: bool) -> None:
    tensors = (*rows(), *([torch.rand(N, generator=torch.Generator().manual_seed(1))] if weighted else []))

    def trained(data: Any, batch_size: int | None = None) -> Tensor:
        torch.manual_seed(0)
        model = MCDropout(Named())
        config = Training(epochs=3, samples=2, batch_size=batch_size)
        fit(model, Standard(), data, data, utility=UTILITY, config=config, progress=False)
        return weights(model)

    shuffled = [trained(data, 8) for data in (tensors, TensorDataset(*tensors), AsDicts(*tensors))]
    loaded = [trained(DataLoader(data, 8)) for data in (TensorDataset(*tensors), AsDicts(*tensors))]
    for results in (shuffled, loaded):
        for other in results[1:]:
            torch.testing.assert_close(results[0], other)
    assert not torch.allclose(shuffled[0], loaded[0]), "fit shuffles a dataset, and keeps the order of a loader"


def test_inputs_of_several_tensors_come_from_tuples() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = MLP(3, 3, (4,), 0.2)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.network(torch.cat([left, right], 1))

    x, labels = rows()
    pairs = [((x[i, :1], x[i, 1:]), labels[i]) for i in range(N)]
    for data in (pairs, DataLoader(pairs, 8)):
        for index, (left, right), _ in seen(data, MCDropout(Two())):
            assert torch.equal(left, x[index, :1])
            assert torch.equal(right, x[index, 1:])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([(torch.ones(3), "a")] * 4, "have the dataset, or the collate_fn of the DataLoader, return them"),
        ([torch.ones(3)] * 4, "expected batches .*, but got a Tensor"),
        ([{"input": torch.ones(3), "label": 1}] * 4, "or dicts with labels, but got a dict"),
        ([{"x": [1, 2, 3], "labels": 1}] * 4, "expected inputs as one tensor.*'x': a list"),
        (DataLoader([(torch.ones(3), 1)] * 4, 2, collate_fn=lambda items: (torch.ones(1, 3), torch.tensor([1]))),
         "got 1 inputs and 1 labels of 2 chosen: the collate_fn has to keep them all"),
        (DataLoader([(torch.ones(3), 1)] * 4, batch_size=None), "expected a DataLoader with a batch_size"),
        (DataLoader([(torch.ones(3), 1)], batch_size=2, drop_last=True), "at least one batch .* drop_last=False"),
        (DataLoader([(torch.ones(3), 1)] * 4, batch_sampler=[["a"]]), "sampler of positions in the dataset, integers"),
        (DataLoader([(torch.ones(3), 1)] * 4, batch_size=3), "batch_size of the DataLoader, 3, but got 2"),
        (object(), r"expected \(x, labels\), a Dataset or a DataLoader to train on, but got a object"),
    ],
)  # fmt: skip
def test_what_is_no_labelled_example_is_refused(data: Any, message: str) -> None:
    with pytest.raises(StakesError, match=message):
        fit(posterior(), Standard(), data, config=Training(epochs=1, batch_size=2), progress=False)


def test_loaders_that_fit_cannot_copy_are_refused_or_warned_of() -> None:
    class Own(DataLoader[Any]):
        def __iter__(self) -> Any:
            return super().__iter__()

    with pytest.raises(StakesError, match="a Own with an __iter__ of its own"):
        as_examples(Own(TensorDataset(*rows())))
    with pytest.warns(StakesWarning, match="persistent_workers has no effect in fit"):
        as_examples(DataLoader(TensorDataset(*rows()), num_workers=1, persistent_workers=True))
    with pytest.raises(StakesError, match=r"examples= with a DataLoader or an IterableDataset only: a tuple has"):
        as_examples(rows(), 10)


def test_batch_norm_asks_for_drop_last_where_a_loader_leaves_one_example_alone() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 3))
    with pytest.raises(StakesError, match="or with drop_last=True in a DataLoader"):
        seen(DataLoader(TensorDataset(*rows(9)), 4), MCDropout(network))


# Random numbers --------------------------------------------------------------------------------------------


class Augmented(Dataset[tuple[Tensor, int]]):
    """Rows of random numbers from the three generators that augmentation draws from, and one set by a worker."""

    opened = 0.0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        numbers = [float(torch.rand(())), np.random.rand(), random.random()]  # noqa: NPY002
        return torch.tensor([*numbers, self.opened]), index % 3


def open_files(worker: int) -> None:
    torch.utils.data.get_worker_info().dataset.opened = 5.0


def augmented(workers: int, seed: int = 0, generator_seed: int = 3, **options: Any) -> Tensor:
    """(epochs, examples, 5) what the network sees, and the index."""
    generator = torch.Generator().manual_seed(generator_seed)
    torch.rand(random.randrange(9), generator=generator)  # how far it has come does not matter
    before = generator.get_state()
    torch.manual_seed(random.randrange(99))
    loader = DataLoader(
        Augmented(), 4, shuffle=True, num_workers=workers, generator=generator, worker_init_fn=open_files
    )
    batches = seen(loader, posterior(4), seed=seed, **options)
    assert torch.equal(generator.get_state(), before)
    return torch.cat([torch.cat([x, index[:, None]], 1) for index, x, _ in batches]).reshape(-1, 8, 5)


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_and_order_follow_the_seed_and_the_epoch(workers: int) -> None:
    first, again = augmented(workers), augmented(workers)
    assert torch.equal(first, again)
    others = [augmented(workers, seed=1), augmented(workers, generator_seed=4)]
    orders = torch.cat([first, *others])[..., 4]
    assert len(orders.unique(dim=0)) == 9, "every epoch, seed and seed of the loader's generator has its own order"
    numbers = torch.cat([first, others[0]])[..., :3]
    assert all(len(numbers[..., source].unique()) == 48 for source in range(3))
    assert set(first[..., 3].unique().tolist()) == {5.0 if workers else 0.0}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_sees_what_an_uninterrupted_one_does(workers: int, tmp_path: Path) -> None:
    def stop(epoch: Epoch) -> None:
        if epoch.number == 1:
            raise KeyboardInterrupt

    whole, file = augmented(workers), tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        augmented(workers, checkpoint=file, on_epoch=stop)
    assert torch.equal(augmented(workers, checkpoint=file, resume=True), whole[1:])


# How many there are ----------------------------------------------------------------------------------------


def test_the_number_of_examples_is_that_of_what_can_be_learnt_from() -> None:
    data = TensorDataset(*rows())
    counts = {
        len(as_examples(DataLoader(data, 6, drop_last=True))),
        len(as_examples(DataLoader(data, 6, sampler=WeightedRandomSampler([1.0] * N, 7)))),
        len(as_examples(DataLoader(data, 6, sampler=RandomSampler(data, num_samples=5)))),
    }
    assert counts == {N}
    assert len(as_examples(DataLoader(data, 6, sampler=SubsetRandomSampler(range(12))))) == 12
    assert len(as_examples(DataLoader(data, 6), 1000)) == 1000


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, count: int = N) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = torch.utils.data.get_worker_info()
        x, labels = rows(self.count)
        for index in range(0 if worker is None else worker.id, self.count, 1 if worker is None else worker.num_workers):
            yield x[index], labels[index]


class Sized(Stream):
    def __len__(self) -> int:
        return self.count


def test_a_stream_trains_as_the_same_rows_in_order() -> None:
    expected = posterior()
    fit(expected, Standard(), DataLoader(TensorDataset(*rows()), 6), config=CONFIG, progress=False)
    streams: list[tuple[Any, int | None, int | None]] = [
        (Stream(), N, 6), (Sized(), None, 6), (DataLoader(Stream(), 6), N, None), (DataLoader(Sized(), 6), None, None)
    ]  # fmt: skip
    for data, examples, size in streams:
        model, config = posterior(), Training(epochs=3, samples=2, batch_size=size)
        fit(model, Standard(), data, data, utility=UTILITY, config=config, examples=examples, progress=False)
        assert torch.equal(weights(model), weights(expected))
    batches = seen(DataLoader(Stream(), 6, num_workers=2), examples=N)
    assert all(index is None for index, _, _ in batches)
    assert sorted(torch.cat([x for _, x, _ in batches[:4]])[:, 0].tolist()) == list(range(N))


def test_a_stream_of_whole_batches_is_taken_as_it_is() -> None:
    class Batches(IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            x, labels = rows()
            return zip(x.split(7), labels.split(7), strict=True)

    batches = seen(DataLoader(Batches(), batch_size=None), examples=N)
    assert [len(labels) for _, _, labels in batches] == [7, 7, 6] * 3


def test_a_stream_without_a_length_is_refused() -> None:
    with pytest.raises(StakesError, match="by which the KL is divided, but a Stream has no length"):
        seen(Stream())
    with pytest.raises(StakesError, match="at least one batch from the IterableDataset"):
        seen(Stream(0), examples=4)


PER_EXAMPLE = Utility.from_matrix(np.eye(3)[None].repeat(N, 0), "abc", "abc")


@pytest.mark.parametrize(
    "objective",
    [LossCalibrated(UTILITY, refresh="epoch"), LossCalibrated(UTILITY, refresh="running"), LossCalibrated(PER_EXAMPLE)],
)
def test_objectives_that_need_an_index_refuse_a_stream_before_training(objective: LossCalibrated) -> None:
    class Untouched(Sized):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError

    with pytest.raises(StakesError, match=r"has to know which examples a batch holds.* use a map-style dataset"):
        fit(posterior(), objective, Untouched(), config=CONFIG, progress=False)


def test_costs_for_each_example_refuse_a_stream_of_validation() -> None:
    with pytest.raises(StakesError, match="validate on a map-style dataset"):
        fit(posterior(), Standard(), rows(), Sized(), utility=PER_EXAMPLE, config=CONFIG, progress=False)
    fit(posterior(), LossCalibrated(UTILITY), Sized(), Sized(), utility=UTILITY, config=CONFIG, progress=False)


def test_a_posterior_is_finished_on_one_pass_of_the_loader() -> None:
    class Finishing(MCDropout):
        def finish(self, batches: Any) -> None:
            self.passes = [torch.cat([x for x, _ in batches])[:, 0].tolist() for _ in range(2)]

    model = Finishing(MLP(3, 3, (4,), 0.2))
    chosen = list(range(0, N, 2))
    seen(DataLoader(TensorDataset(*rows()), 6, sampler=SubsetRandomSampler(chosen)), model)
    assert [sorted(numbers) for numbers in model.passes] == [chosen, chosen]


# Several processes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, 21])
def test_processes_share_the_examples_of_a_sampler(count: int) -> None:
    subset = SubsetRandomSampler(range(0, 2 * count, 2))
    for loader in (DataLoader(TensorDataset(*rows(count)), 4, shuffle=True),
                   DataLoader(TensorDataset(*rows(2 * count)), 4, sampler=subset)):  # fmt: skip
        examples, shares = LoaderExamples(loader), []
        for epoch in range(1, 4):
            data = [examples.epoch(Shard(0, epoch, rank, 2), 4) for rank in range(2)]
            assert data[0].batch_count == data[1].batch_count == 3
            numbers = [torch.cat([batch.positions for batch in part.batches]) for part in data]
            assert len(numbers[0]) == len(numbers[1])
            assert [part.positions.tolist() for part in data] == [sorted(set(part.tolist())) for part in numbers]
            shares.append([set(part.tolist()) for part in numbers])
        assert shares[0] == shares[1] == shares[2], "an example stays with its process"
        assert len(shares[0][0] | shares[0][1]) == count
        assert not shares[0][0] & shares[0][1]


def test_what_processes_cannot_share_is_refused() -> None:
    data = TensorDataset(*rows())
    own_batches = DataLoader(data, batch_sampler=[[0, 1], [2, 3]])
    distributed = DataLoader(data, 4, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    for loader in (own_batches, distributed):
        with pytest.raises(StakesError, match=r"cannot share the batches of a batch_sampler.* or train with devices=1"):
            LoaderExamples(loader).epoch(Shard(0, 1, 0, 2), 4)
    with pytest.raises(StakesError, match="an IterableDataset cannot be shared by 2 processes"):
        as_examples(Sized()).epoch(Shard(0, 1, 0, 2), 4)
    with pytest.raises(StakesError, match="some for 1 of them only"):
        LoaderExamples(DataLoader(data, 4, sampler=[0, 2, 4])).epoch(Shard(0, 1, 0, 2), 4)
    subset = DataLoader(Subset(data, [0, 2, 4]), 4)
    assert LoaderExamples(subset).epoch(Shard(0, 1, 1, 2), 4).positions.tolist() == [1]
    assert isinstance(subset.batch_sampler, BatchSampler)
