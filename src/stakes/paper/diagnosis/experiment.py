"""Section 4: diagnoses from three blood tests, with corrupted training labels (figures 2, 3, 4, 8; table 1)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from stakes._io.parallel import Report
from stakes.decisions import decide
from stakes.paper.diagnosis import data as diagnosis
from stakes.paper.protocols import check_models, check_protocol, score_rows, seed_groups, train_cell
from stakes.paper.sweep import ALL_MODELS, Cell, Row
from stakes.posteriors.base import Draws
from stakes.training.examples import TensorExamples
from stakes.utility import TableUtility, Utility

TRANSITION_STEPS = 41


@dataclass(frozen=True)
class Diagnosis:
    """The settings of the experiment.

    The protocol ``authors`` keeps the last epoch, takes the decisions once an epoch, and weights the classes
    1, 2, 3 as the authors' script does; ``fair`` selects the epoch by utility on as many validation patients,
    labelled as badly as the training ones, takes decisions at every step, and weights 1, 2, 2 as the paper says.
    """

    name: ClassVar[str] = "diagnosis"

    protocol: str = "fair"
    corrupted: tuple[int, ...] = (5, 10, 15, 20, 25, 30, 35, 40, 45)  # of 50 patients of a class
    seeds: int = 50
    methods: tuple[str, ...] = ALL_MODELS
    hidden: int = 20
    dropout: float = 0.2
    lengthscale: float = 0.01
    epochs: int = 200
    batch_size: int = 50
    learning_rate: float = 1e-3
    decision_samples: int = 10
    warmup: int = 200  # steps over which the gain is ramped up, in the fair protocol
    test_samples: int = 100
    together: int = 50  # seeds whose networks are trained in one stack

    @classmethod
    def preset(cls, name: str) -> Self:
        return cls() if name == "paper" else cls(corrupted=(10, 20, 30), seeds=5)

    def __post_init__(self) -> None:
        check_protocol(self.protocol)

    def check(self) -> None:
        check_models(self.methods)

    def cells(self) -> list[Cell]:
        return [
            Cell.of(*group, protocol=self.protocol, corrupted=corrupted, method=name)
            for corrupted in self.corrupted
            for group in seed_groups(self.seeds, self.together)
            for name in self.methods
        ]

    def run_cell(self, cell: Cell, report: Report) -> list[Row]:
        corrupted, per_class = cell["corrupted"], diagnosis.TRAIN_PER_CLASS
        trains, validations = (
            [_examples(diagnosis.patients(per_class, corrupted, seed, part)) for seed in cell.seeds]
            for part in ("train", "validation")
        )
        fair, utility = self.protocol == "fair", paper_utility()
        weights, noise = [1.0, 2.0, 2.0 if fair else 3.0], corrupted / per_class
        trained = train_cell(
            self, cell, trains, validations if fair else None, utility, weights, self.hidden, noise, validate_every=5
        )
        rows = []
        for seed, draws, _ in trained:
            test = _examples(diagnosis.patients(diagnosis.TEST_PER_CLASS, 0, seed, "test"))
            extra = {"transition": _transition(draws)} if seed == 0 else {}
            rows += score_rows(cell, seed, draws(test.x).mean_probs(), test.labels, utility, **extra)
        return rows


def paper_utility() -> TableUtility:
    """Table 1: utility = 2 - cost / 50."""
    return Utility.from_costs(
        diagnosis.COSTS,
        diagnosis.CLASSES,
        diagnosis.CLASSES,
        unit="£",
        best=diagnosis.UTILITY_OF_NO_COST,
        scale=diagnosis.COST_OF_ONE_UTILITY,
    )


def _examples(patients: diagnosis.Patients) -> TensorExamples:
    return TensorExamples(torch.from_numpy(patients.x).float(), torch.from_numpy(patients.observed))


def _transition(draws: Draws) -> dict[str, Any]:
    """The predictive (mean and sd over draws) and the decision on the line from a healthy to a mild patient."""
    share = torch.linspace(0, 1, TRANSITION_STEPS)[:, None]
    x = (1 - share) * torch.eye(3)[0] + share * torch.eye(3)[1]
    predictive = draws(x)
    probs = predictive.log_probs().exp()  # (S, steps, 3)
    return {
        "mean": probs.mean(0).double().numpy().round(4).tolist(),
        "sd": probs.std(0).double().numpy().round(4).tolist(),
        "choice": decide(predictive, paper_utility()).choice.tolist(),
    }
