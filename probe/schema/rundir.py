"""The run directory: how a run is created and found.

::

    <runs>/<run_id>/manifest.json            the job
      rank00000/manifest.json                the rank: groups, clocks, counters
      rank00000/ring.bin                     newest records (``ring``)
      rank00000/seg-000001.arrows            older records (``segment``)
      host-<name>/manifest.json              the machine: devices, ports, what could not be read
      host-<name>/seg-000001.arrows          samples of it (``host_records``)
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import ConfigError, RunDirectoryError, RunExistsError
from .manifest import (
    DIRECTORY_MODE,
    MANIFEST_NAME,
    check_format_version,
    check_run_id,
    rank_directories,
    read_json,
    write_json,
)
from .message import Message, message
from .tables import FORMAT_VERSION

_EMPTY_MANIFEST: dict[str, Any] = {
    "format_version": FORMAT_VERSION,
    "run_id": None,
    "created_unix_ns": None,
    "world_size": None,
    "layout": None,
    "model": {},
    "observed": {},
    "model_refused": None,
    "schedule": None,
    "microbatches": None,
    "tokens_per_step": None,
    "flops_per_token": None,
    "peak_flops": None,
    "peak_source": None,
    "device_name": None,
    "capture_level": None,
    "software": {},
    "command": [],
}


def create_run(root: Path, run_id: str, manifest: Mapping[str, Any]) -> Path:
    """Create the directory of a new run with its manifest; return its path.

    Args:
        root: Directory of all runs; made if it does not exist.
        run_id: Name of the run.
        manifest: Known facts (see ``write_run_manifest``); the rest stays null.

    Raises:
        RunExistsError: There is something of that name.
        ConfigError: The id cannot name a run, or ``root`` is a file.
        OSError: The directory cannot be created.
    """
    path = root / check_run_id(run_id)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(
            message("refused.no_folder"),
            where=str(root),
            remedy=message("advice.name_folder_for_runs"),
        ) from None
    try:
        path.mkdir(mode=DIRECTORY_MODE)
    except FileExistsError:
        raise RunExistsError(
            message("refused.run_exists"), where=str(path), remedy=message("advice.other_run_id")
        ) from None
    write_run_manifest(path, {"run_id": run_id, **manifest})
    return path


def write_run_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a run in one step.

    Keys: created_unix_ns, world_size, layout (``ParallelLayout.to_json``),
    model (num_layers, hidden_size, ffn_size, num_heads, seq_len, vocab_size,
    parameters), observed (what ran of it), schedule, microbatches, tokens_per_step, flops_per_token,
    peak_flops, peak_source, device_name, capture_level, software, command. Those left out
    are written as unknown; others are kept as they are.

    Raises:
        OSError: It cannot be written; an older one stays.
        TypeError: A value has no JSON form.
        ValueError: A number is not finite.
    """
    content = {**_EMPTY_MANIFEST, "run_id": path.name, **manifest}
    write_json(path / MANIFEST_NAME, {**content, "format_version": FORMAT_VERSION})


def update_run_manifest(path: Path, changes: Mapping[str, Any]) -> None:
    """Change some keys of a run's manifest; objects such as ``model`` are merged.

    Safe to call from several processes of a host at once.

    Raises:
        RunDirectoryError: The manifest is missing or damaged.
        FormatVersionError: It was written by another format version.
        OSError: It cannot be written.
    """
    with _changing_manifest(path) as manifest:
        for key, value in changes.items():
            old = manifest.get(key)
            if isinstance(old, dict) and isinstance(value, Mapping):
                value = {**old, **value}
            manifest[key] = value


def clear_run_manifest(path: Path, names: Iterable[str]) -> None:
    """Make some keys of a run's manifest unknown again: they were those of an earlier attempt.

    Raises:
        RunDirectoryError: The manifest is missing or damaged.
        FormatVersionError: It was written by another format version.
        OSError: It cannot be written.
    """
    with _changing_manifest(path) as manifest:
        manifest.update((name, _EMPTY_MANIFEST[name]) for name in names if name in _EMPTY_MANIFEST)


@contextmanager
def _changing_manifest(path: Path) -> Iterator[dict[str, Any]]:
    """Give the manifest of a run to be changed, and write it then; alone on this host."""
    with _locked(path):
        manifest = read_json(path / MANIFEST_NAME)
        check_format_version(manifest.get("format_version"), str(path / MANIFEST_NAME))
        yield manifest
        write_run_manifest(path, manifest)


def is_run_directory(path: Path) -> bool:
    """Tell whether a path looks like a run: it has ranks, or a manifest with a format version."""
    try:
        if not path.is_dir():
            return False
        if rank_directories(path):
            return True
        return "format_version" in read_json(path / MANIFEST_NAME)
    except (OSError, RunDirectoryError):
        return False


def list_runs(root: Path) -> list[Path]:
    """Return the runs in a directory, by name; an unreadable one has none.

    Raises:
        RunDirectoryError: The directory does not exist or cannot be listed.
    """
    try:
        return sorted(path for path in root.iterdir() if is_run_directory(path))
    except OSError as error:
        raise RunDirectoryError(
            message("refused.not_listed", reason=error.strerror),
            where=str(root),
            remedy=message("advice.name_folder_of_runs"),
        ) from error


def require_run(path: Path) -> None:
    """Accept a path that is a run.

    Raises:
        RunDirectoryError: It is none; the message says what it is and what to name.
    """
    remedy = message("advice.run_directory")
    if not path.exists():
        raise RunDirectoryError(message("refused.does_not_exist"), where=str(path), remedy=remedy)
    if not path.is_dir():
        raise RunDirectoryError(message("refused.no_directory"), where=str(path), remedy=remedy)
    if not os.access(path, os.R_OK | os.X_OK):
        raise RunDirectoryError(message("refused.not_readable"), where=str(path))
    if not any(path.iterdir()):
        raise RunDirectoryError(message("refused.empty_directory"), where=str(path), remedy=remedy)
    if not is_run_directory(path):
        remedy = name_a_run_in(path) or remedy
        raise RunDirectoryError(message("refused.no_run_directory"), where=str(path), remedy=remedy)


def name_a_run_in(root: Path) -> Message | None:
    """Return the advice to name one of the runs in a directory; None if it holds none."""
    runs = list_runs(root)
    if not runs:
        return None
    held = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return message("advice.one_of_runs", held=held, newest=runs[-1])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock on a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
