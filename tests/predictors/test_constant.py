"""Class frequencies as a predictor."""

import pytest
import torch

from stakes import StakesError, Utility, decide
from stakes.predictors import Constant

LABELS = torch.tensor([0, 2, 2, 2])


def test_says_the_frequencies_to_every_input() -> None:
    constant = Constant.fit(LABELS, 4)
    for x in (torch.zeros(3, 7), (torch.zeros(3), torch.zeros(3, 2)), {"ids": torch.zeros(3, 5, dtype=torch.int64)}):
        probs = constant(x).mean_probs()
        assert probs.dtype == torch.float32
        assert probs.tolist() == [[0.25, 0.0, 0.75, 0.0]] * 3
    assert constant(torch.zeros(200_000, 2).double()).mean_probs().shape == (200_000, 4)
    assert constant(torch.zeros(2, 2).double()).mean_probs().dtype == torch.float64
    assert (constant.features, constant.classes) == (None, 4)


def test_weights_count() -> None:
    probs = Constant.fit(LABELS, 3, torch.tensor([3.0, 0.0, 0.5, 0.5])).frequencies
    assert probs.tolist() == [0.75, 0.0, 0.25]


def test_decides_for_the_best_decision_for_everybody() -> None:
    utility = Utility.from_costs({"wait": {"a": 0, "b": 9, "c": 1}, "act": {"a": 2, "b": 0, "c": 2}})
    decisions = decide(Constant.fit(LABELS, 3)(torch.zeros(5, 1)), utility, settle=0.95)
    assert decisions.chosen_names.tolist() == ["wait"] * 5


def test_what_is_no_class_or_no_frequency_is_refused() -> None:
    with pytest.raises(StakesError, match="labels of 2 classes"):
        Constant.fit(LABELS, 2)
    with pytest.raises(StakesError, match="weight above 0"):
        Constant.fit(LABELS, 3, torch.zeros(4))
    constant = Constant.fit(LABELS, 3)
    again = Constant.load(constant.spec(), constant.state_dict())
    assert torch.equal(again.frequencies, constant.frequencies)
    for probs in ([0.5, 0.6], [-0.5, 1.5], [float("nan"), 1.0], [], [[1.0]], 1.0):
        with pytest.raises(StakesError, match="damaged class frequencies"):
            Constant.load({}, {"probs": torch.tensor(probs, dtype=torch.float64)})
    for tensors in ({}, {"other": torch.ones(1).double()}, {"probs": torch.ones(1)}):
        with pytest.raises(StakesError, match="damaged class frequencies"):
            Constant.load({}, tensors)
