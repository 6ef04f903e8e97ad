import torch
from hypothesis import given
from hypothesis import strategies as st

from stakes import seeds


@given(st.integers(0, 2**40), st.text(max_size=5), st.text(max_size=5))
def test_names_make_different_streams(seed: int, first: str, second: str) -> None:
    same = seeds.derive(seed, first) == seeds.derive(seed, second)
    assert same == (first == second)


def test_a_stream_is_the_same_on_every_machine() -> None:
    assert seeds.derive(7, "split", 3) == 7165919613291301055


def test_seeded_leaves_the_global_generator_as_it_was() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with seeds.seeded(5, "x"):
        inside = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with seeds.seeded(5, "x"):
        assert torch.equal(torch.rand(3), inside)
