"""How things are timed here: side by side, the best of several rounds, on one thread."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Claim:
    """What was measured against what, and the ratio that is promised."""

    what: str
    against: str
    ratio: float
    promised: str  # such as "<= 1.3" or ">= 20"; "-" for what is told, and not promised

    @property
    def holds(self) -> bool:
        if self.promised == "-":
            return True
        sign, bound = self.promised.split()
        return self.ratio <= float(bound) if sign == "<=" else self.ratio >= float(bound)


def peak_memory() -> int:
    """Bytes that this process has held at most. Not `resource.getrusage`, whose peak a child has from its parent."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def seconds(*functions: Callable[[], object], rounds: int = 5, at_least: float = 5.0) -> list[float]:
    """The best time of each function, of so many ``rounds`` or more, until ``at_least`` so many seconds have passed.

    They take turns, so that a slow moment of the machine hits all of them.
    """
    best = [float("inf")] * len(functions)
    for function in functions:
        function()
    begin, done = time.perf_counter(), 0
    while done < rounds or time.perf_counter() - begin < at_least:
        for place, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[place] = min(best[place], time.perf_counter() - start)
        done += 1
    return best
