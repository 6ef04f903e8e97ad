"""A mean cost that can be promised, in a sentence with all that it rests on; or why there is none."""

from math import ceil, floor

import numpy as np

from stakes.evaluation.amounts import best_seed as best_amount_seed
from stakes.evaluation.comparison import best_seed, select
from stakes.evaluation.metrics import Interval
from stakes.evaluation.promises import Promise, promise
from stakes.report.amounts import AmountFormat
from stakes.tables.amounts.run import AmountRun
from stakes.tables.run import FinishedRun, Run
from stakes.utility import Utility


def promise_sentence(promised: Promise, utility: Utility) -> str:
    """Costs are rounded up and utilities down, so that the sentence holds as it stands."""
    amounts = AmountFormat.of(utility)
    if promised.bound is None or promised.limits is None:
        return f"No mean {amounts.noun} can be promised: {promised.reason}."
    mean, bound, worst = (_stated(cost, utility) for cost in (promised.mean, promised.bound, promised.limits[1]))
    digits = amounts.digits(Interval(bound, *sorted((mean, bound))))
    rounded = (ceil if amounts.costs else floor)(round(bound * 10**digits, 6)) / 10**digits
    most, than = ("at most", "more than") if amounts.costs else ("at least", "less than")
    limit = "as was stated" if promised.stated else "by these costs" if amounts.costs else "by these utilities"
    rests = f"no decision can {'cost' if amounts.costs else 'be worth'} {than} {amounts.plain(worst)}, {limit}"
    alone = "come independently of each other"
    if promised.block is not None:
        alone = (
            f"are alike in stretches of {promised.block}, over which costs were averaged first, and not in longer ones"
        )
    return (
        f"With 95 % confidence, decisions about rows like these {amounts.verb} {most} {amounts.text(rounded, digits)} "
        f"each on average; about these it was {amounts.text(mean, digits)}. That rests on three things: {rests}; rows "
        f"{alone}; and the model was made without these."
    )


def promise_of_run(run: FinishedRun, worst: float | None = None) -> str:
    """The promise sentence for the saved model, from the test rows; ``worst`` is the most that a decision can cost."""
    times = run.dependence["times"]
    withheld = run.reason_against_promise(times)
    if run.rows["tested"] == "cv":
        withheld = "test rows were decided on by models that are not the saved one; see `stakes evaluate` on later rows"
    if isinstance(run, AmountRun):
        costs = best_amount_seed(run.scored, run.comparison.chosen).costs
    else:
        assert isinstance(run, Run)
        costs = _costs_of_classes(run)
    return promise_sentence(promise(costs, run.utility, worst=worst, times=times, withheld=withheld), run.utility)


def _costs_of_classes(run: Run) -> np.ndarray:
    seed = best_seed(run.predictions, run.comparison.chosen).seed
    (item,) = (each for each in select(run.scored, run.comparison.chosen, "optimal") if each.seed == seed)
    return np.asarray(run.utility.cost_of(item.utilities))


def _stated(cost: float, utility: Utility) -> float:
    """As the user states amounts."""
    return cost if utility.given == "cost" else utility.best - cost / utility.scale
