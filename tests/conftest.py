"""How tests are shared out over processes."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # the names of groups are read by the same hook elsewhere
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together what shares a finished study, an environment or a cluster; unit tests go anywhere."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder != "unit":
            item.add_marker(pytest.mark.xdist_group(folder))
