"""Training examples: the contract, and tensors in memory. Datasets and loaders are in `loaders`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from stakes import inputs, seeds
from stakes.errors import StakesError
from stakes.inputs import Inputs

IN_MEMORY_BLOCK = 2048  # examples
IN_MEMORY_NUMBERS = 2**21  # numbers in them, so that a block of images is smaller than one of rows


class Batch(NamedTuple):
    positions: Tensor | None  # (B,) of the examples in the set; None in a stream, where examples have none
    x: Inputs  # (B, ...)
    labels: Tensor  # (B, ...) class numbers or amounts
    weights: Tensor | None  # (B,), or one for each label


class Shard(NamedTuple):
    """Which epoch, and which process's part of it."""

    seed: int
    epoch: int  # from 1
    rank: int = 0
    world: int = 1


class EpochData(NamedTuple):
    """What one process trains on in one epoch."""

    batches: Iterable[Batch]
    batch_count: int | None  # None if that is not known before the last
    positions: Tensor | None  # of all the examples in them; None in a stream


class Examples(ABC):
    """A fixed set of labelled examples, read in any order."""

    indexed: bool = True  # whether batches say the positions of their examples
    batch_size: int | None = None  # of the data's own batches; None: `fit` chooses

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

    def first(self) -> Batch:
        """A small batch, to look at before training."""
        return next(self.batches(torch.arange(min(2, len(self))), 2))

    def epoch(self, shard: Shard, batch_size: int, *, alone: bool = True) -> EpochData:
        """Shuffled batches for training; every process keeps the same examples, equally many, in all epochs.

        Without ``alone``, an example that would be alone in the last batch is left out, another one in each epoch.
        """
        per_process = -(-len(self) // shard.world)
        positions = torch.arange(per_process * shard.world)[shard.rank :: shard.world] % len(self)
        order = positions[torch.randperm(per_process, generator=seeds.generator(shard.seed, "order", shard.epoch))]
        if not alone and per_process > 1 and per_process % batch_size == 1:
            order = order[:-1]
        return EpochData(self.batches(order, batch_size), -(-len(order) // batch_size), positions)


class TensorExamples(Examples):
    """``x`` and ``labels`` in memory, class numbers or amounts, with an optional weight for each example or label.

    ``x`` is one tensor, or a tuple or dict of tensors: ``({"input_ids": ids, "attention_mask": mask}, labels)``.
    """

    def __init__(self, x: Inputs, labels: Tensor, weights: Tensor | None = None) -> None:
        count = inputs.count(x)
        if count != len(labels):
            raise StakesError(f"expected a label for each example, but got {count} examples and {len(labels)} labels")
        if weights is not None and weights.shape not in ((count,), labels.shape):
            raise StakesError(
                f"expected a weight for each of {count} examples, or for each label, {tuple(labels.shape)}, but got "
                f"{tuple(weights.shape)}"
            )
        if weights is not None:
            inputs.require_weights(weights)
        self.x, self.labels, self.weights = x, inputs.class_numbers(labels), weights

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
