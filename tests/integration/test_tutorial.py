"""The commands of the tutorial, in order, on a finished smoke study: what it says word by word works."""

import re
import shlex
from collections import Counter

from tests.integration.conftest import ROOT

TEXT = (ROOT / "docs/tutorial.md").read_text()
SECTIONS = {
    int(number): re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for number, text in re.findall(r"^## (\d+)\..*?\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
}


def run(space, number):
    """Run one section's commands, write its configs, and return what was printed last."""
    said = ""
    for language, text in SECTIONS[number]:
        if language == "yaml":
            name = re.search(r"`(m[\w-]+\.yaml)`", TEXT.split(f"## {number}. ")[1])[1]
            (space.folder / name).write_text(text)
            continue
        commands = (
            [["python", "-c", text]] if language == "python" else [shlex.split(line) for line in text.splitlines()]
        )
        for words in commands:
            done = space.run(*words)
            assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
            said = done.stdout + done.stderr
    return said


def trained(results):
    """When each head was written."""
    return {head: head.stat().st_mtime_ns for head in results.glob("smoke-qwen3/heads/*/model.safetensors")}


def test_every_command_of_the_tutorial_works(copy_of_finished):
    space, results = copy_of_finished, copy_of_finished.folder / "results/smoke"
    assert SECTIONS[1] == [("sh", "make install\nsource .venv/bin/activate\n")]  # what runs this test has done that
    run(space, 2)
    run(space, 3)
    assert (results / "layers.html").exists()
    said = run(space, 4)
    assert [line.split(":")[0] for line in said.strip().splitlines()[:3]] == ["Asked", "Found", "Keep in mind"]
    assert "not distinguishable" in said or "is distinguishable" in said
    for name in ("report.html", "summary.md", "comparison.tex", "comparison.csv"):
        assert (results / name).stat().st_size
    assert "detectable" in run(space, 6)
    before = trained(results)
    said = run(space, 7)
    assert "The run ended well" in said
    ran = Counter(re.findall(r"^(?:local)?rule (\w+):$", said, re.MULTILINE))
    assert ran["train_draft"] == 1
    assert ran["extract_features"] <= 1
    assert not {"build_corpus", "dump_activations", "measure_geometry", "decode_baseline"} & set(ran)
    assert trained(results).items() >= before.items()
    (added,) = trained(results).keys() - before.keys()
    assert added.parent.name == "eagle3.l01-l05.s0"
    assert "| smoke-qwen3 | {1, 5} | pinned |" in (results / "summary.md").read_text()
    run(space, 8)
    assert list(results.glob("smoke-qwen3/exports/*/*/config.json"))


def test_a_folder_of_ones_own_is_planned_as_the_tutorial_says(copy_of_finished):
    space = copy_of_finished
    (config,) = (text for language, text in SECTIONS[10] if language == "yaml")
    (space.folder / "my-study.yaml").write_text(config)
    (plan, study), *_ = (text.splitlines() for language, text in SECTIONS[10] if language == "sh")
    assert space.run(*shlex.split(plan)).returncode == 0
    done = space.run(*shlex.split(study), "-n")  # the default study's counts take too long here
    assert done.returncode == 0, done.stderr
    assert "results/mine/my-model/selection/selections.parquet" in done.stdout
