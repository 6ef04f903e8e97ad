"""Training examples from PyTorch's datasets and loaders.

Batches are tuples ``(x, labels)`` or ``(x, labels, weights)``, or dicts with ``labels`` (and ``weights``) whose other
entries are the network's keyword arguments, as datasets of Hugging Face have them.

Random numbers in a dataset (augmentation), a sampler or a collate function come from the global generators of PyTorch,
NumPy and Python, or from the generators that the loader was given. `fit` seeds them for every epoch and process, and
starts workers for every pass: what a run sees follows from its seed, also after it was interrupted.
"""

import operator
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, SubsetRandomSampler

from stakes import inputs, seeds
from stakes.errors import StakesError, StakesWarning
from stakes.inputs import Inputs
from stakes.training.examples import Batch, EpochData, Examples, Shard, TensorExamples

Data = Examples | DataLoader[Any] | Dataset[Any] | tuple[Inputs, Tensor] | tuple[Inputs, Tensor, Tensor | None]


def as_examples(data: Data, count: int | None = None) -> Examples:
    """The examples of what a user may pass; ``count`` is how many there are, where a loader or stream cannot say."""
    if isinstance(data, DataLoader):
        return (StreamExamples if isinstance(data.dataset, IterableDataset) else LoaderExamples)(data, count)
    if isinstance(data, IterableDataset):
        return StreamExamples(data, count)
    if count is not None:
        raise StakesError(
            f"expected examples= with a DataLoader or an IterableDataset only: {_kind(data)} has a length"
        )
    if isinstance(data, Examples):
        return data
    if isinstance(data, tuple):
        return TensorExamples(*data)
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise StakesError(f"expected (x, labels), a Dataset or a DataLoader to train on, but got {_kind(data)}")
    return DatasetExamples(data)


class DatasetExamples(Examples):
    """A map-style dataset, in batches of `fit`'s own; ``workers`` are processes that read ahead."""

    def __init__(self, dataset: Dataset[Any], workers: int = 0) -> None:
        self._loader: DataLoader[Any] = DataLoader(dataset, num_workers=workers)
        if len(self) == 0:
            raise StakesError("expected at least one example, but the dataset is empty")

    def __len__(self) -> int:
        return len(self._loader.dataset)  # type: ignore[arg-type]

    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        return self._read([chunk.tolist() for chunk in torch.split(order, size)])

    def _read(self, chunks: Sequence[list[int]]) -> Iterator[Batch]:
        """The examples at each chunk of positions as a batch."""
        for chunk, items in zip(chunks, _with_batches(self._loader, batch_sampler=chunks), strict=True):
            yield as_batch(items, torch.tensor(chunk))


class LoaderExamples(DatasetExamples):
    """A user's `DataLoader` over a map-style dataset: its sampler chooses the batches, and their order.

    An example is known by its index in the dataset. A pass for evaluation is one pass of the loader. A sampler or batch
    sampler with a ``set_epoch`` is told the number of the epoch.

    Several processes share what the sampler chooses in an epoch: an example always belongs to the same process, and
    each takes batches of the loader's size.
    """

    def __init__(self, loader: DataLoader[Any], count: int | None = None) -> None:
        _check(loader)
        if loader.batch_sampler is None:
            raise StakesError(
                "expected a DataLoader with a batch_size or a batch_sampler, but got batch_size=None: the examples of "
                "its batches have no index in the dataset. Give it a batch_size, or make the dataset an IterableDataset"
            )
        self._loader, self._count = loader, count
        self._sampler: Any = getattr(loader.batch_sampler, "sampler", loader.sampler)
        self.batch_size = getattr(loader.batch_sampler, "batch_size", None)
        if len(self) == 0:
            raise StakesError("expected at least one example, but the dataset of the loader is empty")

    def __len__(self) -> int:
        """How many examples there are to learn from: not how many the sampler takes in an epoch."""
        if self._count is not None:
            return self._count
        if isinstance(self._sampler, SubsetRandomSampler):
            return len(self._sampler)
        return _length(self._loader.dataset)

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        return self._read(self._chunks(epoch=0))

    def first(self) -> Batch:
        return next(self._read(self._chunks(epoch=0)[:1]))

    def epoch(self, shard: Shard, batch_size: int, *, alone: bool = True) -> EpochData:
        with seeds.seeded(shard.seed, "order", shard.epoch):  # the same in every process
            chunks = self._chunks(shard.epoch)
        if shard.world > 1:
            chunks = self._chunks_of_process(chunks, shard)
        positions = torch.tensor(sorted({index for chunk in chunks for index in chunk}))
        return EpochData(self._read(chunks), len(chunks), positions)

    def _chunks(self, epoch: int) -> list[list[int]]:
        """The positions of each batch of a pass, as the sampler chooses them now."""
        samplers: dict[int, Any] = {
            id(each): each for each in (self._sampler, self._loader.sampler, self._loader.batch_sampler)
        }
        generators = [getattr(each, "generator", None) for each in (self._loader, *samplers.values())]
        for each in samplers.values():
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)
        try:
            with _reseeded([each for each in generators if isinstance(each, torch.Generator)]):
                chunks = [[operator.index(index) for index in chunk] for chunk in self._loader.batch_sampler or ()]
        except TypeError as error:
            raise StakesError(
                f"expected a sampler of positions in the dataset, integers, but got others: {error}"
            ) from None
        if not chunks:
            raise StakesError(
                "expected at least one batch in a pass of the DataLoader, but it has none: use a smaller batch_size, "
                "or drop_last=False"
            )
        return chunks

    def _chunks_of_process(self, chunks: list[list[int]], shard: Shard) -> list[list[int]]:
        """This process's share of an epoch, as long as that of the others: short ones begin again."""
        if type(self._loader.batch_sampler) is not BatchSampler or isinstance(self._sampler, DistributedSampler):
            raise StakesError(
                f"expected a DataLoader with a sampler that knows nothing of the {shard.world} processes, and a "
                "batch_size: fit shares the examples itself, and cannot share the batches of a batch_sampler. Use "
                "shuffle=True or a sampler, or train with devices=1"
            )
        order = torch.tensor([index for chunk in chunks for index in chunk])
        subset = isinstance(self._sampler, SubsetRandomSampler)
        members = torch.tensor(sorted(self._sampler.indices)) if subset else torch.arange(int(order.max()) + 1)
        owner = torch.zeros(int(members.max()) + 1, dtype=torch.int64)
        owner[members] = torch.arange(len(members)) % shard.world
        shares = [order[owner[order] == rank] for rank in range(shard.world)]
        if not all(map(len, shares)):
            raise StakesError(
                f"expected examples for each of {shard.world} processes, but the sampler chose some for "
                f"{sum(1 for share in shares if len(share))} of them only: train with fewer devices"
            )
        longest, mine = max(map(len, shares)), shares[shard.rank]
        batches = torch.split(mine.repeat(-(-longest // len(mine)))[:longest], self._loader.batch_sampler.batch_size)
        full = [chunk.tolist() for chunk in batches if len(chunk) == len(batches[0])]
        return full if self._loader.drop_last else [chunk.tolist() for chunk in batches]


class StreamExamples(Examples):
    """An `IterableDataset`, or a `DataLoader` over one: examples without an index, in the order in which they come."""

    indexed = False

    def __init__(self, data: IterableDataset[Any] | DataLoader[Any], count: int | None = None) -> None:
        self._own_batches = isinstance(data, DataLoader)
        self._loader: DataLoader[Any] = data if isinstance(data, DataLoader) else DataLoader(data)
        _check(self._loader)
        self._count = count
        self.batch_size = self._loader.batch_size if self._own_batches else None

    def __len__(self) -> int:
        return _length(self._loader.dataset) if self._count is None else self._count

    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        raise StakesError("an IterableDataset has no order but its own: use a map-style dataset, with __getitem__")

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        loader = self._loader
        loader_batching = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        empty = True
        for items in _with_batches(loader, **loader_batching if self._own_batches else {"batch_size": batch_size}):
            empty = False
            yield as_batch(items, None)
        if empty:
            raise StakesError("expected at least one batch from the IterableDataset, but a pass over it has none")

    def first(self) -> Batch:
        return next(self.in_order(2))

    def epoch(self, shard: Shard, batch_size: int, *, alone: bool = True) -> EpochData:
        if shard.world > 1:
            raise StakesError(
                f"an IterableDataset cannot be shared by {shard.world} processes, which have to take equally many "
                "steps: use a map-style dataset, or train with devices=1"
            )
        return EpochData(self.in_order(batch_size), None, None)


def as_batch(items: Any, positions: Tensor | None) -> Batch:
    """What a collate function made, as a batch."""
    x, labels, weights = inputs.labelled(items)
    count = inputs.count(x)
    if {count} != {len(each) for each in (labels, weights, positions) if each is not None}:
        raise StakesError(
            f"expected a label (and a weight) for each example of a batch, but got {count} inputs and {len(labels)} "
            f"labels{'' if positions is None else f' of {len(positions)} chosen'}: the collate_fn has to keep them all"
        )
    return Batch(positions, x, labels, weights)


def _with_batches(loader: DataLoader[Any], **batching: Any) -> DataLoader[Any]:
    """The loader with other batches. Its workers are new, and seeded by a copy of the global generator: the network's
    randomness does not depend on them.
    """
    return DataLoader(
        loader.dataset,
        **batching,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        generator=torch.Generator().set_state(torch.get_rng_state()),
    )


@contextmanager
def _reseeded(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Seed the generators by their own seed and that of the global generator; restore them on exit."""
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seeds.derive(torch.initial_seed(), generator.initial_seed()))
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def _check(loader: DataLoader[Any]) -> None:
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise StakesError(
            f"expected a DataLoader of PyTorch, but got {_kind(loader)} with an __iter__ of its own, which fit cannot "
            "keep: pass a DataLoader with the same dataset and collate_fn"
        )
    if loader.persistent_workers:
        message = "persistent_workers has no effect in fit: workers start anew in every epoch, to be seeded for it"
        warnings.warn(message, StakesWarning, stacklevel=5)


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise StakesError(
            f"expected the number of training examples, by which the KL is divided, but {_kind(dataset)} has no "
            "length: pass examples= to fit"
        ) from None


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
