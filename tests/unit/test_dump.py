import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from speclayers.errors import UserError
from speclayers.geometry.dump import open_dump, read_layer, read_tokens
from tests.dumps import layered_states, tokens_frame, write_dump


def test_layers_and_tokens_are_read_back_over_all_parts(tmp_path):
    tokens = tokens_frame()
    states = layered_states(len(tokens))
    dump = open_dump(write_dump(tmp_path, tokens, states, parts=3))
    assert (dump.n_layers, dump.width, dump.tokens) == (6, 12, len(tokens))
    for layer in range(7):
        np.testing.assert_array_equal(read_layer(dump.parts, layer), states[layer])
    assert read_tokens(dump.parts)["sample_id"].tolist() == tokens["sample_id"].tolist()


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_half_precision_is_widened_exactly(tmp_path, stored):
    wanted = np.array([[1.0, -2.5, 0.15625, 24832.0]] * 3, dtype=np.float32)  # exact in both formats
    raw = (wanted.view(np.uint32) >> 16).astype("<u2") if stored == "bfloat16" else wanted.astype("<f2")
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), 3, [None, pa.py_buffer(raw.tobytes())])
    field = pa.field("h00", pa.binary(8), metadata={"dtype": stored, "width": "4"})
    pq.write_table(pa.table([column], schema=pa.schema([field])), tmp_path / "part-0000.parquet")
    np.testing.assert_array_equal(read_layer([tmp_path / "part-0000.parquet"], 0), wanted)


def test_truncated_part_is_named(tmp_path):
    manifest = write_dump(tmp_path)
    part = tmp_path / "part-0001.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"part-0001\.parquet: is no readable Parquet file"):
        open_dump(manifest)


def test_missing_part_is_named(tmp_path):
    manifest = write_dump(tmp_path)
    (tmp_path / "part-0001.parquet").unlink()
    with pytest.raises(UserError, match=r"part-0001\.parquet: file is missing"):
        open_dump(manifest)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_states_that_are_not_finite_name_layer_and_sample(tmp_path, value):
    tokens = tokens_frame()
    states = layered_states(len(tokens))
    states[4, 30, 2] = value
    dump = open_dump(write_dump(tmp_path, tokens, states))
    with pytest.raises(UserError, match="layer 4 of sample p01 holds NaN or infinity in 1 tokens"):
        read_layer(dump.parts, 4)


def test_parts_of_another_run_are_refused(tmp_path):
    with pytest.raises(UserError, match="fingerprint is 'other', expected 'f'"):
        open_dump(write_dump(tmp_path, part_fingerprint="other"))


def test_differing_row_counts_are_refused(tmp_path):
    manifest = write_dump(tmp_path)
    entries = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(entries | {"tokens": entries["tokens"] + 1}))
    with pytest.raises(UserError, match="the parts hold 138 tokens, expected 139"):
        open_dump(manifest)


def test_missing_layer_is_refused(tmp_path):
    manifest = write_dump(tmp_path)
    entries = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(entries | {"layers": 7}))
    with pytest.raises(UserError, match="column h07 is missing"):
        open_dump(manifest)
