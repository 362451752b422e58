"""Gram products shared out over jobs are those of a single job, and files of other jobs are refused."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from speclayers.config import GeometryConfig
from speclayers.errors import UserError
from speclayers.geometry.dump import open_dump
from speclayers.geometry.measure import Geometry, measure
from speclayers.geometry.products import Share
from speclayers.geometry.shards import GRAM_SHARD, Shards, gram_shard, shard_origin, share_of
from speclayers.tables import GEOMETRY, Origin, write_table
from tests.dumps import tokens_frame, write_dump

SCRIPTS = Path(__file__).parents[2] / "scripts"
CONFIG = GeometryConfig(blocks=6, effect_tokens=8, search_rows=30, shards=3)
ORIGIN = Origin("m", "shares")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_dump(tmp_path_factory.mktemp("activations"), tokens_frame(prompts=12))


@pytest.fixture(scope="module")
def written(manifest, tmp_path_factory):
    return write_shards(manifest, tmp_path_factory.mktemp("shards"), 3)


def write_shards(manifest, folder, count, order=None):
    paths = [folder / f"{index}.parquet" for index in range(count)]
    for index in order or range(count):
        share = Share(index, count)
        table = gram_shard(open_dump(manifest), CONFIG, share, folder)
        write_table(paths[index], GRAM_SHARD, table, shard_origin(ORIGIN, share))
    return paths


@pytest.mark.parametrize(("count", "order"), [(3, None), (3, [2, 0, 1]), (25, None)])
def test_tables_are_those_of_a_single_job(manifest, tmp_path, count, order):
    paths = write_shards(manifest, tmp_path, count, order)  # 21 pairs of blocks: some of 25 jobs have none
    found = measure(open_dump(manifest), CONFIG, tmp_path, Shards(paths, ORIGIN))
    alone = measure(open_dump(manifest), CONFIG, tmp_path)
    for name in Geometry._fields:
        pd.testing.assert_frame_equal(getattr(found, name), getattr(alone, name), check_exact=True)


def test_a_share_of_another_job_is_refused(written):
    products = Shards(written, ORIGIN).products(7, 6)
    assert set(products) == {"all", "filtered", "random"}
    with pytest.raises(UserError, match=r"0\.parquet: fingerprint is 'shares/0-of-3', expected 'other/0-of-3'"):
        Shards(written, Origin("m", "other")).products(7, 6)
    with pytest.raises(UserError, match=r"0\.parquet: model is 'm', expected 'n'"):
        Shards(written, Origin("n", "shares")).products(7, 6)
    with pytest.raises(UserError, match=r"2\.parquet: fingerprint is 'shares/2-of-3', expected 'shares/0-of-3'"):
        Shards(written[::-1], ORIGIN).products(7, 6)
    with pytest.raises(UserError, match=r"0\.parquet: fingerprint is 'shares/0-of-3', expected 'shares/0-of-2'"):
        Shards(written[:2], ORIGIN).products(7, 6)
    with pytest.raises(UserError, match="file is missing"):
        Shards([written[0].with_name("9.parquet")], ORIGIN).products(7, 6)


def test_a_share_beyond_the_config_is_refused():
    assert share_of(CONFIG, 2) == Share(2, 3)
    with pytest.raises(UserError, match="found 3, expected 0 to 2"):
        share_of(CONFIG, 3)


def run(script, *arguments):
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_scripts_pass_the_shares_on(manifest, written, tmp_path):
    common = ("--model", "m", "--threads", 1, "--activations", manifest, "--activations-fingerprint", "f")
    share = run(
        *("accumulate_gram.py", "--spec", CONFIG.canonical(), "--fingerprint", "shares", *common),
        *("--shard", 1, "--output", tmp_path / "1.parquet"),
    )
    assert share.returncode == 0, share.stderr
    assert (tmp_path / "1.parquet").read_bytes() == written[1].read_bytes()
    outputs = [part for name in Geometry._fields for part in (f"--{name.replace('_', '-')}", tmp_path / name)]
    measured = ("measure_geometry.py", "--spec", CONFIG.canonical(), "--fingerprint", "f", *common, *outputs)
    done = run(*measured, "--shards", *written, "--shards-fingerprint", "shares")
    assert done.returncode == 0, done.stderr
    found = measure(open_dump(manifest), CONFIG, tmp_path)
    write_table(tmp_path / "gram2", GEOMETRY["gram"], found.gram, Origin("m", "f"))
    assert (tmp_path / "gram").read_bytes() == (tmp_path / "gram2").read_bytes()
    refused = run(*measured, "--shards", *written, "--shards-fingerprint", "old")
    assert refused.returncode == 2
    assert "expected 'old/0-of-3'" in refused.stderr


def test_cuda_that_is_not_there_ends_with_one_line_and_nothing_written(manifest, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    spec = CONFIG.model_copy(update={"device": "cuda"}).canonical()
    done = run(
        *("accumulate_gram.py", "--spec", spec, "--fingerprint", "shares", "--model", "m", "--threads", 1),
        *(
            "--activations",
            manifest,
            "--activations-fingerprint",
            "f",
            "--shard",
            0,
            "--output",
            tmp_path / "0.parquet",
        ),
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "geometry.device: found cuda" in done.stderr
    assert list(tmp_path.iterdir()) == []
