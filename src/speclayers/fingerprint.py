"""What a stage's result depends on: its slice of the config, its code, and the stages before it.

Code counts as its syntax tree without comments, docstrings and formatting, so that editing those
reruns nothing. Plumbing is not hashed: modules that only carry, place or load things. They share
RESULT_VERSION, to be raised by hand when a change there changes results.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from speclayers.config import Section
from speclayers.errors import UserError
from speclayers.plugins import RIVALS, SELECTORS

RESULT_VERSION = "1"

PACKAGE = Path(__file__).parent

PLUMBING = (
    "errors.py",
    "files.py",
    "names.py",
    "plugins.py",
    "reading.py",
    "config/",
    "specs.py",
    "layout.py",
    "tables.py",
    "command.py",
    "fingerprint.py",
    "targets/",
)
"""Modules outside every fingerprint; a path that ends in a slash is a whole folder."""


class Stage(NamedTuple):
    """The code of a rule: modules of the package (a folder stands for all in it) and stages it builds on."""

    modules: tuple[str, ...]
    upstream: tuple[str, ...] = ()


_ANSWERING = (
    *(f"corpus/{name}.py" for name in ("prompts", "questions", "generator", "chat", "generation", "responses")),
    "corpus/bundled/prompt_parts.json",
)
_DECODING = (
    *("decoding/plain.py", "decoding/passes.py", "decoding/sampling.py", "decoding/turns.py", "decoding/shards.py"),
    *(
        "decoding/clock.py",
        "decoding/skipping.py",
        "decoding/ranges.py",
        "corpus/chat.py",
        "corpus/questions.py",
        "corpus/prompts.py",
    ),
)
_BASELINE = (*_DECODING, "decoding/baseline.py", "decoding/exactness.py")
_ACCUMULATION = tuple(
    f"geometry/{name}.py" for name in ("device", "dump", "entropy", "products", "rows", "shards", "tokens")
)
_SELECTION = tuple(
    f"selection/{name}.py"
    for name in ("evidence", "half_entropy", "layer_geometry", "search", "select", "selector", "stability")
)
"""The selectors themselves are added by the workflow: only those that a study names."""
_SWEEP = tuple(
    f"selection/{name}.py" for name in ("filter_sweep", "layer_geometry", "search", "selector", "selectors/elsi")
)
_SPECULATION = tuple(
    f"decoding/{name}.py"
    for name in (
        *("__init__", "acceptance", "baseline", "clock", "exactness", "loop", "passes", "plain", "ranges", "sampling"),
        *("shards", "skipping", "speed", "turns", "verify"),
    )
)
_HEAD = tuple(f"drafting/{name}.py" for name in ("head", "draft_cache", "tensor_files", "vocabulary"))
_LEARNING = (
    *_HEAD,
    *(f"drafting/{name}.py" for name in ("losses", "ttt", "training_data", "training_loop")),
    *(f"drafting/{name}.py" for name in ("checkpoints", "feature_store", "features")),
    *(f"drafting/{name}.py" for name in ("processes", "step_sums", "training_log")),
)
_TRAINING = (*_LEARNING, *(f"drafting/{name}.py" for name in ("initialise", "training", "transfer")))
_DRAFTING = (*_HEAD, "drafting/drafter.py", "drafting/tree.py", "drafting/eagle3.py")
_EXPORT = ("export/",)
_RIVAL = (
    "drafting/rival.py",
    "drafting/drafter.py",
    "drafting/tree.py",
    "targets/skipping.py",
    "targets/block_rows.py",
)
"""The drafters themselves are added by the workflow, as the selectors are."""
_SKIP_SEARCH = (
    *(f"drafting/{name}.py" for name in ("rivals/self_sd", "self_sd", "skip_options", "skipping", "sublayers")),
    "decoding/skip_search.py",
)
_ANALYSIS = ("analysis/", "decoding/exactness.py", "decoding/skipping.py")

STAGES = {
    "fetch_model": Stage(()),
    "build_teacher": Stage(_ANSWERING),
    "make_tiny_model": Stage(("targets/tiny.py",), ("build_teacher",)),
    "build_corpus": Stage(_ANSWERING, ("target",)),
    "dump_activations": Stage(("corpus/activations.py", "geometry/dump.py"), ("build_corpus.calibration",)),
    "accumulate_gram": Stage(_ACCUMULATION, ("dump_activations",)),
    "measure_geometry": Stage(("geometry/",), ("dump_activations",)),
    "sweep_filter": Stage(("geometry/", *_SWEEP), ("dump_activations",)),
    "select_layers": Stage(("geometry/", *_SELECTION), ("measure_geometry",)),
    "recommend_layers": Stage(("export/layer_ids.py", "export/recommendation.py")),
    "extract_features": Stage(("drafting/features.py", "drafting/feature_store.py"), ("build_corpus.training",)),
    "train_draft": Stage(_TRAINING, ("extract_features",)),
    "continue_draft": Stage((*_TRAINING, "drafting/continuing.py"), ("build_corpus.training",)),
    "screen_layers": Stage(
        (
            *_TRAINING,
            *(f"drafting/{name}.py" for name in ("halving", "screening")),
            "geometry/jackknife.py",
        ),
        ("build_corpus.training", "select_layers"),
    ),
    "choose_questions": Stage(("corpus/questions.py", "corpus/prompts.py", "corpus/bundled/questions.jsonl")),
    "decode_baseline": Stage(_BASELINE, ("target", "choose_questions")),
    "measure_acceptance": Stage((*_DRAFTING, *_SPECULATION, *_DECODING), ("train_draft", "decode_baseline")),
    "merge_shards": Stage(("decoding/ranges.py",)),
    "measure_speed": Stage((*_DRAFTING, *_SPECULATION, *_DECODING), ("train_draft", "decode_baseline")),
    "import_draft": Stage((*_EXPORT, *_HEAD)),
    "recommend_head": Stage((*_EXPORT, *_HEAD, *_ANALYSIS)),
    "export_draft": Stage((*_EXPORT, *_HEAD, *_ANALYSIS)),
    "search_skips": Stage((*_RIVAL, *_SKIP_SEARCH, *_SPECULATION, *_DECODING), ("build_corpus.calibration",)),
    "train_medusa": Stage(
        (*_LEARNING, *(f"drafting/{name}.py" for name in ("medusa_heads", "medusa_training", "tree"))),
        ("extract_features",),
    ),
    "measure_rival": Stage((*_RIVAL, *_SPECULATION, *_DECODING, "decoding/memory.py"), ("decode_baseline",)),
    "time_rival": Stage((*_RIVAL, *_SPECULATION, *_DECODING), ("decode_baseline",)),
    "summarise_model": Stage(_ANALYSIS),
    "aggregate_study": Stage(_ANALYSIS),
    "render_report": Stage(_ANALYSIS),
    "render_layers": Stage(_ANALYSIS),
}


def is_plumbing(module: str) -> bool:
    """Tell whether a module, named by its path inside the package, is outside every fingerprint."""
    return any(module == entry or (entry.endswith("/") and module.startswith(entry)) for entry in PLUMBING)


def digest(*parts: str) -> str:
    """Return a short SHA-256 of texts, each kept apart from the next."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def code_hash(path: Path) -> str:
    """Hash a Python file over its syntax tree without docstrings; any other file over its bytes."""
    if path.suffix != ".py":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return _text_hash(path.read_text(encoding="utf-8"))


@cache  # by the text: many stages name the same files, and a file may be edited meanwhile
def _text_hash(text: str) -> str:
    return hashlib.sha256(ast.dump(_syntax_tree(text)).encode()).hexdigest()


def code_parts(path: Path) -> dict[str, str]:
    """Hash the functions and methods of a Python file one by one, to tell later which of them changed.

    Returns:
        Hashes by name; the empty name stands for all statements outside functions. Nothing for other files.
    """
    if path.suffix != ".py":
        return {}
    parts: dict[str, list[str]] = {}
    _collect(_syntax_tree(path.read_text(encoding="utf-8")).body, "", parts)
    return {name: digest(*texts)[:8] for name, texts in parts.items()}


def _collect(body: list[ast.stmt], inside: str, parts: dict[str, list[str]]) -> None:
    for node in body:
        if isinstance(node, ast.ClassDef):
            head = copy(node)
            head.body = []
            parts.setdefault(f"{inside}{node.name}", []).append(ast.dump(head))
            _collect(node.body, f"{inside}{node.name}.", parts)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts.setdefault(f"{inside}{node.name}", []).append(ast.dump(node))
        else:
            parts.setdefault(inside.rstrip("."), []).append(ast.dump(node))


def _syntax_tree(text: str) -> ast.Module:
    """Parse Python without its docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    return tree


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    # attribute docstrings, bare strings further down a body, change nothing either
    node.body = [
        statement
        for statement in node.body
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]


def selector_files(name: str) -> list[Path]:
    """Return a selector's file, and those of other selectors that it builds on.

    Raises:
        UserError: There is no selector of this name, or its file is no valid Python.
    """
    return _with_imports(PACKAGE / SELECTORS.file(name), "speclayers.selection.selectors", "selector")


def rival_files(name: str) -> list[Path]:
    """Return the file of a drafter that needs no head, and all of the drafting package that it builds on.

    Raises:
        UserError: There is no such drafter, or a file is no valid Python.
    """
    return _with_imports(PACKAGE / RIVALS.file(name), "speclayers.drafting", "drafter")


NEEDED = ("cka", "skipped", "weights")
"""What the workflow can make for a drafter before it is measured."""


def rival_needs(name: str) -> tuple[str, ...]:
    """Return what the workflow makes for a drafter before it is measured: the literal NEEDS in its file.

    Raises:
        UserError: As `rival_files`, or it needs what the workflow does not make.
    """
    needs = _rival_literal(name, "NEEDS", ())
    if not isinstance(needs, tuple) or not set(needs) <= set(NEEDED):
        raise UserError(
            f"{RIVALS.file(name)}: NEEDS is {needs!r}; expected a tuple of {', '.join(map(repr, NEEDED))}, such as "
            "('cka',)"
        )
    return needs


def rival_jobs(name: str, shards: int) -> int:
    """Return how many jobs share a drafter's run: all of them where its file says STARTS_ANEW = True, else one.

    A drafter that learns from one question to the next has to answer them in their order.

    Args:
        name: Name of the drafter.
        shards: Jobs that share a run of a head.

    Raises:
        UserError: As `rival_files`.
    """
    return shards if _rival_literal(name, "STARTS_ANEW", False) else 1


def _rival_literal(name: str, constant: str, missing: Any) -> Any:
    """Return a literal in a drafter's file, which is not run for it."""
    for node in _parsed(rival_files(name)[0], "drafter").body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if [ast.unparse(target) for target in targets] != [constant]:
            continue
        try:
            return ast.literal_eval(node.value)
        except ValueError:
            where = RIVALS.file(name)
            raise UserError(f"{where}: {constant} is no literal, but this file is read for it, not run") from None
    return missing


def _with_imports(start: Path, package: str, what: str) -> list[Path]:
    """Return a plugin's file and the files of a package that it imports, at any distance."""
    found, queue = list[Path](), [start]
    while queue:
        path = queue.pop()
        if path in found:
            continue
        found.append(path)
        nodes = [node for node in ast.walk(_parsed(path, what)) if isinstance(node, ast.ImportFrom)]
        named = {name for node in nodes for name in (node.module, *(f"{node.module}.{a.name}" for a in node.names))}
        inside = sorted(name for name in named if name and name.startswith(f"{package}."))
        files = (PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in inside)
        queue += [file for file in files if file.is_file()]  # a name in a module is none
    return found


def _parsed(path: Path, what: str) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno}: {error.msg}; mend the {what}'s file") from None


@cache
def stage_code(stage: str, script: Path) -> str:
    """Hash the code of a stage: its script and the modules that it names.

    Args:
        stage: A key of STAGES.
        script: The stage's script.
    """
    return digest(RESULT_VERSION, code_hash(script), *(code_hash(path) for path in stage_files(stage)))


def stage_files(stage: str) -> list[Path]:
    """List the files of the package that a stage's fingerprint covers, sorted."""
    return sorted({path for module in STAGES[stage].modules for path in _files(module)})


def _files(module: str) -> Iterable[Path]:
    path = PACKAGE / module
    if module.endswith("/"):
        return (
            file for file in path.rglob("*") if file.suffix in {".py", ".json", ".jsonl", ".sql", ".j2", ".css", ".js"}
        )
    return (path,)


def fingerprint(spec: Section, code: str, upstream: Iterable[str] = ()) -> str:
    """Return what identifies a result.

    Args:
        spec: The stage's slice of the config.
        code: Hash of its code.
        upstream: Fingerprints of the results that it is computed from.
    """
    return digest(spec.canonical(), code, *upstream)
