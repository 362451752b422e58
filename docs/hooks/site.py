"""What the documentation's site has beyond the pages of this folder: other pages, and the package's API.

Pages are written to be read on a code host, where links lead to any file of the repository. On the site, links to files
of the package lead to the API, and other files outside this folder are named by their path.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS, PACKAGE = ROOT / "docs", ROOT / "src" / "speclayers"

BORROWED = {"readme.md": ROOT / "README.md", "what-lies-in-results.md": ROOT / "results" / "README.md"}
BORROWED |= {"changelog.md": ROOT / "CHANGELOG.md"}
"""Pages that lie elsewhere, by their name on the site."""

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages that the navigation does not name, and the API's."""
    named = set(re.findall(r"[\w-]+\.md", str(config.nav)))
    others = sorted(path.name for path in DOCS.glob("*.md") if path.name not in named)
    config.nav.extend([{"More": others}] if others else [])
    config.nav.append({"API": list(api_pages())})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere, and the API's."""
    for name, path in BORROWED.items():
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
    for name, text in api_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the site has what they name."""
    source = BORROWED.get(page.file.src_uri, DOCS / page.file.src_uri)
    parts = _FENCE.split(markdown)  # every other part is code
    parts[::2] = [_LINK.sub(lambda match: link(match[1], match[2], source.parent), part) for part in parts[::2]]
    return "".join(parts)


def link(text: str, target: str, folder: Path) -> str:
    """Return a link of a page in `folder` as the site has it."""
    path, _, anchor = target.partition("#")
    if "://" in target or not path:
        return f"[{text}]({target})"
    file = (folder / path).resolve()
    borrowed = {elsewhere: name for name, elsewhere in BORROWED.items()}
    if file in borrowed:
        return f"[{text}]({borrowed[file]}{'#' if anchor else ''}{anchor})"
    if file.is_relative_to(DOCS):
        return f"[{text}]({file.relative_to(DOCS).as_posix()}{'#' if anchor else ''}{anchor})"
    if file.suffix == ".py" and file.is_relative_to(PACKAGE):
        return f"[{text}]({page_of(file)}#{module_of(file)})"
    name = file.relative_to(ROOT).as_posix()
    return text if name in text else f"{text} (`{name}`)"


# ---------------------------------------------------------------- the API


def module_of(file: Path) -> str:
    """Return a file's name as a module."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def page_of(file: Path) -> str:
    """Return the page that documents a module: one a folder of the package, and one for the modules beside them."""
    parts = file.relative_to(PACKAGE).parts
    return f"api/{parts[0] if len(parts) > 1 else 'base'}.md"


def api_pages() -> dict[str, str]:
    """Return the text of the API's pages: a heading, and for each module what makes mkdocstrings document it."""
    found: dict[str, str] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        page, module = page_of(file), module_of(file)
        if module == PACKAGE.name:
            continue
        found.setdefault(page, f"# {page.removeprefix('api/').removesuffix('.md').capitalize()}\n")
        found[page] += f"\n::: {module}\n"
    return dict(sorted(found.items()))
