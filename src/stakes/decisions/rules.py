"""From what a model says of the outcomes, and a utility, to what to do.

h*(x) = argmax_h  sum_c u(h, c) p(c | x),  or the integral of u(h, y) p(y | x), where outcomes are numbers
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from stakes import inputs
from stakes.decisions.results import AmountDecisions, Decisions, joined, rows_of
from stakes.errors import StakesError, listing
from stakes.outcomes import Outcomes, Predictive
from stakes.utility import AmountUtility, TableUtility, Utility

Rule = Literal["optimal", "argmax"]
RULES: tuple[Rule, ...] = ("argmax", "optimal")
FEWEST_GROUPS = 5  # of draws, whose spread is the Monte-Carlo error
FEWEST_DRAWS = 10  # before an input may settle
EQUAL_DRAWS = 1e-6  # less spread than this share of the lead is rounding
SETTLE = 0.99  # default confidence for table rows


class _Look(NamedTuple):
    """Decisions after some draws, and whether each is clear."""

    decisions: Decisions
    clear: Tensor  # (b, ...)


def decide(
    predictive: Predictive | Outcomes | Tensor | ArrayLike,
    utility: Utility,
    rule: Rule = "optimal",
    *,
    classes: Sequence[Any] | None = None,
    settle: float | None = None,
) -> Decisions:
    """The decision with the highest expected utility for each input.

    ``predictive`` is what a predictor says of some inputs, ``draws(x)``, or an array of probabilities with the
    outcomes last: a mean predictive, or the ``predict_proba`` of any classifier. Its columns are in the
    order of ``utility.outcomes``, unless ``classes`` names them: for scikit-learn, which sorts its
    classes, pass ``classes=model.classes_``. Only draws have a Monte-Carlo error.

    With ``settle``, a confidence below 1 such as 0.999, each input uses only as many draws as its decision needs. After
    10, 20, 50, 100, ... draws (whole groups), an input stops if its decision leads every other by more than the
    Monte-Carlo error allows at this confidence. Inputs do not affect each other; one that never settles uses all draws,
    and ``settle=1`` uses all draws for every input. The guarantee assumes that the draws so far show how draws differ:
    the first check waits until every unit has been dropped and kept once with this confidence (hundreds of draws for
    dropout rates below 0.05), and an input whose draws are all equal stays while unseen draws could still change its
    decision. Not covered: a large loss that needs several units dropped together while all other draws differ little.

    The rule ``argmax`` is for comparison: it acts as if the most probable outcome were certain.

    Where decisions are numbers (`Newsvendor`, say), the result is `AmountDecisions`.
    """
    if rule not in RULES:
        raise StakesError(f"expected a rule of {RULES}, but got {rule!r}")
    if settle is not None and not (isinstance(predictive, Predictive) and 0 < settle <= 1 and rule == "optimal"):
        raise StakesError(
            "expected settle= to be a confidence above 0 and at most 1, for draws and the optimal rule, but got "
            f"{settle} for {type(predictive).__name__} and the rule {rule!r}"
        )
    if not isinstance(predictive, Predictive):
        return _without_nan(_decide(_outcomes_of(predictive, utility, classes), utility, rule))
    utility.require_examples(inputs.count(predictive.x))
    if settle is not None and settle != 1:
        return _without_nan(_settle(predictive, utility, settle))
    parts, first = [], 0
    for draws in blocks_of(predictive, utility, classes):  # (S, b, ..., K)
        last = first + draws.shape[1]
        rows = utility.rows(slice(first, last))
        parts.append(_decide_draws(draws, rows, rule, predictive.predictor.group, None).decisions)
        first = last
    return _without_nan(joined(parts))


def blocks_of(
    predictive: Predictive | Outcomes | Tensor | ArrayLike, utility: Utility, classes: Sequence[Any] | None
) -> Iterator[Outcomes]:
    """``(S, b, ..., K)`` the draws about one block of inputs after the other, outcomes in the order of the utility."""
    if not isinstance(predictive, Predictive):
        outcomes = _outcomes_of(predictive, utility, classes)
        utility.require_examples(outcomes.shape[0])
        yield outcomes.repeat(1)
        return
    if classes is not None:
        raise StakesError("classes= names the columns of an array of probabilities; draws have none to be named")
    names = predictive.predictor.names
    for draws in predictive.blocks():
        yield draws if names is None else Outcomes(draws.weights[..., _columns(names, utility)])


def _outcomes_of(given: Outcomes | Tensor | ArrayLike, utility: Utility, classes: Sequence[Any] | None) -> Outcomes:
    """``(B, ..., K)``, outcomes in the order of the utility."""
    if not isinstance(given, Outcomes):
        shape = np.shape(given)
        if len(shape) != 2:
            raise StakesError(
                f"expected an array of probabilities of shape (n, C), but got {shape}: for more positions, as in an "
                "image, give Outcomes.from_probs(array); for draws, Predictor.from_samples(probs=array)"
            )
        given = Outcomes.from_probs(given)
    return given if classes is None else Outcomes(given.weights[..., _columns(classes, utility)])


def _without_nan(decisions: Decisions) -> Decisions:
    """Refuse decisions about inputs of which nothing is known: any of them would look like the best."""
    refuse_nan(decisions.expected_utility)
    return decisions


def refuse_nan(values: Tensor) -> None:
    """Refuse inputs ``(B, ...)`` with NaN."""
    nan = values.isnan()
    if bool(nan.any()):
        unknown = nan.reshape(len(nan), -1).any(1)
        row = int(unknown.long().argmax())
        raise StakesError(
            f"expected probabilities or amounts to decide by, but those of {int(unknown.sum())} of {len(unknown)} "
            f"inputs, the first at index {row}, are NaN: leave these inputs out, or fill in what is missing in them"
        )


def _columns(classes: Sequence[Any], utility: Utility) -> list[int]:
    """Where each outcome of the utility stands among ``classes``."""
    names, outcomes = [str(name) for name in classes], getattr(utility, "outcomes", ())
    if sorted(names) != sorted(outcomes):
        raise StakesError(f"expected the classes {listing(outcomes)} in some order, but got {listing(names)}")
    return [names.index(outcome) for outcome in outcomes]


def _decide(outcomes: Outcomes, utility: Utility, rule: Rule) -> Decisions:
    if isinstance(utility, AmountUtility):
        return _decide_amounts(outcomes, utility, rule)
    utilities = utility.expected(outcomes)  # (B, ..., D)
    if rule == "argmax":
        if not isinstance(utility, TableUtility):
            raise _no_argmax()
        choice = utility.response_to(outcomes.weights.argmax(-1))
    else:
        choice = utilities.argmax(-1)
    return Decisions(utility.decisions, choice, utilities, outcomes, utility.best, utility.scale)


def _decide_amounts(outcomes: Outcomes, utility: AmountUtility, rule: Rule) -> AmountDecisions:
    if rule == "argmax":
        raise _no_argmax()
    choice = utility.best_choice(outcomes)
    rival = utility.runner_up(outcomes, choice)
    candidates = [choice] if rival is None else [choice, rival]
    utilities = torch.stack([utility.expected_of(outcomes, amount) for amount in candidates], -1)
    return AmountDecisions((), choice, utilities, outcomes, utility.best, utility.scale, next_best=rival)


def _no_argmax() -> StakesError:
    return StakesError("the rule 'argmax' needs named outcomes, of which one is the most probable")


def _decide_draws(draws: Outcomes, utility: Utility, rule: Rule, group: int, doubt: float | None) -> _Look:
    """Decisions from some draws, the Monte-Carlo error of their margins, and which of them are beyond ``doubt``."""
    decisions = _decide(draws.mixture(), utility, rule)
    samples, rivals = draws.shape[0], len(utility.decisions) - 1 if doubt is not None else 1
    decisions = replace(decisions, taken=torch.full((len(decisions),), samples, device=decisions.choice.device))
    clear = torch.ones_like(decisions.choice, dtype=torch.bool)
    if isinstance(decisions, AmountDecisions):
        return _Look(_with_amount_errors(decisions, draws, utility, group), clear)
    if len(utility.decisions) == 1 or samples == 1:
        return _Look(decisions, clear)
    least: Tensor | None = None  # (b, ..., R) lower bounds of the advantages, which are rarely asked for
    others = decisions.utilities.scatter(-1, decisions.choice.unsqueeze(-1), -torch.inf).topk(rivals)  # (b, ..., R)
    for number in range(rivals):
        rival = others.indices[..., number]
        advantage = utility.advantage(draws, decisions.choice, rival)  # (S, b, ...)
        error, freedom = _standard_error(advantage, group)
        if number == 0:
            decisions = replace(decisions, margin_error=error * _widening(freedom))
        if doubt is not None:
            lead = decisions.expected_utility - others.values[..., number]
            clear &= lead > _student(1 - doubt, freedom) * error
            if bool((error < EQUAL_DRAWS * lead).any()):
                if least is None:
                    bounds = utility.least_advantages(decisions.choice, decisions.utilities)
                    least = bounds.gather(-1, others.indices)
                clear &= _clear_if_equal(advantage, lead, least[..., number], doubt)
    return _Look(decisions, clear)


def _clear_if_equal(advantage: Tensor, lead: Tensor, least: Tensor, doubt: float) -> Tensor:
    """``(b, ...)`` whether a lead stands although all draws are equal, which says nothing of their error: a share of
    others may not have come yet, each with the ``least`` advantage that there can be. True where draws differ.
    """
    unseen: float = 1 - doubt ** (1 / len(advantage))  # a larger share would have shown itself
    differ = advantage.std(0) >= EQUAL_DRAWS * lead
    return differ | ((1 - unseen) * lead + unseen * least > 0)


def _with_amount_errors(decisions: AmountDecisions, draws: Outcomes, utility: Utility, group: int) -> AmountDecisions:
    if draws.shape[0] == 1:
        return decisions
    error = monte_carlo_error(utility.expected_of(draws, decisions.choice), group)
    decisions = replace(decisions, utility_error=error)
    if decisions.next_best is None:
        return decisions
    error = monte_carlo_error(utility.advantage(draws, decisions.choice, decisions.next_best), group)
    return replace(decisions, margin_error=error)


def monte_carlo_error(values: Tensor, group: int = 1) -> Tensor:
    """``(S, ...) -> (...)``: the standard error of the mean over draws, wider where these are few."""
    error, freedom = _standard_error(values, group)
    return error * _widening(freedom)


def _standard_error(values: Tensor, group: int) -> tuple[Tensor, int]:
    """``(S, ...) -> (...)``: of the mean over draws, and its degrees of freedom.

    Groups of ``group`` draws are independent of each other, and the draws in a group balance each other: what is left
    of their noise shows in the spread between groups. Few groups do not show it: then it is the error that as many
    independent draws would have, which is larger. An unfinished group, at the end, is balanced in part.
    """
    groups, rest = divmod(len(values), group)
    if group == 1 or groups < FEWEST_GROUPS:
        return values.std(0) / math.sqrt(len(values)), len(values) - 1
    means = values[: groups * group].reshape(groups, group, *values.shape[1:]).mean(1)  # (groups, ...)
    of_draw, of_mean = values.var(0), means.var(0)
    # Any two draws of a group have the same covariance, by which their mean varies as it does.
    covariance = (group * of_mean - of_draw) / (group - 1)
    of_rest = (rest * (of_draw + (rest - 1) * covariance)).clamp_min(0)  # of the sum of the unfinished group
    return (groups * group**2 * of_mean + of_rest).sqrt() / len(values), groups - 1


def _widening(freedom: int) -> float:
    """The factor that widens a standard error from few draws so that two of them cover 95 %."""
    return _student(0.975, freedom) / _student(0.975, None)


@cache
def _student(probability: float, freedom: int | None) -> float:
    """A quantile of Student's t; of the normal distribution without ``freedom``."""
    from scipy.special import ndtri, stdtrit  # it takes a tenth of a second to import

    return float(ndtri(probability) if freedom is None else stdtrit(freedom, probability))


@torch.no_grad()
def _settle(predictive: Predictive, utility: Utility, confidence: float) -> Decisions:
    predictor, first = predictive.predictor, 0
    ends = _looks(predictor.samples, predictor.group)
    # A mistake may happen at every look but the last, and towards every other decision.
    doubt = (1 - confidence) / max(1, (len(ends) - 1) * (len(utility.decisions) - 1))
    if predictor.group_coverage < 1:
        needed = predictor.group * math.log(doubt) / math.log1p(-predictor.group_coverage)
        ends = [*(end for end in ends[:-1] if end >= needed), ends[-1]]
    if predictor.names is not None:
        raise StakesError("settle= is for a model whose outcomes are in the order of the utility: leave it out")
    one = predictor.outcomes(inputs.rows(predictive.x, slice(1)), 0, 1)
    if one.numeric:  # their mixtures would have as many parts as the draws of each input
        raise StakesError(
            "settle= is for named outcomes: inputs whose outcomes are numbers take all draws; leave it out"
        )
    settled, order = [], []
    all_inputs = inputs.cast(predictive.x, predictor.device)  # where they are chosen from
    for x in inputs.split(all_inputs, max(1, predictive.memory // (4 * one.weights.nbytes * predictor.samples))):
        index = torch.arange(first, first + inputs.count(x), device=predictor.device)
        first += len(index)
        draws: list[Outcomes] = []
        for start, end in pairwise([0, *ends]):
            new = Outcomes.cat([*replace(predictive, x=x).blocks(start, end)], dim=1)
            draws = [Outcomes.cat([*draws, new])]  # (end, b, ..., K)
            look = _decide_draws(draws[0], utility.rows(index), "optimal", predictor.group, doubt)
            # An image leaves when all its pixels are clear.
            done = look.clear.reshape(len(index), -1).all(1) | (end == ends[-1])
            settled.append(rows_of(look.decisions, done))
            order.append(index[done])
            if bool(done.all()):
                break
            index, x, draws = index[~done], inputs.rows(x, ~done), [draws[0].rows(~done, 1)]
    return rows_of(joined(settled), torch.cat(order).argsort())


def _looks(samples: int, group: int) -> list[int]:
    """After how many draws inputs may leave: after 1, 2, 5, 10, 20, ... times the fewest, in whole groups; and all."""
    fewest = group * -(-FEWEST_DRAWS // group)
    ends = [fewest * step * 10**power for power in range(8) for step in (1, 2, 5)]
    return [*(end for end in ends if end < samples), samples]
