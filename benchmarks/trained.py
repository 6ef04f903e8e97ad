"""Networks trained on real data, from STAKES_DATA: accuracy and decisions of an untrained one mean little."""

import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from stakes import MLP, LossCalibrated, MCDropout, Standard, Training, fit
from stakes.likelihoods import Categorical
from stakes.paper.digits.data import FILES, read_digits
from stakes.posteriors.base import Posterior
from stakes.predictors import SampledPosterior
from stakes.tables.network_models import NetworkModel
from stakes.tables.prepare import prepare
from stakes.tables.problem import Recipe
from stakes.tables.task import TableTask
from stakes.utility import TableUtility

DATA, EXAMPLES = Path(os.environ.get("STAKES_DATA", ".")), Path(__file__).parents[1] / "examples"


class Table(NamedTuple):
    """How one of examples/README.md is asked for."""

    target: str
    drop: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()


TABLES = {
    "credit_default": Table("default.payment.next.month", ("ID",), (("0", "repaid"), ("1", "defaulted"))),
    "fetal_health": Table("NSP", ("CLASS",), (("1", "normal"), ("2", "suspect"), ("3", "pathologic"))),
    "maternal_risk": Table("RiskLevel"),
}
MORE_TABLES = {
    "telco_churn": Table("Churn", ("customerID",), (("No", "stays"), ("Yes", "churns"))),
    "machine_failure": Table(
        "Machine failure",
        ("UDI", "Product ID", "TWF", "HDF", "PWF", "OSF", "RNF"),
        (("0", "runs"), ("1", "fails")),
    ),
}


def table_task(name: str, **settings: Any) -> TableTask:
    """What examples/README.md asks of `stakes fit`, with some settings changed."""
    table, data = {**TABLES, **MORE_TABLES}[name], DATA / "tabular" / f"{name}.csv"
    costs, renames = EXAMPLES / f"{name}_costs.csv", dict(table.renames)
    return TableTask(data, table.target, costs, drop=table.drop, renames=renames, **settings)


class Trained(NamedTuple):
    posterior: Posterior
    x: Tensor  # (B, U) of the test rows
    utility: TableUtility | None


def tables_are_there() -> bool:
    return all((DATA / "tabular" / f"{name}.csv").is_file() for name in TABLES)


def digits_are_there() -> bool:
    return any((folder / FILES["train"][0]).is_file() for folder in (DATA, DATA / "mnist"))


@cache
def trained_on_table(name: str) -> Trained:
    """The MLP of `stakes fit`, trained by the calibrated objective on all folds but the first."""
    (division,) = prepare(table_task(name, test=0.2)).divisions
    recipe = Recipe(network="mlp", posterior={"family": "dropout"}, training=Training())
    (part,) = NetworkModel("calibrated", objective=LossCalibrated).train(division.problem, recipe, 0, [0])
    assert isinstance(part.predictor, SampledPosterior)
    return Trained(part.predictor.posterior.eval(), division.test_x, division.problem.utility)


@cache
def trained_on_digits(hidden: tuple[int, ...], rows: int) -> Trained:
    """784-...-10 with a dropout rate of 0.2, three epochs over 10,000 digits; the first ``rows`` test digits."""
    train, test = read_digits(DATA, "train"), read_digits(DATA, "test")
    assert isinstance(train.x, Tensor)
    assert isinstance(test.x, Tensor)
    posterior = MCDropout.build(lambda: MLP(784, 10, hidden=hidden, dropout=0.2), Categorical(), seed=0)
    data = train.x[:10_000], train.labels[:10_000]
    fit(posterior, Standard(), data, config=Training(3, 50), progress=False)
    return Trained(posterior.eval(), test.x[:rows], None)
