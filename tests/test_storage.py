"""Tensors on disk."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stakes._io.tensors import SEPARATOR, flatten, read_tensors, unflatten, write_tensors
from stakes.errors import StakesError

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.tensor(3, dtype=torch.int64),
    "c": torch.tensor([float("nan"), float("-inf")]),
    "empty": torch.zeros(0, 4),
}


def test_round_trip(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", TENSORS, {"list": [1, None, "ü"]})
    tensors, metadata = read_tensors(tmp_path / "x.safetensors")
    assert metadata == {"list": [1, None, "ü"]}
    assert tensors.keys() == TENSORS.keys()
    for key, value in TENSORS.items():
        torch.testing.assert_close(tensors[key], value, rtol=0, atol=0, equal_nan=True)
        assert tensors[key].dtype == value.dtype


def test_views_shared_tensors_and_gradients(tmp_path: Path) -> None:
    base = torch.randn(4, 4, requires_grad=True)
    write_tensors(tmp_path / "x", {"whole": base, "transposed": base.T, "row": base[1]}, {})
    tensors, _ = read_tensors(tmp_path / "x")
    assert torch.equal(tensors["transposed"], base.T)
    assert torch.equal(tensors["row"], base[1])


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", TENSORS, {})
    before = (tmp_path / "x").read_bytes()
    with pytest.raises(ValueError):
        write_tensors(tmp_path / "x", TENSORS, {"loss": float("nan")})
    assert (tmp_path / "x").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(StakesError, match="no such file"):
        read_tensors(path)
    with pytest.raises(StakesError, match="directory"):
        read_tensors(tmp_path)
    foreign: list[dict[str, str] | None] = [
        None,
        {"other": "x"},
        {"stakes": "{"},
        {"stakes": "3"},
        {"stakes": '["ab", 1]'},
    ]
    for metadata in foreign:
        save_file(TENSORS, path, metadata)
        with pytest.raises(StakesError, match="damaged"):
            read_tensors(path)
    for content in (b"", b"hello", b"\xff" * 200):
        path.write_bytes(content)
        with pytest.raises(StakesError, match="damaged"):
            read_tensors(path)


def test_trees() -> None:
    tree = {"a": {"b": torch.ones(1), "c": {"d": torch.zeros(2)}}, "e": torch.ones(3)}
    flat = flatten(tree)
    assert sorted(flat) == [SEPARATOR.join(names) for names in ("ab", "acd", "e")]
    assert unflatten(flat)["a"]["c"]["d"] is tree["a"]["c"]["d"]  # type: ignore[index]
    assert unflatten(flatten({"a/b": {"c/d": 1}})) == {"a/b": {"c/d": 1}}
    assert flatten({}) == unflatten({}) == {}
