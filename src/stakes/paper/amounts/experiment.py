"""Three questions about outcomes that are numbers, on published splits and a restaurant's days.

``accuracy``: is the regression network right? ``costs``: where does calibration help? ``orders``: what is a day's order
worth, by each predictor?
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from stakes._io.parallel import Report
from stakes.errors import StakesError, listing
from stakes.paper import protocols
from stakes.paper.amounts import accuracy, costs, orders
from stakes.paper.amounts.data import (
    FOLDERS,
    MADE,
    PRODUCTS,
    Standardised,
    read_days,
    read_split,
    require_data,
    standardised,
    with_outliers,
)
from stakes.paper.amounts.networks import Schedule
from stakes.paper.sweep import Cell, Row

PARTS = ("accuracy", "costs", "orders")
AS_IT_IS, OUTLIERS, ONE_SCALE = "as it is", "outliers", "one scale"
CONDITIONS = (AS_IT_IS, OUTLIERS, ONE_SCALE)
NETWORKS, TREES, ALL = "networks", "trees", "all"  # learners: a cell trains all the models of one kind


@dataclass(frozen=True)
class Amounts:
    """The settings of the experiment; seeds are the numbers of the published splits.

    The protocol ``authors`` trains the networks of ``accuracy`` for 4,000 epochs at a learning rate of 0.001,
    ``fair`` for 6,000 steps at one that falls from 0.05 to 0. All else is the same.
    """

    name: ClassVar[str] = "amounts"

    data: str = ""
    protocol: str = "fair"
    parts: tuple[str, ...] = PARTS
    sets: tuple[str, ...] = tuple(FOLDERS)
    conditions: tuple[str, ...] = CONDITIONS
    products: tuple[str, ...] = PRODUCTS
    splits: int = 5
    steps: int = 6000
    start_steps: int = 500  # of the networks whose costs are compared, before they go on in three ways
    more_steps: int = 120
    batch_size: int = 128
    learning_rate: float = 0.05
    cost_learning_rate: float = 0.01  # of the networks whose costs are compared
    test_samples: int = 200
    cost_samples: int = 50  # draws of the networks whose costs are compared

    @classmethod
    def preset(cls, name: str) -> Self:
        if name == "full":
            return cls()
        return cls(sets=("yacht",), products=("steak",), splits=2, steps=300, start_steps=200, more_steps=60)

    def __post_init__(self) -> None:
        protocols.check_protocol(self.protocol)
        known = (("parts", PARTS), ("sets", tuple(FOLDERS)), ("conditions", CONDITIONS), ("products", PRODUCTS))
        for name, values in known:
            unknown = [value for value in getattr(self, name) if value not in values]
            if unknown:
                raise StakesError(f"expected {name} of {listing(values)}, but got {unknown[0]!r}")

    def check(self) -> None:
        require_data(Path(self.data), self.sets, self.splits, "orders" in self.parts)

    def cells(self) -> list[Cell]:
        return [cell for part in self.parts for cell in getattr(self, f"_{part}_cells")()]

    def run_cell(self, cell: Cell, report: Report) -> list[Row]:
        rows = getattr(self, f"_run_{cell['part']}")(cell)
        return [{**dict(cell.axes), "seed": seed, "rule": "optimal", **row} for seed, row in rows]

    def _cell(self, part: str, data: str, condition: str, learner: str, rows: int, splits: int | None = None) -> Cell:
        axes = {"protocol": self.protocol, "part": part, "data": data, "condition": condition, "learner": learner}
        return Cell(tuple(axes.items()), tuple(range(splits or self.splits)), rows)

    def _accuracy_cells(self) -> list[Cell]:
        return [self._cell("accuracy", data, AS_IT_IS, family, 1) for family in accuracy.FAMILIES for data in self.sets]

    def _run_accuracy(self, cell: Cell) -> list[tuple[int, Row]]:
        splits = [read_split(Path(self.data), cell["data"], number) for number in cell.seeds]
        steps = self.steps * accuracy.STEPS.get(cell["learner"], 1)
        schedule = Schedule(self.batch_size, self.learning_rate, steps=steps)
        if self.protocol == "authors":
            schedule = Schedule(128, 1e-3, epochs=4000)
        rows = accuracy.run_accuracy(cell["learner"], splits, cell.seeds, schedule, self.test_samples)
        return [(number, {"method": cell["learner"], **row}) for number, row in zip(cell.seeds, rows, strict=True)]

    def _costs_cells(self) -> list[Cell]:
        cells = []
        for condition in self.conditions:
            for data in (*self.sets, MADE):
                cells.append(self._cell("costs", data, condition, NETWORKS, len(costs.COSTS) * len(costs.METHODS)))
                if condition != ONE_SCALE:  # trees have no scale
                    cells.append(self._cell("costs", data, condition, TREES, len(costs.SHARES)))
        return cells

    def _run_costs(self, cell: Cell) -> Iterator[tuple[int, Row]]:
        problems = [self._problem(cell, number) for number in cell.seeds]
        if cell["learner"] == TREES:
            return costs.run_trees(problems, cell.seeds)
        scale = "one" if cell["condition"] == ONE_SCALE else "input"
        start = Schedule(self.batch_size, self.cost_learning_rate, steps=self.start_steps)
        more = Schedule(self.batch_size, self.cost_learning_rate, steps=self.more_steps)
        return costs.run_networks(problems, cell.seeds, scale, start, more, self.cost_samples)

    def _problem(self, cell: Cell, number: int) -> Standardised:
        problem = standardised(read_split(Path(self.data), cell["data"], number))
        if cell["condition"] != OUTLIERS:
            return problem
        return Standardised(with_outliers(problem.train, number), problem.test, problem.unit)

    def _orders_cells(self) -> list[Cell]:
        rows = len(orders.METHODS) * len(orders.SHARES)
        return [self._cell("orders", product, AS_IT_IS, ALL, rows, splits=1) for product in self.products]

    def _run_orders(self, cell: Cell) -> list[tuple[int, dict[str, Any]]]:
        days = read_days(Path(self.data))
        return [(0, row) for row in orders.run_orders(days, cell["data"])]
