"""Training examples by position: tensors in memory, or any map-style dataset."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from stakes.errors import StakesError

IN_MEMORY_BLOCK = 2048  # examples
IN_MEMORY_NUMBERS = 2**21  # numbers in them, so that a block of images is smaller than one of rows


class Batch(NamedTuple):
    positions: Tensor  # (B,) of the examples in the set
    x: Tensor  # (B, ...)
    labels: Tensor  # (B, ...) integers
    weights: Tensor | None  # (B,)


class Examples(ABC):
    """A fixed set of labelled examples, read in any order."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        """The examples at ``order``, in batches of ``size``."""

    @abstractmethod
    def block(self, batch_size: int) -> int:
        """A good batch size where nothing has to be learnt."""

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """All the examples as they stand, for evaluation."""
        return self.batches(torch.arange(len(self)), self.block(batch_size))


class TensorExamples(Examples):
    """``x`` and integer ``labels`` in memory, and a weight for each example if they differ."""

    def __init__(self, x: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        if len(x) != len(labels) or len(x) == 0:
            raise StakesError(f"expected a label for each of at least one example, but got {len(x)} and {len(labels)}")
        if labels.dtype != torch.int64:
            raise StakesError(f"expected labels as int64 class numbers, but got {labels.dtype}: use labels.long()")
        if weights is not None and weights.shape != (len(x),):
            raise StakesError(f"expected a weight for each of {len(x)} examples, but got {tuple(weights.shape)}")
        self.x, self.labels, self.weights = x, labels, weights

    def __len__(self) -> int:
        return len(self.x)

    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        for index in torch.split(order, size):
            weights = None if self.weights is None else self.weights[index]
            yield Batch(index, self.x[index], self.labels[index], weights)

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        for rows in torch.split(torch.arange(len(self)), self.block(batch_size)):
            part = slice(int(rows[0]), int(rows[-1]) + 1)  # a view, where an index would copy
            yield Batch(rows, self.x[part], self.labels[part], None if self.weights is None else self.weights[part])

    def block(self, batch_size: int) -> int:
        return max(batch_size, min(IN_MEMORY_BLOCK, IN_MEMORY_NUMBERS // self.x[0].numel()))

    def subset(self, rows: Tensor) -> "TensorExamples":
        return TensorExamples(self.x[rows], self.labels[rows], None if self.weights is None else self.weights[rows])


class StackedExamples(Examples):
    """The examples of K models side by side: row i holds one of each, ``x (B, K, ...)`` and ``labels (B, K)``.

    Each model has its own random order of rows, so that no two see the same batches.
    """

    def __init__(self, sets: Sequence[TensorExamples], orders: Sequence[Tensor]) -> None:
        if len({len(one) for one in sets}) != 1 or any(one.weights is not None for one in sets):
            raise StakesError("expected as many examples, without weights, for every model that is trained together")
        shared = all(one.x is sets[0].x for one in sets)
        self._x = sets[0].x if shared else torch.cat([one.x for one in sets])
        self._labels = torch.cat([one.labels for one in sets])
        self._orders = torch.stack(list(orders))  # (K, N)
        self._starts = torch.arange(len(sets)).unsqueeze(1) * len(sets[0])  # of a model's rows in what was joined
        self._x_starts = self._starts * (not shared)

    def __len__(self) -> int:
        return self._orders.shape[1]

    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        for index in torch.split(order, size):
            own = self._orders[:, index]  # (K, B)
            x, labels = self._x[own + self._x_starts], self._labels[own + self._starts]
            yield Batch(index, x.transpose(0, 1), labels.T, None)

    def block(self, batch_size: int) -> int:
        return batch_size


class DatasetExamples(Examples):
    """A dataset of ``(x, label)`` pairs, collated by PyTorch's own loader; ``workers`` read ahead."""

    def __init__(self, dataset: Dataset[Any], workers: int = 0) -> None:
        self.dataset, self.workers = dataset, workers
        if len(self) == 0:
            raise StakesError("expected at least one example, but the dataset is empty")

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        chunks = torch.split(order, size)
        loader = DataLoader(
            self.dataset,
            batch_sampler=[chunk.tolist() for chunk in chunks],
            num_workers=self.workers,
            generator=torch.Generator(),  # of its own, so that the network's randomness stays in step
        )
        for index, (x, labels) in zip(chunks, loader, strict=True):
            yield Batch(index, x, labels, None)

    def block(self, batch_size: int) -> int:
        return batch_size


def as_examples(data: Examples | Dataset[Any] | tuple[Tensor, ...]) -> Examples:
    """Whatever the caller has: examples, a pair (or triple) of tensors, or a dataset."""
    if isinstance(data, Examples):
        return data
    return TensorExamples(*data) if isinstance(data, tuple) else DatasetExamples(data)
