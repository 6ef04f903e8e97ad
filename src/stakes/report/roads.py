"""Figures 1 and 6 and tables 2 and 3 of the paper, from a saved Result."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stakes.data.roads import CLASSES
from stakes.decision import RULES
from stakes.experiments.roads import RIGHT
from stakes.experiments.sweep import Result
from stakes.files import write_text
from stakes.metrics import bootstrap, bootstrap_ratios, paired_difference
from stakes.report import published
from stakes.report.figures import figure
from stakes.report.tables import markdown_table, shown, signed


def road_figures(result: Result, folder: Path) -> list[Path]:
    """The tables as Markdown, and the utility maps of the first seed; the files written."""
    tables = folder / "tables.md"
    write_text(tables, f"{_table_2(result)}\n\n{_table_3(result)}\n")
    if not any("maps" in row for row in result.rows):
        return [tables]
    return [tables, _utility_maps(result, folder / "utility_maps.png")]


def _table_2(result: Result) -> str:
    """Accuracy and utility of both rules, and what each model gains on the standard one."""
    methods, rows = result.config["methods"], []
    for method in methods:
        for rule in RULES:
            where = {"method": method, "rule": rule}
            utilities = _by_image(result, "image_utilities", **where)
            hits = _by_image(result, "image_hits", **where).sum(-1)  # (seeds, images) pixels that are right
            pixels = np.sum(result.select(**where)[0]["confusion"]) / hits.shape[1]
            gap = ""
            if method != "standard" and "standard" in methods:
                standard = _by_image(result, "image_utilities", method="standard", rule=rule)
                gap = signed(paired_difference(utilities, standard, seed=0))
            accuracy = shown(bootstrap(100 * hits / pixels, seed=0), 1)
            paper = "{:.1f}, {:.3f}".format(*published.ROADS_TABLE_2[method, rule])
            rows.append([method, rule, accuracy, shown(bootstrap(utilities, seed=0), 3), gap, paper])
    seeds = len({row["seed"] for row in result.rows})
    randomised = [
        f"{name} {result.values('randomised_utility', method=name, rule='optimal').mean():.3f}" for name in methods
    ]
    parts = [
        "## Table 2: accuracy and utility on the test images",
        f"Mean over {seeds} seeds; 95 % intervals over images and seeds.",
        markdown_table(["model", "rule", "accuracy %", "utility", "utility against standard", "paper"], rows),
        "Deciding at random by the probabilities, which is what the paper's argmax utilities are: "
        + ", ".join(randomised)
        + ".",
    ]
    return "\n\n".join(parts)


def _table_3(result: Result) -> str:
    """IOU of each class over the pixels of all test images; as a footnote, the authors' mean over images."""
    methods = result.config["methods"]
    pooled, averaged = [], []
    for method in methods:
        hits, unions = (_by_image(result, key, method=method, rule="optimal") for key in ("image_hits", "image_unions"))
        classes, mean = bootstrap_ratios(hits, unions, seed=0)
        pooled.append([shown(value, 2) for value in (*classes, mean)])
        seen = unions > 0
        ratios = np.divide(hits, unions, out=np.zeros_like(hits), where=seen)
        by_class = (ratios.sum(1) / np.maximum(seen.sum(1), 1)).mean(0)  # (C,)
        averaged.append([f"{value:.2f}" for value in (*by_class, by_class.mean())])
    names = (*CLASSES, "mean")
    theirs = [" / ".join(f"{value:.2f}" for value in published.ROADS_TABLE_3.get(name, ())) for name in names]
    parts = [
        "## Table 3: IOU over all test pixels, optimal decisions",
        markdown_table(["class", *methods], zip(names, *pooled, strict=True)),
        "Footnote: the authors average the IOU over the images that have the class, which gives",
        markdown_table(
            ["class", *methods, "paper: standard / weighted / calibrated"], zip(names, *averaged, theirs, strict=True)
        ),
    ]
    return "\n\n".join(parts)


def _by_image(result: Result, key: str, **where: Any) -> NDArray[np.float64]:
    """(seeds, images, ...)."""
    return np.array([row[key] for row in result.select(**where)], dtype=np.float64)


def _utility_maps(result: Result, path: Path) -> Path:
    """Image, truth, and the expected utility of the class at every pixel: standard beside calibrated."""
    shown = [name for name in ("standard", "calibrated") if name in result.config["methods"]]
    rows = {name: result.select(method=name, rule="optimal", seed=0)[0]["maps"] for name in shown}
    classes = list(rows[shown[0]])
    with figure(path, 2.1 * (2 + len(shown)), 1.75 * len(classes)) as drawn:
        grid = np.atleast_2d(drawn.subplots(len(classes), 2 + len(shown)))
        for line, name in zip(grid, classes, strict=True):
            line[0].imshow(_picture(rows[shown[0]][name]["image"]))
            line[1].imshow(_picture(rows[shown[0]][name]["truth"]))
            line[0].set_ylabel(name)
            for axes, method in zip(line[2:], shown, strict=True):
                worth = _picture(rows[method][name]["utility"])[..., 0] / 255 * RIGHT
                drawn_map = axes.imshow(worth, cmap="cividis", vmin=0.3, vmax=RIGHT)
                axes.set_title(f"{method}: expected utility")
            line[0].set_title("image, equalised")
            line[1].set_title("truth")
            for axes in line:
                axes.set_xticks([])
                axes.set_yticks([])
        drawn.colorbar(drawn_map, ax=grid[:, -1].tolist(), shrink=0.8)
    return path


def _picture(text: str) -> NDArray[np.uint8]:
    """(H, W, 3) of a picture kept as text in a row."""
    with Image.open(io.BytesIO(base64.b64decode(text))) as opened:
        return np.array(opened.convert("RGB"))
