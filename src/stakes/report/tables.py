"""Tables in Markdown, and numbers with their intervals."""

from collections.abc import Iterable, Sequence

from stakes.evaluation.metrics import Interval


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def shown(value: Interval, digits: int) -> str:
    return f"{value.mean:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"


def signed(value: Interval, digits: int = 4) -> str:
    return f"{value.mean:+.{digits}f} ({value.low:+.{digits}f} to {value.high:+.{digits}f})"
