"""Killed, paused, damaged and crowded-out trainings continue to the same weights."""

import multiprocessing
import os
import re
import resource
import signal
import time

import pytest
import torch

from speclayers.drafting.checkpoints import Checkpoint, restore_checkpoint, save_checkpoint
from speclayers.errors import UserError
from tests.drafts import assert_equal, make_head, run, trainer_of, weights


@pytest.mark.parametrize("checkpoints", [1, 3])
def test_killed_training_continues_to_the_same_bytes(setting, tmp_path, caplog, checkpoints):
    caplog.set_level("INFO")
    whole = run(setting, tmp_path / "whole", steps=40)
    folder = tmp_path / "killed"
    child = multiprocessing.get_context("fork").Process(target=killed_child, args=(setting, folder))
    child.start()
    deadline = time.monotonic() + 60
    while not (folder / f"step-{4 * checkpoints:07d}.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert_equal(run(setting, folder, steps=40), whole)
    assert "continuing after step" in caplog.text


def killed_child(setting, folder):
    torch.set_num_threads(1)
    run(setting, folder, steps=40)
    time.sleep(60)


@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: b"", lambda data: data[:4]])
def test_truncated_checkpoint_gives_way_to_the_one_before(setting, tmp_path, caplog, damage):
    caplog.set_level("INFO")
    whole = run(setting, tmp_path / "work", steps=12)
    newest = tmp_path / "work" / "step-0000008.safetensors"
    assert [path.name for path in sorted((tmp_path / "work").iterdir())] == ["step-0000004.safetensors", newest.name]
    newest.write_bytes(damage(newest.read_bytes()))
    assert_equal(run(setting, tmp_path / "work", steps=12), whole)
    assert "checkpoint step-0000008.safetensors is damaged" in caplog.text
    assert "continuing after step 4" in caplog.text


def test_checkpoint_of_another_training_is_not_used(setting, tmp_path, caplog):
    run(setting, tmp_path / "work")
    other = run(setting, tmp_path / "work", "eagle3.l01.s0")
    assert "belongs to another training" in caplog.text
    assert_equal(other, run(setting, tmp_path / "fresh", "eagle3.l01.s0"))


def test_checkpoints_of_no_use_do_not_push_out_good_ones(setting, tmp_path):
    run(setting, tmp_path / "work", steps=40, checkpoint_every=15)
    (tmp_path / "work" / "step-0000039.safetensors").write_bytes(b"damaged")
    paused = trainer_of(setting, tmp_path / "work", "eagle3.l01.s0")
    paused.run(until=8)
    left = sorted(path.name for path in (tmp_path / "work").iterdir())
    assert left == ["step-0000004.safetensors", "step-0000008.safetensors"]
    assert trainer_of(setting, tmp_path / "work", "eagle3.l01.s0").step == 8


def test_full_disk_keeps_the_checkpoint_before(setting, tmp_path):
    whole = run(setting, tmp_path / "whole")
    room = (tmp_path / "whole" / "step-0000004.safetensors").stat().st_size + 100  # the next holds more rows
    told = tmp_path / "told"
    child = multiprocessing.get_context("fork").Process(target=crowded_child, args=(setting, tmp_path, room, told))
    child.start()
    child.join()
    assert child.exitcode == 2
    assert re.fullmatch(r".*step-0000008.safetensors: cannot be written: .*", told.read_text())
    assert [path.name for path in (tmp_path / "crowded").iterdir()] == ["step-0000004.safetensors"]
    assert_equal(run(setting, tmp_path / "crowded"), whole)


def crowded_child(setting, folder, room, told):
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    try:
        run(setting, folder / "crowded")
    except UserError as error:
        told.write_text(str(error))
        os._exit(2)


def test_checkpoint_holds_weights_optimiser_and_table(tiny_target, tmp_path):
    def trained(head):
        optimiser = torch.optim.AdamW(head.parameters(), fused=True)
        for parameter in head.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        return optimiser

    head, other = make_head(tiny_target()), make_head(tiny_target(), seed=1)
    optimiser, fresh = trained(head), torch.optim.AdamW(other.parameters(), fused=True)
    progress = Checkpoint(7, torch.tensor([[1.0, float("nan")]], dtype=torch.float64))
    save_checkpoint(tmp_path, "key", head, optimiser, progress)
    restored = restore_checkpoint(tmp_path, "key", other, fresh)
    assert restored.step == 7
    torch.testing.assert_close(restored.log, progress.log, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(weights(other), weights(head), rtol=0, atol=0)
    for ours, theirs in zip(other.parameters(), head.parameters(), strict=True):
        torch.testing.assert_close(fresh.state[ours], optimiser.state[theirs], rtol=0, atol=0)
