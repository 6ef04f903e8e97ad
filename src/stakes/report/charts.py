"""The geometry of the reliability chart. ``charts.html`` draws it; styles are classes of page.css."""

from collections.abc import Mapping, Sequence
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


def reliability_chart(curves: Mapping[str, Reliability], thick: int) -> dict[str, Any]:
    """Confidence against how often it was right, told apart by dashes and markers first, by colour second."""
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
    drawn = []
    for index, (name, curve) in enumerate(curves.items()):
        top = _BOTTOM + 54 + 18 * index
        points = [(x(float(a)), y(float(b))) for a, b in zip(curve.confidence, curve.accuracy, strict=True)]
        legend = [(_LEFT, top), (_LEFT + 26, top), (_LEFT + 52, top)]
        drawn += [_curve(each, index, index == thick) for each in (points, legend)]
        texts.append((_LEFT + 64, top + 4, "start", name))
    return {
        "label": f"Confidence against how often it was right: {', '.join(curves)}",
        "width": _LEFT + _SIZE,
        "height": _BOTTOM + 54 + 18 * len(curves),
        "lines": lines,
        "texts": texts,
        "curves": drawn,
    }


def _curve(points: Sequence[tuple[float, float]], index: int, thick: bool) -> tuple[str, str, str, list[str]]:
    """Class, dashes, path and markers."""
    style = index % len(_MARKERS)
    markers = [_marker(x, y, style) for x, y in points]
    return f"c{style}" + (" thick" if thick else ""), _DASHES[style], _path(points), markers


def _marker(x: float, y: float, style: int) -> str:
    if style == 0:
        return f"M{x - _R:.1f} {y:.1f}a{_R} {_R} 0 1 0 {2 * _R} 0a{_R} {_R} 0 1 0 {-2 * _R} 0Z"
    return _path([(x + dx, y + dy) for dx, dy in _MARKERS[style]]) + "Z"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
