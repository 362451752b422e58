"""Fingerprints change with what changes results, and the lists they rest on are complete."""

import ast
from pathlib import Path

import pytest

from speclayers import fingerprint as fp
from speclayers.config import GeometryConfig
from speclayers.errors import UserError

ROOT = Path(__file__).parents[2]
CODE = 'def f(x: int) -> int:\n    """Say."""\n    return x + 1\n'


def hashed(tmp_path, text):
    path = tmp_path / "module.py"
    path.write_text(text)
    return fp.code_hash(path)


@pytest.mark.parametrize(
    "edited",
    [
        CODE.replace("Say.", "Say it better."),
        CODE.replace('    """Say."""\n', ""),
        "# why\n" + CODE,
        CODE.replace("x + 1", "(x  +  1)"),
        '"""Module."""\n\n\n' + CODE,
    ],
)
def test_comments_docstrings_and_formatting_do_not_count(tmp_path, edited):
    assert hashed(tmp_path, CODE) == hashed(tmp_path, edited)


@pytest.mark.parametrize("edited", [CODE.replace("1", "2"), CODE.replace("int", "float"), CODE + "y = 3\n"])
def test_code_counts(tmp_path, edited):
    assert hashed(tmp_path, CODE) != hashed(tmp_path, edited)


def test_settings_code_and_everything_before_count():
    base = fp.fingerprint(GeometryConfig(), "code", ["before"])
    assert base == fp.fingerprint(GeometryConfig(), "code", ["before"])
    assert base != fp.fingerprint(GeometryConfig(seed=1), "code", ["before"])
    assert base != fp.fingerprint(GeometryConfig(), "edited", ["before"])
    assert base != fp.fingerprint(GeometryConfig(), "code", ["other"])


def test_a_selector_brings_the_selectors_that_it_builds_on():
    assert [path.stem for path in fp.selector_files("eagle3")] == ["eagle3"]
    assert [path.stem for path in fp.selector_files("elsi_c")] == ["elsi_c", "elsi"]
    with pytest.raises(UserError, match="there is no selector 'nope'"):
        fp.selector_files("nope")


def imports(path):
    """Modules of the package that a file imports, as paths inside the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("speclayers"):
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("speclayers")]
        else:
            continue
        for name in names:
            inside = name.removeprefix("speclayers").lstrip(".").replace(".", "/")
            for candidate in (f"{inside}.py", f"{inside}/__init__.py"):
                if inside and (fp.PACKAGE / candidate).is_file():
                    yield candidate


def reached(script):
    """Every module of the package that a script imports, at any distance."""
    found, queue = set(), list(imports(script))
    while queue:
        module = queue.pop()
        if module not in found:
            found.add(module)
            queue += imports(fp.PACKAGE / module)
    return found


SCRIPT_OF = {"build_teacher": "build_corpus"}


@pytest.mark.parametrize("stage", sorted(fp.STAGES))
def test_whatever_a_script_reaches_is_named_by_its_stage_or_plumbing(stage):
    script = ROOT / "scripts" / f"{SCRIPT_OF.get(stage, stage)}.py"
    named = {path.relative_to(fp.PACKAGE).as_posix() for path in fp.stage_files(stage)}
    missing = [m for m in reached(script) if m not in named and not fp.is_plumbing(m) and not m.endswith("__init__.py")]
    assert missing == []


@pytest.mark.parametrize("stage", sorted(fp.STAGES))
def test_every_module_that_a_stage_names_exists(stage):
    files = fp.stage_files(stage)
    assert all(path.is_file() for path in files)
    assert bool(files) == bool(fp.STAGES[stage].modules)
