"""Figures 1 and 6 and tables 2 and 3 of the paper, from a saved Result."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stakes._io.files import write_text
from stakes.decisions import RULES
from stakes.evaluation.metrics import bootstrap, bootstrap_ratios, paired_difference
from stakes.paper import published
from stakes.paper.figures import figure
from stakes.paper.roads.data import CLASSES
from stakes.paper.roads.experiment import RIGHT
from stakes.paper.sweep import PAPER_METHODS, Result
from stakes.report.tables import markdown_table, shown, signed


def road_figures(result: Result, folder: Path) -> list[Path]:
    """The tables as Markdown, and the utility maps of the first seed; the files written."""
    tables = folder / "tables.md"
    write_text(tables, road_tables(result))
    if not any("maps" in row for row in result.rows):
        return [tables]
    return [tables, _utility_maps(result, folder / "utility_maps.png")]


def road_tables(result: Result) -> str:
    """Tables 2 and 3."""
    return f"{_table_2(result)}\n\n{_table_3(result)}\n"


def _table_2(result: Result) -> str:
    """Accuracy and utility of both rules, and what each model gains on the standard one."""
    methods, rows, gains = result.config["methods"], [], []
    for method in methods:
        cells, gaps = [], []
        for rule in RULES:
            utilities = _by_image(result, "image_utilities", method=method, rule=rule)
            hits = _by_image(result, "image_hits", method=method, rule=rule).sum(-1)  # (seeds, images) pixels right
            pixels = np.sum(result.select(method=method, rule=rule)[0]["confusion"]) / hits.shape[1]
            cells += [shown(bootstrap(100 * hits / pixels, seed=0), 1), shown(bootstrap(utilities, seed=0), 3)]
            if "standard" in methods:
                standard = _by_image(result, "image_utilities", method="standard", rule=rule)
                gaps.append(signed(paired_difference(utilities, standard, seed=0)))
        paper = [number for rule in RULES for number in published.ROADS_TABLE_2[method, rule]]
        rows += [[method, *cells], [f"*the paper's {method}*", *map(str, paper)]]
        gains += [[method, *gaps]] if gaps and method != "standard" else []
    seeds = len({row["seed"] for row in result.rows})
    randomised = [
        f"{name} {result.values('randomised_utility', method=name, rule='optimal').mean():.3f}" for name in methods
    ]
    parts = [
        "## Table 2: accuracy and utility on the test images",
        f"Mean over {seeds} seeds; 95 % intervals over images and seeds.",
        markdown_table(["model", *(f"{rule}: {what}" for rule in RULES for what in ("accuracy %", "utility"))], rows),
        "Footnote: the paper's first utilities are of deciding at random by the probabilities, which here gives "
        + ", ".join(randomised)
        + ".",
    ]
    if gains:
        heads = ["utility gained on standard", *RULES]
        parts.append(markdown_table(heads, gains))
    return "\n\n".join(parts)


def _table_3(result: Result) -> str:
    """IOU over the pixels of all test images; as a footnote, the authors' mean over images."""
    methods, every, rows, averages = result.config["methods"], [], [], []
    for method in methods:
        hits, unions = (_by_image(result, key, method=method, rule="optimal") for key in ("image_hits", "image_unions"))
        classes, mean = bootstrap_ratios(hits, unions, seed=0)
        pooled = dict(zip(CLASSES, classes, strict=True)) | {"mean": mean}
        seen = unions > 0
        ratios = np.divide(hits, unions, out=np.zeros_like(hits), where=seen)
        by_class = (ratios.sum(1) / np.maximum(seen.sum(1), 1)).mean(0)  # (C,)
        averaged = dict(zip(CLASSES, by_class, strict=True)) | {"mean": by_class.mean()}
        every.append([shown(value, 2) for value in pooled.values()])
        rows.append([method, *(shown(pooled[name], 2) for name in published.ROADS_TABLE_3)])
        averages.append([method, *(f"{averaged[name]:.2f}" for name in published.ROADS_TABLE_3)])
        paper = [values[PAPER_METHODS.index(method)] for values in published.ROADS_TABLE_3.values()]
        averages.append([f"*the paper's {method}*", *(f"{value:.2f}" for value in paper)])
    parts = [
        "## Table 3: IOU over all test pixels, optimal decisions",
        markdown_table(["model", *published.ROADS_TABLE_3], rows),
        "Footnote: the authors average each image's IOU over the images that have the class, which gives",
        markdown_table(["model", *published.ROADS_TABLE_3], averages),
        "## IOU of every class, over all test pixels, optimal decisions",
        markdown_table(["class", *methods], zip((*CLASSES, "mean"), *every, strict=True)),
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
    with figure(path, 1.6 * (2 + len(shown)), 1.4 * len(classes)) as drawn:
        grid = np.atleast_2d(drawn.subplots(len(classes), 2 + len(shown)))
        for line, name in zip(grid, classes, strict=True):
            line[0].imshow(_picture(rows[shown[0]][name]["image"]))
            line[1].imshow(_picture(rows[shown[0]][name]["truth"]))
            line[0].set_ylabel(name)
            for axes, method in zip(line[2:], shown, strict=True):
                worth = _picture(rows[method][name]["utility"])[..., 0] / 255 * RIGHT
                drawn_map = axes.imshow(worth, cmap="cividis", vmin=0.3, vmax=RIGHT)
                axes.set_title(f"{method}: utility")
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
