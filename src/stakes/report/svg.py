"""Charts as inline SVG. Their styles are classes of page.css: the policy of the page allows no others."""

from collections.abc import Mapping, Sequence

from stakes.evaluation.metrics import Interval, Reliability
from stakes.report.html import Html, tag

_DASHES = ("", "7 4", "10 4 2 4", "2 4", "14 4", "5 2 1 2")
_SHAPES = 6  # of points: as many as there are dashes


def strip(value: Interval, low: float, high: float, *, zero: bool, hollow: bool) -> Html:
    """An interval on a scale that all rows of a table share; the numbers stand beside it."""
    width, height, edge = 152, 20, 8

    def x(at: float) -> str:
        return f"{edge + (width - 2 * edge) * (at - low) / ((high - low) or 1):.1f}"

    middle = f"{height / 2}"
    parts = [_line(x(value.low), middle, x(value.high), middle, "span")]
    if zero:
        parts.insert(0, _line(x(0), "0", x(0), f"{height}", "zero"))
    dot = tag("circle", cx=x(value.mean), cy=middle, r="4", class_="dot hollow" if hollow else "dot")
    return tag("svg", *parts, dot, viewBox=f"0 0 {width} {height}", class_="strip", aria_hidden="true")


def reliability_plot(curves: Mapping[str, Reliability], thick: int) -> Html:
    """Confidence against how often it was right, told apart by dashes and points first, by colour second."""
    left, size, bottom = 44, 300, 316
    low = min((float(curve.confidence.min()) for curve in curves.values()), default=0.0)
    first = min(0.9, int(low * 10) / 10)

    def x(at: float) -> float:
        return left + (size - 16) * (at - first) / (1 - first)

    def y(at: float) -> float:
        return bottom - (size - 16) * at

    parts = [_line(f"{x(first):.1f}", f"{y(0):.1f}", f"{x(1):.1f}", f"{y(0):.1f}", "axis")]
    parts += [_line(f"{x(first):.1f}", f"{y(at):.1f}", f"{x(1):.1f}", f"{y(at):.1f}", "grid") for at in (0.5, 1.0)]
    parts.append(_line(f"{x(first):.1f}", f"{y(first):.1f}", f"{x(1):.1f}", f"{y(1):.1f}", "zero"))
    parts += [_text(left - 6, y(at) + 4, f"{at:g}", "end") for at in (0.0, 0.5, 1.0)]
    parts += [_text(x(first), bottom + 16, f"{first:g}", "middle"), _text(x(1), bottom + 16, "1", "middle")]
    parts.append(_text((x(first) + x(1)) / 2, bottom + 32, "confidence in the most probable outcome", "middle"))
    parts.append(_text(0, 12, "how often it was right", "start"))
    for place, curve in enumerate(curves.values()):
        points = [(x(float(a)), y(float(b))) for a, b in zip(curve.confidence, curve.accuracy, strict=True)]
        parts += _curve(points, place, place == thick)
    for place, name in enumerate(curves):
        top = bottom + 54 + 18 * place
        parts += _curve([(left, top), (left + 26, top), (left + 52, top)], place, place == thick)
        parts.append(_text(left + 64, top + 4, name, "start"))
    height = bottom + 54 + 18 * len(curves)
    described = f"Confidence against how often it was right: {', '.join(curves)}"
    drawn = tag("svg", *parts, viewBox=f"0 0 {left + size} {height}", role="img", aria_label=described)
    return tag("div", drawn, class_="plot")


def _curve(points: Sequence[tuple[float, float]], place: int, thick: bool) -> list[Html]:
    kind = f"c{place % _SHAPES}" + (" thick" if thick else "")
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    line = tag("path", d=path, class_=f"curve {kind}", stroke_dasharray=_DASHES[place % _SHAPES])
    return [line, *(_point(x, y, place % _SHAPES, kind) for x, y in points)]


def _point(x: float, y: float, shape: int, kind: str) -> Html:
    r = 3.2
    if shape == 0:
        return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{r}", class_=f"hollow {kind}")
    around = {
        1: [(-r, -r), (r, -r), (r, r), (-r, r)],
        2: [(0, -r - 1), (r + 1, 0), (0, r + 1), (-r - 1, 0)],
        3: [(0, -r - 1), (r, r), (-r, r)],
        4: [(0, r + 1), (r, -r), (-r, -r)],
        5: [(-r, 0), (r, 0), (0, 0), (0, -r), (0, r), (0, 0)],
    }[shape]
    return tag("path", d="M" + "L".join(f"{x + a:.1f} {y + b:.1f}" for a, b in around) + "Z", class_=f"hollow {kind}")


def _line(x1: str, y1: str, x2: str, y2: str, kind: str) -> Html:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def _text(x: float, y: float, text: str, anchor: str) -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
