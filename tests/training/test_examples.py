"""Random numbers in a dataset, drawn in this process or in workers, follow the run."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from stakes import MLP, Categorical, MCDropout, StakesError, Standard, Training, Utility, fit, seeds
from stakes.posteriors import Posterior
from stakes.training import DatasetExamples, Epoch

CONFIG = Training(epochs=3, batch_size=4, samples=2, checkpoint_seconds=0)


class Augmented(Dataset):
    """Rows of random numbers from the three generators that augmentation draws from."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([float(torch.rand(())), np.random.rand(), random.random()]), index % 2  # noqa: NPY002


SEEN: list[Tensor] = []
NOISE = itertools.count()


def disturb(noise: int) -> None:
    """Change the global generators, whose state must not matter to a run."""
    torch.manual_seed(noise)
    random.seed(noise)
    np.random.seed(noise)  # noqa: NPY002


class Recording(Standard):
    def losses(self, posterior: Posterior, x: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        SEEN.append(x.clone())
        return super().losses(posterior, x, labels, index)


def seen_in_training(workers: int, seed: int = 0, **options: object) -> Tensor:
    """(epochs, examples, 3) what the network sees."""
    SEEN.clear()
    torch.manual_seed(0)
    posterior = MCDropout(MLP(3, 2, (4,), 0.2))
    disturb(next(NOISE))
    train = DatasetExamples(Augmented(), workers)
    fit(posterior, Recording(), train, config=CONFIG, seed=seed, **{"progress": False, **options})
    return torch.cat(SEEN).reshape(-1, 8, 3)


def batches(workers: int, *stream: int | str) -> Tensor:
    with seeds.seeded(*stream):
        return torch.cat([batch.x for batch in DatasetExamples(Augmented(), workers).batches(torch.arange(8), 4)])


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_differs_by_epoch_and_seed_and_is_reproducible(workers: int) -> None:
    first, again, other = seen_in_training(workers), seen_in_training(workers), seen_in_training(workers, seed=1)
    assert torch.equal(first, again)
    for generator in range(3):
        numbers = torch.cat([first, other])[..., generator]
        assert len(numbers.unique()) == numbers.numel() == 48, "every epoch and every seed draw their own"


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_differs_by_process(workers: int) -> None:
    """`fit` seeds an epoch by its number and the rank of the process."""
    ranks = torch.stack([batches(workers, 0, "epoch", 1, rank) for rank in range(2)])
    assert all(len(ranks[..., generator].unique()) == 16 for generator in range(3))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_sees_the_augmentation_of_an_uninterrupted_one(workers: int, tmp_path: Path) -> None:
    def stop(epoch: Epoch) -> None:
        if epoch.number == 1:
            raise KeyboardInterrupt

    whole = seen_in_training(workers)
    with pytest.raises(KeyboardInterrupt):
        seen_in_training(workers, checkpoint=tmp_path / "checkpoint", progress=stop)
    assert torch.equal(seen_in_training(workers, checkpoint=tmp_path / "checkpoint", resume=True), whole[1:])


def test_workers_do_not_change_the_randomness_of_the_network() -> None:
    with seeds.seeded(0):
        list(DatasetExamples(Augmented(), workers=1).batches(torch.arange(8), 4))
        after = torch.rand(3)
    with seeds.seeded(0):
        assert torch.equal(torch.rand(3), after)


@pytest.mark.parametrize("workers", [0, 1])
def test_validation_on_random_examples_follows_the_seed(workers: int) -> None:
    results = []
    for noise in range(2):
        torch.manual_seed(0)
        posterior = MCDropout(MLP(3, 2, (4,), 0.2))
        disturb(noise)
        train, held_out = (torch.eye(8)[:, :3], torch.arange(8) % 2), DatasetExamples(Augmented(), workers)
        utility = Utility.diagonal("ab")
        results.append(fit(posterior, Standard(), train, held_out, utility=utility, config=CONFIG, progress=False))
    assert results[0] == results[1]


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(StakesError, match="empty"):
        DatasetExamples(torch.utils.data.Subset(Augmented(), []))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_weights_that_are_none_are_refused(wrong: float) -> None:
    x, labels, weights = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), torch.tensor([1.0, wrong, 1.0, 0.0])
    model = MCDropout(MLP(3, 2))
    for data in ((x, labels, weights), DataLoader(TensorDataset(x, labels, weights), batch_size=4)):
        with pytest.raises(StakesError, match="a weight of 0 or more"):
            fit(model, Standard(), data, config=CONFIG, progress=False)


@pytest.mark.parametrize(("label", "weight"), [(-100, 1.0), (0, 0.0)])
def test_nothing_to_learn_is_refused(label: int, weight: float) -> None:
    x, labels, weights = torch.zeros(4, 3), torch.full((4,), label), torch.full((4,), weight)
    model = MCDropout(MLP(3, 2), Categorical(ignore_index=-100))
    for data in ((x, labels, weights), DataLoader(TensorDataset(x, labels, weights), batch_size=4)):
        with pytest.raises(StakesError, match="training labels that count"):
            fit(model, Standard(), data, config=CONFIG, progress=False)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_class_numbers_may_be_any_integers(dtype: torch.dtype) -> None:
    x, labels = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 4)
    results = []
    for given in (labels, labels.to(dtype)):
        for data in ((x, given), DataLoader(TensorDataset(x, given), batch_size=4)):
            torch.manual_seed(0)
            model = MCDropout(MLP(3, 2))
            history = fit(model, Standard(), data, data, utility=Utility.diagonal("ab"), config=CONFIG, progress=False)
            results.append(history)
    assert results[:2] == results[2:]
