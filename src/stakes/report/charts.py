"""The geometry of charts. ``charts.html`` draws them, with their legends; styles are classes of page.css."""

from collections.abc import Collection, Mapping, Sequence
from math import log
from typing import Any

from stakes.evaluation.metrics import Reliability

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
    first = min(0.9, int(low * 10) / 10)

    def x(value: float) -> float:
        return _LEFT + (_SIZE - 16) * (value - first) / (1 - first)

    def y(value: float) -> float:
        return _BOTTOM - (_SIZE - 16) * value

    lines = [(x(first), y(value), x(1), y(value), "grid" if value else "axis") for value in (0.0, 0.5, 1.0)]
    lines.append((x(first), y(first), x(1), y(1), "zero"))  # x1, y1, x2, y2, class
    texts: list[tuple[float, float, str, str]] = []  # x, y, anchor, text
    texts += [(_LEFT - 6, y(value) + 4, "end", f"{value:g}") for value in (0.0, 0.5, 1.0)]
    texts += [(x(value), _BOTTOM + 16, "middle", f"{value:g}") for value in (first, 1)]
    texts.append(((x(first) + x(1)) / 2, _BOTTOM + 32, "middle", "confidence in the most probable outcome"))
    texts.append((0, 12, "start", "how often it was right"))
    drawn = [
        _curve(
            [(x(float(a)), y(float(b))) for a, b in zip(curve.confidence, curve.accuracy, strict=True)],
            index,
            thick == name,
        )
        for index, (name, curve) in enumerate(curves.items())
    ]
    return {
        "label": f"Confidence against how often it was right: {', '.join(curves)}",
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
    top: float,
    words: Mapping[str, str],  # label, x, y, and the ticks: left, at, right, bottom, top
) -> dict[str, Any]:
    """Curves over a logarithmic axis, with a mark at one place; what lies above ``top`` is left out."""
    width, height, left, right, above, below = 480, 280, 70, 16, 30, 48
    first, last = log(xs[0]), log(xs[-1])
    bottom = min(0.0, *(min(values) for values in curves.values()))

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


def _sample(index: int, thick: bool) -> tuple[str, str, str, list[str]]:
    """The curve of a legend: 44 by 14."""
    return _curve([(4, 7), (22, 7), (40, 7)], index, thick)


def _curve(points: Sequence[tuple[float, float]], index: int, thick: bool) -> tuple[str, str, str, list[str]]:
    """Class, dashes, path and markers: told apart by dashes and markers first, by colour second."""
    style = index % len(_MARKERS)
    dash = _DASHES[(index + index // len(_DASHES)) % len(_DASHES)]
    markers = [_marker(x, y, style) for x, y in points]
    return f"c{style}" + (" thick" if thick else ""), dash, _path(points), markers


def _marker(x: float, y: float, style: int) -> str:
    if style == 0:
        return f"M{x - _R:.1f} {y:.1f}a{_R} {_R} 0 1 0 {2 * _R} 0a{_R} {_R} 0 1 0 {-2 * _R} 0Z"
    return _path([(x + dx, y + dy) for dx, dy in _MARKERS[style]]) + "Z"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
