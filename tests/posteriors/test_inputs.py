"""Inputs of several tensors, and outputs that hold the logits: the same draws as of one tensor."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from token_networks import (
    CLASSES,
    VOCABULARY,
    ClassifierOutput,
    Encoder,
    OneTensorEncoder,
    TwoBranches,
    as_one_tensor,
    customers,
    sentences,
)
from torch import Tensor, nn

from stakes import Ensemble, LossCalibrated, MCDropout, MeanField, StakesError, Utility, decide, inputs
from stakes.inputs import Inputs
from stakes.posteriors import Posterior
from stakes.posteriors._sampling import probe

FAMILIES: dict[str, Callable[[Callable[[float], nn.Module]], Posterior]] = {
    "dropout": lambda make: MCDropout(make(0.3)),
    "ensemble": lambda make: Ensemble.of(lambda: make(0.0), 3, seed=0),
    "mean field": lambda make: MeanField(make(0.3)),
}
families = pytest.mark.parametrize("family", FAMILIES)


def build(family: str, make: Callable[[float], nn.Module]) -> Posterior:
    torch.manual_seed(0)
    return FAMILIES[family](make).eval()


@families
def test_draws_of_a_dict_are_those_of_the_same_network_for_one_tensor(family: str) -> None:
    several, one = build(family, Encoder), build(family, OneTensorEncoder)
    x, _ = sentences(9)
    for memory in (2**26, 5000):
        draws = several.draw(4, seed=1)(x, memory), one.draw(4, seed=1)(as_one_tensor(x), memory)
        assert len(list(draws[0].blocks())) == (1 if memory > 5000 else 9)
        torch.testing.assert_close(draws[0].log_probs(), draws[1].log_probs())
        torch.testing.assert_close(draws[0].mean_probs(), draws[1].mean_probs())


@families
@pytest.mark.parametrize("samples", [1, 3])
def test_training_sees_the_outputs_of_the_same_network_for_one_tensor(family: str, samples: int) -> None:
    several, one = build(family, Encoder), build(family, OneTensorEncoder)
    x, _ = sentences(5)
    for posterior in (several, one):
        posterior.train()
    results = []
    for posterior, given in ((several, x), (one, as_one_tensor(x))):
        torch.manual_seed(2)
        outputs = posterior.outputs(given, samples), posterior.shared_outputs(given, samples)  # type: ignore[arg-type]
        results.append((*outputs, posterior.mixture(given, samples).weights))  # type: ignore[arg-type]
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_every_draw_is_one_thinned_network_for_all_inputs() -> None:
    torch.manual_seed(0)
    network = TwoBranches()
    (numbers, category), _ = customers(6)
    hidden = torch.tanh(numbers @ network.numbers.weight.T + network.numbers.bias) + network.category.weight[category]
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6)))  # (64, 6): all that there are
    thinned = (hidden * masks[:, None] / 0.7) @ network.out.weight.T + network.out.bias  # (64, B, C)
    outputs = MCDropout(network).draw(40, seed=0).outputs((numbers, category), 0, 40)
    distance = (outputs[:, None] - thinned).abs().amax((2, 3))  # (S, 64)
    assert (distance.amin(1) < 1e-5).all()
    kept = masks[distance.argmin(1)].mean()
    assert abs(kept - 0.7) < 0.1


@families
def test_two_inputs_of_different_types(family: str) -> None:
    posterior, (x, _) = build(family, TwoBranches), customers(20)
    draws = posterior.draw(5, seed=0)
    whole = draws(x).log_probs()
    assert whole.shape == (draws.samples, 20, CLASSES)
    torch.testing.assert_close(whole[:, 3:9], draws(inputs.rows(x, slice(3, 9))).log_probs())
    named = {"category": x[1], "numbers": x[0]}
    torch.testing.assert_close(whole, draws(named).log_probs())
    torch.testing.assert_close(whole, draws((x[0].double(), x[1])).log_probs())  # in the precision of the weights
    assert draws((x[0], x[1].int())).log_probs().dtype == torch.float32
    double = posterior.double().draw(5, seed=0)(x).log_probs()
    assert double.dtype == torch.float64
    torch.testing.assert_close(whole, double.float())


@families
def test_padding_is_ignored_and_rows_do_not_matter_to_each_other(family: str) -> None:
    draws, (x, _) = build(family, Encoder).draw(4, seed=0), sentences(8)
    first = draws(x).log_probs()
    others = torch.randint(VOCABULARY, x["input_ids"].shape, generator=torch.Generator().manual_seed(9))
    changed = {**x, "input_ids": torch.where(x["attention_mask"] == 1, x["input_ids"], others)}
    assert not torch.equal(changed["input_ids"], x["input_ids"])
    torch.testing.assert_close(draws(changed).log_probs(), first)
    torch.testing.assert_close(draws(inputs.rows(x, torch.tensor([5, 2]))).log_probs(), first[:, [5, 2]])
    seen = {**x, "attention_mask": torch.ones_like(x["attention_mask"])}
    assert not torch.allclose(draws(seen).log_probs(), first)


def test_batches_of_other_lengths_have_masks_of_their_own() -> None:
    posterior = build("dropout", Encoder)
    draws = posterior.draw(4, seed=0)
    lengths = [7, 4, 9, 7, 2, 3, 4, 5, 6, 8, 10, 7]  # more than are kept
    answers = [(length, draws(sentences(3, length)[0]).log_probs()) for length in lengths]
    for length, answer in answers:
        assert torch.equal(answer, posterior.draw(4, seed=0)(sentences(3, length)[0]).log_probs())
        assert answer.std(0).min() > 0


@families
def test_arguments_may_be_left_out(family: str) -> None:
    draws, (x, _) = build(family, Encoder).draw(3, seed=0), sentences(4)
    ones = torch.ones_like(x["attention_mask"])
    ids = x["input_ids"]
    everything = draws({"input_ids": ids, "attention_mask": ones}).log_probs()
    for same in (ids, (ids,), {"input_ids": ids}, (ids, ones)):
        torch.testing.assert_close(draws(same).log_probs(), everything)
    typed = draws({"input_ids": ids, "attention_mask": ones, "token_type_ids": torch.ones_like(ids)}).log_probs()
    assert not torch.allclose(typed, everything)


@families
def test_a_sequence_is_called_by_keyword_as_pytorch_has_it(family: str) -> None:
    posterior = build(family, lambda p: nn.Sequential(nn.Linear(4, 6), nn.Dropout(p), nn.Linear(6, 3)))
    draws, x = posterior.draw(3, seed=0), torch.randn(5, 4)
    torch.testing.assert_close(draws({"input": x}).log_probs(), draws(x).log_probs())


@families
def test_a_class_for_every_token(family: str) -> None:
    draws, (x, _) = build(family, lambda p: Encoder(p, each_token=True)).draw(3, seed=0), sentences(4)
    assert draws(x).log_probs().shape == (3, 4, 7, CLASSES)
    costs = Utility.from_costs([[0, 5, 9], [4, 0, 3], [4, 3, 0]], outcomes=["a", "b", "c"])
    decisions = decide(draws(x), costs)
    assert decisions.choice.shape == (4, 7)
    assert decisions.margin_error is not None
    assert torch.equal(decisions.choice, decide(draws(x).mixture(), costs).choice)


def test_a_large_network_is_probed_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, (x, _) = build("dropout", Encoder), sentences(4)
    devices = []
    posterior.network.norm.register_forward_hook(lambda module, args, output: devices.append(output.device.type))
    small = posterior.draw(3, seed=0)(x).log_probs()
    devices.clear()
    monkeypatch.setattr(probe, "SMALL_NETWORK", 0)
    assert torch.equal(posterior.draw(3, seed=0)(x).log_probs(), small)
    assert devices == ["meta", "meta", "cpu"]  # two passes of the probe, and the draws


class Folded(nn.Module):
    """Frames in the batch axis, where only values tell which is which."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.out = nn.Dropout(0.5), nn.Linear(4, CLASSES)

    def forward(self, frames: Tensor, gain: Tensor) -> Tensor:
        scaled = frames * gain[:, None, None]  # (B, T, F)
        return self.out(self.dropout(scaled.flatten(0, 1)).unflatten(0, frames.shape[:2]).sum(1))


@pytest.mark.parametrize("rows", [1, 5])
def test_the_batch_in_a_folded_axis_is_found_by_any_of_the_tensors(rows: int) -> None:
    torch.manual_seed(0)
    draws = MCDropout(Folded()).draw(6, seed=0)
    frames = torch.randn(1, 3, 4).expand(rows, 3, 4)  # rows that differ in the other tensor alone
    outputs = draws.outputs((frames, torch.arange(1.0, rows + 1)), 0, 6)  # (S, B, C)
    bias = draws._network.network.out.bias  # type: ignore[operator]
    effect = (outputs - bias) / torch.arange(1.0, rows + 1)[:, None]  # one mask for all rows
    torch.testing.assert_close(effect, effect[:, :1].expand_as(effect))
    assert outputs.std(0).min() > 0


class FunctionalAttention(nn.Module):
    """Attention whose dropout is a function that gets the rate of a layer, as models of Hugging Face have it."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.words, self.attention_dropout, self.dropout = (
            nn.Embedding(VOCABULARY, 8),
            nn.Dropout(rate),
            nn.Dropout(0.3),
        )
        self.out = nn.Linear(8, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> ClassifierOutput:
        h, seen = self.words(input_ids), attention_mask[:, None].bool()  # (B, T, E), (B, 1, T)
        rate = self.attention_dropout.p if self.training else 0.0
        h = nn.functional.scaled_dot_product_attention(h, h, h, attn_mask=seen, dropout_p=rate)
        return ClassifierOutput(self.out(self.dropout(h[:, 0])))


def test_dropout_that_is_a_function_in_attention_is_refused_and_without_it_is_drawn() -> None:
    x, _ = sentences(4)
    with pytest.raises(StakesError, match=r"all that is random.* give scaled_dot_product_attention dropout_p=0"):
        MCDropout(FunctionalAttention(0.1)).check(x)
    assert MCDropout(FunctionalAttention(0.0)).draw(3, seed=0)(x).log_probs().std(0).min() > 0


WRONG: dict[str, Any] = {
    "batches of different sizes": {"input_ids": torch.ones(3, 4).long(), "attention_mask": torch.ones(2, 4).long()},
    "a list": [torch.ones(3, 4).long(), torch.ones(3, 4).long()],
    "a nested dict": {"input_ids": torch.ones(3, 4).long(), "extra": {"attention_mask": torch.ones(3, 4)}},
    "a nested tuple": (torch.ones(3, 4).long(), (torch.ones(3, 4).long(),)),
    "a number": {"input_ids": torch.ones(3, 4).long(), "attention_mask": torch.tensor(1)},
    "None": {"input_ids": torch.ones(3, 4).long(), "attention_mask": None},
    "an array": torch.ones(3, 4).long().numpy(),
    "nothing": {},
    "no rows": {"input_ids": torch.ones(0, 4).long()},
}


@families
@pytest.mark.parametrize("wrong", WRONG)
def test_what_no_network_should_get_is_refused(family: str, wrong: str) -> None:
    posterior = build(family, Encoder)
    with pytest.raises(StakesError, match="expected inputs as one tensor, or a tuple or dict of tensors"):
        posterior.draw(2, seed=0)(WRONG[wrong])
    with pytest.raises(StakesError, match="expected inputs as one tensor"):
        posterior.outputs(WRONG[wrong])


def test_a_refusal_shows_what_came() -> None:
    with pytest.raises(StakesError, match=r"got \{'input_ids': \(3, 4\), 'attention_mask': \(2, 4\)\}"):
        inputs.count(WRONG["batches of different sizes"])
    with pytest.raises(StakesError, match=r"got \(\(3, 4\), a tuple\)"):
        inputs.count(WRONG["a nested tuple"])
    with pytest.raises(StakesError, match="got a list"):
        inputs.count(WRONG["a list"])


class Returns(nn.Module):
    """Returns whatever ``wrap`` makes of its logits."""

    def __init__(self, wrap: Callable[[Tensor], object], dropout: float) -> None:
        super().__init__()
        self.wrap, self.dropout, self.out = wrap, nn.Dropout(dropout), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> object:
        return self.wrap(self.out(self.dropout(x)))


@families
@pytest.mark.parametrize("wrap", [lambda out: (out, None), lambda out: {"scores": out}, lambda out: {"logits": None}])
def test_outputs_without_logits_are_refused(family: str, wrap: Callable[[Tensor], object]) -> None:
    posterior = build(family, lambda dropout: Returns(wrap, dropout))
    with pytest.raises(StakesError, match=r"return a tensor of logits.* returned a (tuple|dict): wrap it"):
        posterior.outputs(torch.ones(2, 4))
    with pytest.raises(StakesError, match="return a tensor of logits"):
        posterior.draw(2, seed=0)(torch.ones(2, 4)).mean_probs()


@families
def test_outputs_with_logits_are_the_logits(family: str) -> None:
    x, results = torch.ones(2, 4), []
    for wrap in (lambda out: out, lambda out: {"logits": out}):
        posterior = build(family, lambda dropout, wrap=wrap: Returns(wrap, dropout))
        results.append(posterior.draw(3, seed=0)(x).log_probs())
    assert torch.equal(*results)


def test_the_parts_of_inputs() -> None:
    x: Inputs = {"a": torch.arange(10).reshape(5, 2), "b": torch.rand(5)}
    assert inputs.count(x) == 5
    assert [inputs.count(part) for part in inputs.split(x, 2)] == [2, 2, 1]
    again = inputs.cat(list(inputs.split(x, 2)))
    assert isinstance(again, dict)
    assert all(torch.equal(again[key], x[key]) for key in ("a", "b"))
    cast = inputs.cast(x, torch.device("cpu"), torch.float64)
    assert [tensor.dtype for tensor in inputs.tensors_of(cast)] == [torch.int64, torch.float64]
    signatures = {
        inputs.signature(given)
        for given in (x, tuple(x.values()), x["a"], {"b": x["b"], "a": x["a"]}, cast, inputs.rows(x, slice(1)))
    }
    assert len(signatures) == 5  # all differ, but for the number of rows


class Shifting(nn.Module):
    """Changes its input in place, in training only if it is told so."""

    def __init__(self, only_in_training: bool = False) -> None:
        super().__init__()
        self.out, self.drop, self.only_in_training = nn.Linear(3, 2), nn.Dropout(0.2), only_in_training

    def forward(self, x: Tensor) -> Tensor:
        if self.training or not self.only_in_training:
            x -= 3
        return self.out(self.drop(x))


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d])
def test_a_network_that_changes_its_input_gets_a_copy_for_each_pass(kind: type[nn.Module]) -> None:
    """Decisions are taken from the batch as it was, and the drops of several passes do not pile up."""
    results = []
    for in_place in (False, True):
        torch.manual_seed(0)
        network = nn.Sequential(kind(0.5, inplace=in_place), nn.Linear(3, 2), nn.BatchNorm1d(4), nn.Flatten())
        x = torch.randn(40, 4, 3)
        before, posterior = x.clone(), MCDropout(network)
        outputs = posterior.outputs(x, 6).detach()
        loss = LossCalibrated(Utility.diagonal("abcdefgh"))(posterior, x, torch.zeros(40, dtype=torch.int64))
        assert torch.equal(x, before)
        results.append((outputs, loss.detach()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_sums_in_place_are_made_once_in_each_draw() -> None:
    network, x = Shifting(), torch.randn(5, 3)
    before = x.clone()
    draws = MCDropout(network).draw(10, seed=0)  # a group, in which the drops of a linear network cancel
    with torch.no_grad():
        torch.testing.assert_close(draws.outputs(x, 0, 10).mean(0), network.out(before - 3))
        one_by_one = torch.cat([draws.outputs(x, number, number + 1) for number in range(10)])
        torch.testing.assert_close(one_by_one, draws.outputs(x, 0, 10))
    with torch.inference_mode():
        torch.testing.assert_close(draws.outputs(x.clone(), 0, 10), one_by_one)
    assert torch.equal(x, before)


def test_a_network_that_changes_its_input_only_sometimes_is_refused() -> None:
    posterior = MCDropout(Shifting(only_in_training=True)).eval()
    posterior.outputs(torch.randn(5, 3))
    with pytest.raises(StakesError, match="x = x - 1"):
        posterior.train().outputs(torch.randn(5, 3))
