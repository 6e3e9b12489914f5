"""Where ``meshscope run`` records: a new run, or the one of that name that is there already.

A name that was given is the user's word that all who bear it are one job: the launchers
of several hosts, which come at once, and a job that its scheduler starts again. They
join. Nothing of what is there is overwritten, as a rank that records again begins a new
part. A name that we make up is for one launcher only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from ..clock import unix_ns
from ..job.kill_switch import DISABLE_FILE
from ..schema.errors import ConfigError, MeshscopeError, RunDirectoryError, RunExistsError
from ..schema.manifest import (
    MANIFEST_NAME,
    check_format_version,
    check_run_id,
    part_directories,
    read_json,
    require_own,
)
from ..schema.message import message
from ..schema.rundir import create_run, write_run_manifest

_ATTEMPTS = 100
_MAKER_LOOKS, _MAKER_LOOK_S = 20, 0.05
"""Who makes a run writes its manifest at once after its folder; network file systems take longer."""
_INGESTED = "ingested"
"""Key in the manifest of a run that was made from other traces, beside which nothing is recorded."""


class RunPlace(NamedTuple):
    """The run directory of a launch.

    Attributes:
        path: Where it is.
        is_new: Whether this launch has made it.
        before: Parts of ranks that were there before.
    """

    path: Path
    is_new: bool
    before: frozenset[Path] = frozenset()


def place_of(runs_dir: Path, run_id: str | None, command: list[str]) -> RunPlace:
    """Return the run directory of a launch, made or joined.

    Args:
        runs_dir: Directory of all runs; made if it does not exist.
        run_id: Name of the run; None for a new one of the present time.
        command: What is launched.

    Raises:
        MeshscopeError: The id cannot name a run, or what bears it is none of ours.
        OSError: The directory cannot be made or read.
    """
    runs_dir = runs_dir.absolute()
    facts = {"created_unix_ns": unix_ns(), "command": command}
    if run_id is None:
        return _new_place(runs_dir, facts)
    path = runs_dir / check_run_id(run_id)
    try:
        return RunPlace(create_run(runs_dir, run_id, facts), is_new=True)
    except RunExistsError:
        return _joined(path, facts)


def take_back(place: RunPlace) -> None:
    """Remove the run that was made for a command that did not start, if nobody has joined it."""
    if not place.is_new:
        return
    with suppress(OSError):
        if {entry.name for entry in place.path.iterdir()} <= {MANIFEST_NAME}:
            (place.path / MANIFEST_NAME).unlink(missing_ok=True)
            place.path.rmdir()


def words_of_joining(place: RunPlace) -> str:
    """Return what a user has to know who gave a name that is in use; empty if nobody did."""
    if not place.before:
        return ""
    with suppress(MeshscopeError, TypeError, ValueError, OverflowError, OSError):
        created_ns = read_json(place.path / MANIFEST_NAME)["created_unix_ns"]
        since = datetime.fromtimestamp(created_ns / 1e9).astimezone()
        return (
            f"joins the run of {since:%Y-%m-%d %H:%M} in {place.path}, beside what is recorded "
            "there; another --run-id keeps jobs apart"
        )
    return f"joins the run in {place.path}; another --run-id keeps jobs apart"


def _new_place(runs_dir: Path, facts: Mapping[str, Any]) -> RunPlace:
    now = time.localtime(unix_ns() / 1e9)
    name = f"{time.strftime('run-%Y%m%d-%H%M%S', now)}-{os.getpid()}"
    for number in range(1, _ATTEMPTS):
        # Two containers that share a folder may have equal process ids.
        own = name if number == 1 else f"{name}-{number}"
        with suppress(RunExistsError):
            return RunPlace(create_run(runs_dir, own, facts), is_new=True)
    raise RunDirectoryError(message("refused.names_all_taken"), where=str(runs_dir / name))


def _joined(path: Path, facts: Mapping[str, Any]) -> RunPlace:
    remedy = message("advice.run_id_option")
    if not path.is_dir():
        raise ConfigError(message("refused.no_folder"), where=str(path), remedy=remedy)
    try:
        require_own(path)
    except OSError as error:
        raise ConfigError(
            message("refused.reason", reason=error.strerror or error),
            where=str(path),
            remedy=remedy,
        ) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(message("refused.not_writable"), where=str(path), remedy=remedy)
    before = frozenset(
        directory for parts in part_directories(path).values() for directory in parts.values()
    )
    if not before:
        _await_maker(path)
    if (path / MANIFEST_NAME).exists():
        manifest = read_json(path / MANIFEST_NAME)
        check_format_version(manifest.get("format_version"), str(path / MANIFEST_NAME))
        if _INGESTED in manifest:
            raise ConfigError(message("refused.from_other_traces"), where=str(path), remedy=remedy)
    else:
        if not before and (foreign := _foreign(path)):
            raise ConfigError(
                message("refused.holds_no_run", foreign=foreign), where=str(path), remedy=remedy
            )
        # Its maker has died between two calls: what it would have written is the same.
        write_run_manifest(path, facts)
    return RunPlace(path, is_new=False, before=before)


def _await_maker(path: Path) -> None:
    """Wait a little for the manifest of a folder that another launcher may just have made."""
    for _ in range(_MAKER_LOOKS):
        if (path / MANIFEST_NAME).exists() or _foreign(path):
            return
        time.sleep(_MAKER_LOOK_S)


def _foreign(path: Path) -> str:
    """Return the name of something that shows that a folder is none of ours; empty if nothing."""
    names = sorted(entry.name for entry in path.iterdir())
    ours = (DISABLE_FILE, MANIFEST_NAME)
    strange = (name for name in names if not name.startswith(".") and name not in ours)
    return next(strange, "")
