"""Tensors on disk: safetensors with JSON beside them. Reading never runs code from the file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stakes._io.files import atomic, existing_file
from stakes.errors import StakesError

_METADATA = "stakes"
SEPARATOR = "\x1f"  # of the names in a tree: no module's name has it, where one may have a slash


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write one file atomically."""
    flat = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    with atomic(path) as temporary:
        save_file(flat, temporary, {_METADATA: json.dumps(metadata, allow_nan=False)})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the metadata, or raise if `write_tensors` did not write the file."""
    try:
        with safe_open(existing_file(path), framework="pt") as file:
            metadata = dict(json.loads((file.metadata() or {})[_METADATA]))
            return {key: file.get_tensor(key) for key in file.keys()}, metadata  # noqa: SIM118
    except StakesError:
        raise
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise StakesError(f"{path}: expected tensors saved by stakes, but the file is damaged ({error})") from None


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": tensor}} -> {"a<SEPARATOR>b": tensor}``."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}{SEPARATOR}") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a<SEPARATOR>b": tensor} -> {"a": {"b": tensor}}``."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, key = path.split(SEPARATOR)
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[key] = value
    return tree
