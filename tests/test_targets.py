"""Labels as people have them: some to be ignored, one logit for yes or no, several labels for one example."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, log_loss
from torch import Tensor, nn
from torch.nn import functional as F

from stakes import (
    MLP,
    Bernoulli,
    Categorical,
    Ensemble,
    LossCalibrated,
    MCDropout,
    MeanField,
    NoisyCategorical,
    Objective,
    Outcomes,
    Posterior,
    SampledPosterior,
    SavedModel,
    StakesError,
    Standard,
    Training,
    Utility,
    Weighted,
    decide,
    fit,
)
from stakes.evaluation import metrics
from stakes.likelihoods import Likelihood, from_spec
from stakes.training._loop import _BatchLoss, score
from stakes.training.examples import Batch, Examples, TensorExamples
from stakes.training.stacked import Stack

CLASSES = 3
UTILITY = Utility.from_costs([[0, 50, 100], [40, 0, 35], [45, 30, 0], [20, 20, 20]], outcomes=["a", "b", "c"])
FINDINGS = [
    Utility.from_costs(costs, ["treat", "wait", "ask"], ["no", "yes"], unit="£")
    for costs in ([[40, 0], [0, 500], [15, 20]], [[1, 0], [0, 2], [0.3, 0.4]], [[300, 0], [0, 60], [30, 35]])
]
OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "standard": Standard,
    "weighted": lambda: Weighted([1.0, 2.0, 0.5]),
    "calibrated, step": lambda: LossCalibrated(UTILITY),
    "calibrated, epoch": lambda: LossCalibrated(UTILITY, refresh="epoch"),
    "calibrated, running": lambda: LossCalibrated(UTILITY, refresh="running"),
}
objectives = pytest.mark.parametrize("goal", OBJECTIVES)


def segmenter(likelihood: Likelihood | None = None, outputs: int = CLASSES) -> Ensemble:
    """Without chance, in float64, and each pixel for itself."""
    torch.manual_seed(0)
    return Ensemble([nn.Conv2d(2, outputs, 1) for _ in range(2)], likelihood).double()


def images(ignore_index: int = 255, count: int = 6) -> tuple[Tensor, Tensor]:
    """Images of which a different share of pixels is ignored."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 2, 4, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (count, 4, 5), generator=generator)
    share = torch.linspace(0.1, 0.8, count)[:, None, None]
    return x, labels.where(torch.rand(labels.shape, generator=generator) > share, ignore_index)


def kept_pixels(x: Tensor, labels: Tensor, ignore_index: int = 255) -> tuple[Tensor, Tensor]:
    """Each pixel that counts as an image of its own."""
    kept = labels != ignore_index
    return x.movedim(1, -1)[kept][:, :, None, None], labels[kept][:, None, None]


def gradients(posterior: Posterior, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(posterior.parameters()), allow_unused=True))


# Labels that are ignored ---------------------------------------------------------------------------


@pytest.mark.parametrize("ignore_index", [255, -100, -1, 0])
def test_the_loss_is_that_of_pytorch(ignore_index: int) -> None:
    posterior = segmenter(Categorical(ignore_index=ignore_index))
    x, labels = images(ignore_index)
    loss = Standard()(posterior, x, labels)
    expected = torch.stack([F.cross_entropy(net(x), labels, ignore_index=ignore_index) for net in posterior.members])
    torch.testing.assert_close(loss, expected.mean())
    torch.testing.assert_close(gradients(posterior, loss), gradients(posterior, expected.mean()))


@objectives
def test_ignored_pixels_might_as_well_not_be_there(goal: str) -> None:
    x, labels = images()
    losses = []
    for likelihood, batch in ((Categorical(ignore_index=255), (x, labels)), (None, kept_pixels(x, labels))):
        posterior, objective = segmenter(likelihood), OBJECTIVES[goal]()
        index = torch.arange(len(batch[0]))
        for _ in range(2):  # the second step meets a memory
            objective.start_epoch(posterior, [(index, batch[0])])
            loss = objective(posterior, *batch, index=index)
        losses.append([loss, *gradients(posterior, loss)])
    torch.testing.assert_close(losses[0], losses[1])


@objectives
def test_what_is_predicted_for_an_ignored_pixel_makes_no_difference(goal: str) -> None:
    posterior, objective = segmenter(Categorical(ignore_index=255)), OBJECTIVES[goal]()
    x, labels = images()
    ignored = (labels == 255).unsqueeze(1)
    index = torch.arange(len(x))
    objective.start_epoch(posterior, [(index, x)])
    x.requires_grad_(True)
    loss = objective(posterior, x, labels, index=index)
    (gradient,) = torch.autograd.grad(loss, x)
    assert not gradient[ignored.expand_as(x)].any()
    assert gradient.any()
    other = objective.fresh()
    changed = x.detach() + 7.0 * ignored
    other.start_epoch(posterior, [(index, changed)])
    assert torch.equal(loss, other(posterior, changed, labels, index=index))


@pytest.mark.parametrize("noise", [{"rate": 0.2}, {"matrix": [[0.8, 0.1, 0.1], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]]}])
def test_noisy_labels_may_be_ignored_too(noise: dict) -> None:
    x, labels = images()
    ignoring = Standard()(segmenter(NoisyCategorical(**noise, ignore_index=255)), x, labels)
    torch.testing.assert_close(ignoring, Standard()(segmenter(NoisyCategorical(**noise)), *kept_pixels(x, labels)))


@objectives
def test_a_batch_without_labels_has_no_loss_and_no_gradient(goal: str) -> None:
    posterior, objective = segmenter(Categorical(ignore_index=-100)), OBJECTIVES[goal]()
    x, labels = images(-100)
    index = torch.arange(len(x))
    objective.start_epoch(posterior, [(index, x)])
    loss = objective(posterior, x, torch.full_like(labels, -100), index=index)
    assert loss.item() == 0
    assert all(not gradient.any() for gradient in gradients(posterior, loss))


def test_the_bound_is_over_the_labels_that_count() -> None:
    """Each batch's loss, times its labels, adds up to the whole NLL and the whole KL, however labels are spread."""
    x, labels = images()
    labels[4] = 255
    posterior = MeanField(nn.Conv2d(2, CLASSES, 1), Categorical(ignore_index=255)).double()
    for name, parameter in posterior.named_parameters():
        if ".rho." in name:
            parameter.data.fill_(-30.0)  # next to no noise
    loss_of = _BatchLoss(posterior, Standard(), TensorExamples(x, labels))
    total = torch.zeros((), dtype=torch.float64)
    for rows in (slice(0, 1), slice(1, 4), slice(4, 5), slice(5, 6)):  # the third has no label that counts
        counted = int((labels[rows] != 255).sum())
        loss = loss_of(x[rows], labels[rows], torch.arange(6)[rows], None)
        total += counted * loss
        if not counted:
            assert loss.item() == 0
    nll = F.cross_entropy(posterior.outputs(x)[0], labels, ignore_index=255, reduction="sum")
    missing = posterior.kl() / 6  # of the image that has no label
    torch.testing.assert_close(total, nll + posterior.kl() - missing, atol=1e-6, rtol=1e-6)


def test_training_and_validation_do_not_see_what_is_ignored() -> None:
    """From start to end: other inputs, hidden under ignored labels, and another ignore_index, give the same network."""
    x, labels = images(count=24)
    hidden = torch.where((labels == 255).unsqueeze(1), x + 3, x)
    results = []
    for inputs, ignore_index in ((x, 255), (hidden, 255), (hidden, -100)):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(2, 8, 1), nn.ReLU(), nn.Dropout2d(0.3), nn.Conv2d(8, CLASSES, 1)).double()
        posterior = MCDropout(network, Categorical(ignore_index=ignore_index))
        data = inputs, labels.where(labels != 255, ignore_index)
        config = Training(epochs=3, batch_size=8, learning_rate=0.05, samples=3)
        history = fit(
            posterior, LossCalibrated(UTILITY, samples=3), data, data, utility=UTILITY, config=config, progress=False
        )
        results.append([*posterior.state_dict().values(), *map(torch.tensor, [history.epochs[-1].utility])])
        assert history.epochs[-1].loss < history.epochs[0].loss
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


class WithWeights(Examples):
    """Examples in memory with weights of any shape."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batches(self, order: Tensor, size: int):
        for rows in torch.split(order, size):
            yield Batch(rows, *(tensor[rows] for tensor in self.tensors))


def test_validation_is_scored_on_the_labels_that_count_by_their_weights() -> None:
    x, labels = images()
    posterior = segmenter(Categorical(ignore_index=255))
    weights = torch.rand(labels.shape, generator=torch.Generator().manual_seed(2))
    probs = posterior.draw(2, 0)(x).mean_probs()
    choice, kept = decide(Outcomes.from_probs(probs), UTILITY).choice, labels != 255
    worth = UTILITY.values[choice[kept], labels[kept]]
    for given in (None, weights, weights[:, 0, 0]):
        examples = TensorExamples(x, labels) if given is None else WithWeights(x, labels, given)
        utility, nll = score(posterior, examples, UTILITY, 2, 0, 4)
        spread = torch.ones(labels.shape) if given is None else given
        spread = spread if spread.ndim == 3 else spread[:, None, None].expand(labels.shape)
        assert utility == pytest.approx(np.average(worth, weights=spread[kept]))
        assert nll == pytest.approx(log_loss(labels[kept], probs[kept], sample_weight=spread[kept], labels=range(3)))
    with pytest.raises(StakesError, match="all are ignored"):
        score(posterior, TensorExamples(x, torch.full_like(labels, 255)), UTILITY, 2, 0, 4)


def test_metrics_leave_ignored_labels_out() -> None:
    x, labels = images()
    probs = segmenter().draw(2, 0)(x).mean_probs()
    choice, kept = decide(Outcomes.from_probs(probs), UTILITY).choice, labels != 255
    counts = metrics.confusion_counts(choice, labels, UTILITY, ignore_index=255)
    expected = confusion_matrix(labels[kept], choice[kept], labels=range(4)).T[:, :3]
    np.testing.assert_array_equal(counts, expected)
    for metric in (metrics.nll, metrics.brier, lambda *given, **more: metrics.reliability(*given, **more).ece):
        assert metric(probs, labels, ignore_index=255) == pytest.approx(metric(probs[kept], labels[kept]), abs=1e-12)
    nothing = torch.full_like(labels, 255)
    assert metrics.confusion_counts(choice, nothing, UTILITY, ignore_index=255).sum() == 0
    with pytest.raises(StakesError, match="at least one label"):
        metrics.nll(probs, nothing, ignore_index=255)
    with pytest.raises(StakesError, match="ignore_index"):
        metrics.confusion_counts(choice, labels, UTILITY)


@pytest.mark.parametrize("likelihood", [Categorical(), Categorical(ignore_index=-100), NoisyCategorical(0.1)])
def test_a_label_that_is_no_class_is_refused(likelihood: Likelihood) -> None:
    x, labels = images(-100)
    labels[0, 0, 0] = 17
    with pytest.raises(StakesError, match=r"from 0 to 2, .*17.*ignore_index"):
        Standard()(segmenter(likelihood), x, labels)


def test_an_ignored_label_is_certain() -> None:
    """log p = 0, for one draw and for the mixture: whoever adds up, adds nothing."""
    x, labels = images()
    likelihood, ignored = Categorical(ignore_index=255), labels == 255
    outputs = segmenter().outputs(x)
    assert not likelihood.log_prob(outputs, labels)[:, ignored].any()
    assert not likelihood.mixture_log_prob(likelihood.outcomes(outputs).mixture(), labels)[ignored].any()
    assert likelihood.log_prob(outputs, labels)[:, ~ignored].all()


def test_a_loss_of_labels_that_all_count_does_not_depend_on_ignore_index() -> None:
    x, labels = images()
    labels = labels.clamp_max(2)
    losses = [Standard()(segmenter(Categorical(ignore_index=given)), x, labels) for given in (None, 255)]
    assert torch.equal(*losses)
    assert Categorical(ignore_index=255).counted(labels) is None


@pytest.mark.parametrize("wrong", [1.5, "255", True])
def test_ignore_index_is_an_integer(wrong: object) -> None:
    with pytest.raises(StakesError, match="ignore_index as an integer"):
        Categorical(ignore_index=wrong)


@pytest.mark.parametrize(
    ("likelihood", "spec"),
    [
        (Categorical(), {"kind": "categorical"}),
        (Categorical(ignore_index=255), {"kind": "categorical", "ignore_index": 255}),
        (NoisyCategorical(matrix=np.eye(2)), {"kind": "noisy", "learn": False, "matrix": [[1.0, 0.0], [0.0, 1.0]]}),
        (Bernoulli(), {"kind": "bernoulli"}),
        (Bernoulli(14, ignore_index=-1), {"kind": "bernoulli", "labels": 14, "ignore_index": -1}),
    ],
)
def test_a_spec_says_only_what_is_set(likelihood: Likelihood, spec: dict) -> None:
    assert likelihood.spec() == spec
    assert from_spec(json.loads(json.dumps(spec))).spec() == spec


def test_models_that_ignore_labels_are_not_stacked() -> None:
    members = [MCDropout(MLP(3, 2), Categorical(ignore_index=-100)) for _ in range(2)]
    with pytest.raises(StakesError, match="one by one"):
        Stack(members)


# Weights of labels ---------------------------------------------------------------------------------


@objectives
def test_a_weight_for_each_pixel(goal: str) -> None:
    """A pixel of weight 2 counts as two; weights of examples are those of all their pixels."""
    x, labels = images()
    posterior, index = segmenter(Categorical(ignore_index=255)), torch.arange(len(x))
    weights = torch.rand(labels.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def loss(weights: Tensor | None) -> Tensor:
        objective = OBJECTIVES[goal]()
        objective.start_epoch(posterior, [(index, x)])
        return objective(posterior, x, labels, index=index, weights=weights)

    objective = OBJECTIVES[goal]()
    objective.start_epoch(posterior, [(index, x)])
    each = objective.losses(posterior, x, labels, index)
    kept = labels != 255
    torch.testing.assert_close(loss(weights), (each * weights)[kept].mean())
    torch.testing.assert_close(loss(torch.ones(labels.shape)), loss(None))
    by_example = weights[:, 0, 0]
    torch.testing.assert_close(loss(by_example), loss(by_example[:, None, None].expand(labels.shape)))


@pytest.mark.parametrize("shape", [(5,), (6, 1), (6, 1, 1), (6, 4), (6, 5, 4), (120,), (1,)])
def test_weights_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    x, labels = images()
    posterior = segmenter(Categorical(ignore_index=255))
    with pytest.raises(StakesError, match=r"each example, \(6,\), or for each label, \(6, 4, 5\)"):
        Standard()(posterior, x, labels, weights=torch.ones(shape))
    if shape[0] == 6:
        with pytest.raises(StakesError, match="for each label"):
            score(posterior, WithWeights(x, labels, torch.ones(shape)), UTILITY, 2, 0, 6)


# One logit -----------------------------------------------------------------------------------------

BINARY = FINDINGS[0]


class Flat(nn.Module):
    """One number for each input, without an axis of its own."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).squeeze(1)


class FromZero(nn.Module):
    """The same as two logits: 0 and the one."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logit = self.network(x)
        return torch.cat([torch.zeros_like(logit), logit], 1)


@pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 1, 3, 2)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_logit_is_binary_cross_entropy_and_two_classes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    expected_shape = shape if len(shape) == 1 else (7, *shape[2:])
    labels = torch.randint(2, expected_shape, generator=generator).to(dtype)
    likelihood = Bernoulli()
    column = logits.unsqueeze(2) if len(shape) == 1 else logits
    two = Categorical().outcomes(torch.cat([torch.zeros_like(column), column], 2))
    outcomes = likelihood.outcomes(logits)
    assert outcomes.weights.shape == (4, *expected_shape, 2)
    torch.testing.assert_close(outcomes.weights, two.weights)
    torch.testing.assert_close(outcomes.log_weights, two.log_weights)
    bce = F.binary_cross_entropy_with_logits(
        logits.reshape(4, *expected_shape), labels.double().expand(4, *expected_shape), reduction="none"
    )
    torch.testing.assert_close(-likelihood.log_prob(logits, labels), bce)
    mixture = outcomes.mixture()
    torch.testing.assert_close(likelihood.mixture_log_prob(mixture, labels), (-bce).exp().mean(0).log())


def test_extreme_logits_are_exact() -> None:
    logits = torch.tensor([[-1e4], [-90.0], [-20.0], [20.0], [90.0], [1e4]], requires_grad=True)
    for label in (0, 1):
        labels = torch.full((6,), label)
        loss = -Bernoulli().log_prob(logits[None], labels)[0]
        sign = 1 - 2 * label
        wrong = sign * logits.detach().double()[:, 0]  # the log-odds of the other label
        exact = torch.logaddexp(torch.zeros(()), wrong)
        torch.testing.assert_close(loss.detach().double(), exact, rtol=1e-6, atol=1e-38)
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        torch.testing.assert_close(gradient.double()[:, 0], sign * wrong.sigmoid(), rtol=1e-6, atol=1e-38)
    weights = Bernoulli().outcomes(logits[None].half()).weights
    assert weights.dtype == torch.float32, "half precision is not enough for probabilities"


@pytest.mark.parametrize("goal", ["standard", "weighted", "step", "epoch", "running"])
def test_one_logit_trains_and_decides_as_two_classes_do(goal: str) -> None:
    torch.manual_seed(0)
    networks = [nn.Linear(2, 1) for _ in range(3)]
    x = torch.randn(9, 2, dtype=torch.float64)
    labels = (x.sum(1) > 0).long()
    results = []
    for wrap, likelihood in ((nn.Identity, Bernoulli()), (Flat, Bernoulli()), (FromZero, Categorical())):
        made = [net if wrap is nn.Identity else wrap(net) for net in networks]
        posterior, index = Ensemble(made, likelihood).double(), torch.arange(9)
        made_of_costs = {"standard": Standard, "weighted": lambda: Weighted.from_utility(BINARY)}
        objective = made_of_costs.get(goal, lambda: LossCalibrated(BINARY, refresh=goal))()
        objective.start_epoch(posterior, [(index, x)])
        loss = objective(posterior, x, labels, index=index)
        decisions = decide(posterior.draw(3, 0)(x), BINARY)
        numbers = [decisions.choice, decisions.utilities, decisions.margin, decisions.margin_error]
        results.append([loss, *gradients(posterior, loss), *numbers])
    torch.testing.assert_close(results[0], results[2])
    torch.testing.assert_close(results[1], results[2])


@pytest.mark.filterwarnings("ignore:members of the ensemble are random in training")
@pytest.mark.parametrize("family", ["dropout", "ensemble", "mean field"])
@pytest.mark.parametrize("flat", [False, True])
def test_every_family_takes_one_logit(family: str, flat: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)

    def make() -> nn.Module:
        network = MLP(3, 1, hidden=(8,), dropout=0.2)
        return Flat(network) if flat else network

    build: dict[str, Callable[[], Posterior]] = {
        "dropout": lambda: MCDropout(make(), Bernoulli()),
        "ensemble": lambda: Ensemble.of(make, 2, seed=0, likelihood=Bernoulli()),
        "mean field": lambda: MeanField(make(), Bernoulli()),
    }
    posterior = build[family]()
    x = torch.randn(64, 3)
    data = x, (x[:, 0] > 0).float()
    config = Training(epochs=8, batch_size=16, learning_rate=0.05, samples=3)
    history = fit(posterior, LossCalibrated(BINARY), data, data, utility=BINARY, config=config, progress=False)
    assert history.epochs[-1].loss < history.epochs[0].loss
    saved = SavedModel(SampledPosterior(posterior, 4, 0), BINARY)
    decisions = saved.decide(x)
    assert decisions.choice.shape == (64,)
    assert decisions.probs.shape == (64, 2)
    saved.save(tmp_path / "model")
    again = SavedModel.load(tmp_path / "model", make() if flat else None).decide(x)
    assert torch.equal(again.utilities, decisions.utilities)


def test_what_is_no_single_logit_is_refused() -> None:
    with pytest.raises(StakesError, match=r"\(2,\), but got \(2, 5\): use Bernoulli\(labels=5\)"):
        Categorical().log_prob(torch.zeros(1, 2, 5), torch.zeros(2, 5))
    with pytest.raises(StakesError, match=r"use the likelihood Bernoulli\(\)"):
        Categorical().outcomes(torch.zeros(2, 3, 1))
    with pytest.raises(StakesError, match=r"\(B, 1, \.\.\.\) or \(B,\), but got \(3, 4\)"):
        Bernoulli().outcomes(torch.zeros(2, 3, 4))
    with pytest.raises(StakesError, match=r"\(B, 5, \.\.\.\), but got \(3, 4\)"):
        Bernoulli(5).outcomes(torch.zeros(2, 3, 4))
    with pytest.raises(StakesError, match=r"\(B, 3, \.\.\.\), but got \(3,\)"):
        Bernoulli(3).outcomes(torch.zeros(2, 3))
    for wrong in (0, 2.0, True):
        with pytest.raises(StakesError, match="number of labels"):
            Bernoulli(wrong)
    for labels in (
        torch.tensor([0.0, 0.5]),
        torch.tensor([0, 2]),
        torch.tensor([0, -1]),
        torch.tensor([0.0, torch.nan]),
    ):
        with pytest.raises(StakesError, match=r"0 (or|to) 1, but got .*ignore_index"):
            Bernoulli().log_prob(torch.zeros(1, 2, 1), labels)
    with pytest.raises(StakesError, match=r"shape of the predictions, \(2,\), but got \(2, 1\)"):
        Bernoulli().log_prob(torch.zeros(1, 2, 1), torch.zeros(2, 1))


# Several labels ------------------------------------------------------------------------------------


def several(middle: tuple[int, ...] = ()) -> tuple[Ensemble, Tensor, Tensor]:
    """Three members, three labels, and labels of which some are missing (-1)."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 1) if middle else nn.Linear(2, 3) for _ in range(3)]
    posterior = Ensemble(layers, Bernoulli(3, ignore_index=-1)).double()
    x = torch.randn(8, 2, *middle, dtype=torch.float64)
    return posterior, x, torch.randint(-1, 2, (8, 3, *middle))


def one_of(posterior: Ensemble, label: int) -> Ensemble:
    """The same networks for one label alone."""
    alone = []
    for member in posterior.members:
        layer = nn.Conv2d(2, 1, 1) if isinstance(member, nn.Conv2d) else nn.Linear(2, 1)
        layer.weight.data, layer.bias.data = member.weight.data[[label]], member.bias.data[[label]]
        alone.append(layer)
    return Ensemble(alone, Bernoulli(ignore_index=-1))


middles = pytest.mark.parametrize("middle", [(), (4, 5)])


@middles
@pytest.mark.parametrize("rule", ["optimal", "argmax"])
def test_labels_with_costs_of_their_own_are_decided_one_by_one(middle: tuple[int, ...], rule: str) -> None:
    posterior, x, labels = several(middle)
    utility, known = Utility.for_labels(FINDINGS), labels.clamp_min(0)
    together = decide(posterior.draw(3, 0)(x), utility, rule)
    assert together.choice.shape == labels.shape
    assert {"treat", "wait"} <= set(together.chosen_names.ravel())
    counts = metrics.confusion_counts(together.choice, labels, utility, ignore_index=-1)
    totals = []
    for label, own in enumerate(FINDINGS):
        alone = decide(one_of(posterior, label).draw(3, 0)(x), own, rule)
        for name in ("choice", "utilities", "margin", "runner_up", "expected_utility", "margin_error", "probs"):
            torch.testing.assert_close(getattr(together, name)[:, label], getattr(alone, name), msg=name)
        worth = own.realised(alone.choice, known[:, label])
        np.testing.assert_array_equal(utility.realised(together.choice, known)[:, label], worth)
        np.testing.assert_array_equal(utility.costs[label], own.costs)
        kept = labels[:, label] >= 0
        own_counts = metrics.confusion_counts(alone.choice[kept], labels[:, label][kept], own)
        np.testing.assert_array_equal(counts[label], own_counts)
        np.testing.assert_allclose(metrics.iou(counts, utility)[label], metrics.iou(own_counts, own))
        means = own.mean_utility(own_counts), own.mean_regret(own_counts), metrics.accuracy(own_counts, own)
        totals.append(own_counts.sum() * np.array(means))
    expected = np.sum(totals, 0) / counts.sum()
    actual = [utility.mean_utility(counts), utility.mean_regret(counts), metrics.accuracy(counts, utility)]
    np.testing.assert_allclose(actual, expected)


@middles
@pytest.mark.parametrize("goal", ["weighted", "step", "epoch", "running"])
def test_labels_with_costs_of_their_own_are_trained_as_if_alone(middle: tuple[int, ...], goal: str) -> None:
    """The sum of losses over labels is that of three problems, each with its own table, shift and margin."""
    posterior, x, labels = several(middle)
    index = torch.arange(len(x))

    def objective(utility: Utility, row: int | None = None) -> Objective:
        if goal == "weighted":
            weights = Utility.for_labels(FINDINGS).class_weights
            return Weighted(weights if row is None else weights[row])
        return LossCalibrated(utility, refresh=goal)

    def total(posterior: Posterior, objective: Objective, labels: Tensor) -> Tensor:
        objective.start_epoch(posterior, [(index, x)])
        return objective(posterior, x, labels, index=index) * (labels >= 0).sum()

    together = total(posterior, objective(Utility.for_labels(FINDINGS)), labels)
    alone = [total(one_of(posterior, i), objective(own, i), labels[:, i]) for i, own in enumerate(FINDINGS)]
    torch.testing.assert_close(together, torch.stack(alone).sum())


def test_class_weights_keep_the_proportions_between_labels() -> None:
    weights = Utility.for_labels(FINDINGS).class_weights
    np.testing.assert_allclose(weights / weights[1, 0] * 1.3, [[55, 520], [1.3, 2.4], [330, 95]])
    assert weights.mean() == pytest.approx(1)


@middles
def test_one_table_for_all_labels_is_the_same_table_for_each(middle: tuple[int, ...]) -> None:
    posterior, x, labels = several(middle)
    one, each = FINDINGS[0], Utility.for_labels([FINDINGS[0]] * 3)
    predictive = posterior.draw(3, 0)(x)
    torch.testing.assert_close(decide(predictive, one).utilities, decide(predictive, each).utilities)
    losses = [LossCalibrated(utility)(posterior, x, labels) for utility in (one, each)]
    torch.testing.assert_close(*losses)
    data = TensorExamples(x, labels)
    assert score(posterior, data, one, 3, 0, 4) == pytest.approx(score(posterior, data, each, 3, 0, 4))


def test_labels_with_missing_findings_from_fit_to_a_saved_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    utility = Utility.for_labels(FINDINGS)
    x = torch.randn(96, 4)
    labels = (x[:, :3] > 0).float().where(torch.rand(96, 3) > 0.3, -1)
    posterior = MCDropout(MLP(4, 3, hidden=(16,), dropout=0.1), Bernoulli(3, ignore_index=-1))
    config = Training(epochs=20, batch_size=32, learning_rate=0.02, samples=5)
    data = x, labels
    history = fit(posterior, LossCalibrated(utility), data, data, utility=utility, config=config, progress=False)
    choice = decide(posterior.draw(5, 1)(x), utility).choice
    kept = labels >= 0
    truth = labels.where(kept, 0).long()
    mean = utility.realised(choice, truth)[kept].mean()
    naive = max(utility.realised(torch.full_like(choice, row), truth)[kept].mean() for row in range(3))
    assert mean > naive / 2, "at most half of the cost of the best decision for all"
    assert history.best_utility == pytest.approx(mean, rel=0.2)
    saved = SavedModel(SampledPosterior(posterior, 5, 1), utility)
    saved.save(tmp_path / "model")
    loaded = SavedModel.load(tmp_path / "model")
    assert loaded.utility == utility
    assert loaded.predictor.posterior.likelihood.spec() == posterior.likelihood.spec()
    assert torch.equal(loaded.decide(x).choice, choice)


def test_tables_of_labels_as_data() -> None:
    utility = Utility.for_labels(FINDINGS)
    assert not utility.per_example
    assert utility.rows(slice(0, 2)) is utility
    assert Utility.from_dict(json.loads(json.dumps(utility.to_dict()))) == utility
    assert "per_label" not in FINDINGS[0].to_dict()
    bounded = utility.bounded(1e-3)
    for table, own in zip(bounded.values, FINDINGS, strict=True):
        np.testing.assert_allclose(table, own.bounded(1e-3).values)
    assert np.isnan(bounded.costs).all(), "rather than costs that are wrong"


def test_tables_that_do_not_go_together_are_refused() -> None:
    renamed = Utility.from_costs({"treat": {"no": 1, "ill": 0}, "wait": {"no": 0, "ill": 1}}, unit="£")
    with pytest.raises(StakesError, match="number 1 has another 'decisions', 'outcomes'"):
        Utility.for_labels([FINDINGS[0], renamed])
    with pytest.raises(StakesError, match="number 0 is not one"):
        Utility.for_labels([Utility.for_labels(FINDINGS)])
    with pytest.raises(StakesError, match="got none"):
        Utility.for_labels([])
    utility = Utility.for_labels(FINDINGS)
    for shape in ((3, 2), (3, 2, 2), (3, 1, 2)):
        probs = torch.full(shape, 0.5)
        with pytest.raises(StakesError, match=r"\(B, 3, \.\.\.\)"):
            decide(Outcomes.from_probs(probs), utility)
        with pytest.raises(StakesError, match=r"\(B, 3, \.\.\.\)"):
            utility.realised(torch.zeros(shape[:-1], dtype=torch.int64), torch.zeros(shape[:-1]))


@pytest.mark.parametrize("outcome", [[0, -1], [0, 255], [0.0, 0.5], [0.0, np.nan]])
def test_an_outcome_that_is_no_class_is_worth_nothing_that_could_be_told(outcome: list[float]) -> None:
    with pytest.raises(StakesError, match=r"from 0 to 1, but got .* ignored"):
        BINARY.realised([0, 0], outcome)
