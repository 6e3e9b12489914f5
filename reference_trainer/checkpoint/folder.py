"""The folders of checkpoints: one is there as a whole or not at all.

::

    DIR/latest                      the name of the newest one
    DIR/step-00000040/              after 40 steps
        checkpoint.json             what it is, and the size of every other file
        .metadata, __0_0.distcp …   as torch.distributed.checkpoint writes them
    DIR/.step-00000060.partial/     being written

A checkpoint is written under a name that nobody reads and renamed when all its
files are on disk, so that a kill leaves a partial folder, which the next start
removes, and never half a checkpoint. What comes later to harm (a file cut off,
a file gone) is found by the sizes before anything is loaded. No torch here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.message import message

MANIFEST = "checkpoint.json"
METADATA = ".metadata"
FORMAT = "meshscope reference trainer checkpoint"
VERSION = 1
_LATEST = "latest"
_NAME = re.compile(r"step-[0-9]{8,}")


class CheckpointError(MeshscopeError):
    """A checkpoint cannot be written, or is not what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint says of itself."""

    step: int
    """Steps that were done: the next one, and the position in the data."""
    config: dict[str, dict[str, Any]]
    """The run's configuration, section by section."""
    metadata_sha256: str
    """Hash of torch's metadata, which is a pickle and must not have changed before it is read."""
    files: dict[str, int]
    """Size in bytes of every other file."""


def step_path(root: Path, step: int) -> Path:
    """Return the folder of the checkpoint after so many steps."""
    return root / f"step-{step:08d}"


def partial_path(root: Path, step: int) -> Path:
    """Return the folder in which it is written."""
    return root / f".step-{step:08d}.partial"


def make_ready(root: Path) -> None:
    """Make the folder of the checkpoints, and remove what earlier runs did not finish to write.

    Raises:
        CheckpointError: It cannot be made.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            message("refused.not_made", reason=error.strerror),
            where=str(root),
            remedy=message("advice.other_checkpoint_dir"),
        ) from error
    for path in root.glob(".step-*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def publish(root: Path, step: int, config: dict[str, dict[str, Any]], *, keep: int) -> None:
    """Make what was written into the partial folder a checkpoint, and remove old ones.

    Args:
        root: Folder of the checkpoints.
        step: Steps that were done.
        config: The run's configuration, in JSON's types.
        keep: Newest checkpoints that stay, of those up to this step.

    Raises:
        CheckpointError: The file system refuses.
    """
    partial, final = partial_path(root, step), step_path(root, step)
    try:
        manifest = Manifest(
            step=step,
            config=config,
            metadata_sha256=_sha256(partial / METADATA),
            files={file.name: file.stat().st_size for file in sorted(partial.iterdir())},
        )
        text = json.dumps({"format": FORMAT, "version": VERSION, **asdict(manifest)}, indent=1)
        _write_durably(partial / MANIFEST, text)
        if final.exists():  # training went on from an older one, and came here again
            shutil.rmtree(final)
        partial.rename(final)
        _write_durably(root / _LATEST, f"{final.name}\n")
        _flush_folder(root)
    except OSError as error:
        raise CheckpointError(
            message("refused.not_written", reason=error),
            where=str(final),
            remedy=message("advice.room_for_checkpoint"),
        ) from error
    # Those of later steps are of a run that this one left; what was just written is no older.
    names = [path for path in _complete(root) if _steps_of(path) <= step]
    for old in names[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def find_latest(root: Path) -> Path | None:
    """Return the checkpoint that ``latest`` names, else the one of most steps; None for none."""
    complete = _complete(root)
    try:
        named = root / (root / _LATEST).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        named = root
    if named in complete:
        return named
    return complete[-1] if complete else None


def find_given(path: Path) -> Path:
    """Return the checkpoint that a user named: itself, or the latest in a folder.

    Raises:
        CheckpointError: There is none.
    """
    if (path / MANIFEST).exists():
        return path
    latest = find_latest(path)
    if latest is None:
        raise CheckpointError(
            message("refused.holds_no_checkpoint")
            if path.exists()
            else message("refused.not_there"),
            where=str(path),
            remedy=message("advice.folder_of_checkpoint"),
        )
    return latest


def read_manifest(path: Path) -> Manifest:
    """Return what a checkpoint says of itself, after a look at its files.

    Raises:
        CheckpointError: It is none of this trainer, of another version, or damaged.
    """
    try:
        raw = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if raw.get("format") != FORMAT:
            raise CheckpointError(message("refused.no_checkpoint"), where=str(path / MANIFEST))
        if raw.get("version") != VERSION:
            raise CheckpointError(
                message("refused.checkpoint_version", found=raw.get("version"), known=VERSION),
                where=str(path / MANIFEST),
                remedy=message("advice.resume_with_release"),
            )
        manifest = msgspec.convert(raw, Manifest)
        _check_files(path, manifest)
    except (OSError, ValueError, AttributeError, msgspec.ValidationError) as error:
        raise _damaged(path, f"{MANIFEST} cannot be read ({error!r:.120})") from error
    return manifest


def _check_files(path: Path, manifest: Manifest) -> None:
    """Hold the files to their noted sizes, and torch's metadata to its hash."""
    for name, size_bytes in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise _damaged(path, f"{name} is gone")
        found = file.stat().st_size
        if found != size_bytes:
            raise _damaged(path, f"{name} has {found} of {size_bytes} bytes")
    if _sha256(path / METADATA) != manifest.metadata_sha256:
        raise _damaged(path, f"{METADATA} has changed")


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        message("refused.damaged_checkpoint", what=what),
        where=str(path),
        remedy=message("advice.remove_checkpoint"),
    )


def _complete(root: Path) -> list[Path]:
    """Return the checkpoints in a folder, by their steps."""
    named = (path for path in root.glob("step-*") if _NAME.fullmatch(path.name))
    return sorted((path for path in named if (path / MANIFEST).exists()), key=_steps_of)


def _steps_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_durably(path: Path, text: str) -> None:
    """Replace a file as a whole, and return when it is on disk."""
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _flush_folder(path: Path) -> None:
    """Return when the names in a folder are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
