"""Read a run directory: all ranks and hosts, as far as they are good.

Reading takes what is good and states what is not as a *limit*; only a path
that is no run at all, or a format version that we do not know, is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..schema.errors import RunDirectoryError
from ..schema.host_records import read_hosts
from ..schema.manifest import MANIFEST_NAME, check_format_version, read_json
from ..schema.note import Note, note
from ..schema.rundir import require_run
from .rank_parts import WANTED, Wanted
from .rank_records import LastSeen
from .run_tables import read_run_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCapture:
    """A run as far as it could be read."""

    path: Path
    manifest: dict[str, Any]
    """The run's manifest; ``{}`` if it is missing or damaged."""
    tables: dict[str, pa.Table]
    """The tables of ``run_tables``, all ranks together."""
    ranks: tuple[int, ...]
    """Ranks of which anything could be read."""
    rank_manifests: dict[int, dict[str, Any]]
    """The readable manifests of those ranks."""
    last_seen: dict[int, LastSeen]
    """Until when the process of each rank is known to have been there."""
    limits: tuple[Note, ...]
    """What is missing or damaged."""
    host_manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The manifests of the hosts whose agent recorded, by host."""
    is_whole: bool = True
    """Whether the records of all steps are there; where there was no room, those of some are not."""


def read_run(path: Path, wanted: Wanted | None = None) -> RunCapture:
    """Read a run, also one that was killed or is still being written.

    Args:
        path: Its directory.
        wanted: How much of a large one is read.

    Raises:
        RunDirectoryError: The path does not exist, is empty, or is no run.
        FormatVersionError: A part of it was written by another format version.
    """
    path = Path(path)
    require_run(path)
    limits: list[Note] = []
    manifest = _read_manifest(path, limits)
    found = read_run_tables(path, manifest, wanted or WANTED, limits)
    manifest = found.manifest
    hosts = read_hosts(path, found.rank_manifests, limits)
    return RunCapture(
        path=path,
        manifest=manifest,
        tables=found.tables | hosts.tables,
        ranks=found.ranks,
        rank_manifests=found.rank_manifests,
        last_seen=found.last_seen,
        limits=tuple(limits),
        host_manifests=hosts.manifests,
        is_whole=found.is_whole,
    )


def _read_manifest(path: Path, limits: list[Note]) -> dict[str, Any]:
    try:
        manifest = read_json(path / MANIFEST_NAME)
    except RunDirectoryError as error:
        limits.append(note("unknown.run_manifest", damage=error.what))
        return {}
    check_format_version(manifest.get("format_version"), str(path / MANIFEST_NAME))
    return manifest
