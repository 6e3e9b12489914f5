"""Open whatever the user points at: our run directories or other tools' traces."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from glob import has_magic
from pathlib import Path
from typing import Any

import pyarrow as pa

from meshscope.probe.reader.rank_parts import MOST_ROWS_VARIABLE, Wanted
from meshscope.probe.reader.run import RunCapture, read_run
from meshscope.probe.reader.sampled_steps import MOST_ROWS
from meshscope.probe.schema.errors import ConfigError, RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.rundir import is_run_directory

from ..account.hangs.broken_off import progress_at_the_end
from ..account.hangs.stacks import standing_at_the_end
from ..account.hangs.unrecorded_ranks import unheard_limits
from ..align.clocks.host_samples import named_as_clocks
from ..align.steps.tail import led_anew, other_updates, unrecorded_saves
from ..read import import_trace
from ..read.deep_traces.cache import DeepCache
from ..read.deep_traces.tables import with_deep_traces
from ..read.reading import Reading
from ..tables.trace import Trace
from ..wording.limits import Limit
from ..wording.message import message
from .call_places import call_places
from .ingested import is_ingested, read_ingested, rows_by_rank
from .kept_tables import is_closed, read_kept
from .noted_collectives import noted_collectives
from .pair_calls import pairs_at_the_end
from .passes import FOREIGN, OWN, passed
from .possible_times import with_possible_times
from .recorded import worded


def load_trace(
    path: str | Path, *, keeps_traces: bool = False, wanted: Wanted | None = None
) -> Trace:
    """Return the capture at ``path`` on one clock, with the axis of every group inferred.

    Args:
        path: A run directory of ours, or a file, folder or glob of another tool. Nothing is
            written beside it, unless ``keeps_traces``.
        keeps_traces: Keep in a run that is still being recorded what was read of its deep
            traces, for the next look.
        wanted: How much of a large run directory is read; as much as there is room for, if not given.

    Raises:
        RunDirectoryError: Nothing is there, or nothing in it can be read.
        ConfigError: The variable for how much room there is holds no number.
        FormatVersionError: It was written by a format that we do not know.
        TraceFormatError: It is no trace of a known format.
    """
    path = Path(path)
    if not path.exists() and not has_magic(str(path)):
        raise RunDirectoryError(
            message("refused.no_such_path"), where=str(path), remedy=message("advice.path")
        )
    if not is_run_directory(path):
        return read_traces(path)
    if is_ingested(path):
        wanted = wanted or Wanted()
        has_room = wanted.steps is None or rows_by_rank(path).total() <= wanted.most_rows
        steps = None if has_room else wanted.steps
        return with_possible_times(read_ingested(path, only=wanted.ranks, steps=steps))
    wanted = wanted or Wanted(most_rows=most_rows())
    kept = read_kept(path, wanted)
    if kept is not None:
        return kept
    capture = read_run(path, wanted)
    found = with_possible_times(_from_capture(path, capture))
    cache = DeepCache(path) if keeps_traces and not is_closed(path) else None
    within = wanted.steps if wanted.sieves else None
    found = with_deep_traces(found, capture.rank_manifests, cache, within)
    del capture
    found = passed(found, OWN)
    # What reading took beside the tables: a tenth of a large capture.
    pa.default_memory_pool().release_unused()
    return found


def read_traces(
    path: Path, *, files: Sequence[Path] | None = None, reading: Reading | None = None
) -> Trace:
    """Return other tools' traces as ``load_trace`` does.

    Args:
        path: A file, folder or glob; it becomes the name of the run.
        files: The files to read, where they are not those that ``path`` stands for.
        reading: Where large tables go, and in how many processes files are read.

    Raises:
        TraceFormatError: It is no trace of a known format.
    """
    return passed(import_trace(path, files=files, reading=reading), FOREIGN)


def _from_capture(path: Path, capture: RunCapture) -> Trace:
    run: Mapping[str, object] = capture.tables["run"].to_pylist()[0]
    layout, limits = _layout(capture.manifest, capture.tables["group"], capture.ranks)
    progress = progress_at_the_end(capture.tables, capture.rank_manifests, capture.last_seen)
    calls = pairs_at_the_end(path, capture.tables["collective"]) if progress.num_rows else None
    standing = standing_at_the_end(capture.tables["step"], capture.rank_manifests)
    noted = noted_collectives(capture.tables["step"], capture.rank_manifests)
    clocks = _clocks(capture.rank_manifests)
    hosts = named_as_clocks(capture.tables, capture.host_manifests, capture.rank_manifests, clocks)
    return Trace(
        path=path,
        run=run,
        layout=layout,
        ranks=capture.ranks,
        tables=capture.tables
        | hosts
        | {"progress": progress, "standing": standing, "noted_collective": noted}
        | {"call_place": call_places(capture.rank_manifests)}
        | ({} if calls is None else {"collective_call": calls}),
        limits=(
            *worded(capture.limits),
            *limits,
            *led_anew(capture.rank_manifests),
            *other_updates(capture.rank_manifests),
            *(unrecorded_saves(capture.rank_manifests) if progress.num_rows else ()),
            *(
                unheard_limits({**capture.tables, "progress": progress})
                if progress.num_rows
                else ()
            ),
        ),
        clocks=clocks,
        local_ranks=_local_ranks(capture.rank_manifests),
        is_whole=capture.is_whole,
    )


def most_rows() -> int:
    """Return how many rows of passes and communication of a run directory there is room for.

    Raises:
        ConfigError: The variable for it holds no such number.
    """
    given = os.environ.get(MOST_ROWS_VARIABLE, "").strip()
    if not given:
        return MOST_ROWS
    if not given.isascii() or not given.isdecimal() or not int(given[:19]) > 0:
        raise ConfigError(
            message("refused.no_row_count", text=given),
            where=MOST_ROWS_VARIABLE,
            remedy=message("advice.row_count", rows=MOST_ROWS),
        )
    return int(given[:19])


def _local_ranks(manifests: Mapping[int, Mapping[str, Any]]) -> dict[int, int]:
    """Return the place of each rank among those of its host, where it is known."""
    stated = {rank: manifest.get("local_rank") for rank, manifest in sorted(manifests.items())}
    return {rank: place for rank, place in stated.items() if type(place) is int and place >= 0}


def _clocks(manifests: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Return the clock of each rank that states its boot or its host.

    All processes of one boot share a monotonic clock, whatever their containers call
    the host. A clock is named after the host of its first rank.
    """
    names: dict[str, str] = {}
    found: dict[int, str] = {}
    for rank, manifest in sorted(manifests.items()):
        host, boot = manifest.get("host"), manifest.get("boot_id") or manifest.get("host")
        if not isinstance(boot, str) or not boot:
            continue
        name = host if isinstance(host, str) and host else boot
        if boot not in names and name in names.values():
            name = f"{name} (boot {boot})"
        found[rank] = names.setdefault(boot, name)
    return found


def _layout(
    manifest: Mapping[str, object], groups: pa.Table, ranks: tuple[int, ...]
) -> tuple[ParallelLayout | None, tuple[Limit, ...]]:
    stated = manifest.get("layout")
    if not isinstance(stated, dict):
        return None, ()
    try:
        layout = ParallelLayout.from_json(stated)
    except (ConfigError, TypeError) as error:
        return None, (message("unknown.layout_unusable", reason=str(error)),)
    seen = {rank for members in groups["ranks"].to_pylist() for rank in members} | set(ranks)
    if seen and max(seen) >= layout.world_size:
        rank = max(seen)
        return None, (message("unknown.layout_too_small", ranks=layout.world_size, rank=rank),)
    return layout, ()
