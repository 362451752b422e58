"""Imports run downward only, and each part knows only what it may know."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "speclayers"

FLOORS = [
    {"errors"},
    {"files", "names", "layout", "machine"},
    {"config", "tables"},
    {"plugins"},
    {"reading", "specs", "fingerprint", "command"},
    {"targets", "geometry"},
    {"corpus"},
    {"selection", "drafting"},
    {"decoding", "planning"},
    {"analysis", "export"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
FORBIDDEN = {
    "config": {"torch", "transformers", "pandas", "numpy", "pyarrow"},
    "plugins": {"torch", "transformers", "pandas", "numpy", "pyarrow"},
    "reading": {"torch", "transformers", "pandas", "numpy", "pyarrow"},
    "specs": {"torch", "transformers", "pandas", "numpy", "pyarrow"},
    "fingerprint": {"torch", "transformers", "pandas", "numpy", "pyarrow"},
    "planning": {"torch", "transformers", "pandas", "numpy", "pyarrow"},
    "geometry": {"torch", "transformers"},
    "selection": {"torch", "transformers"},
    "analysis": {"torch", "transformers"},
}
LATE = {"geometry/device.py": {"torch"}}
"""What a file may import inside a function although its part may not know it."""
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def part(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path, nodes=ast.walk):
    for node in nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names) if module == "speclayers" else (module,)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_run_downward(path):
    for name in imported(path):
        if name.startswith("speclayers."):
            other = name.split(".")[1]
            assert other == part(path) or FLOOR[other] < FLOOR[part(path)], f"{path} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_each_part_knows_only_what_it_may(path):
    forbidden = {"snakemake"} | FORBIDDEN.get(part(path), set())
    late = LATE.get(path.relative_to(PACKAGE).as_posix(), set())
    assert not {name.split(".")[0] for name in imported(path)} & (forbidden - late)
    assert not {name.split(".")[0] for name in imported(path, ast.iter_child_nodes)} & forbidden
