"""The documentation's site leads links to where it has what they name."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SITE = runpy.run_path(str(ROOT / "docs/hooks/site.py"))
DOCS = ROOT / "docs"


@pytest.mark.parametrize(
    ("text", "target", "folder", "expected"),
    [
        ("counting", "method.md#counting", DOCS, "[counting](method.md#counting)"),
        ("here", "#below", DOCS, "[here](#below)"),
        ("paper", "https://example.org/a", DOCS, "[paper](https://example.org/a)"),
        ("README", "../README.md#how-it-works", DOCS, "[README](readme.md#how-it-works)"),
        ("Method", "docs/method.md", ROOT, "[Method](method.md)"),
        ("lies", "results/README.md", ROOT, "[lies](what-lies-in-results.md)"),
        (
            *("ids", "../src/speclayers/export/layer_ids.py", DOCS),
            "[ids](api/export.md#speclayers.export.layer_ids)",
        ),
        ("specs.py", "../src/speclayers/specs.py", DOCS, "[specs.py](api/base.md#speclayers.specs)"),
        ("every key", "../schemas/config.schema.json", DOCS, "every key (`schemas/config.schema.json`)"),
        ("`config.yaml`", "../config.yaml", DOCS, "`config.yaml`"),
        ("![alone](figures/a.svg)", "method.md", DOCS, "[![alone](figures/a.svg)](method.md)"),
    ],
)
def test_a_link_leads_to_the_site(text, target, folder, expected):
    assert SITE["link"](text, target, folder) == expected


def test_links_in_code_stay_as_they_are():
    extending = SimpleNamespace(file=SimpleNamespace(src_uri="extending.md"))
    text = "[a](../config.yaml)\n\n```md\n[a](../config.yaml)\n```\n"
    changed = SITE["on_page_markdown"](text, extending, None, None)
    assert changed == "a (`config.yaml`)\n\n```md\n[a](../config.yaml)\n```\n"


def test_every_module_of_the_package_has_its_place_in_the_api():
    pages = SITE["api_pages"]()
    named = {line[4:] for text in pages.values() for line in text.splitlines() if line.startswith("::: ")}
    files = [path for path in (ROOT / "src/speclayers").rglob("*.py") if path.parent.name != "speclayers"]
    assert {SITE["module_of"](path) for path in files} <= named
    assert "speclayers.config" in named


def test_pages_that_the_navigation_forgets_are_added():
    config = SimpleNamespace(nav=[{"Reference": ["method.md"]}])
    _, more, api = SITE["on_config"](config).nav
    assert set(more["More"]) == {path.name for path in DOCS.glob("*.md")} - {"method.md"}
    assert all(page.startswith("api/") for page in api["API"])


def test_the_navigation_names_pages_that_exist():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named = [str(value) for entry in config["nav"] for value in flat(entry)]
    assert {name for name in named if not (DOCS / name).exists()} <= set(SITE["BORROWED"])
    assert config["theme"]["font"] is False


def flat(entry):
    if isinstance(entry, dict):
        entry = list(entry.values())
    if isinstance(entry, list):
        return [value for part in entry for value in flat(part)]
    return [entry]
