"""One seed, many independent named streams of random numbers.

>>> derive(7, "split") == derive(7, "split")
True
>>> derive(7, "split") == derive(7, "init")
False
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream called ``names`` under ``seed``; the same on every machine."""
    text = repr((int(seed), *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *names: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, *names))


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    return np.random.default_rng(derive(seed, *names))


@contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """The global generators of PyTorch, NumPy and Python follow the stream called ``names``; restored on exit.

    For code that takes no generator: the initialisation of layers, ``nn.Dropout`` in training, augmentation.
    The generators belong to the process: do not use this in two threads at once.
    """
    # Not torch.random.fork_rng and manual_seed: they visit every accelerator there could be, for a millisecond.
    cuda = torch.cuda.is_available()
    before = torch.get_rng_state(), torch.cuda.get_rng_state_all() if cuda else []
    others = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(derive(seed, *names))
    np.random.seed(derive(seed, *names) % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(derive(seed, *names))
    if cuda:
        torch.cuda.manual_seed_all(derive(seed, *names))
    try:
        yield
    finally:
        random.setstate(others[0])
        np.random.set_state(others[1])  # noqa: NPY002
        torch.set_rng_state(before[0])
        if cuda:
            torch.cuda.set_rng_state_all(before[1])
