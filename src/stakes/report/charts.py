"""The geometry of charts. ``charts.html`` draws them, with their legends; styles are classes of page.css."""

from collections.abc import Collection, Mapping, Sequence
from math import floor, log, log10
from typing import Any

from stakes.evaluation.metrics import Interval, Reliability

Point = tuple[float, float]
_DASHES = ("", "7 4", "10 4 2 4", "2 4", "14 4", "5 2 1 2")
_LEFT, _SIZE, _BOTTOM, _R = 44, 300, 316, 3.2
_MARKERS = (
    (),  # a circle
    ((-_R, -_R), (_R, -_R), (_R, _R), (-_R, _R)),
    ((0, -_R - 1), (_R + 1, 0), (0, _R + 1), (-_R - 1, 0)),
    ((0, -_R - 1), (_R, _R), (-_R, _R)),
    ((0, _R + 1), (_R, -_R), (-_R, -_R)),
    ((-_R, 0), (_R, 0), (0, 0), (0, -_R), (0, _R), (0, 0)),
)


def reliability_chart(curves: Mapping[str, Reliability], thick: str) -> dict[str, Any]:
    """Confidence against how often it was right."""
    low = min((float(curve.confidence.min()) for curve in curves.values()), default=0.0)
    points = {
        name: list(zip(curve.confidence.tolist(), curve.accuracy.tolist(), strict=True))
        for name, curve in curves.items()
    }
    words = "how often it was right", "confidence in the most probable outcome"
    label = f"Confidence against how often it was right: {', '.join(curves)}"
    return diagonal_chart(points, thick, words, label, first=min(0.9, int(low * 10) / 10))


def diagonal_chart(
    curves: Mapping[str, Sequence[Point]], thick: str, words: tuple[str, str], label: str, *, first: float = 0.0
) -> dict[str, Any]:
    """Shares against shares, which should be alike: curves over x from ``first`` to 1, and the words of y and x."""

    def x(value: float) -> float:
        return _LEFT + (_SIZE - 16) * (value - first) / (1 - first)

    def y(value: float) -> float:
        return _BOTTOM - (_SIZE - 16) * value

    lines = [(x(first), y(value), x(1), y(value), "grid" if value else "axis") for value in (0.0, 0.5, 1.0)]
    lines.append((x(first), y(first), x(1), y(1), "zero"))  # x1, y1, x2, y2, class
    texts: list[tuple[float, float, str, str]] = []  # x, y, anchor, text
    texts += [(_LEFT - 6, y(value) + 4, "end", f"{value:g}") for value in (0.0, 0.5, 1.0)]
    texts += [(x(value), _BOTTOM + 16, "middle", f"{value:g}") for value in (first, 1)]
    texts.append(((x(first) + x(1)) / 2, _BOTTOM + 32, "middle", words[1]))
    texts.append((0, 12, "start", words[0]))
    drawn = [
        _curve([(x(a), y(b)) for a, b in points], index, thick == name)
        for index, (name, points) in enumerate(curves.items())
    ]
    return {
        "label": label,
        "width": _LEFT + _SIZE,
        "height": _BOTTOM + 40,
        "lines": lines,
        "texts": texts,
        "curves": drawn,
        "legend": [(name, _sample(index, thick == name)) for index, name in enumerate(curves)],
    }


def line_chart(
    xs: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    *,
    thick: str,
    thin: Collection[str],
    at: float,
    bottom: float,
    top: float,
    words: Mapping[str, str],  # label, x, y, and the ticks: left, at, right, bottom, top
) -> dict[str, Any]:
    """Curves over a logarithmic axis, with a mark at one place; what lies above ``top`` is left out."""
    width, height, left, right, above, below = 480, 280, 70, 16, 30, 48
    first, last = log(xs[0]), log(xs[-1])

    def x(value: float) -> float:
        return left + (width - left - right) * (log(value) - first) / (last - first)

    def y(value: float) -> float:
        return height - below - (height - above - below) * (value - bottom) / (top - bottom or 1)

    drawn: list[tuple[str, str, str, list[str]]] = []
    for index, (name, values) in enumerate(curves.items()):
        points = [(x(a), y(b)) for a, b in zip(xs, values, strict=True) if b <= top]
        kind, dash, path, _ = _curve(points, index, name == thick)
        drawn.append((f"{kind} thin" if name in thin else kind, dash, path, []))
    foot = height - below
    return {
        "label": words["label"],
        "width": width,
        "height": height,
        "lines": [
            (left, foot, width - right, foot, "axis"),
            (left, y(top), width - right, y(top), "grid"),
            (x(at), y(top), x(at), foot, "mark"),
        ],
        "texts": [
            (left - 6, foot + 4, "end", words["bottom"]),
            (left - 6, y(top) + 4, "end", words["top"]),
            (left, foot + 16, "start", words["left"]),
            (x(at), foot + 16, "middle", words["at"]),
            (width - right, foot + 16, "end", words["right"]),
            ((left + width - right) / 2, height - 6, "middle", words["x"]),
            (0, 14, "start", words["y"]),
        ],
        "curves": [curve for curve in drawn if curve[2] != "M"],
        "legend": [(name, (*drawn[index][:2], "M0 7L44 7", [])) for index, name in enumerate(curves)],
    }


def scatter_chart(points: Sequence[tuple[float, Interval]], words: Mapping[str, str]) -> dict[str, Any]:
    """Means against means in one unit, which should be alike, each with its interval; words are label, x and y."""
    ends = [end for x, y in points for end in (x, y.low, y.high)]
    marks = round_numbers(min(0.0, *ends), max(ends))
    first, last = marks[0], max(marks[-1], *ends)
    left = max(_LEFT, 12 + 7 * max(len(f"{mark:,g}") for mark in marks))

    def x(value: float) -> float:
        return left + (_SIZE - 16) * (value - first) / (last - first or 1)

    def y(value: float) -> float:
        return _BOTTOM - (_SIZE - 16) * (value - first) / (last - first or 1)

    lines = [(x(first), y(mark), x(last), y(mark), "grid") for mark in marks]
    lines.append((x(first), y(first), x(last), y(last), "zero"))
    lines += [(x(at), y(mean.low), x(at), y(mean.high), "span") for at, mean in points]
    texts: list[tuple[float, float, str, str]] = [(left - 6, y(mark) + 4, "end", f"{mark:,g}") for mark in marks]
    texts += [(x(mark), _BOTTOM + 16, "middle", f"{mark:,g}") for mark in (marks[0], marks[-1])]
    texts += [((x(first) + x(last)) / 2, _BOTTOM + 32, "middle", words["x"]), (0, 12, "start", words["y"])]
    dots = [marker(x(at), y(mean.mean), 0) for at, mean in points]
    return {
        "label": words["label"],
        "width": left + _SIZE + 12,
        "height": _BOTTOM + 40,
        "lines": lines,
        "texts": texts,
        "curves": [("c0", "", "", dots)],
        "legend": [
            ("rows that were expected to cost alike, with their 95 % interval", ("c0", "", "", [marker(22, 7, 0)]))
        ],
    }


def round_numbers(low: float, high: float, most: int = 7) -> list[float]:
    """At most so many round numbers at equal distances, the first at or below ``low``, the last about ``high``."""
    width = (high - low) or abs(high) or 1.0
    unit = 10.0 ** floor(log10(width / most))
    step = next(unit * factor for factor in (1, 2, 5, 10, 20) if width / (unit * factor) <= most - 1)
    count = floor((high - floor(low / step) * step) / step + 1e-9)
    return [step * (floor(low / step) + index) for index in range(count + 1)]


def _sample(index: int, thick: bool) -> tuple[str, str, str, list[str]]:
    """The curve of a legend: 44 by 14."""
    return _curve([(4, 7), (22, 7), (40, 7)], index, thick)


def _curve(points: Sequence[Point], index: int, thick: bool) -> tuple[str, str, str, list[str]]:
    """Class, dashes, path and markers: told apart by dashes and markers first, by colour second."""
    style = index % len(_MARKERS)
    dash = _DASHES[(index + index // len(_DASHES)) % len(_DASHES)]
    markers = [marker(x, y, style) for x, y in points]
    return f"c{style}" + (" thick" if thick else ""), dash, path(points), markers


def marker(x: float, y: float, style: int, size: float = _R) -> str:
    """A circle, a square, a diamond, ..., as a path."""
    if style == 0:
        return f"M{x - size:.1f} {y:.1f}a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0Z"
    return path([(x + size / _R * dx, y + size / _R * dy) for dx, dy in _MARKERS[style]]) + "Z"


def path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
