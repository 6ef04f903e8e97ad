import pytest
import torch
from torch import nn

from stakes import MCDropout, StakesError
from stakes.networks.segnet import SegNet


def test_it_has_the_parameters_of_the_paper_with_channel_wise_batch_norm() -> None:
    network = SegNet()
    assert sum(p.numel() for p in network.parameters()) == 5_464_140
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 9
    assert sum(p.numel() for m in convolutions for p in m.parameters()) == 5_460_300
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.5] * 4


def test_an_image_goes_in_and_a_map_of_classes_comes_out() -> None:
    network = SegNet(classes=5, width=1 / 16)
    assert network(torch.zeros(2, 3, 24, 32)).shape == (2, 5, 24, 32)
    with pytest.raises(StakesError, match="multiples of 8"):
        network(torch.zeros(1, 3, 20, 32))
    with pytest.raises(StakesError, match="width"):
        SegNet(width=0)


def test_its_draws_are_networks_with_four_masks() -> None:
    torch.manual_seed(0)
    draws = MCDropout(SegNet(classes=4, width=1 / 16)).draw(3, seed=0)
    probs = draws(torch.randn(2, 3, 16, 24)).log_probs().exp()
    assert probs.shape == (3, 2, 16, 24, 4)
    assert (probs.std(0) > 0).all()
