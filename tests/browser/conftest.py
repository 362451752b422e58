"""A made-up study's page in Debian's chromium, steered by playwright."""

import shutil
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from speclayers.analysis.report import page as made_up_page
from tests.synthetic import MadeUpModel, made_up_study

ALL_DRAWN = """() => [...document.querySelectorAll('[data-figure]')]
    .filter((place) => place.checkVisibility()).every((place) => place.querySelector('svg'))"""


@dataclass
class Opened:
    """A page that is open, with what went wrong on it and what it asked the network for."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser():
    path = shutil.which("chromium")
    assert path, "chromium is missing: apt install chromium"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # as root there is none
        yield running
        running.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """The page of a study of two models, one with a name of forty letters, at four settings."""
    root = tmp_path_factory.mktemp("page")
    small = MadeUpModel("a-name-of-exactly-forty-characters-12345", n_layers=6, sets={"eagle3": (2, 3), "elsi": (3, 5)})
    study = made_up_study(root, MadeUpModel("tiny-qwen3", nodes=(30, 60), screened=True), small)
    (root / "report.html").write_text(made_up_page(study))
    return root / "report.html"


@pytest.fixture(scope="session")
def report_of_twenty(tmp_path_factory):
    """The page of a study of twenty models."""
    root = tmp_path_factory.mktemp("twenty")
    models = [MadeUpModel(f"model-{i:02d}-of-a-family", n_layers=12 + 2 * (i % 10), questions=6) for i in range(20)]
    (root / "report.html").write_text(made_up_page(made_up_study(root, *models)))
    return root / "report.html"


def open_page(browser: Browser, path, *, drawn=True, **settings) -> Opened:
    page = browser.new_context(**settings).new_page()
    page.set_default_timeout(120_000)  # generous: a busy machine is no failure
    opened = Opened(page)
    page.on("console", lambda message: opened.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: opened.errors.append(str(error)))
    page.on("request", lambda request: opened.requests.append(request.url))
    page.goto(path.as_uri())
    if drawn:
        page.wait_for_function(ALL_DRAWN, timeout=300_000)
    return opened


@pytest.fixture(scope="session")
def desk(browser, report):
    """The page on a wide, light screen; tests leave it as they found it."""
    return open_page(browser, report, viewport={"width": 1280, "height": 900})
