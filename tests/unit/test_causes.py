"""What changed is told by its key, file and function, wherever in the chain it lies."""

import shutil
from pathlib import Path

import pytest

from speclayers import fingerprint as fp
from speclayers.planning import identity as planning
from speclayers.planning.causes import Planned, causes
from speclayers.planning.identity import Identities, add_records, read_records
from speclayers.reading import parse_study
from tests.unit.test_config import merged

ROOT = Path(__file__).parents[2]
HEAD = {"model": "tiny-qwen3", "head": "eagle3.l01.s0"}


def identities(scripts=ROOT / "scripts", **overrides):
    return Identities(parse_study(merged(overrides)), scripts)


def job(rule, wildcards, before, now, stage=None):
    """A job whose slice and fingerprint are others now."""
    model = wildcards["model"]
    pairs = [(found.spec(stage or rule, model), found.identity(stage or rule, model)) for found in (before, now)]
    was, is_now = ({repr(text) for text in pair} for pair in pairs)
    return Planned(rule, wildcards, params_before=sorted(was - is_now), params_now=sorted(is_now - was))


def told(rule, wildcards, before, now, stage=None):
    return causes(job(rule, wildcards, before, now, stage), before.records(), now.records())


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package whose files may be edited, and its scripts."""
    for name in ("src/speclayers", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for module in (fp, planning):
        monkeypatch.setattr(module, "PACKAGE", tmp_path / "src/speclayers")
    return tmp_path


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    fp.stage_code.cache_clear()


def test_a_key_is_named_with_both_values_and_its_place_in_the_config():
    before = identities()
    for rule, overrides, cause in (
        ("train_draft", {"draft": {"steps": 7}}, "draft.steps: 200 → 7"),
        ("measure_geometry", {"geometry": {"seed": 3}}, "geometry.seed: 0 → 3"),
        ("train_draft", {"corpus": {"training": {"seed": 9}}}, "corpus.training.seed: 2 → 9"),
        ("decode_baseline", {"acceptance": {"depth": 5}}, "acceptance.depth: 6 → 5"),
        ("measure_speed", {"speed": {"per_category": 2}}, "speed.per_category: 1 → 2"),
    ):
        assert told(rule, HEAD, before, identities(**overrides)) == [cause]
    cause = "models.smollm2-135m.source.revision: absent → v2"
    hub = {"smollm2-135m": {"source": {"kind": "hub", "repo": "a/b", "revision": "v2", "package": None, "file": None}}}
    config = merged({"models": hub})
    config["models"]["smollm2-135m"]["source"] = {"kind": "hub", "repo": "a/b", "revision": "v2"}
    other = Identities(parse_study(config), ROOT / "scripts")
    assert cause in told("train_draft", HEAD, before, other)  # by way of its teacher and its own corpus


def test_keys_of_drafters_without_a_head_are_named_by_their_entry():
    rivals, nothing = {"rivals": [{"name": "clasp"}]}, {"results": {}, "code": {}, "files": {}}
    before = identities(**rivals)
    for stage, overrides, cause in (
        (
            "measure_rival",
            {"rivals": [{"name": "clasp", "options": {"interval": 4}}]},
            "rivals.clasp.options.interval: absent → 4",
        ),
        ("measure_rival", {"acceptance": {"seed": 9}}, "acceptance.seed: 0 → 9"),
        ("time_rival", {"speed": {"max_new_tokens": 9}}, "speed.max_new_tokens: 8 → 9"),
        ("time_rival", {"acceptance": {"seed": 9}}, "acceptance.seed: 0 → 9"),
        (
            "time_rival",
            {"models": {"tiny-qwen3": {"dtype": "bfloat16"}}},
            "models.tiny-qwen3.dtype: float32 → bfloat16",
        ),
    ):
        wildcards = HEAD | {"rival": "clasp"}
        found = causes(
            job(stage, wildcards, before, identities(**rivals | overrides), f"{stage}.clasp"), nothing, nothing
        )
        assert cause in found


def test_a_function_is_named_with_its_file_wherever_in_the_chain_it_lies(package):
    before = identities(package / "scripts")
    records = before.records()
    edit(package / "src/speclayers/corpus/chat.py", "def ", "def _new(): pass\n\n\ndef ")
    edit(package / "scripts/train_draft.py", "if processes.main:", "if not processes.main:")
    now = identities(package / "scripts")
    planned = job("train_draft", HEAD, before, now)
    found = causes(planned, records, now.records())
    assert "scripts/train_draft.py: main() changed" in found
    assert any(line.startswith("speclayers/corpus/chat.py: ") and "_new() is new" in line for line in found)
    assert len(found) == len(set(found)) == 2


def test_a_selectors_file_is_named(package):
    before = identities(package / "scripts")
    records = before.records()
    edit(package / "src/speclayers/selection/selectors/eagle3.py", "SELECTOR =", "extra = 1\nSELECTOR =")
    now = identities(package / "scripts")
    (cause,) = causes(job("select_layers", HEAD, before, now), records, now.records())
    assert cause == "speclayers/selection/selectors/eagle3.py: statements outside functions changed"


def test_comments_change_no_record(package):
    before = identities(package / "scripts").records()
    edit(package / "src/speclayers/corpus/chat.py", "def ", "# why\ndef ")
    assert identities(package / "scripts").records() == before


def test_code_of_a_study_wide_stage_and_versions_are_told(package):
    before = identities(package / "scripts")
    records, was = before.records(), before.code("render_report")
    edit(package / "src/speclayers/analysis/wording.py", "def ", "def _new(): pass\n\n\ndef ")
    now = identities(package / "scripts")
    params = [repr(now.code("render_report")), repr("altair=2")]
    planned = Planned("render_report", {}, params_before=[repr(was), repr("altair=1")], params_now=params)
    found = causes(planned, records, now.records())
    assert [line.split(":")[0] for line in found] == ["speclayers/analysis/wording.py", "altair=1 → altair=2"]


def test_what_is_not_recorded_is_said_to_be_so():
    before, now = identities(), identities(draft={"steps": 7})
    planned = job("train_draft", HEAD, before, now)
    found = causes(planned, {"results": {}, "code": {}, "files": {}}, now.records())
    assert found == ["its fingerprint changed; what it was made of is not recorded", "draft.steps: 200 → 7"]


def test_files_inputs_and_jobs_before_are_told():
    nothing = {"results": {}, "code": {}, "files": {}}
    again = {"a.parquet": "build_corpus"}
    assert causes(Planned("x", {}, made_again=again), nothing, nothing) == [
        "comes after build_corpus, which runs again"
    ]
    planned = Planned(
        "x", {}, missing=["b", "a"], newer=["c"], inputs_before=["d", "e"], inputs_now=["e", "f"], made_again=again
    )
    assert causes(planned, nothing, nothing) == [
        *("a and 1 more: never made, or deleted", "c: changed by hand", "no longer reads d", "now reads f")
    ]


def test_records_of_earlier_runs_stay_and_studies_share_theirs(tmp_path):
    first, second = identities().records(), identities(draft={"steps": 7}).records()
    path = tmp_path / "a" / "fingerprints.json"
    add_records(path, first)
    add_records(path, second)
    add_records(tmp_path / "b" / "fingerprints.json", first)
    assert read_records(tmp_path)["results"] == first["results"] | second["results"]
