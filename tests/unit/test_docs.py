"""The documentation is in step with the code: its tables, links, commands, paths and examples."""

import importlib
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from speclayers import tables
from speclayers.analysis import schemas
from speclayers.config import SelectorConfig
from speclayers.corpus.prompts import read_prompts
from speclayers.corpus.questions import read_questions
from speclayers.errors import UserError
from speclayers.geometry.dump import LENS, NORMS, TOKEN_COLUMNS
from speclayers.reading import parse_study
from speclayers.selection import selectors
from speclayers.selection.layer_geometry import LayerGeometry
from speclayers.selection.selector import known_selectors, requests
from speclayers.selection.stability import stability
from tests.unit.test_config import DEFAULT, merged

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*DOCS, *(path for path in (ROOT / "README.md", ROOT / "results" / "README.md") if path.exists())]
RULES = "\n".join(path.read_text() for path in (ROOT / "Snakefile", *(ROOT / "rules").glob("*.smk")))
FOLDERS = ("docs", "envs", "profiles", "rules", "schemas", "scripts", "src", "studies", "tests")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def blocks(page, language):
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def snippets(page):
    """Code spans, and the lines of shell blocks: where commands stand."""
    text = page.read_text()
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shell = [block for language, block in fenced if language in ("", "sh", "bash")]
    yield from (line.strip() for line in "".join(shell).splitlines())
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


# ---------------------------------------------------------------- the page of tables


def test_the_page_of_tables_is_in_step():
    script = ROOT / "scripts" / "write_tables_page.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_page_of_tables_names_every_table_and_its_columns():
    text = (ROOT / "docs/tables.md").read_text()
    every = [value for value in vars(tables).values() if isinstance(value, tables.Table)]
    assert len(every) >= 10
    for table in (*every, *schemas.ESTIMATES.values(), schemas.RUNS, schemas.HEADS):
        section = re.search(rf"^### {table.name.removeprefix('summary/')}\n(.*?)(?=^##|\Z)", text, re.M | re.S)
        assert section, table.name
        assert re.findall(r"^\| `(\w+)`", section[1], re.M) == [column.name for column in table.columns], table.name
    dump = re.search(r"^### activations\n(.*?)^##", text, re.M | re.S)[1]
    assert re.findall(r"^\| `(\w+)`", dump, re.M) == [*TOKEN_COLUMNS, NORMS, LENS]


@each_page
def test_tables_are_ascii(page):
    assert [line for line in page.read_text().splitlines() if line.startswith("|") and not line.isascii()] == []


# ---------------------------------------------------------------- links, commands, paths


@each_page
def test_every_relative_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


@each_page
def test_every_make_target_exists(page):
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [words.split()[1:] for words in snippets(page) if words.startswith("make ")]
    targets = {word for words in named for word in words if "=" not in word and not word.startswith("-")}
    assert targets <= known


@each_page
def test_every_snakemake_target_exists(page):
    known = set(re.findall(r"^(?:rule|checkpoint) (\w+):", RULES, re.MULTILINE))
    takes_a_value = {"--configfile", "--cores", "-c", "--jobs", "-j", "--sdm", "--profile", "--workflow-profile"}
    takes_a_value |= {"--executor", "--config", "--cleanup-metadata", "--rulegraph", "--dag", "--report"}
    commands = (words.partition(" > ")[0] for words in snippets(page) if words.startswith("snakemake "))
    for words in map(str.split, commands):
        bare = {word for before, word in pairwise(words) if before not in takes_a_value}
        targets = {word for word in bare if not word.startswith(("-", "results/")) and not word.endswith(".yaml")}
        assert targets <= known, words


@each_page
def test_every_path_into_the_repository_exists(page):
    pattern = rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w"
    assert [path for path in re.findall(pattern, page.read_text()) if not (ROOT / path).exists()] == []


# ---------------------------------------------------------------- examples


def test_every_selector_has_a_row():
    section = re.search(r"^## Selectors\n(.*?)^## ", (ROOT / "docs/method.md").read_text(), re.M | re.S)[1]
    assert set(known_selectors()) <= set(re.findall(r"^\| `(\w+)` \|", section, re.M))


WITH_CONFIGS = ("docs/extending.md", "docs/serving.md", "docs/training.md", "docs/tutorial.md")


@pytest.mark.parametrize("text", [text for page in WITH_CONFIGS for text in blocks(page, "yaml")])
def test_every_config_example_is_valid_over_the_default(text):
    overlay = yaml.safe_load(text)
    registered = {**DEFAULT["models"], **overlay.get("models", {})}
    assert parse_study(merged(overlay)).models.keys() == registered.keys()


def test_the_examples_of_prompts_and_questions_can_be_read(tmp_path):
    prompts, questions = blocks("docs/extending.md", "jsonl")
    path = tmp_path / "lines.jsonl"
    path.write_text(prompts)
    assert [len(prompt.turns) for prompt in read_prompts(path)] == [1, 2, 2]
    path.write_text(questions)
    assert [question.category for question in read_questions(path)] == ["mt_bench", "qa"]


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The selector of the docs, put where selectors are looked for."""
    code, *_ = blocks("docs/extending.md", "python")
    (name,) = re.findall(r"called\s+`(\w+)\.py`", (ROOT / "docs/extending.md").read_text())
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setattr(selectors, "__path__", [*selectors.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    yield name
    sys.modules.pop(f"{selectors.__name__}.{name}", None)
    vars(selectors).pop(name, None)


def geometry(shannon=sum):
    """Ten layers; entropy rises towards the last."""
    entropy = np.arange(11.0)
    return LayerGeometry(entropy, entropy, np.eye(11), np.eye(11), shannon)


def test_the_example_of_a_selector_is_found_and_chooses(example):
    assert example in known_selectors()
    wide, narrow = requests(
        [
            SelectorConfig(name=example, k=[3], options={"gap": 6}),
            SelectorConfig(name=example, k=[3], options={"gap": 2}),
        ],
        n_layers=10,
    )
    (choice,) = narrow.choose(geometry())
    assert choice.layers == (6, 8, 10)
    assert choice.score == 24
    assert stability(narrow, [geometry(shannon=None)], choice.layers) == {6: 1.0, 8: 1.0, 10: 1.0}
    (choice,) = wide.choose(geometry())
    assert choice.layers == (4, 10)
    assert "only 2 of 3" in choice.reason


def test_a_wrong_option_of_the_example_is_named(example):
    with pytest.raises(UserError, match=rf"{example}\.options\.gapp: unknown option; known are per_prompt"):
        requests([SelectorConfig(name=example, options={"gapp": 1})], n_layers=10)


def test_the_example_of_a_drafter_decodes_what_plain_decoding_does(tiny_target, monkeypatch, capsys):
    _, drafter, use = blocks("docs/extending.md", "python")
    target = tiny_target(vocabulary=160)
    monkeypatch.setattr("speclayers.targets.target.load_target", lambda *_: target)
    names = {"__name__": "example"}
    exec(drafter, names)
    exec(use, names)
    prompt, answer = names["prompt"], names["answer"]
    ids = torch.tensor([prompt])
    plain = target.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False)
    assert [*prompt, *answer.tokens] == plain[0].tolist()
    assert sum(cycle.accepted for cycle in answer.cycles) > 0
    assert "tokens per verification" in capsys.readouterr().out


def test_the_config_example_asks_for_the_selector(example):
    asked = [yaml.safe_load(text).get("selection") for text in blocks("docs/extending.md", "yaml")]
    (selection,) = [s for s in asked if s]
    names = {selector["name"] for selector in selection["selectors"]}
    assert example in names
    assert names <= set(known_selectors())
