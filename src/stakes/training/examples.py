"""Training examples by position: tensors in memory, or any map-style dataset."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from stakes import inputs
from stakes.errors import StakesError
from stakes.inputs import Inputs

IN_MEMORY_BLOCK = 2048  # examples
IN_MEMORY_NUMBERS = 2**21  # numbers in them, so that a block of images is smaller than one of rows


class Batch(NamedTuple):
    positions: Tensor  # (B,) of the examples in the set
    x: Inputs  # (B, ...)
    labels: Tensor  # (B, ...) integers
    weights: Tensor | None  # (B,)


class Examples(ABC):
    """A fixed set of labelled examples, read in any order."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        """The examples at ``order``, in batches of ``size``."""

    def block(self, batch_size: int) -> int:
        """The batch size to use for evaluation."""
        return batch_size

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """All the examples in order, for evaluation."""
        return self.batches(torch.arange(len(self)), self.block(batch_size))


class TensorExamples(Examples):
    """``x`` and ``labels`` in memory, class numbers or amounts, with an optional weight for each example.

    ``x`` is one tensor, or a tuple or dict of tensors: ``({"input_ids": ids, "attention_mask": mask}, labels)``.
    """

    def __init__(self, x: Inputs, labels: Tensor, weights: Tensor | None = None) -> None:
        count = inputs.count(x)
        if count != len(labels):
            raise StakesError(f"expected a label for each example, but got {count} examples and {len(labels)} labels")
        if labels.dtype != torch.int64 and not labels.is_floating_point():
            raise StakesError(
                f"expected labels as int64 class numbers, or as floating-point amounts, but got {labels.dtype}: "
                "use labels.long()"
            )
        if weights is not None and weights.shape != (count,):
            raise StakesError(f"expected a weight for each of {count} examples, but got {tuple(weights.shape)}")
        self.x, self.labels, self.weights = x, labels, weights

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        for index in torch.split(order, size):
            yield Batch(index, *self._at(index))

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        for rows in torch.split(torch.arange(len(self)), self.block(batch_size)):
            part = slice(int(rows[0]), int(rows[-1]) + 1)  # a view, where an index would copy
            yield Batch(rows, *self._at(part))

    def block(self, batch_size: int) -> int:
        numbers = sum(tensor[0].numel() for tensor in inputs.tensors_of(self.x))
        return max(batch_size, min(IN_MEMORY_BLOCK, IN_MEMORY_NUMBERS // numbers))

    def subset(self, rows: Tensor) -> "TensorExamples":
        return TensorExamples(*self._at(rows))

    def _at(self, rows: Tensor | slice) -> tuple[Inputs, Tensor, Tensor | None]:
        return inputs.rows(self.x, rows), self.labels[rows], None if self.weights is None else self.weights[rows]


class DatasetExamples(Examples):
    """A dataset of ``(x, label)`` pairs, collated by PyTorch's `DataLoader`; ``workers`` are processes that read ahead.

    Random numbers in the dataset (augmentation) come from the global generators of PyTorch, NumPy and Python, which
    `fit` seeds for every epoch and process.
    """

    def __init__(self, dataset: Dataset[Any], workers: int = 0) -> None:
        self.dataset, self.workers = dataset, workers
        if len(self) == 0:
            raise StakesError("expected at least one example, but the dataset is empty")

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        chunks = torch.split(order, size)
        # The workers are seeded by a copy of the global generator: the network's randomness does not depend on them.
        generator = torch.Generator().set_state(torch.get_rng_state())
        loader = DataLoader(
            self.dataset,
            batch_sampler=[chunk.tolist() for chunk in chunks],
            num_workers=self.workers,
            generator=generator,
        )
        for index, (x, labels) in zip(chunks, loader, strict=True):
            # PyTorch collates tuples to lists.
            yield Batch(index, tuple(x) if isinstance(x, list) else x, labels, None)


Data = Examples | Dataset[Any] | tuple[Inputs, Tensor] | tuple[Inputs, Tensor, Tensor | None]


def as_examples(data: Data) -> Examples:
    """Examples from examples, from a pair (or triple) of inputs, labels and weights, or from a dataset."""
    if isinstance(data, Examples):
        return data
    return TensorExamples(*data) if isinstance(data, tuple) else DatasetExamples(data)
