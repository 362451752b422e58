"""Fixtures that unit tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from speclayers.targets.target import Target
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
