"""The conda environments pin what the lock pins, and every rule names one."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOCK = dict(
    line.split("==") for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")
)
ENVIRONMENTS = sorted((ROOT / "envs").glob("*.yaml"))


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_an_environment_pins_what_the_lock_pins(path):
    *_, pip = yaml.safe_load(path.read_text())["dependencies"]
    pins = dict(line.split("==") for line in pip["pip"])
    assert pins == {name: LOCK[name] for name in pins}
    for name, version in re.findall(
        r"install --no-deps ([\w-]+)==(\S+)", path.with_suffix(".post-deploy.sh").read_text()
    ):
        assert LOCK[name] == version


def test_every_rule_with_a_command_names_an_environment_that_exists():
    named = 0
    for file in (ROOT / "rules").glob("*.smk"):
        for rule in re.split(r"\n *(?=rule |checkpoint )", file.read_text()):
            if "shell:" in rule:
                (environment,) = re.findall(r'conda:\s+(?:"\.\./envs/(\w+)\.yaml"|gram_environment\n)', rule)
                assert not environment or (ROOT / "envs" / f"{environment}.yaml").exists()
                named += 1
    assert named >= 15
