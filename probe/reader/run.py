"""Read a run directory into one set of tables: all ranks and hosts, as far as they are good.

Reading takes what is good and states what is not as a *limit*; only a path
that is no run at all, or a format version that we do not know, is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ..schema.errors import RunDirectoryError
from ..schema.host_records import read_hosts
from ..schema.manifest import (
    DEVICE_CLOCK_KEY,
    MANIFEST_NAME,
    check_format_version,
    part_directories,
    read_json,
)
from ..schema.message import message, message_to_cell
from ..schema.model.fields import model_text
from ..schema.note import Note, note, of_ranks
from ..schema.printable import listed
from ..schema.rundir import require_run
from ..schema.tables import RUN, TABLES
from ..schema.terms import Axis
from .assemble import manifest_groups, rank_tables
from .attempts import joined_attempts
from .counters import counter_notes
from .manifest_tables import attempt_table, recording_table
from .observed_work import observed_of_ranks
from .rank_parts import read_parts
from .rank_records import ATTEMPT, LastSeen, RankRecords
from .wanted import WANTED, Wanted

_RANK_TABLES = (
    *("step", "span", "collective", "p2p", "communication_sum", "memory", "microbatch"),
)
_LARGEST_FLOAT = sys.float_info.max
_DEVICE_CLOCK_NS = 1_000_000
"""Bounds of a device's clock further apart are worth a sentence: waits of that length are misplaced."""
_LISTED = 16
"""Missing ranks that a limit names one by one."""


class RunTables(NamedTuple):
    """The tables of a run and whom they come from."""

    tables: dict[str, pa.Table]
    ranks: tuple[int, ...]
    rank_manifests: dict[int, dict[str, Any]]
    last_seen: dict[int, LastSeen]
    manifest: dict[str, Any]
    """That of the run, with the facts of the attempt at hand."""
    is_whole: bool
    """Whether nothing was left out for lack of memory."""


def read_run_tables(
    path: Path, manifest: Mapping[str, Any], wanted: Wanted, limits: list[Note]
) -> RunTables:
    """Read all ranks of a run; what is missing is added to the limits.

    Args:
        path: The run directory.
        manifest: Its manifest, empty if unknown.
        wanted: How much is read.
        limits: Limits so far, extended in place.

    Raises:
        FormatVersionError: A rank was written by another format version.
    """
    directories = part_directories(path)
    if wanted.ranks is not None:
        directories = {rank: own for rank, own in directories.items() if rank in wanted.ranks}
    found = read_parts(directories, wanted)
    limits += found.limits
    ranks, attempts, of_attempts = joined_attempts(found.parts, limits)
    captured = tuple(rank.rank for rank in ranks if not rank.is_empty)
    manifests = {rank.rank: rank.manifest for rank in ranks if rank.manifest is not None}
    manifest = {**manifest, **of_attempts}
    if observed := observed_of_ranks(manifest.get("observed"), manifests):
        manifest["observed"] = observed
    groups = merge_groups(manifests, limits)
    axes = {group["group_id"]: Axis(group["axis"]) for group in groups}
    pieces = [rank_tables(rank, axes) for rank in ranks]
    tables = {
        "run": _run_table(path, manifest, captured, limits),
        "group": TABLES["group"].conform(group_table(groups)),
        **{name: _concatenate(name, pieces) for name in _RANK_TABLES},
        "recording": recording_table(manifests),
        "attempt": attempt_table(attempts),
    }
    if wanted.ranks is None:
        limits += _missing_ranks(tables["run"]["world_size"][0].as_py(), captured)
    limits += _merged(ranks)
    limits += counter_notes(ranks)
    limits += _device_clocks(manifests)
    seen = {rank.rank: rank.last_seen for rank in ranks}
    return RunTables(tables, captured, manifests, seen, manifest, found.is_whole)


def _merged(ranks: Sequence[RankRecords]) -> list[Note]:
    """Return the limits of all ranks, each once with ``who``: the ranks that it holds for."""
    alike: dict[str, Note] = {}
    holders: dict[str, list[int]] = {}
    for rank in ranks:
        for limit in rank.limits:
            key = repr(limit)
            alike.setdefault(key, limit)
            holders.setdefault(key, []).append(rank.rank)
    found = []
    for key, limit in alike.items():
        values = dict(limit.values)
        who = of_ranks(holders[key], values.pop(ATTEMPT, None))
        found.append(Note(limit.code, {**values, "who": who}))
    return found


def _device_clocks(manifests: Mapping[int, Mapping[str, Any]]) -> list[Note]:
    """Return how far device times may lie from the host's, where that is far: a host that never waits."""
    apart_ns = {}
    for rank, manifest in manifests.items():
        bounds = (manifest.get("annotations") or {}).get(DEVICE_CLOCK_KEY)
        if not isinstance(bounds, Mapping):
            continue
        least, most = bounds.get("least_ns"), bounds.get("most_ns")
        if type(least) is int and type(most) is int and most - least > _DEVICE_CLOCK_NS:
            apart_ns[rank] = most - least
    if not apart_ns:
        return []
    worst = max(apart_ns, key=lambda rank: apart_ns[rank])
    return [
        note(
            "doubt.device_clocks",
            apart_ns=apart_ns[worst],
            rank=worst,
            count=len(apart_ns),
            ranks=len(manifests),
            least_ns=_DEVICE_CLOCK_NS,
        )
    ]


def merge_groups(
    manifests: Mapping[int, Mapping[str, Any]], limits: list[Note]
) -> list[dict[str, Any]]:
    """Return one row a process group from what its members registered.

    The first member that knows the axis or description decides; members that
    disagree about the ranks are noted.
    """
    merged: dict[str, dict[str, Any]] = {}
    for rank, manifest in sorted(manifests.items()):
        for group in manifest_groups(manifest):
            row = merged.setdefault(group["group_id"], _group_row(group))
            if row["ranks"] != group["ranks"]:
                limits.append(
                    note("doubt.group_of_other_ranks", rank=rank, group=group["group_id"])
                )
            if row["evidence"] is None:
                row["axis"], row["evidence"] = _axis_of(group)
            row["description"] = row["description"] or _text(group.get("description"))
    return list(merged.values())


def _group_row(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "group_id": group["group_id"],
        "axis": Axis.OTHER.value,
        "ranks": group["ranks"],
        "description": None,
        "evidence": None,
    }


def _axis_of(group: Mapping[str, Any]) -> tuple[str, str | None]:
    axis = group.get("axis")
    if not isinstance(axis, str) or axis not in {axis.value for axis in Axis}:
        return Axis.OTHER.value, None
    return axis, message_to_cell(message("evidence.axis_registered"))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def group_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the rows of ``merge_groups`` as a table."""
    types = {
        "group_id": pa.string(),
        "axis": pa.string(),
        "ranks": pa.list_(pa.int32()),
        "description": pa.string(),
        "evidence": pa.string(),
    }
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
    return pa.table(columns)


def _run_table(
    path: Path, manifest: Mapping[str, Any], captured: Sequence[int], limits: list[Note]
) -> pa.Table:
    """Return the one row of the run; a value of the wrong kind becomes null and is noted."""
    known = dict(manifest)
    for key in ("layout", "model"):
        part = manifest.get(key) or {}
        if isinstance(part, dict):
            known = {**part, **known}
        else:
            limits.append(_ignored(key, part))
    refused = manifest.get("model_refused")
    known["model"] = model_text(manifest.get("model"), manifest.get("observed"), refused)
    values: dict[str, Any] = {}
    for column in RUN.columns:
        value = known.get(column.name)
        if value is not None and not _fits(value, column.dtype):
            limits.append(_ignored(column.name, value))
            value = None
        values[column.name] = value
    values["run_id"] = values["run_id"] or path.name
    if values["world_size"] is None:
        values["world_size"] = max(captured, default=-1) + 1
        limits.append(note("assumed.world_size", ranks=values["world_size"]))
    schema = RUN.arrow_schema()
    plain = [
        pa.array(
            [_plain(values[name], kind)], pa.string() if pa.types.is_dictionary(kind) else kind
        )
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return RUN.conform(pa.Table.from_arrays(plain, names=schema.names))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value that fits, as Arrow takes it: integers above 64 bits only as floats."""
    return float(value) if isinstance(value, int) and kind == pa.float64() else value


def _ignored(key: str, value: object) -> Note:
    return note("unknown.value_of_manifest", key=key, value=f"{value!r:.60}")


def _fits(value: object, dtype: str) -> bool:
    if isinstance(value, bool):
        return dtype == "bool"
    if dtype in ("int32", "int64"):
        bits = int(dtype[3:]) - 1
        return isinstance(value, int) and -(1 << bits) <= value < 1 << bits
    if dtype == "float64":
        return isinstance(value, int | float) and abs(value) <= _LARGEST_FLOAT
    return isinstance(value, str)


def _concatenate(name: str, pieces: Sequence[Mapping[str, pa.Table]]) -> pa.Table:
    found = [tables[name] for tables in pieces if name in tables]
    if not found:
        return TABLES[name].empty()
    return pa.concat_tables(found).unify_dictionaries().combine_chunks()


def _missing_ranks(world_size: int, captured: Sequence[int]) -> list[Note]:
    present = {rank for rank in captured if rank < world_size}
    count = world_size - len(present)
    # A world may be said to have more ranks than memory has room for.
    missing = (rank for rank in range(world_size) if rank not in present)
    limits = []
    if count > 0:
        shown = listed(missing, count=count, most=_LISTED)
        limits.append(note("missing.ranks", missing=count, ranks=world_size, named=shown))
    strangers = [rank for rank in captured if rank >= world_size]
    if strangers:
        shown = listed(strangers, most=_LISTED)
        limits.append(note("doubt.ranks_beyond", named=shown, ranks=world_size))
    return limits


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
