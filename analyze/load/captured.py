"""Read a run directory of ours that nothing was kept of yet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from meshscope.probe.reader.run import RunCapture, read_run
from meshscope.probe.reader.wanted import Wanted
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

from ..account.hangs.broken_off import progress_at_the_end
from ..account.hangs.stacks import standing_at_the_end
from ..account.hangs.unrecorded_ranks import unheard_limits
from ..align.clocks.host_samples import named_as_clocks
from ..align.steps.tail import led_anew, other_updates, unrecorded_saves
from ..read.deep_traces.cache import DeepCache
from ..read.deep_traces.tables import with_deep_traces
from ..tables.trace import Trace
from ..wording.limits import Limit
from ..wording.message import message
from .call_places import call_places
from .kept_tables import is_closed
from .noted_collectives import noted_collectives
from .pair_calls import pairs_at_the_end
from .passes import OWN, passed
from .possible_times import with_possible_times
from .recorded import worded


def read_capture(path: Path, wanted: Wanted, *, keeps_traces: bool) -> Trace:
    """Return the capture of a run directory on one clock, with the axis of every group inferred.

    Args:
        path: The run directory.
        wanted: How much of it is read.
        keeps_traces: Keep in a run that is still being recorded what was read of its deep traces.

    Raises:
        RunDirectoryError: Nothing in it can be read.
        FormatVersionError: It was written by a format that we do not know.
    """
    capture = read_run(path, wanted)
    found = with_possible_times(_trace_of(path, capture))
    if wanted.in_depth:
        cache = DeepCache(path) if keeps_traces and not is_closed(path) else None
        within = wanted.steps if wanted.sieves else None
        found = with_deep_traces(found, capture.rank_manifests, cache, within)
    del capture
    found = passed(found, OWN)
    # What reading took beside the tables: a tenth of a large capture.
    pa.default_memory_pool().release_unused()
    return found


def _trace_of(path: Path, capture: RunCapture) -> Trace:
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
