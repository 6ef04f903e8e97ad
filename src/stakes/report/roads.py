"""Figures 1 and 6 and tables 2 and 3 of the paper, from a saved Result."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stakes.data.roads import CLASSES
from stakes.experiments.roads import RIGHT
from stakes.experiments.sweep import Result
from stakes.files import write_text
from stakes.metrics import Interval, bootstrap, paired_difference
from stakes.report.figures import figure

TABLE_3 = ("Road", "Pavement", "Tree", "Car", "Pedestrian")


def road_figures(result: Result, folder: Path) -> list[Path]:
    """The tables as Markdown, and the utility maps if the images are at hand; the files written."""
    tables = folder / "tables.md"
    write_text(tables, _tables(result))
    if not any("maps" in row for row in result.rows):
        return [tables]
    return [tables, _utility_maps(result, folder / "utility_maps.png")]


def _tables(result: Result) -> str:
    """Tables 2 and 3: mean over seeds, with 95 % intervals over images and seeds."""
    methods, lines = result.config["methods"], ["## Table 2", ""]
    lines += ["| model | rule | accuracy % | utility (95 %) | against standard (95 %) |", "|---|---|---|---|---|"]
    for method in methods:
        for rule in ("argmax", "optimal"):
            where = {"method": method, "rule": rule}
            values = _by_image(result, **where)
            gap = ""
            if method != "standard" and "standard" in methods:
                gap = _signed(paired_difference(values, _by_image(result, method="standard", rule=rule), seed=0))
            accuracy = 100 * result.values("accuracy", **where).mean()
            lines.append(f"| {method} | {rule} | {accuracy:.1f} | {bootstrap(values, seed=0)} | {gap} |")
    lines += [
        "",
        "Deciding at random by the probabilities (what the paper calls standard prediction): "
        + ", ".join(f"{m} {result.values('randomised_utility', method=m, rule='optimal').mean():.3f}" for m in methods)
        + ".",
    ]
    for title, key in (
        ("Table 3: IOU over all pixels, optimal decisions", "iou"),
        ("The authors' mean of each image's IOU", "image_hits"),
    ):
        lines += [
            "",
            f"## {title}",
            "",
            "| model | " + " | ".join(TABLE_3) + " | mean |",
            "|---" * (len(TABLE_3) + 2) + "|",
        ]
        for method in methods:
            found = np.mean([row[key] for row in result.select(method=method, rule="optimal")], axis=0)
            cells = [f"{found[CLASSES.index(name)]:.2f}" for name in TABLE_3]
            lines.append(f"| {method} | " + " | ".join(cells) + f" | {found.mean():.2f} |")
    return "\n".join(lines) + "\n"


def _by_image(result: Result, **where: Any) -> NDArray[np.float64]:
    """(seeds, images)."""
    return np.array([row["image_utilities"] for row in result.select(**where)], dtype=np.float64)


def _signed(value: Interval) -> str:
    return f"{value.mean:+.4f} ({value.low:+.4f} to {value.high:+.4f})"


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
                axes.imshow(worth, cmap="cividis", vmin=0.3, vmax=RIGHT)
                axes.set_title(f"{method}: expected utility")
            line[0].set_title("image, equalised")
            line[1].set_title("truth")
            for axes in line:
                axes.set_xticks([])
                axes.set_yticks([])
    return path


def _picture(text: str) -> NDArray[np.uint8]:
    """(H, W, 3) of a picture kept as text in a row."""
    with Image.open(io.BytesIO(base64.b64decode(text))) as opened:
        return np.array(opened.convert("RGB"))
