"""A finished study's head is exported, comes back as a head from elsewhere, drafts the same, and can be trained on."""

import json

import duckdb
import pandas as pd

from speclayers.layout import Layout

MODEL = "smoke-qwen3"
LAYOUT = Layout("smoke")


def test_an_exported_head_is_measured_as_the_head_it_was_and_trained_on(copy_of_finished):
    space = copy_of_finished
    done = space.smoke("export")
    assert done.returncode == 0, done.stderr[-4000:]
    chosen = json.loads((space.folder / LAYOUT.recommended_head(MODEL)).read_text())
    head, served = chosen["head"], [e for e, found in chosen["engines"].items() if found["verdict"] != "refused"]
    assert f"{MODEL}: {head}; {chosen['reason']}" in done.stdout
    assert "vllm" in served
    for engine, found in chosen["engines"].items():
        assert f"\n{engine}: {found['verdict']}" in done.stdout
        assert (space.folder / LAYOUT.exported(MODEL, head, engine)).is_dir() == (engine in served)
    card = space.folder / LAYOUT.exported(MODEL, head, "vllm") / "README.md"
    assert "| 0 | 8 |" in card.read_text()

    entry = f"{{model: {MODEL}, path: {LAYOUT.exported(MODEL, head, 'vllm')}, percents: [0, 50]}}"
    words = (LAYOUT.database, "--config", f"pretrained={{again: {entry}}}", "acceptance={temperatures: [0]}")
    done = space.smoke(*words)
    assert done.returncode == 0, done.stderr[-4000:]
    again, own = (
        pd.read_parquet(space.folder / LAYOUT.acceptance(MODEL, name, "0", "8", "cycles"))
        for name in ("pretrained.again", head)
    )
    pd.testing.assert_frame_equal(again, own)
    with duckdb.connect(str(space.folder / LAYOUT.database), read_only=True) as connection:
        rows = connection.sql("from acceptance_summary").df().set_index("layer_set")
        trained = connection.sql("select drafter, steps, layers from heads").df().set_index("drafter")
        compared = connection.sql("from comparisons where metric = 'tau_question'").df().set_index("layer_set")
    (reference,) = set(compared["reference"])
    for name in ("pretrained.again", "pretrained.again.p50"):
        assert (rows.loc[name, "kind"], compared.loc[name, "kind"]) == ("pretrained", "pretrained")
        assert list(rows.loc[name, "layers"]) == list(rows.loc[reference, "layers"])
    assert rows.loc["pretrained.again", "tau_question"] == rows.loc[reference, "tau_question"]
    assert compared.loc["pretrained.again", "difference"] == 0
    assert trained.loc["pretrained.again.p50.s0", "steps"] == 6
    assert "pretrained.again" not in trained.index
