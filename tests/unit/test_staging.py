import pytest

from speclayers.errors import UserError
from speclayers.targets.staging import replaced_folder, resumable_folder


def test_a_folder_appears_whole_and_open_to_others(tmp_path):
    with replaced_folder(tmp_path / "model") as staging:
        (staging / "weights").write_text("new")
        (staging / "weights").chmod(0o600)
        assert not (tmp_path / "model").exists()
    assert (tmp_path / "model" / "weights").read_text() == "new"
    (tmp_path / "ordinary").write_text("")
    assert (tmp_path / "model" / "weights").stat().st_mode == (tmp_path / "ordinary").stat().st_mode
    (tmp_path / "ordinary").unlink()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_an_error_keeps_the_old_folder(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(RuntimeError, match="stop"), replaced_folder(tmp_path / "model"):
        raise RuntimeError("stop")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_folders_that_others_are_writing_are_left_alone(tmp_path):
    (tmp_path / ".qwen3.5.abcd_123.part").mkdir()
    (tmp_path / ".qwen3.abcd_123.part").mkdir()
    with replaced_folder(tmp_path / "qwen3"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == [".qwen3.5.abcd_123.part", "qwen3"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/model: cannot be written"), replaced_folder(tmp_path / "file" / "model"):
        pass


def fail_after_writing(path):
    path.write_text("")
    raise RuntimeError("stop")


def test_work_survives_a_failure_and_not_a_success(tmp_path):
    (tmp_path / "work" / "other").mkdir(parents=True)
    with pytest.raises(RuntimeError, match="stop"), resumable_folder(tmp_path / "work", "key") as folder:
        fail_after_writing(folder / "shard")
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["key"]
    with resumable_folder(tmp_path / "work", "key") as folder:
        assert (folder / "shard").exists()
    assert not (tmp_path / "work").exists()
