"""Section 6: a class for every pixel of street scenes: CamVid with SegNet-Basic (figures 1 and 6; tables 2, 3, 4)."""

import base64
import io
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from stakes import seeds
from stakes._io.parallel import Report
from stakes.decisions import RULES, decide
from stakes.errors import StakesError
from stakes.evaluation import metrics
from stakes.likelihoods import Categorical
from stakes.networks.segnet import SegNet
from stakes.objectives import LossCalibrated, Objective, Standard, Weighted
from stakes.outcomes import Outcomes
from stakes.paper.protocols import check_models, check_protocol
from stakes.paper.roads.data import CLASSES, RoadExamples, check_roads, read_roads
from stakes.paper.sweep import PAPER_MODELS, Cell, Row
from stakes.posteriors.base import Draws, Posterior
from stakes.training.config import Training
from stakes.training.fit import fit
from stakes.utility import TableUtility, Utility

RIGHT = 0.8
WRONG = {"Sky": 0.0, "Building": 0.0, "Car": 0.4, "Pedestrian": 0.4, "Cyclist": 0.4}
OTHERWISE_WRONG = 0.2
MAPPED = ("Car", "Pedestrian")


@dataclass(frozen=True)
class Roads:
    """The settings of the experiment.

    ``fair``: all models have the same number of epochs and keep the one with the highest validation utility;
    decisions come from a running mean. ``authors``: standard and weighted keep the epoch with the lowest
    validation NLL; calibrated takes decisions once an epoch, from 5 samples, and keeps the last of 1.75
    times as many epochs (105 to their 60).
    """

    name: ClassVar[str] = "roads"

    data: str = ""
    protocol: str = "fair"
    size: str = "360x480"  # height x width of the images
    width: float = 1.0  # factor of the network's channels
    seeds: int = 3
    methods: tuple[str, ...] = PAPER_MODELS
    dropout: float = 0.5
    lengthscale: float = 0.01
    epochs: int = 60
    batch_size: int = 4
    learning_rate: float = 1e-3
    momentum: float = 0.3
    crops: int = 0  # mirrored crops of each training image, beside the image itself
    test_samples: int = 10
    threads: int = 1

    @classmethod
    def preset(cls, name: str) -> Self:
        return cls() if name == "paper" else cls(size="96x128", width=0.5, epochs=15, batch_size=8, crops=1)

    def __post_init__(self) -> None:
        check_protocol(self.protocol)
        check_models(self.methods, PAPER_MODELS)
        self.shape()

    def shape(self) -> tuple[int, int]:
        """(height, width)."""
        height, mark, width = self.size.partition("x")
        if not (mark and height.isdigit() and width.isdigit()) or int(height) % 8 or int(width) % 8:
            raise StakesError(f"expected a size such as 96x128, both multiples of 8, but got {self.size!r}")
        return int(height), int(width)

    def check(self) -> None:
        check_roads(Path(self.data))

    def cells(self) -> list[Cell]:
        return [
            Cell.of(seed, protocol=self.protocol, size=self.size, width=self.width, method=name)
            for seed in range(self.seeds)
            for name in self.methods
        ]

    def run_cell(self, cell: Cell, report: Report) -> list[Row]:
        torch.set_num_threads(self.threads)
        train, validation, test = _parts(self.data, self.shape(), self.crops)
        (seed,) = cell.seeds
        authors = self.protocol == "authors"
        longer = authors and cell["method"] == "calibrated"
        config = Training(
            epochs=round(1.75 * self.epochs) if longer else self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=None,
            samples=self.test_samples,
            validate_every=3,
            select="nll" if authors else "utility",
        )
        posterior, objective = self.posterior(seed), self.objective(cell["method"])
        held_out = None if longer else validation
        history = fit(
            posterior, objective, train, held_out, utility=road_utility(), config=config, seed=seed, progress=report
        )
        draws = posterior.draw(self.test_samples, seeds.derive(seed, "predict"))
        counts, randomised = _evaluate(draws, test, self.batch_size)
        shared = {"best_epoch": history.best, "randomised_utility": randomised}
        rows = [
            {**dict(cell.axes), "seed": seed, "rule": rule, **shared, **_scores(rule_counts)}
            for rule, rule_counts in zip(RULES, counts, strict=True)
        ]
        if seed == 0:
            rows[-1]["maps"] = _maps(draws, test)
        return rows

    def posterior(self, seed: int) -> Posterior:
        spec = {"family": "dropout", "lengthscale": self.lengthscale}

        def network() -> nn.Module:
            net = SegNet(len(CLASSES), self.width, self.dropout)
            return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]  # a third faster

        return Posterior.from_spec(spec, network, Categorical(), seed)

    def objective(self, name: str) -> Objective:
        if name == "standard":
            return Standard()
        if name == "weighted":
            return Weighted(road_weights())
        if self.protocol == "authors":
            return LossCalibrated(road_utility(), samples=5, refresh="epoch", start="network")
        return LossCalibrated(road_utility(), refresh="running", momentum=self.momentum, start="network")


def road_utility() -> TableUtility:
    """The paper's table 4: false alarms for cars, pedestrians and cyclists cost less than other mistakes."""
    utility = Utility.diagonal(CLASSES, RIGHT)
    for name in CLASSES:
        utility = utility.with_row(name, WRONG.get(name, OTHERWISE_WRONG))
    return utility.with_cell("Pedestrian", "Cyclist", RIGHT).with_cell("Cyclist", "Pedestrian", RIGHT)


def road_weights() -> list[float]:
    """The paper does not state its weights here: these follow the rule of its digits, 1 / (1 - wrong / right)."""
    return [1 / (1 - WRONG.get(name, OTHERWISE_WRONG) / RIGHT) for name in CLASSES]


@lru_cache(maxsize=1)
def _parts(folder: str, size: tuple[int, int], crops: int) -> tuple[RoadExamples, RoadExamples, RoadExamples]:
    """Training images (and crops of them), validation and test images; decoded once in a process."""
    root = Path(folder)
    return read_roads(root, "train", size, crops=crops), read_roads(root, "val", size), read_roads(root, "test", size)


def _evaluate(draws: Draws, test: RoadExamples, batch_size: int) -> tuple[NDArray[np.int64], float]:
    """Confusion counts (rules, images, D, C) and the utility of deciding at random by the probabilities."""
    utility = road_utility()
    counts: list[list[NDArray[np.int64]]] = [[] for _ in RULES]
    randomised, pixels = 0.0, 0
    for batch in test.in_order(batch_size):
        probs = draws(batch.x).mean_probs()  # (B, H, W, C)
        for rule_counts, rule in zip(counts, RULES, strict=True):
            choice = decide(Outcomes.from_probs(probs), utility, rule).choice
            pairs = zip(choice, batch.labels, strict=True)
            rule_counts += [metrics.confusion_counts(chosen, true, utility) for chosen, true in pairs]
        column = utility.tensor(probs).T[batch.labels]  # (B, H, W, D)
        randomised += float((probs * column).sum())
        pixels += batch.labels.numel()
    return np.array(counts), randomised / pixels


def _scores(counts: NDArray[np.int64]) -> Row:
    """Scores under one rule from counts (images, D, C): over all pixels, and by image for intervals."""
    utility, total = road_utility(), counts.sum(0)
    iou = np.nan_to_num(metrics.iou(total, utility))
    hits, unions = metrics.overlaps(counts, utility)  # (images, C) each
    return {
        "utility": utility.mean_utility(total),
        "accuracy": metrics.accuracy(total, utility),
        "iou": iou.round(6).tolist(),
        "mean_iou": float(iou.mean()),
        "image_utilities": [round(utility.mean_utility(image), 5) for image in counts],
        "image_hits": hits.tolist(),
        "image_unions": unions.tolist(),
        "confusion": total.tolist(),
    }


def _maps(draws: Draws, test: RoadExamples) -> dict[str, dict[str, str]]:
    """For the test image with most pixels of a class: the image, its pixels of the class, their expected utility."""
    maps = {}
    for name in MAPPED:
        index = CLASSES.index(name)
        frame = int((test.labels == index).flatten(1).sum(1).argmax())
        probs = draws(next(test.batches(torch.tensor([frame]), 1)).x).mean_probs()[0]
        expected = road_utility().expected(Outcomes(probs))[..., index] / RIGHT
        pictures = {
            "image": test.images[frame].permute(1, 2, 0),
            "truth": 255 * (test.labels[frame] == index),
            "utility": 255 * expected.clamp(0, 1).cpu(),
        }
        maps[name] = {kind: _webp(picture) for kind, picture in pictures.items()}
    return maps


def _webp(picture: Tensor) -> str:
    """A picture, (H, W) or (H, W, 3) from 0 to 255, as lossless WebP in base64."""
    buffer = io.BytesIO()
    Image.fromarray(picture.byte().numpy()).save(buffer, "WEBP", lossless=True)
    return base64.b64encode(buffer.getvalue()).decode()
