"""Small tables of patients, and costs for them."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from stakes.paper.diagnosis import data as diagnosis

COSTS = "cost [£],Healthy,Mild,Severe\nHealthy,0,50,100\nMild,40,0,35\nSevere,45,30,0\n"
ACTIONS = "cost [£],Healthy,Mild,Severe\nsend home,0,50,500\ntreat,40,0,35\nrefer,20,20,20\noperate,200,90,0\n"
TINY = ("--network", "mlp", "--hidden", "4", "--samples", "5", "--epochs", "2", "--folds", "2", "--test", "0.2")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def patient_rows(per_class: int, seed: int = 0) -> list[list[str]]:
    """Three tests, a ward (text), an age with gaps, and the diagnosis; in an order that mixes the classes."""
    found = diagnosis.patients(per_class, 0, seed, "tests")
    rows = []
    for number, (x, label) in enumerate(zip(found.x, found.outcome, strict=True)):
        ward = ("north", "south", "east wing")[(number * 7) % 3]
        age = "" if number % 11 == 0 else str(20 + (number * 13) % 60)
        rows.append([*(f"{value:.6f}" for value in x), ward, age, diagnosis.CLASSES[label]])
    return [rows[place * per_class + number] for number in range(per_class) for place in range(3)]


HEADER = ["test_0", "test_1", "test_2", "ward", "age", "diagnosis"]
