"""Tables are whole or absent, and checked when read."""

import os

import pandas as pd
import pyarrow.parquet as pq
import pytest

from speclayers import files, tables
from speclayers.errors import UserError
from speclayers.tables import TURNING, Origin, Table, read_origin, read_table, write_table

ORIGIN = Origin(model="m", fingerprint="abc")
FRAME = pd.DataFrame({"layer": [1, 2], "score": [0.1, 0.2], "is_turning_point": [False, True], "block": [0, 0]})


def every_table():
    return [value for value in vars(tables).values() if isinstance(value, Table)]


def test_every_column_has_a_meaning():
    assert len(every_table()) >= 10
    for table in every_table():
        for column in table.columns:
            assert column.meaning.endswith("."), (table.name, column.name)


def test_a_table_survives_a_round_trip_with_its_origin(tmp_path):
    path = tmp_path / "deep" / "turning.parquet"
    write_table(path, TURNING, FRAME, ORIGIN)
    pd.testing.assert_frame_equal(read_table(path, TURNING), FRAME, check_dtype=False)
    assert read_origin(path)["fingerprint"] == "abc"
    assert pq.read_schema(path).names == [c.name for c in TURNING.columns]


def test_the_same_rows_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_table(tmp_path / name, TURNING, FRAME, ORIGIN)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("frame", [FRAME.drop(columns="score"), FRAME.assign(extra=1)])
def test_missing_and_unknown_columns_are_refused_on_write(tmp_path, frame):
    with pytest.raises(ValueError, match="turning"):
        write_table(tmp_path / "x.parquet", TURNING, frame, ORIGIN)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_a_truncated_file_is_named(tmp_path, keep):
    path = tmp_path / "t.parquet"
    write_table(path, TURNING, FRAME, ORIGIN)
    path.write_bytes(path.read_bytes()[:keep])
    for read in (lambda: read_table(path, TURNING), lambda: read_origin(path)):
        with pytest.raises(UserError, match=r"t\.parquet: is no readable Parquet file"):
            read()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.parquet: file is missing"):
        read_table(tmp_path / "none.parquet", TURNING)
    with pytest.raises(UserError, match=r"none\.json: file is missing"):
        files.read_json(tmp_path / "none.json")


def test_a_table_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    write_table(path, TURNING, FRAME, ORIGIN)
    with pytest.raises(UserError, match="other columns than geometry/cka"):
        read_table(path, tables.CKA)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "kept.txt"
    files.write_text(path, "old")

    def write_half():
        with files.atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["kept.txt"]


def test_a_full_disk_is_told_in_one_line(tmp_path):
    path = tmp_path / "big.txt"
    with pytest.raises(UserError, match=r"big\.txt: cannot be written: No space left"), files.atomic_path(path):
        raise OSError(28, os.strerror(28))
    assert os.listdir(tmp_path) == []


def test_numbers_that_json_cannot_hold_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "x.json", {"a": float("nan")})
