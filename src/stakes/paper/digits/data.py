"""MNIST from its original idx files, checked."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stakes.errors import StakesError
from stakes.training.examples import TensorExamples

PIXELS, CLASSES = 784, 10
FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", 60_000),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", 10_000),
}
_IMAGES_MAGIC, _LABELS_MAGIC = 2051, 2049


def read_digits(folder: Path, part: str) -> TensorExamples:
    """The "train" or "test" images in ``folder``: pixels in [0, 1] as (N, 784), labels as (N,)."""
    image_file, label_file, count = FILES[part]
    images = _read_idx(_find(folder, image_file), _IMAGES_MAGIC)
    labels = _read_idx(_find(folder, label_file), _LABELS_MAGIC)
    if images.shape != (count, 28, 28) or labels.shape != (count,):
        raise StakesError(
            f"{folder}: expected {count} {part} images of 28 x 28 with labels, "
            f"but got {images.shape} and {labels.shape}"
        )
    if labels.max() >= CLASSES:
        raise StakesError(f"{folder / label_file}: expected labels from 0 to 9, but got {labels.max()}")
    x: Tensor = torch.from_numpy(images.reshape(count, PIXELS)).float() / 255
    return TensorExamples(x, torch.from_numpy(labels.astype(np.int64)))


def _find(folder: Path, name: str) -> Path:
    for path in (folder / "mnist" / name, folder / name):
        if path.is_file():
            return path
    names = ", ".join(name for images, labels, _ in FILES.values() for name in (images, labels))
    raise StakesError(
        f"{folder}: expected the MNIST files {names} here or in mnist/ below (the original idx files of LeCun, "
        f"Cortes and Burges), but {name} is missing; point --data or STAKES_DATA to them"
    )


def _read_idx(path: Path, magic: int) -> NDArray[np.uint8]:
    try:
        with gzip.open(path) as file:
            content = file.read()
        first, *shape = struct.unpack(f">{1 + content[3]}i", content[: 4 * (1 + content[3])])
        values = np.frombuffer(content, dtype=np.uint8, offset=4 * (1 + content[3])).copy()
        if first != magic:
            raise ValueError(f"its first number is {first}, not {magic}")
        return values.reshape(shape)
    except (OSError, EOFError, zlib.error, ValueError, IndexError, struct.error) as error:
        raise StakesError(f"{path}: expected a gzipped idx file, but it is damaged ({error})") from None
