"""Section 6: what every pixel of a street is, on CamVid with SegNet-Basic (figures 1 and 6; tables 2, 3, 4)."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from stakes import metrics, seeds
from stakes.data.roads import CLASSES, RoadExamples, check_roads, read_roads
from stakes.decision import RULES, decide, expected_utility
from stakes.errors import StakesError
from stakes.experiments.protocols import checked_protocol
from stakes.experiments.sweep import PAPER_METHODS, Cell, Row
from stakes.likelihoods import Categorical
from stakes.networks.segnet import SegNet
from stakes.objectives import LossCalibrated, Objective, Standard, Weighted
from stakes.parallel import Report
from stakes.posteriors import families
from stakes.posteriors.base import Posterior
from stakes.training import Training, fit
from stakes.utility import Utility

RIGHT = 0.8
WRONG = {"Sky": 0.0, "Building": 0.0, "Car": 0.4, "Pedestrian": 0.4, "Cyclist": 0.4}
OTHERWISE_WRONG = 0.2
MAPPED = ("Car", "Pedestrian")


@dataclass(frozen=True)
class Roads:
    """The settings of the experiment.

    ``fair``: all methods have the same number of epochs and keep the one with the highest validation utility;
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
    methods: tuple[str, ...] = PAPER_METHODS
    dropout: float = 0.5
    lengthscale: float = 0.01
    epochs: int = 60
    batch_size: int = 4
    learning_rate: float = 1e-3
    momentum: float = 0.8
    test_samples: int = 10
    threads: int = 1

    @classmethod
    def preset(cls, name: str) -> Self:
        return cls() if name == "paper" else cls(size="96x128", width=0.5, epochs=15, batch_size=8)

    def __post_init__(self) -> None:
        checked_protocol(self.protocol)
        if set(self.methods) - set(PAPER_METHODS):
            raise StakesError(f"expected methods of {PAPER_METHODS}, but got {self.methods}")
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
            Cell.of(protocol=self.protocol, size=self.size, width=self.width, seed=seed, method=name)
            for seed in range(self.seeds)
            for name in self.methods
        ]

    def run_cell(self, cell: Cell, report: Report) -> list[Row]:
        torch.set_num_threads(self.threads)
        train, validation, test = _parts(self.data, self.shape())
        posterior = self._posterior(cell["seed"])
        history = self._train(posterior, cell, train, validation, report)
        draws = posterior.draw(self.test_samples, seeds.derive(cell["seed"], "predict"))
        counts, randomised = _stream(draws, test, self.batch_size)
        maps = _maps(draws, test) if cell["seed"] == 0 else {}
        rows = []
        for place, rule in enumerate(RULES):
            worth = _scores(counts[place], randomised)
            rows.append({**dict(cell.axes), "rule": rule, **worth, "best_epoch": history, **maps})
        return rows

    def _posterior(self, seed: int) -> Posterior:
        spec = {"family": "dropout", "lengthscale": self.lengthscale}
        return families.build(spec, lambda: SegNet(len(CLASSES), self.width, self.dropout), Categorical(), seed)

    def _train(
        self, posterior: Posterior, cell: Cell, train: RoadExamples, validation: RoadExamples, report: Report
    ) -> int:
        authors = self.protocol == "authors"
        runs_on = authors and cell["method"] == "calibrated"
        config = Training(
            epochs=round(1.75 * self.epochs) if runs_on else self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=None,
            samples=self.test_samples,
            validate_every=3,
            select="nll" if authors else "utility",
        )
        history = fit(
            posterior,
            self._objective(cell["method"]),
            train,
            None if runs_on else validation,
            utility=road_utility(),
            config=config,
            seed=cell["seed"],
            progress=report,
        )
        return history.best

    def _objective(self, name: str) -> Objective:
        if name == "standard":
            return Standard()
        if name == "weighted":
            return Weighted(road_weights())
        if self.protocol == "authors":
            return LossCalibrated(road_utility(), samples=5, refresh="epoch")
        return LossCalibrated(road_utility(), refresh="running", momentum=self.momentum)


def road_utility() -> Utility:
    """The paper's table 4: false alarms for cars, pedestrians and cyclists are the cheaper mistakes."""
    utility = Utility.diagonal(CLASSES, RIGHT)
    for name in CLASSES:
        utility = utility.with_row(name, WRONG.get(name, OTHERWISE_WRONG))
    return utility.with_cell("Pedestrian", "Cyclist", RIGHT).with_cell("Cyclist", "Pedestrian", RIGHT)


def road_weights() -> list[float]:
    """The paper does not state its weights here: these follow the rule of its digits, 1 / (1 - wrong / right)."""
    return [1 / (1 - WRONG.get(name, OTHERWISE_WRONG) / RIGHT) for name in CLASSES]


@lru_cache(maxsize=1)
def _parts(folder: str, size: tuple[int, int]) -> tuple[RoadExamples, RoadExamples, RoadExamples]:
    """Training images (each mirrored too), validation and test images; decoded once in a process."""
    place = Path(folder)
    return (
        read_roads(place, "train", size, mirror=True),
        read_roads(place, "val", size),
        read_roads(place, "test", size),
    )


def _stream(draws: Any, test: RoadExamples, batch_size: int) -> tuple[NDArray[np.int64], float]:
    """Confusion counts (rules, images, D, C) and the utility of deciding at random by the probabilities."""
    utility = road_utility()
    counts: list[list[NDArray[np.int64]]] = [[] for _ in RULES]
    randomised, pixels = 0.0, 0
    for batch in test.in_order(batch_size):
        probs = draws(batch.x).mean_probs()  # (B, H, W, C)
        for place, rule in enumerate(RULES):
            choice = decide(probs, utility, rule).choice
            pairs = zip(choice, batch.labels, strict=True)
            counts[place] += [metrics.confusion_counts(chosen, true, utility) for chosen, true in pairs]
        column = utility.tensor(probs).T[batch.labels]  # (B, H, W, D)
        randomised += float((probs * column).sum())
        pixels += batch.labels.numel()
    return np.array(counts), randomised / pixels


def _scores(counts: NDArray[np.int64], randomised: float) -> Row:
    """Of one rule, from counts by image: over all pixels, and by image for intervals and the authors' IOU."""
    utility, total = road_utility(), counts.sum(0)
    by_image = np.array([metrics.iou(found, utility) for found in counts])
    seen = ~np.isnan(by_image)
    image_iou = np.where(seen, by_image, 0).sum(0) / np.maximum(seen.sum(0), 1)
    iou = np.nan_to_num(metrics.iou(total, utility))
    return {
        "utility": metrics.realised_utility(total, utility),
        "accuracy": metrics.accuracy(total, utility),
        "iou": iou.tolist(),
        "mean_iou": float(iou.mean()),
        "image_iou": image_iou.tolist(),
        "randomised_utility": randomised,
        "image_utilities": [round(metrics.realised_utility(found, utility), 5) for found in counts],
        "confusion": total.tolist(),
    }


def _maps(draws: Any, test: RoadExamples) -> dict[str, Any]:
    """For the test image with most of a class, the expected utility of that class at every pixel, as bytes."""
    found = {}
    for name, place in _shown_images(test):
        probs = draws(next(test.batches(torch.tensor([place]), 1)).x).mean_probs()[0]
        worth = expected_utility(probs, road_utility())[..., CLASSES.index(name)] / RIGHT
        encoded = base64.b64encode((255 * worth.clamp(0, 1)).byte().cpu().numpy().tobytes()).decode()
        found[name] = {"image": place, "utility": encoded}
    return {"maps": found}


def _shown_images(test: RoadExamples) -> Iterator[tuple[str, int]]:
    for name in MAPPED:
        yield name, int((test.labels == CLASSES.index(name)).flatten(1).sum(1).argmax())
