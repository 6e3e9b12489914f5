"""Mesh and schedule of a run, without the records of all its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from meshscope.probe.reader.part_sizes import unpacked_bytes
from meshscope.probe.reader.run import group_table, merge_groups
from meshscope.probe.reader.wanted import Wanted
from meshscope.probe.schema.errors import ConfigError, RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import MANIFEST_NAME, part_directories, read_json
from meshscope.probe.schema.tables import TABLES

from ..account.bubble import microbatches_of, schedule_of
from ..align.topology.axes import with_axes
from ..align.topology.layout import with_inferred_layout
from ..load.ingested import is_ingested, read_ingested
from ..load.load import load_trace
from ..tables.trace import Trace
from .rank_pieces import RankPieces
from .worker_memory import UNPACKED_FACTOR, room_for_records


class Outline(NamedTuple):
    """What holds for all ranks of a run; None where it is not known."""

    layout: ParallelLayout | None
    schedule: str | None
    """Of ``ScheduleKind``."""
    microbatches: int | None
    """Of a step of each replica."""


def outline_of(run: Path, ranks: Sequence[int], limit_bytes: float | None = None) -> Outline:
    """Return the outline of a run; of one rank the records are read, of as many steps as have room.

    Args:
        run: A run directory.
        ranks: Those that it has.
        limit_bytes: Memory of the process, if it is limited.

    Raises:
        ConfigError: One step has no room.
        RunDirectoryError: It cannot be read.
    """
    layout = layout_of_run(run, ranks)
    of_last_stage = [
        rank
        for rank in ranks
        if layout is not None
        and rank < layout.world_size
        and layout.coordinates(rank)["pp"] == layout.pp - 1
    ]
    # The order of a schedule shows on the last stage.
    one = replace(_records_of(run, (of_last_stage or ranks)[0], limit_bytes), layout=layout)
    return Outline(layout, schedule_of(one), microbatches_of(one))


def _records_of(run: Path, rank: int, limit_bytes: float | None) -> Trace:
    """Return what a rank recorded, or the first of its steps that have room."""
    if limit_bytes is not None and not is_ingested(run):
        room = room_for_records(limit_bytes, 0)
        unpacked = sum(map(unpacked_bytes, part_directories(run)[rank].values()))
        if unpacked * UNPACKED_FACTOR > room:
            pieces = RankPieces(run, rank, room, limit_bytes)
            found = pieces.trace(*pieces.ranges[0]) if pieces.ranges else None
            if found is not None:
                return found
    return load_trace(run, wanted=Wanted(ranks=(rank,), in_depth=False))


def layout_of_run(run: Path, ranks: Sequence[int]) -> ParallelLayout | None:
    """Return the mesh that a run states, or that the names of its groups give; None if unknown.

    Traffic is not looked at: a part of the ranks would show a part of the mesh.

    Args:
        run: A run directory.
        ranks: Some ranks of it.

    Raises:
        RunDirectoryError: It cannot be read.
    """
    if is_ingested(run):
        return read_ingested(run, only=ranks[:1]).layout
    with suppress(RunDirectoryError):
        manifest = read_json(run / MANIFEST_NAME)
        stated = manifest.get("layout")
        if isinstance(stated, dict):
            with suppress(ConfigError, TypeError):
                return ParallelLayout.from_json(stated)
        return _layout_of_groups(run, manifest)
    return None


def _layout_of_groups(run: Path, manifest: dict[str, Any]) -> ParallelLayout | None:
    manifests = dict(_rank_manifests(run))
    world_size = manifest.get("world_size") or len(manifests)
    groups = TABLES["group"].conform(group_table(merge_groups(manifests, [])))
    trace = Trace(
        path=run,
        run={"world_size": world_size},
        layout=None,
        ranks=tuple(manifests),
        tables={"group": groups},
    )
    return with_inferred_layout(with_axes(trace)).layout


def _rank_manifests(run: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the newest manifest of each rank that has one."""
    for rank, parts in part_directories(run).items():
        with suppress(OSError, RunDirectoryError):
            yield rank, read_json(parts[max(parts)] / MANIFEST_NAME)
