"""Folders of checkpoints: whole, or not there."""

from __future__ import annotations

import json
import shutil

import pytest

from meshscope.reference_trainer.checkpoint import folder as folder
from meshscope.reference_trainer.checkpoint.folder import CheckpointError

CONFIG = {"model": {"layers": 4}}


def save(root, step, keep=9):
    """Write a checkpoint whose tensors are any bytes."""
    partial = folder.partial_path(root, step)
    partial.mkdir(parents=True)
    (partial / ".metadata").write_bytes(b"meta")
    (partial / "__0_0.distcp").write_bytes(b"x" * 100)
    folder.publish(root, step, CONFIG, keep=keep)
    return folder.step_path(root, step)


def refusal(path):
    """Return the message of a refusal, which is one line."""
    with pytest.raises(CheckpointError) as caught:
        folder.read_manifest(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def test_what_was_published_is_found_and_read(tmp_path):
    """Fails if a checkpoint cannot be found again, or says other things than were noted."""
    path = save(tmp_path, 12)
    assert folder.find_latest(tmp_path) == path
    manifest = folder.read_manifest(path)
    assert (manifest.step, manifest.config) == (12, CONFIG)
    assert manifest.files == {".metadata": 4, "__0_0.distcp": 100}
    assert not list(tmp_path.glob(".*"))


def test_only_the_newest_are_kept(tmp_path):
    """Fails if old checkpoints fill the disk, or the newest one is removed."""
    for step in (9, 10, 11, 100_000_000):
        save(tmp_path, step, keep=2)
    names = sorted(path.name for path in tmp_path.glob("step-*"))
    assert names == ["step-00000011", "step-100000000"]


def test_a_run_that_went_back_keeps_what_it_writes(tmp_path):
    """Fails if a run from an older checkpoint removes its own, or goes on from the one it left."""
    for step in (2, 4, 6, 8):
        save(tmp_path, step)
    path = save(tmp_path, 3, keep=1)
    assert folder.find_latest(tmp_path) == path
    names = sorted(path.name for path in tmp_path.glob("step-*"))
    assert names == ["step-00000003", "step-00000004", "step-00000006", "step-00000008"]


def test_a_partial_folder_is_no_checkpoint(tmp_path):
    """Fails if what a kill left half-written is loaded, or stays for ever."""
    path = save(tmp_path, 4)
    folder.partial_path(tmp_path, 8).mkdir()
    (tmp_path / "step-00000008").mkdir()  # a name without a manifest
    (tmp_path / "latest").write_text("step-00000008\n")
    assert folder.find_latest(tmp_path) == path
    folder.make_ready(tmp_path)
    assert not folder.partial_path(tmp_path, 8).exists()
    assert path.exists()


def test_a_step_that_is_reached_again_replaces_its_checkpoint(tmp_path):
    """Fails if a run that went on from an older checkpoint cannot save."""
    path = save(tmp_path, 4)
    (path / "old").touch()
    assert save(tmp_path, 4) == path
    assert not (path / "old").exists()
    folder.read_manifest(path)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: (path / "__0_0.distcp").write_bytes(b"x" * 99), "has 99 of 100 bytes"),
        (lambda path: (path / "__0_0.distcp").unlink(), "__0_0.distcp is gone"),
        (lambda path: (path / ".metadata").write_bytes(b"evil"), ".metadata has changed"),
        (lambda path: (path / "checkpoint.json").write_text("{"), "cannot be read"),
        (lambda path: (path / "checkpoint.json").write_text("[]"), "cannot be read"),
        (lambda path: (path / "checkpoint.json").write_text("{}"), "is not a checkpoint of this"),
        (lambda path: (path / "checkpoint.json").write_bytes(b"\xff"), "cannot be read"),
        (lambda path: (path / "checkpoint.json").unlink(), "cannot be read"),
    ],
)
def test_a_harmed_checkpoint_is_refused_in_one_line(tmp_path, harm, message):
    """Fails if a torn or foreign checkpoint is loaded, or ends in a traceback."""
    path = save(tmp_path, 4)
    harm(path)
    assert message in refusal(path)


@pytest.mark.parametrize(("key", "value"), [("version", 2), ("files", 3), ("step", "four")])
def test_a_manifest_with_other_contents_is_refused(tmp_path, key, value):
    """Fails if another version, or values of another kind, are taken for ours."""
    path = save(tmp_path, 4)
    manifest = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(manifest | {key: value}))
    refusal(path)


def test_a_path_is_a_checkpoint_or_a_folder_of_them(tmp_path):
    """Fails if a user has to know which of the two to name, or a wrong name is no error."""
    save(tmp_path, 4)
    path = save(tmp_path, 8)
    assert folder.find_given(path) == folder.find_given(tmp_path) == path
    shutil.rmtree(path)
    assert folder.find_given(tmp_path) == folder.step_path(tmp_path, 4)
    for wrong, message in (
        (tmp_path / "none", "is not there"),
        (tmp_path / "empty", "contains no"),
    ):
        if wrong.name == "empty":
            wrong.mkdir()
        with pytest.raises(CheckpointError, match=message):
            folder.find_given(wrong)


def test_a_folder_that_cannot_be_is_found_out_first(tmp_path):
    """Fails if a run trains for hours towards a checkpoint that has no place."""
    folder.make_ready(tmp_path / "new" / "saved")
    assert (tmp_path / "new" / "saved").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot be made .* Choose another checkpoint.dir"):
        folder.make_ready(tmp_path / "file" / "saved")


def test_a_full_disk_is_an_error_of_one_line(tmp_path):
    """Fails if what cannot be written is taken for saved."""
    with pytest.raises(CheckpointError, match="cannot be written"):
        folder.publish(tmp_path, 4, CONFIG, keep=1)
