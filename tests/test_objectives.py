"""The objectives against enumeration over a finite weight set, closed forms and finite differences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from watching import LargestTensor

from stakes import Ensemble, LossCalibrated, MCDropout, NoisyCategorical, StakesError, Standard, Utility, Weighted
from stakes.objectives import Objective
from stakes.outcomes import Outcomes
from stakes.posteriors import Draws, Posterior
from stakes.utility import TableUtility

WEIGHTS, EXAMPLES, CLASSES = 4, 6, 3


class FiniteWeights(Posterior):
    """q over a handful of linear networks. ``counts`` are q in tenths; the prior is ``prior``.

    ``outputs`` runs through the weight set exactly, each network as often as its count, or samples a
    network for each example.
    """

    def __init__(self, weights: Tensor, counts: list[int], prior: Tensor, exact: bool) -> None:
        super().__init__(None)
        self.weights, self.counts, self.prior, self.exact = weights, torch.tensor(counts), prior, exact

    @property
    def q(self) -> Tensor:
        return self.counts.double() / self.counts.sum()

    def outputs(self, x: Tensor, samples: int = 1) -> Tensor:
        every = torch.einsum("bi,kic->kbc", x, self.weights)  # (K, B, C)
        if self.exact:
            return every.repeat_interleave(self.counts, 0)
        chosen = torch.multinomial(self.q, samples * len(x), replacement=True).reshape(samples, len(x))
        return every[chosen, torch.arange(len(x))]

    def kl(self) -> Tensor:
        return (self.q * (self.q / self.prior).log()).sum()

    def draw(self, samples: int, seed: int) -> Draws:
        raise NotImplementedError

    def settings(self) -> dict:
        raise NotImplementedError


@pytest.fixture
def problem() -> tuple[Tensor, Tensor, Tensor, Tensor, Utility]:
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(WEIGHTS, 2, CLASSES, generator=generator, dtype=torch.float64)
    prior = torch.rand(WEIGHTS, generator=generator, dtype=torch.float64).softmax(0)
    x = torch.randn(EXAMPLES, 2, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
    utility = Utility.from_costs([[0, 50, 100], [40, 0, 35], [45, 30, 0], [20, 20, 20]], outcomes=["a", "b", "c"])
    return weights, prior, x, labels, utility


COUNTS, MARGIN = [4, 3, 2, 1], 0.05


def enumerated(problem: tuple, counts: list[int]) -> tuple[float, float, float]:
    """log G(H|X), KL(q || p~) and log p(Y|X), from nothing but sums over the weight set, in plain NumPy."""
    weights, prior, x, labels, utility = problem
    logits = np.einsum("bi,kic->kbc", x.numpy(), weights.numpy())
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)  # (K, B, C)
    q = np.array(counts) / sum(counts)
    table = utility.values - utility.values.min() + MARGIN * np.ptp(utility.values)
    mean = np.einsum("k,kbc->bc", q, probs)
    best = (mean @ table.T).argmax(1)
    gains = np.einsum("kbc,bc->kb", probs, table[best]).prod(1)  # G(H | X, w)
    likelihoods = probs[:, np.arange(EXAMPLES), labels.numpy()].prod(1)  # p(Y | X, w)
    evidence = (prior.numpy() * likelihoods).sum()
    posterior = prior.numpy() * likelihoods / evidence
    total_gain = (posterior * gains).sum()
    calibrated = posterior * gains / total_gain
    return np.log(total_gain), float((q * np.log(q / calibrated)).sum()), np.log(evidence)


def test_the_bound_is_exact_on_a_finite_weight_set(problem: tuple) -> None:
    """KL(q || p~) = log G(H|X) - L(q, H): the paper's appendix B."""
    weights, prior, x, labels, utility = problem
    log_gain_total, divergence, log_evidence = enumerated(problem, COUNTS)
    posterior = FiniteWeights(weights, COUNTS, prior, exact=True)
    objective = LossCalibrated(utility, margin=MARGIN)
    bound = -EXAMPLES * float(objective(posterior, x, labels)) - float(posterior.kl()) - log_evidence
    assert divergence == pytest.approx(log_gain_total - bound, abs=1e-10)
    assert divergence > 0.01


def test_the_sampled_objective_converges_to_the_enumerated_one(problem: tuple) -> None:
    weights, prior, x, labels, utility = problem
    exact = FiniteWeights(weights, COUNTS, prior, exact=True)
    sampled = FiniteWeights(weights, COUNTS, prior, exact=False)
    objective = LossCalibrated(utility, margin=MARGIN, samples=2000)  # enough to take the decisions of q itself
    torch.manual_seed(0)
    values = torch.stack([objective(sampled, x, labels) for _ in range(1500)])
    error = float(values.std()) / len(values) ** 0.5
    assert float(values.mean()) == pytest.approx(float(objective(exact, x, labels)), abs=4 * error)


@pytest.fixture
def members() -> Ensemble:
    """A posterior without chance, in float64, for exact comparisons."""
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)) for _ in range(2)]
    return Ensemble(networks).double()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (9,), generator=generator)


def test_standard_is_the_mean_cross_entropy_of_the_members(members: Ensemble) -> None:
    x, labels = batch()
    expected = torch.stack([nn.functional.cross_entropy(member(x), labels) for member in members.members]).mean()
    torch.testing.assert_close(Standard()(members, x, labels), expected)


def test_weighted_multiplies_by_the_weight_of_the_class(members: Ensemble) -> None:
    x, labels = batch()
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    losses = [nn.functional.cross_entropy(m(x), labels, weights, reduction="none") for m in members.members]
    torch.testing.assert_close(Weighted(weights)(members, x, labels), torch.stack(losses).mean())


def test_weights_from_costs_are_the_mean_regret_of_each_class() -> None:
    utility = Utility.from_costs([[0, 50, 100], [40, 0, 35], [45, 30, 0]])
    regret = np.array([(0 + 40 + 45) / 3, (50 + 0 + 30) / 3, (100 + 35 + 0) / 3])
    np.testing.assert_allclose(Weighted.from_utility(utility).class_weights, regret / regret.mean(), rtol=1e-6)


def test_with_equal_stakes_the_gain_is_self_labelling_cross_entropy(members: Ensemble) -> None:
    x, labels = batch()
    utility = Utility.diagonal("abc")
    extra = LossCalibrated(utility, margin=1e-12)(members, x, labels) - Standard()(members, x, labels)
    own = torch.stack([member(x).softmax(-1) for member in members.members]).mean(0).argmax(-1)
    expected = torch.stack([nn.functional.cross_entropy(member(x), own) for member in members.members]).mean()
    torch.testing.assert_close(extra, expected, atol=1e-9, rtol=1e-9)


def gradients(objective: Objective, posterior: Posterior, x: Tensor, labels: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(objective(posterior, x, labels), list(posterior.parameters())))


@pytest.mark.filterwarnings("ignore::stakes.errors.StakesWarning")
def test_a_constant_table_adds_no_gradient(members: Ensemble) -> None:
    x, labels = batch()
    constant = Utility.from_matrix(np.full((3, 3), 7.0))
    ours, plain = (gradients(o, members, x, labels) for o in (LossCalibrated(constant), Standard()))
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-14, rtol=1e-12)


def test_without_weight_it_is_standard_to_the_bit_and_draws_nothing() -> None:
    x, labels = batch()
    torch.manual_seed(0)
    posterior = MCDropout(nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 3))).double()
    results = []
    for objective in (Standard(), LossCalibrated(Utility.diagonal("abc"), weight=0)):
        torch.manual_seed(7)
        results.append([objective(posterior, x, labels), *gradients(objective, posterior, x, labels), torch.rand(1)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_the_unit_of_the_costs_does_not_matter(members: Ensemble) -> None:
    x, labels = batch()
    pounds = np.array([[0.0, 50, 100], [40, 0, 35], [45, 30, 0]])
    names = ["a", "b", "c"]
    values = [
        gradients(LossCalibrated(Utility.from_costs(costs, names, names)), members, x, labels)
        for costs in (pounds, 100 * pounds, pounds / 7 + 3)
    ]
    for other in values[1:]:
        for one, two in zip(values[0], other, strict=True):
            torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-8)


ASYMMETRIC = Utility.from_costs([[0, 50, 100], [40, 0, 35], [45, 30, 0]], ["a", "b", "c"], ["a", "b", "c"])
OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "standard": Standard,
    "weighted": lambda: Weighted([1, 2, 3]),
    "calibrated": lambda: LossCalibrated(ASYMMETRIC),
    "half calibrated": lambda: LossCalibrated(ASYMMETRIC, weight=0.5, margin=0.2),
}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("noisy", [False, True])
def test_gradients_agree_with_finite_differences(members: Ensemble, name: str, noisy: bool) -> None:
    x, labels = batch()
    if noisy:
        members.likelihood = NoisyCategorical(0.2, learn=True).double()
    objective, step = OBJECTIVES[name](), 1e-6
    exact = gradients(objective, members, x, labels)
    for parameter, gradient in zip(members.parameters(), exact, strict=True):
        flat = parameter.data.view(-1)
        for place in range(len(flat)):
            value = float(flat[place])
            flat[place] = value + step
            above = objective(members, x, labels).item()
            flat[place] = value - step
            below = objective(members, x, labels).item()
            flat[place] = value
            assert float(gradient.view(-1)[place]) == pytest.approx((above - below) / (2 * step), abs=1e-7, rel=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_extreme_predictions_give_finite_losses_and_gradients(name: str) -> None:
    networks = [nn.Linear(1, 3, bias=False) for _ in range(2)]
    for network, first in zip(networks, (1e4, -1e4), strict=True):
        network.weight.data = torch.tensor([[first], [0.0], [-first]])
    posterior = Ensemble(networks)
    x = torch.ones(3, 1)
    for labels in ([0, 1, 2], [2, 2, 2]):
        objective = OBJECTIVES[name]()
        assert objective(posterior, x, torch.tensor(labels)).isfinite()
        assert all(g.isfinite().all() for g in gradients(objective, posterior, x, torch.tensor(labels)))


def test_exact_zeros_of_the_utility_are_fine() -> None:
    outcomes = Outcomes(torch.tensor([[[0.2, 0.3, 0.5]]]))
    utility = TableUtility([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], ("x", "y"), ("a", "b", "c"))
    assert float(utility.log_gain(outcomes, torch.tensor([0])).exp()) == pytest.approx(0.5)


def test_the_known_minimiser_of_the_population_loss() -> None:
    """For one x with true distribution p and a fixed h: q(c) = p(c) / (2 - u(h, c) / G)."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    logits = p.log().clone().requires_grad_(True)
    utility = ASYMMETRIC.bounded(0.1)
    choice = torch.tensor([1])
    optimizer = torch.optim.LBFGS([logits], max_iter=500, tolerance_grad=1e-14, tolerance_change=1e-16)

    def closure() -> Tensor:
        optimizer.zero_grad()
        log_q = logits.log_softmax(-1)
        loss = -(p * log_q).sum() - utility.log_gain(Outcomes(log_weights=log_q[None, None]), choice).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    q = logits.detach().softmax(-1)
    u = torch.tensor(utility.values[1])
    torch.testing.assert_close(q, p / (2 - u / (u * q).sum()), atol=1e-7, rtol=1e-6)


# When the decisions are taken ----------------------------------------------------------------------


def test_the_three_refreshes_agree_where_nothing_is_random(members: Ensemble) -> None:
    x, labels = batch()
    index = torch.arange(9)
    values = []
    for refresh in ("step", "epoch", "running"):
        objective = LossCalibrated(ASYMMETRIC, refresh=refresh, start="network")
        objective.start_epoch(members, [(index[:5], x[:5]), (index[5:], x[5:])])
        values.append(objective(members, x, labels, index=index))
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(values[0], values[2])


def test_epoch_keeps_its_decisions_until_the_next_epoch(members: Ensemble) -> None:
    x, labels = batch()
    index = torch.arange(9)
    objective = LossCalibrated(ASYMMETRIC, refresh="epoch", start="network")
    objective.start_epoch(members, [(index, x)])
    stale = objective.state_dict()["memory"].clone()
    for parameter in members.parameters():
        parameter.data.neg_()
    objective(members, x, labels, index=index)
    assert torch.equal(objective.state_dict()["memory"], stale)
    objective.start_epoch(members, [(index, x)])
    assert not torch.equal(objective.state_dict()["memory"], stale)


def test_running_is_the_exponential_mean_of_what_training_saw(members: Ensemble) -> None:
    x, labels = batch()
    objective = LossCalibrated(ASYMMETRIC, refresh="running", momentum=0.75)
    mean = None
    for _ in range(4):
        for parameter in members.parameters():
            parameter.data.mul_(1.3)
        probs = torch.stack([m(x).softmax(-1) for m in members.members]).mean(0)
        mean = probs if mean is None else 0.75 * mean + 0.25 * probs
        objective(members, x[3:], labels[3:], index=torch.arange(3, 9))
    memory = objective.state_dict()["memory"]
    torch.testing.assert_close(memory[3:9].double(), mean[3:].detach(), atol=2e-3, rtol=0)
    assert not memory[:3].any()


def test_the_memory_survives_an_interruption(members: Ensemble) -> None:
    x, labels = batch()
    index = torch.arange(9)
    objective = LossCalibrated(ASYMMETRIC, refresh="running")
    objective(members, x, labels, index=index)
    again = LossCalibrated(ASYMMETRIC, refresh="running")
    again.load_state_dict({key: value.clone() for key, value in objective.state_dict().items()})
    for parameter in members.parameters():
        parameter.data.neg_()
    assert torch.equal(objective(members, x, labels, index=index), again(members, x, labels, index=index))


def test_a_table_for_each_example_is_found_by_index(members: Ensemble) -> None:
    x, labels = batch()
    tables = np.random.default_rng(0).uniform(0, 1, size=(20, 4, 3))
    utility = Utility.from_matrix(tables)
    index = torch.tensor([4, 11, 0, 19, 7, 3, 2, 1, 5])
    together = LossCalibrated(utility, margin=0.01)(members, x, labels, index=index)
    probs = np.stack([m(x).softmax(-1).detach().numpy() for m in members.members])  # (M, B, C)
    regrets = tables - tables.max(1, keepdims=True)  # each example by itself
    for example in regrets:  # a decision that another one beats under every outcome is never taken
        beaten = [any((other >= row).all() and (other > row).any() for other in example) for row in example]
        example[beaten] = example[~np.array(beaten)].min()
    worst = regrets.min()  # of all
    bounded = regrets - worst - 0.01 * worst
    expected = []
    for row, place in enumerate(index.tolist()):
        best = (bounded[place] @ probs[:, row].mean(0)).argmax()
        likelihood = np.log(probs[:, row, labels[row]]).mean()
        expected.append(-likelihood - np.log(probs[:, row] @ bounded[place][best]).mean())
    assert together.item() == pytest.approx(np.mean(expected), rel=1e-10)


def test_sample_weights_count_examples(members: Ensemble) -> None:
    x, labels = batch()
    weights = torch.tensor([2.0, 0, 1, 1, 1, 1, 1, 1, 1], dtype=torch.float64)
    rows = torch.tensor([0, 0, 2, 3, 4, 5, 6, 7, 8])
    objective = LossCalibrated(ASYMMETRIC)
    torch.testing.assert_close(
        objective(members, x, labels, weights=weights), objective(members, x[rows], labels[rows])
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LossCalibrated(ASYMMETRIC, refresh="daily"), "'daily'"),
        (lambda: LossCalibrated(ASYMMETRIC, weight=-1), "weight"),
        (lambda: LossCalibrated(ASYMMETRIC, samples=0), "sample"),
        (lambda: LossCalibrated(ASYMMETRIC, margin=0), "margin"),
        (lambda: LossCalibrated(ASYMMETRIC, momentum=1.0), "momentum"),
        (lambda: Weighted([1, -1]), "0 or more"),
        (lambda: Weighted([0, 0]), "0 or more"),
    ],
)
def test_impossible_settings_are_refused(make: Callable[[], Objective], words: str) -> None:
    with pytest.raises(StakesError, match=words):
        make()


def test_what_is_missing_is_asked_for(members: Ensemble) -> None:
    x, labels = batch()
    for refresh in ("epoch", "running"):
        with pytest.raises(StakesError, match="index="):
            LossCalibrated(ASYMMETRIC, refresh=refresh)(members, x, labels)
    with pytest.raises(StakesError, match="start_epoch"):
        LossCalibrated(ASYMMETRIC, refresh="epoch")(members, x, labels, index=torch.arange(9))
    with pytest.raises(StakesError, match=r"labels of the shape.*\(9,\), but got \(9, 1\)"):
        Standard()(members, x, labels[:, None])


def test_decisions_carry_no_gradient(members: Ensemble) -> None:
    """Moving the decisions' own pass must not change the gradient: they are constants."""
    x, labels = batch()
    index = torch.arange(9)
    frozen = LossCalibrated(ASYMMETRIC, refresh="epoch", start="network")
    frozen.start_epoch(members, [(index, x)])
    parameters = list(members.parameters())
    fixed = torch.autograd.grad(frozen(members, x, labels, index=index), parameters)
    fresh = gradients(LossCalibrated(ASYMMETRIC), members, x, labels)
    for one, other in zip(fixed, fresh, strict=True):
        torch.testing.assert_close(one, other)


def test_labels_and_weights_that_do_not_fit_the_classes(members: Ensemble) -> None:
    x, labels = batch()
    with pytest.raises(StakesError, match=r"from 0 to 2, but got torch\.int64 from 0 to 255"):
        Standard()(members, x, torch.where(labels == 1, 255, 0))
    with pytest.raises(StakesError, match="each of the 3 classes, but got 2"):
        Weighted([1, 2])(members, x, labels)


def test_the_gain_comes_in_over_the_warmup_and_goes_on_after_an_interruption() -> None:
    torch.manual_seed(0)
    posterior, x, labels = Ensemble([nn.Linear(4, 3), nn.Linear(4, 3)]), torch.randn(5, 4), torch.randint(3, (5,))
    utility = Utility.from_costs([[0, 5, 9], [4, 0, 3], [4, 3, 0]], outcomes=["a", "b", "c"])
    plain, full = (goal(posterior, x, labels).item() for goal in (Standard(), LossCalibrated(utility)))
    objective = LossCalibrated(utility, warmup=4)
    found = [objective(posterior, x, labels).item() for _ in range(2)]
    resumed = LossCalibrated(utility, warmup=4)
    resumed.load_state_dict(objective.state_dict())
    found += [resumed(posterior, x, labels).item() for _ in range(4)]
    expected = [plain + share * (full - plain) for share in (0.25, 0.5, 0.75, 1, 1, 1)]
    assert found == pytest.approx(expected, rel=1e-5)
    with pytest.raises(StakesError, match="warmup"):
        LossCalibrated(utility, warmup=-1)


@pytest.mark.parametrize("refresh", ["step", "running"])
def test_of_a_table_for_each_example_a_step_takes_those_of_its_batch(members: Ensemble, refresh: str) -> None:
    """Casting all of them at every step costs more than the step."""
    tables = np.random.default_rng(0).normal(size=(5000, 3, 3))
    tables[704] = 100 * np.eye(3)  # by which all are shifted
    utility = TableUtility(tables, ("x", "y", "z"), ("a", "b", "c"))
    objective = LossCalibrated(utility, refresh=refresh)
    x, labels = batch()
    index = torch.arange(9) + 700
    with LargestTensor() as largest:
        loss = objective(members, x, labels, index=index)
    assert largest.numel <= 709 * 3  # the memory of running decisions
    alone = LossCalibrated(TableUtility(tables[700:709], utility.decisions, utility.outcomes), refresh=refresh)
    torch.testing.assert_close(loss, alone(members, x, labels, index=index - 700))


@pytest.mark.parametrize("refresh", ["step", "running"])
def test_a_validation_loss_leaves_no_trace(members: Ensemble, refresh: str) -> None:
    """Under no_grad neither the warmup goes on nor is anything remembered."""
    (x, labels), index = batch(), torch.arange(9)
    objective = LossCalibrated(ASYMMETRIC, refresh=refresh, warmup=7)
    objective(members, x, labels, index=index)
    before = {key: value.clone() for key, value in objective.state_dict().items()}
    with torch.no_grad():
        for _ in range(3):
            objective(members, x.flip(0) * 5, labels, index=index)
    after = objective.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    objective(members, x, labels, index=index)
    assert int(objective.state_dict()["steps"]) == 2
    with torch.no_grad():
        fresh = objective.fresh()
        fresh(members, x, labels)  # no position is needed for what is not remembered
    assert "memory" not in fresh.state_dict()


def test_running_decisions_leave_out_the_pass_of_the_gradient(members: Ensemble) -> None:
    """Those of a step are by the passes before it, whatever the network says now; the first have none but their own."""
    (x, labels), index = batch(), torch.arange(9)
    seen: list[Tensor] = []

    class Watching(LossCalibrated):
        def _decisions(self, *arguments: Any) -> Tensor:
            seen.append(super()._decisions(*arguments))
            return seen[-1]

    objective, said = Watching(ASYMMETRIC, refresh="running", momentum=0.5), []
    for shift in (0.0, 1.0, -2.0, 3.0):
        with torch.no_grad():
            for parameter in members.parameters():
                parameter.add_(shift * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
            said.append(torch.stack([m(x).softmax(-1) for m in members.members]).mean(0))
        objective(members, x, labels, index=index)
    means = [said[0], said[0], (said[0] + said[1]) / 2, (said[0] + said[1]) / 4 + said[2] / 2]
    for choice, mean in zip(seen, means, strict=True):
        assert torch.equal(choice, ASYMMETRIC.best_choice(Outcomes(mean)))
    assert not torch.equal(seen[-1], ASYMMETRIC.best_choice(Outcomes(said[-1])))


@pytest.mark.parametrize("refresh", ["step", "epoch", "running"])
def test_the_decisions_of_the_first_epoch_are_the_best_for_the_labels(members: Ensemble, refresh: str) -> None:
    (x, labels), index = batch(), torch.arange(9)
    best = torch.from_numpy(ASYMMETRIC.values.argmax(0))[labels]
    table = torch.tensor(ASYMMETRIC.bounded(1e-3).values)
    objective = LossCalibrated(ASYMMETRIC, refresh=refresh)
    extra = []
    for _ in range(2):
        objective.start_epoch(members, [(index, x)])
        extra.append(objective(members, x, labels, index=index) - Standard()(members, x, labels))
    probs = torch.stack([m(x).softmax(-1) for m in members.members])
    torch.testing.assert_close(extra[0], -(probs * table[best]).sum(-1).log().mean())
    taken = ASYMMETRIC.best_choice(Outcomes(probs.mean(0)))
    torch.testing.assert_close(extra[1], -(probs * table[taken]).sum(-1).log().mean())
    resumed = LossCalibrated(ASYMMETRIC, refresh=refresh)
    resumed.load_state_dict(objective.state_dict())
    resumed.start_epoch(members, [(index, x)])
    torch.testing.assert_close(resumed(members, x, labels, index=index), objective(members, x, labels, index=index))
    with pytest.raises(StakesError, match="start"):
        LossCalibrated(ASYMMETRIC, start="warm")


def test_what_an_objective_remembers_belongs_to_one_run(members: Ensemble) -> None:
    x, labels = batch()
    index = torch.arange(9)
    objective = LossCalibrated(ASYMMETRIC, refresh="running", warmup=5)
    first = objective(members, x, labels, index=index)
    state = objective.state_dict()
    again = objective.fresh()
    assert again.state_dict().keys() == {"steps", "epoch"}
    assert int(again.state_dict()["steps"]) == 0
    torch.testing.assert_close(again(members, x, labels, index=index), first)
    assert torch.equal(objective.state_dict()["memory"], state["memory"]), "and a copy does not touch the original"


class Wrapped(Objective):
    def __init__(self, inner: Objective) -> None:
        self.inner = inner

    def losses(self, posterior: Posterior, x: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        return self.inner.losses(posterior, x, labels, index)


def test_what_an_inner_objective_remembers_belongs_to_one_run(members: Ensemble) -> None:
    x, labels = batch()
    outer = Wrapped(Wrapped(LossCalibrated(ASYMMETRIC, refresh="running", warmup=5)))
    outer.fresh()(members, x, labels, index=torch.arange(9))
    assert outer.inner.inner.state_dict() == {"steps": torch.tensor(0), "epoch": torch.tensor(0)}
    outer(members, x, labels, index=torch.arange(9))
    assert outer.fresh().inner.inner.state_dict() == {"steps": torch.tensor(0), "epoch": torch.tensor(0)}


@pytest.mark.parametrize("refresh", ["running", "epoch"])
@pytest.mark.parametrize("length", [1, 3])
def test_a_memory_of_decisions_needs_labels_of_one_shape(refresh: str, length: int) -> None:
    """A batch of one token each would broadcast to the tokens of another."""
    posterior = MCDropout(nn.Sequential(nn.Dropout(0.1), nn.Conv1d(2, CLASSES, 1)))
    objective = LossCalibrated(Utility.diagonal("abc"), refresh=refresh, start="network")
    index = torch.arange(4)
    sentences, others = torch.randn(4, 2, 5), torch.randn(4, 2, length)
    objective.start_epoch(posterior, [(index, sentences)])
    objective(posterior, sentences, torch.zeros(4, 5, dtype=torch.int64), index=index)
    with pytest.raises(StakesError, match=r"labels of one shape.*refresh=.step"):
        objective(posterior, others, torch.zeros(4, length, dtype=torch.int64), index=index)
    if refresh == "epoch":
        with pytest.raises(StakesError, match="labels of one shape"):
            objective.start_epoch(posterior, [(index, others)])
