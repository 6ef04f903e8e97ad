"""The direction of imports, as docs/design.md draws it: each layer knows only those before it."""

import ast
from pathlib import Path

import stakes

LAYERS = (
    ("errors", "seeds", "registry", "_io"),
    ("inputs", "features"),
    ("outcomes", "samples", "networks"),
    ("mixtures",),
    ("utility", "likelihoods"),
    ("posteriors",),
    ("decisions",),
    ("objectives", "evaluation"),
    ("training",),
    ("predictors",),
    ("calibration",),
    ("saved_model", "tables", "sklearn"),
    ("report",),
    ("paper",),
    ("cli",),
    ("__main__",),
)
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
SOURCE = Path(stakes.__file__).parent


def imported_rooms(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "stakes":
            parts = node.module.split(".")
            names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("stakes.")}
    return names


def test_imports_point_downwards() -> None:
    wrong = []
    for file in SOURCE.rglob("*.py"):
        room = file.relative_to(SOURCE).with_suffix("").parts[0]
        if room == "__init__":
            continue
        assert room in RANK, f"{room} has no layer yet: put it into LAYERS"
        others = imported_rooms(ast.parse(file.read_text())) - {room}
        wrong += [f"{file.relative_to(SOURCE)} imports {other}" for other in others if RANK[other] > RANK[room]]
    assert not wrong


def test_every_public_name_can_be_had() -> None:
    assert set(stakes.__all__) == set(dir(stakes))
    for name in stakes.__all__:
        assert getattr(stakes, name) is not None
