"""Blends: the mean of their parts, in this process and in another; and weights against a grid and scikit-learn's."""

import copy
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stakes import MLP, MCDropout, SavedModel, StakesError, Utility, decide
from stakes.calibration import Calibrated, Temperature
from stakes.features import Features
from stakes.predictors import (
    Blend,
    BoostedTrees,
    Constant,
    Forest,
    Logistic,
    Predictor,
    SampledPosterior,
    blend_weights,
    load,
    spec_of,
)
from stakes.training.examples import TensorExamples

UTILITY = Utility.from_costs({"go": {"a": 0, "b": 5, "c": 9}, "stay": {"a": 3, "b": 0, "c": 2}})
COLUMNS = Features(numbers=3, missing=(2,), levels=(2, 3))


def rows(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, 3, generator=generator)
    gap = (torch.rand(count, 1, generator=generator) < 0.2).float()
    blocks = [torch.eye(size)[torch.randint(0, size, (count,), generator=generator)] for size in (2, 3)]
    return torch.cat([numbers, gap, *blocks], 1)


def parts() -> list[Predictor]:
    x = rows(120)
    labels = ((x[:, 0] + x[:, 4] > 0).long() + (x[:, 1] + x[:, 6] > 0.5).long()).clamp(max=2)
    train = TensorExamples(x, labels)
    return [
        BoostedTrees.fit(train.subset(torch.arange(80)), train.subset(torch.arange(80, 120)), 3, 0, COLUMNS),
        Forest.fit(train, 3, seed=0, trees=10),
        Logistic.fit(train, None, 3),
        Constant.fit(labels, 3),
        SampledPosterior(MCDropout(MLP(COLUMNS.width, 3, hidden=(4,))), samples=9, seed=1),
    ]


@pytest.fixture(scope="module")
def members() -> list[Predictor]:
    return parts()


def test_is_the_weighted_mean_of_its_parts(members: list[Predictor]) -> None:
    x, weights = rows(50, 1), [0.1, 0.2, 0.3, 0.15, 0.25]
    means = torch.stack([part(x).mean_probs() for part in members])
    torch.testing.assert_close(Blend(members)(x).mean_probs(), means.mean(0))
    blend = Blend(members, weights)
    torch.testing.assert_close(blend(x).mean_probs(), torch.einsum("m,mbc->bc", torch.tensor(weights), means))
    nested = Blend([Blend(members[:2], [1 / 3, 2 / 3]), *members[2:]], [0.3, 0.3, 0.15, 0.25])
    torch.testing.assert_close(nested(x).mean_probs(), blend(x).mean_probs())
    assert (blend.samples, blend.features, blend.classes) == (1, COLUMNS.width, 3)
    decisions = decide(blend(x), UTILITY, settle=0.95)
    assert torch.equal(decisions.choice, decide(blend(x), UTILITY).choice)
    assert torch.equal(Blend(members, [0.5, 0.5, 0, 0, 0])(x).mean_probs(), Blend(members[:2])(x).mean_probs())


def test_comes_back_as_it_was(members: list[Predictor]) -> None:
    x = rows(30, 2)
    blend = Blend([Blend(members[:2]), Calibrated(members[2], Temperature(1.5)), *members[3:]], [0.4, 0.3, 0.1, 0.2])
    again = load(json.loads(json.dumps(spec_of(blend))), blend.state_dict())
    assert torch.equal(again(x).mean_probs(), blend(x).mean_probs())
    assert spec_of(again) == spec_of(blend)


IN_ANOTHER_PROCESS = """
import sys
import torch
from safetensors.torch import load_file, save_file
from stakes.saved_model import SavedModel
decisions = SavedModel.load(sys.argv[1]).decide(load_file(sys.argv[2])["x"])
save_file({"probs": decisions.probs.contiguous()}, sys.argv[3])
wrong = sorted(name for name in sys.modules if name.split(".")[0] == "sklearn")
assert not wrong, wrong[:5]
"""


def test_decides_the_same_in_another_process_without_scikit_learn(members: list[Predictor], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    x = rows(40, 3)
    model = SavedModel(Calibrated(Blend(members), Temperature(1.3)), UTILITY)
    model.save(tmp_path / "model")
    save_file({"x": x}, tmp_path / "x.safetensors")
    paths = [str(tmp_path / name) for name in ("model", "x.safetensors", "out.safetensors")]
    subprocess.run([sys.executable, "-c", IN_ANOTHER_PROCESS, *paths], check=True, timeout=120)
    torch.testing.assert_close(load_file(paths[2])["probs"], model.decide(x).probs, rtol=0, atol=1e-6)


def test_parts_that_do_not_go_together_are_refused(members: list[Predictor]) -> None:
    two = Constant(torch.tensor([0.5, 0.5]).double())
    with pytest.raises(StakesError, match=r"equal classes, but got \[2, 3\]"):
        Blend([two, members[0]])
    with pytest.raises(StakesError, match="0 parts"):
        Blend([])
    bad: list[Any] = [[1.0], [0.5, 0.6], [-0.5, 1.5], [float("nan"), 1.0], [float("inf"), 0.0], ["1", 0], [None, 1]]
    for weights in bad:
        with pytest.raises(StakesError, match="one weight for each of 2 parts") as caught:
            Blend(members[:2], weights)
        assert "\n" not in str(caught.value)


def test_damaged_blends_are_refused_in_one_line(members: list[Predictor]) -> None:
    blend = Blend(members[2:4])
    spec, tensors = blend.spec(), blend.state_dict()
    other = torch.zeros(1)
    for settings, more in (
        ({"weights": [0.5, 0.4]}, {}),
        ({"weights": "half"}, {}),
        ({"weights": [1.0]}, {}),
        ({"parts": {}}, {}),
        ({"parts": spec["parts"][:1], "weights": [1.0]}, {}),
        ({}, {"2.bias": other}),
        ({}, {"bias": other}),
        ({}, {"-1.bias": other}),
        ({}, {"0.more": other}),
    ):
        with pytest.raises(StakesError) as caught:
            Blend.load(copy.deepcopy(spec) | settings, tensors | more)
        assert "\n" not in str(caught.value)


def simulated(models: int, count: int, sharpest: float = 0.3, seed: int = 0) -> Tensor:
    """What models that know the truth up to errors, from ``sharpest`` on, say of what happened."""
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=count)
    said = truth[None] + generator.normal(size=(models, count)) * np.linspace(sharpest, 2, models)[:, None]
    happened = generator.random(count) < 1 / (1 + np.exp(-2 * truth))
    return torch.from_numpy(1 / (1 + np.exp(-2 * np.where(happened, said, -said))))


@pytest.mark.parametrize("penalty", [0.0, 3.0, 30.0])
def test_weights_against_a_grid(penalty: float) -> None:
    probs = simulated(3, 200)
    steps = 100
    grid = np.array([(i, j, steps - i - j) for i, j in product(range(steps + 1), repeat=2) if i + j <= steps]) / steps
    loss = -np.log(grid @ probs.numpy()).sum(1) + penalty * 3 * ((grid - 1 / 3) ** 2).sum(1)
    np.testing.assert_allclose(blend_weights(probs, penalty), grid[loss.argmin()], atol=0.011)


def test_weights_are_optimal_for_many_models() -> None:
    """The conditions of Karush, Kuhn and Tucker: equal slopes where a weight is above 0, no lower one elsewhere."""
    probs = simulated(8, 20_000)
    weights = blend_weights(probs, 5.0)
    slope = -(probs / (weights @ probs)).mean(1) + 2 * 5.0 * 8 / 20_000 * (weights - 1 / 8)
    used = weights > 0
    assert 1 < int(used.sum()) < 8
    assert float(slope[used].max() - slope[used].min()) < 1e-3
    assert bool((slope[~used] > slope[used].min() - 1e-3).all())
    assert float(weights.sum()) == pytest.approx(1)


def test_few_rows_keep_weights_near_equal_and_many_make_them_0() -> None:
    few, many = (blend_weights(simulated(4, rows, sharpest=0.0)) for rows in (50, 50_000))
    assert float((few - 0.25).abs().max()) < 0.25
    assert int((many == 0).sum()) >= 2
    assert torch.equal(many, blend_weights(simulated(4, 50_000, sharpest=0.0)))


def test_models_that_say_the_same_weigh_the_same() -> None:
    probs = simulated(2, 300)
    torch.testing.assert_close(blend_weights(torch.stack([probs[0]] * 3)), torch.full((3,), 1 / 3).double())
    twins = blend_weights(torch.stack([probs[0], probs[0], probs[1]]))
    assert float(twins[0]) == pytest.approx(float(twins[1]), abs=1e-4)
    assert blend_weights(probs[:1]).tolist() == [1.0]


def test_a_row_that_all_models_had_for_impossible_does_not_decide() -> None:
    probs = simulated(3, 500)
    probs[:, 0] = 0
    torch.testing.assert_close(blend_weights(probs), blend_weights(probs[:, 1:]), atol=2e-3, rtol=0)
    sure = torch.tensor([[1.0, 1.0, 0.0], [0.9, 0.9, 0.2]]).repeat(1, 400)
    assert float(blend_weights(sure)[1]) > 0.5


def test_a_row_counts_as_often_as_it_is_said_to() -> None:
    probs, counts = simulated(3, 200), torch.arange(200) % 4
    copies = probs[:, torch.arange(200).repeat_interleave(counts)]
    # The penalty stands against a sum over rows, of which the copies are more.
    repeated = blend_weights(copies, 3.0 * copies.shape[1] / 200)
    torch.testing.assert_close(blend_weights(probs, 3.0, counts), repeated, atol=1e-4, rtol=0)
    assert float((repeated - blend_weights(probs)).abs().max()) > 1e-2


def test_what_is_no_probability_is_refused() -> None:
    for wrong in (torch.zeros(3), torch.zeros(3, 0), torch.full((2, 2), float("nan")), torch.full((2, 2), -1.0)):
        with pytest.raises(StakesError, match="probabilities"):
            blend_weights(wrong)
