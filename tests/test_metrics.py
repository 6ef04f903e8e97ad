import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score
from torchmetrics.functional.classification import multiclass_calibration_error

from stakes import StakesError, Utility, decide
from stakes.evaluation import metrics
from stakes.evaluation.few_cases import few_decisive_cases
from stakes.evaluation.metrics import bootstrap, confusion_counts, paired_difference, standard_error
from stakes.utility import TableUtility

NAMES = ["a", "b", "c"]
SQUARE = Utility.from_costs([[0, 50, 100], [40, 0, 35], [45, 30, 0]], NAMES, NAMES)
REFER = Utility.from_costs([[0, 9, 4], [5, 0, 4], [1, 1, 1]], ["x", "y", "refer"], NAMES)


def sample(count: int = 500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet([1, 1, 1], size=count)
    labels = np.array([generator.choice(3, p=p) for p in probs])
    return probs, labels


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_what_follows_from_counts_is_what_scikit_learn_says(pairs: list[tuple[int, int]]) -> None:
    choice, labels = np.array(pairs).T
    counts = confusion_counts(choice, labels, SQUARE)
    np.testing.assert_array_equal(counts, confusion_matrix(labels, choice, labels=[0, 1, 2]).T)
    assert metrics.accuracy(counts, SQUARE) == pytest.approx(accuracy_score(labels, choice))
    used = np.bincount([*choice, *labels], minlength=3) > 0
    iou = jaccard_score(labels, choice, labels=[0, 1, 2], average=None, zero_division=0)
    np.testing.assert_allclose(metrics.iou(counts, SQUARE)[used], iou[used])
    assert np.isnan(metrics.iou(counts, SQUARE)[~used]).all()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_utility_from_counts_is_the_mean_of_looked_up_utilities(pairs: list[tuple[int, int]]) -> None:
    choice, labels = np.array(pairs).T
    counts = confusion_counts(choice, labels, REFER)
    looked_up = [REFER.values[h, c] for h, c in pairs]
    assert REFER.mean_utility(counts) == pytest.approx(np.mean(looked_up))
    oracle = np.mean([max(REFER.values[:, c]) for _, c in pairs])
    assert REFER.mean_regret(counts) == pytest.approx(oracle - np.mean(looked_up))
    assert REFER.mean_regret(counts) >= -1e-12


def test_counts_add_up_over_batches_and_middle_axes() -> None:
    choice, labels = torch.randint(3, (4, 5, 6)), torch.randint(3, (4, 5, 6))
    whole = confusion_counts(choice, labels, SQUARE)
    parts = sum(confusion_counts(choice[i], labels[i], SQUARE) for i in range(4))
    np.testing.assert_array_equal(whole, parts)
    assert whole.sum() == 120


@pytest.mark.parametrize(
    ("choice", "labels", "words"),
    [
        ([0, 3], [0, 0], "decisions from 0 to 2"),
        ([0], [-1], "labels from 0"),
        ([0, 1], [0], "for each"),
        ([0.5], [0], "integers"),
    ],
)
def test_impossible_counts_are_refused(choice: list, labels: list, words: str) -> None:
    with pytest.raises(StakesError, match=words):
        confusion_counts(np.array(choice), np.array(labels), SQUARE)


def test_nll_and_brier_by_hand() -> None:
    probs, labels = [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], [0, 1]
    assert metrics.nll(probs, labels) == pytest.approx(-(np.log(0.7) + np.log(0.1)) / 2)
    by_hand = (0.3**2 + 0.2**2 + 0.1**2 + 0.1**2 + 0.9**2 + 0.8**2) / 2
    assert metrics.brier(probs, labels) == pytest.approx(by_hand)


def test_ece_agrees_with_torchmetrics() -> None:
    probs, labels = sample(2000)
    theirs = multiclass_calibration_error(torch.tensor(probs), torch.tensor(labels), num_classes=3, n_bins=15)
    assert metrics.reliability(probs, labels).ece == pytest.approx(float(theirs), abs=1e-6)


def test_probabilities_that_are_meant_are_calibrated() -> None:
    probs, labels = sample(20000)
    honest = metrics.reliability(probs, labels).ece
    proud = metrics.reliability(probs**4 / (probs**4).sum(1, keepdims=True), labels).ece
    assert honest < 0.02 < 0.1 < proud


def test_claims_meet_reality_when_probabilities_are_right() -> None:
    probs, labels = sample(20000)
    decisions = decide(probs, SQUARE)
    realised = SQUARE.realised(decisions.choice, labels)
    error = realised.std() / len(realised) ** 0.5
    assert float(decisions.expected_utility.mean()) == pytest.approx(realised.mean(), abs=4 * error)


def test_utilities_of_a_table_for_each_example() -> None:
    tables = np.random.default_rng(0).normal(size=(5, 2, 3))
    utility = TableUtility(tables, ("x", "y"), tuple(NAMES))
    probs, labels = sample(5)
    decisions = decide(probs, utility)
    expected = [tables[i, int(decisions.choice[i]), labels[i]] for i in range(5)]
    np.testing.assert_allclose(utility.realised(decisions.choice, labels), expected)


# Intervals -----------------------------------------------------------------------------------------


def test_the_bootstrap_agrees_with_scipy() -> None:
    values = np.random.default_rng(0).exponential(size=300)
    ours = bootstrap(values, seed=0, resamples=5000)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=5000, rng=1).confidence_interval
    assert ours.mean == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)
    assert ours == bootstrap(values, seed=0, resamples=5000)
    assert ours != bootstrap(values, seed=1, resamples=5000)


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    intervals = [bootstrap(generator.normal(size=80), seed=i, resamples=300) for i in range(300)]
    covered = np.mean([i.low <= 0 <= i.high for i in intervals])
    assert covered == pytest.approx(0.95, abs=0.04)


def test_seeds_that_disagree_widen_the_interval() -> None:
    generator = np.random.default_rng(0)
    examples = generator.normal(size=400)
    agreeing = np.stack([examples, examples, examples, examples])
    disagreeing = agreeing + np.array([[-1], [1], [-0.5], [0.5]])
    narrow, wide = bootstrap(agreeing, seed=0), bootstrap(disagreeing, seed=0)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_pairing_removes_what_the_examples_have_in_common() -> None:
    generator = np.random.default_rng(0)
    common = generator.normal(scale=10, size=500)
    ours, theirs = common + 0.3 + 0.1 * generator.normal(size=500), common
    paired = paired_difference(ours, theirs, seed=0)
    assert paired.low > 0
    assert paired.mean == pytest.approx((ours - theirs).mean())
    apart = bootstrap(ours, seed=0)
    assert paired.high - paired.low < 0.1 * (apart.high - apart.low)


def test_an_interval_of_nothing_is_refused() -> None:
    for values in ([], [np.nan], np.zeros((2, 2, 2))):
        with pytest.raises(StakesError, match="finite values"):
            bootstrap(values, seed=0)
    with pytest.raises(StakesError, match="same examples"):
        paired_difference([1.0], [1.0, 2.0], seed=0)


def test_many_examples_with_few_values_are_quick_and_the_same() -> None:
    generator = np.random.default_rng(0)
    few = generator.choice([0.0, 5.0, 100.0], p=[0.8, 0.15, 0.05], size=200_000)
    found = bootstrap(few, seed=0)
    error = few.std() / len(few) ** 0.5
    assert (found.low, found.high) == pytest.approx((few.mean() - 1.96 * error, few.mean() + 1.96 * error), rel=0.01)


def test_logits_and_tables_for_each_example_are_refused() -> None:
    with pytest.raises(StakesError, match="softmax"):
        metrics.reliability(np.random.default_rng(0).normal(size=(5, 3)), np.zeros(5, dtype=int))
    each = TableUtility(np.zeros((5, 2, 3)), ("x", "y"), tuple(NAMES))
    with pytest.raises(StakesError, match="one table for all"):
        each.mean_utility(np.ones((2, 3), dtype=int))


def test_ratios_of_sums_have_the_interval_that_scipy_gives() -> None:
    generator = np.random.default_rng(0)
    wholes = generator.integers(1, 50, size=(1, 200, 2))
    parts = generator.binomial(wholes, [0.3, 0.7])
    every, mean = metrics.bootstrap_ratios(parts, wholes, seed=0)
    for place in range(2):
        part, whole = parts[0, :, place], wholes[0, :, place]
        assert every[place].mean == pytest.approx(part.sum() / whole.sum())
        expected = stats.bootstrap(
            (part, whole),
            lambda p, w, axis: p.sum(axis) / w.sum(axis),
            paired=True,
            n_resamples=4000,
            method="percentile",
            rng=np.random.default_rng(1),
        ).confidence_interval
        assert (every[place].low, every[place].high) == pytest.approx((expected.low, expected.high), abs=0.002)
    assert mean.mean == pytest.approx(np.mean([one.mean for one in every]))
    assert every[0].high < mean.low < mean.high < every[1].low


def test_ratios_take_several_runs_and_empty_wholes() -> None:
    parts = np.array([[[1, 0]] * 5, [[3, 0]] * 5])
    wholes = np.array([[[4, 0]] * 5, [[4, 0]] * 5])
    (first, empty), _ = metrics.bootstrap_ratios(parts, wholes, seed=0)
    assert (first.mean, first.low, first.high) == pytest.approx((0.5, 0.25, 0.75))
    assert (empty.mean, empty.low, empty.high) == (0, 0, 0)
    with pytest.raises(StakesError, match="runs, N, C"):
        metrics.bootstrap_ratios(parts, wholes[:1], seed=0)


def test_groups_are_resampled_whole() -> None:
    """Each value eight times over is no more than once: the interval is that of the groups' means."""
    once = np.random.default_rng(0).normal(size=60)
    repeated, groups = np.repeat(once, 8), np.repeat(np.arange(60), 8)
    alone, together = bootstrap(once, seed=0), bootstrap(repeated, seed=0, groups=groups)
    assert together.mean == pytest.approx(alone.mean)
    assert together.high - together.low == pytest.approx(alone.high - alone.low, rel=0.1)
    apart = bootstrap(repeated, seed=0)
    assert (together.high - together.low) / (apart.high - apart.low) == pytest.approx(np.sqrt(8), rel=0.1)
    two_runs = bootstrap(np.stack([repeated, repeated + 1]), seed=0, groups=groups)
    assert two_runs.high - two_runs.low > together.high - together.low


@pytest.mark.parametrize(("cases", "misses"), [(40, 1), (40, 2), (40, 5), (15, 7.5)])
def test_few_differing_cases_are_not_taken_for_more_than_chance(cases: int, misses: float) -> None:
    """Two ways to decide that cost the same in the long run: how often is one said to be better, beyond chance?"""
    rows, false_alarm, generator = 2000, 20.0, np.random.default_rng(1)
    share = cases / rows
    miss = false_alarm * (1 - share) * 0.9 * rows / misses
    utility = Utility.from_costs({"pay": {"honest": 0, "fraud": miss}, "block": {"honest": false_alarm, "fraud": 0}})
    cells = np.array([share * (1 - misses / cases), share * misses / cases, (1 - share) * 0.1, (1 - share) * 0.9])
    # Fraud blocked, fraud paid, honest blocked, honest paid: against blocking everybody.
    against_blocking = np.array([0.0, -miss, 0.0, false_alarm])
    assert abs(cells @ against_blocking) < 1e-9
    plain = told = 0
    for seed in range(200):
        drawn = np.repeat(np.arange(4), generator.multinomial(rows, cells))
        difference, labels = against_blocking[drawn], (drawn < 2).astype(int)
        found = bootstrap(difference, seed=seed, resamples=500)
        plain += found.low > 0 or found.high < 0
        told += (found.low > 0 or found.high < 0) and not few_decisive_cases(utility, labels, difference)
    assert told <= 0.06 * 200
    assert misses > 2 or plain > 0.1 * 200, "the bootstrap alone would be wrong far more often than in 5 %"


def test_rows_of_one_patient_are_one_case() -> None:
    """Each patient 25 times over is no more than once, in whether a difference rests on few cases."""
    utility = Utility.from_costs({"treat": {"ill": 0, "well": 10}, "wait": {"ill": 300, "well": 0}})
    labels = np.repeat([0, 1], [40, 1960])
    difference = np.where(labels == 1, 10.0, 0.0)  # waiting, against treating everybody
    difference[:2] = -300.0
    groups = np.arange(2000)
    alone = few_decisive_cases(utility, labels, difference)
    together = few_decisive_cases(utility, *(np.repeat(each, 25) for each in (labels, difference, groups)))
    assert alone == together == few_decisive_cases(utility, labels, difference, groups)
    fewer = np.where(groups < 1600, difference, 0.0)  # so that three more of the ill would turn it
    fewer[2:40] = 0.0
    fewer[labels == 1] /= 15
    (case,) = few_decisive_cases(utility, labels, fewer)
    assert (case.outcome, case.cases, case.differing) == ("ill", 40, 2)
    assert few_decisive_cases(utility, *(np.repeat(each, 25) for each in (labels, fewer, groups))) == (case,)
    assert few_decisive_cases(utility, np.repeat(labels, 25), np.repeat(fewer, 25)) == ()


def test_the_standard_error_of_a_mean() -> None:
    once = np.random.default_rng(0).normal(size=60)
    alone = standard_error(once)
    assert alone == pytest.approx(stats.sem(once))
    assert standard_error(np.repeat(once, 8), groups=np.repeat(np.arange(60), 8)) == pytest.approx(alone)
    counts = np.arange(60) % 3
    repeated = standard_error(np.repeat(once, counts), groups=np.repeat(np.arange(60), counts))
    assert standard_error(once, weights=counts) == pytest.approx(repeated, rel=0.02)  # 60 numbers, or the 40 that count
    trend = np.repeat(np.random.default_rng(1).normal(size=30), 10)  # ten neighbours alike
    assert standard_error(trend, times=np.arange(300.0)) > 2.5 * standard_error(trend)
    assert standard_error([1.0, 2.0], groups=[0, 0]) == np.inf


def test_ten_outcomes_of_eighteen_cases_each_do_not_hide_a_plain_difference() -> None:
    """A model that is right nearly everywhere, against one decision for everybody: no outcome alone carries it."""
    digits = [str(digit) for digit in range(10)]
    costs = 1 - np.eye(10)
    costs[:, 3] *= 5
    utility = Utility.from_costs(costs, digits, digits)
    labels = np.repeat(np.arange(10), 18)
    choice = labels.copy()
    choice[::15] = 0
    difference = utility.realised(choice, labels) - utility.realised(np.full(180, 3), labels)
    assert bootstrap(difference, seed=0).low > 0
    assert few_decisive_cases(utility, labels, difference) == ()
