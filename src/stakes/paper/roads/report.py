"""Figures 1 and 6 and tables 2 and 3 of the paper, from a saved Result."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stakes.decisions import RULES
from stakes.evaluation.metrics import Interval, bootstrap, bootstrap_ratios, paired_difference
from stakes.paper.figures import figure
from stakes.paper.roads.data import CLASSES
from stakes.paper.roads.experiment import RIGHT
from stakes.paper.sweep import PAPER_MODELS, RULE_NAMES, Result
from stakes.report.words import interval, markdown_table

# The paper's accuracy % and utility, by model and rule. Its utility of argmax is that of deciding at random.
PUBLISHED_TABLE_2 = {
    ("standard", "argmax"): (81.1, 0.619), ("standard", "optimal"): (78.1, 0.676),
    ("weighted", "argmax"): (82.1, 0.633), ("weighted", "optimal"): (79.6, 0.682),
    ("calibrated", "argmax"): (82.5, 0.652), ("calibrated", "optimal"): (81.8, 0.685),
}  # fmt: skip

# The paper's IOU of decisions of highest expected utility, averaged over images: standard, weighted, calibrated.
PUBLISHED_TABLE_3 = {
    "Road": (0.85, 0.86, 0.86), "Pavement": (0.65, 0.66, 0.65), "Tree": (0.54, 0.55, 0.54), "Car": (0.28, 0.31, 0.39),
    "Pedestrian": (0.06, 0.09, 0.13), "mean": (0.37, 0.40, 0.42),
}  # fmt: skip


def road_figures(result: Result, folder: Path) -> list[Path]:
    """Image, truth, and the expected utility of the class at every pixel, of the first seed; if the rows hold them."""
    if not any("maps" in row for row in result.rows):
        return []
    path = folder / "utility_maps.png"
    models = [name for name in ("standard", "calibrated") if name in result.config["methods"]]
    maps = {name: result.select(method=name, rule="optimal", seed=0)[0]["maps"] for name in models}
    classes = maps[models[0]]
    with figure(path, 1.6 * (2 + len(models)), 1.4 * len(classes)) as canvas:
        grid = np.atleast_2d(canvas.subplots(len(classes), 2 + len(models)))
        for line, (name, pictures) in zip(grid, classes.items(), strict=True):
            line[0].imshow(_picture(pictures["image"]))
            line[1].imshow(_picture(pictures["truth"]))
            line[0].set_ylabel(name)
            for axes, model in zip(line[2:], models, strict=True):
                expected = _picture(maps[model][name]["utility"])[..., 0] / 255 * RIGHT
                image = axes.imshow(expected, cmap="cividis", vmin=0.3, vmax=RIGHT)
                axes.set_title(f"{model}: utility")
            line[0].set_title("image, equalised")
            line[1].set_title("truth")
            for axes in line:
                axes.set_xticks([])
                axes.set_yticks([])
        canvas.colorbar(image, ax=grid[:, -1].tolist(), shrink=0.8)
    return [path]


def road_tables(result: Result) -> str:
    """Tables 2 and 3."""
    return f"{_table_2(result)}\n\n{_table_3(result)}\n"


def _table_2(result: Result) -> str:
    """Accuracy and utility under both rules, and the utility each model gains on the standard one."""
    models, rows, gains = result.config["methods"], [], []
    for model in models:
        cells, gaps = [], []
        for rule in RULES:
            utilities = _by_image(result, "image_utilities", method=model, rule=rule)
            hits = _by_image(result, "image_hits", method=model, rule=rule).sum(-1)  # (seeds, images) pixels right
            pixels = np.sum(result.select(method=model, rule=rule)[0]["confusion"]) / hits.shape[1]
            cells += [
                interval(bootstrap(100 * hits / pixels, seed=0), digits=1),
                interval(bootstrap(utilities, seed=0), digits=3),
            ]
            if "standard" in models:
                gaps.append(interval(gain_over_images(result, model, "standard", rule=rule), digits=4, sign=True))
        paper = [number for rule in RULES for number in PUBLISHED_TABLE_2[model, rule]]
        rows += [[model, *cells], [f"*the paper's {model}*", *map(str, paper)]]
        gains += [[model, *gaps]] if gaps and model != "standard" else []
    seeds = len({row["seed"] for row in result.rows})
    randomised = [
        f"{name} {result.values('randomised_utility', method=name, rule='optimal').mean():.3f}" for name in models
    ]
    headings = [f"{RULE_NAMES[rule]}: {what}" for rule in RULES for what in ("accuracy %", "utility")]
    parts = [
        "## Table 2: accuracy and utility on the test images",
        f"Mean over {seeds} seeds; 95 % intervals over images and seeds.",
        markdown_table(["model", *headings], rows),
        "Footnote: the paper's first utilities are of deciding at random by the probabilities, which here gives "
        + ", ".join(randomised)
        + ".",
    ]
    if gains:
        parts.append(markdown_table(["utility gained on standard", *(RULE_NAMES[rule] for rule in RULES)], gains))
    return "\n\n".join(parts)


def gain_over_images(result: Result, ours: str, theirs: str, **where: Any) -> Interval:
    """The utility that one model gains on another, with an interval over images and seeds."""
    first, second = (_by_image(result, "image_utilities", method=name, **where) for name in (ours, theirs))
    return paired_difference(first, second, seed=0)


def _table_3(result: Result) -> str:
    """IOU over the pixels of all test images; as a footnote, the authors' mean over images."""
    models, every, rows, averages = result.config["methods"], [], [], []
    for model in models:
        hits, unions = (_by_image(result, key, method=model, rule="optimal") for key in ("image_hits", "image_unions"))
        classes, mean = bootstrap_ratios(hits, unions, seed=0)
        pooled = dict(zip(CLASSES, classes, strict=True)) | {"mean": mean}
        seen = unions > 0
        ratios = np.divide(hits, unions, out=np.zeros_like(hits), where=seen)
        by_class = (ratios.sum(1) / np.maximum(seen.sum(1), 1)).mean(0)  # (C,)
        averaged = dict(zip(CLASSES, by_class, strict=True)) | {"mean": by_class.mean()}
        every.append([interval(value, digits=2) for value in pooled.values()])
        rows.append([model, *(interval(pooled[name], digits=2) for name in PUBLISHED_TABLE_3)])
        averages.append([model, *(f"{averaged[name]:.2f}" for name in PUBLISHED_TABLE_3)])
        paper = [values[PAPER_MODELS.index(model)] for values in PUBLISHED_TABLE_3.values()]
        averages.append([f"*the paper's {model}*", *(f"{value:.2f}" for value in paper)])
    parts = [
        "## Table 3: IOU over all test pixels, deciding by highest expected utility",
        markdown_table(["model", *PUBLISHED_TABLE_3], rows),
        "Footnote: the authors average each image's IOU over the images that have the class, which gives",
        markdown_table(["model", *PUBLISHED_TABLE_3], averages),
        "## IOU of every class, over all test pixels, deciding by highest expected utility",
        markdown_table(["class", *models], zip((*CLASSES, "mean"), *every, strict=True)),
    ]
    return "\n\n".join(parts)


def _by_image(result: Result, key: str, **where: Any) -> NDArray[np.float64]:
    """A value of every image, (seeds, images, ...)."""
    return np.array([row[key] for row in result.select(**where)], dtype=np.float64)


def _picture(text: str) -> NDArray[np.uint8]:
    """(H, W, 3) of a picture in base64."""
    with Image.open(io.BytesIO(base64.b64decode(text))) as opened:
        return np.array(opened.convert("RGB"))
