"""`snakemake --profile slurm` on a cluster with accounting: the smoke study, checked against SLURM's own records."""

import duckdb
import pandas as pd
import pytest

from speclayers.layout import Layout
from tests.cluster.conftest import ROOT, documented

MODEL = "smoke-qwen3"
LAYOUT = Layout("smoke")
ON_GPU = {
    *("build_corpus", "dump_activations", "extract_features", "train_draft"),
    *("decode_baseline", "measure_acceptance", "measure_speed"),
}


def tres(record):
    return dict(pair.split("=") for pair in record["AllocTRES"].split(","))


def test_the_smoke_study_ends_with_its_report(finished):
    assert "<html" in (finished.space.folder / LAYOUT.report).read_text()


def test_every_heavy_job_was_a_job_of_slurm_and_no_local_one(finished):
    heavy = [job for job in finished.jobs if not job.local]
    assert {job.rule for job in finished.jobs if job.local} <= {"choose_questions", "all"}
    assert {job.rule for job in heavy} >= ON_GPU | {"fetch_model", "measure_geometry", "select_layers", "render_report"}
    assert all(job.slurm_id for job in heavy)
    assert all(job.slurm_id is None for job in finished.jobs if job.local)
    assert sorted(job.slurm_id for job in heavy) == sorted(finished.records)
    for job in heavy:
        record = finished.records[job.slurm_id]
        assert record["State"] == "COMPLETED"
        name = "summaries" if job.rule == "summarise_model" else job.rule  # which the profile puts into groups
        assert f"{record['Comment']}_".startswith(f"rule_{name}_")


def test_every_job_had_the_gpu_memory_and_time_that_it_asked_for(finished):
    for job in finished.jobs:
        if job.local or job.rule == "select_layers":  # which has a message of its own in place of its resources
            continue
        record = finished.records[job.slurm_id]
        given = tres(record)
        assert given["mem"] in (f"{job.resources['mem_mb']}M", f"{int(job.resources['mem_mb']) / 1024:g}G"), job
        assert record["TimelimitRaw"] == job.resources["runtime"], job
        assert job.resources.get("gpu", "0") == ("1" if job.rule in ON_GPU else "0"), job
        asked = job.rule in ON_GPU and job.rule != "measure_speed"  # that one has the whole node
        assert given.get("gres/gpu", "0") == ("1" if asked else "2" if job.rule == "measure_speed" else "0"), job


def test_costs_tell_slurms_ids_and_tokens_a_second(finished):
    with duckdb.connect(str(finished.space.folder / LAYOUT.database), read_only=True) as connection:
        jobs = connection.sql("select * from jobs").df()
        costs = connection.sql("select * from costs").df().set_index("rule")
    later = {"aggregate_study", "render_report"}
    expected = {job.slurm_id for job in finished.jobs if not job.local and job.rule not in later}
    assert set(jobs["slurm_job"]) == expected
    assert costs.loc["train_draft", "tokens_per_s"] > 0
    assert costs.loc["measure_acceptance", "tokens"] > 0
    assert costs.loc["train_draft", "gpu_seconds"] == pytest.approx(costs.loc["train_draft", "seconds"])
    assert costs.loc["select_layers", "gpu_seconds"] == 0


def test_the_efficiency_report_tells_every_job_with_its_rule(finished):
    (report,) = (finished.space.folder / "logs/slurm").glob("efficiency_report_*.csv")
    table = pd.read_csv(report, dtype={"MainJobID": str})
    assert set(table["MainJobID"]) == set(finished.records)
    assert table["RuleName"].str.startswith("rule_").all()
    assert (table["RequestedMem_MB"] > 0).all()


def refused(finished, *words):
    """What a run says whose jobs SLURM does not take."""
    done = finished.space.slurm("layers", "--retries", "0", *words)
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_an_unknown_account_is_told(finished, pretend):
    pretend.start("accounting")
    said = refused(finished, "--default-resources", "slurm_account=nobody")
    assert documented("The given account nobody appears to be invalid. Available accounts:") in said.replace(":\n", ":")
    assert "Error in rule render_layers" in said


def test_an_unknown_partition_is_told(finished, pretend):
    pretend.start("accounting")
    said = refused(finished, "--default-resources", "slurm_partition=nowhere")
    assert documented("invalid partition specified: nowhere") in said
    assert "Error in rule render_layers" in said


def test_the_profile_is_a_link_that_snakemake_finds_from_the_root():
    assert (ROOT / "slurm").is_symlink()
    assert (ROOT / "slurm/config.yaml").resolve() == ROOT / "profiles/slurm/config.yaml"
