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
from stakes.metrics import Interval, bootstrap, bootstrap_ratios, paired_difference
from stakes.report.figures import figure


def road_figures(result: Result, folder: Path) -> list[Path]:
    """The tables as Markdown, and the utility maps of the first seed; the files written."""
    tables = folder / "tables.md"
    write_text(tables, "\n\n".join([_table_2(result), _table_3(result), _authors_iou(result)]) + "\n")
    if not any("maps" in row for row in result.rows):
        return [tables]
    return [tables, _utility_maps(result, folder / "utility_maps.png")]


def _table_2(result: Result) -> str:
    """Accuracy and utility of both rules, and what each model gains on the standard one."""
    methods = result.config["methods"]
    seeds = len({row["seed"] for row in result.rows})
    lines = [
        "## Table 2: accuracy and utility on the test images",
        "",
        f"Mean over {seeds} seeds; 95 % intervals over images and seeds.",
        "",
        "| model | rule | accuracy % | utility | utility against standard |",
        "|---|---|---|---|---|",
    ]
    for method in methods:
        for rule in RULES:
            where = {"method": method, "rule": rule}
            utilities = _by_image(result, "image_utilities", **where)
            hits = _by_image(result, "image_hits", **where).sum(-1)  # (seeds, images) pixels that are right
            pixels = np.sum(result.select(**where)[0]["confusion"]) / hits.shape[1]
            gap = ""
            if method != "standard" and "standard" in methods:
                standard = _by_image(result, "image_utilities", method="standard", rule=rule)
                gap = _signed(paired_difference(utilities, standard, seed=0))
            accuracy = _shown(bootstrap(100 * hits / pixels, seed=0), 1)
            lines.append(f"| {method} | {rule} | {accuracy} | {_shown(bootstrap(utilities, seed=0), 3)} | {gap} |")
    randomised = [
        f"{name} {result.values('randomised_utility', method=name, rule='optimal').mean():.3f}" for name in methods
    ]
    footnote = "Deciding at random by the probabilities, which the paper calls standard prediction: "
    return "\n".join([*lines, "", footnote + ", ".join(randomised) + "."])


def _table_3(result: Result) -> str:
    """IOU of each class over the pixels of all test images."""
    methods = result.config["methods"]
    found = {
        name: bootstrap_ratios(
            _by_image(result, "image_hits", method=name, rule="optimal"),
            _by_image(result, "image_unions", method=name, rule="optimal"),
            seed=0,
        )
        for name in methods
    }
    lines = ["## Table 3: IOU over all test pixels, optimal decisions", "", _row("class", *methods)]
    lines.append("|---" * (1 + len(methods)) + "|")
    for place, name in enumerate(CLASSES):
        lines.append(_row(name, *(_shown(found[method][0][place], 2) for method in methods)))
    return "\n".join([*lines, _row("mean", *(_shown(found[method][1], 2) for method in methods))])


def _authors_iou(result: Result) -> str:
    """The same as the authors' code has it: the IOU of each image that has the class, averaged over images."""
    methods = result.config["methods"]
    lines = [
        "Footnote: the authors average the IOU of each image over images, which gives",
        "",
        _row("class", *methods),
    ]
    lines.append("|---" * (1 + len(methods)) + "|")
    columns = []
    for method in methods:
        hits, unions = (_by_image(result, key, method=method, rule="optimal") for key in ("image_hits", "image_unions"))
        seen = unions > 0
        ratios = np.divide(hits, unions, out=np.zeros_like(hits), where=seen)
        columns.append((ratios.sum(1) / np.maximum(seen.sum(1), 1)).mean(0))  # (C,)
    for place, name in enumerate(CLASSES):
        lines.append(_row(name, *(f"{column[place]:.2f}" for column in columns)))
    return "\n".join([*lines, _row("mean", *(f"{column.mean():.2f}" for column in columns))])


def _by_image(result: Result, key: str, **where: Any) -> NDArray[np.float64]:
    """(seeds, images, ...)."""
    return np.array([row[key] for row in result.select(**where)], dtype=np.float64)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _shown(value: Interval, digits: int) -> str:
    return f"{value.mean:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"


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
