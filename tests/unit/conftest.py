"""Fixtures that unit tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from speclayers.targets.target import Target
from tests.drafts import make_corpus, make_store
from tests.models import make_target


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def tiny_target(tmp_path: Path) -> Callable[..., Target]:
    """Return a maker of tiny random targets: tiny_target("qwen3", layers=4)."""

    def make(architecture: str = "llama", **settings: Any) -> Target:
        return make_target(tmp_path, architecture, **settings)

    return make


@pytest.fixture
def setting(tiny_target: Callable[..., Target], tmp_path: Path) -> tuple[Any, ...]:
    """Return a target, a training corpus and a store of its layers 1, 3, 5, 6."""
    target, corpus = tiny_target(), make_corpus(6)
    return target, corpus, make_store(tmp_path, target, corpus, [1, 3, 5])
