"""The mesh of an NDTimeline job: sizes from its ``meta-*.yaml``, order from its workers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import pandas as pd

from meshscope.probe.schema.layout import MESH_AXES, ParallelLayout

from ...wording.limits import Limit
from ...wording.message import message

_MOST_META_BYTES = 1 << 16
"""A meta file has a few hundred."""
_SIZE = re.compile(r"0*[1-9][0-9]{0,6}")


@dataclass(frozen=True, slots=True)
class Job:
    """What the mesh of the job is, as far as it can be known."""

    layout: ParallelLayout | None
    world_size: int
    pp: int
    tp: int | None
    """Ranks that each worker stands for; None where it is not known."""
    vpp: int


def read_job(parquet: Path, workers: pd.DataFrame, *, chunks: int, limits: list[Limit]) -> Job:
    """Return the mesh; what cannot be known is added to ``limits``.

    Args:
        parquet: The trace; the meta file is ``meta-<name>.yaml`` for ``trace-<name>.parquet``,
            or the only ``meta-*.yaml`` beside it.
        workers: One row per recorded rank: rank, dp_rank, stage.
        chunks: Model chunks per worker that the trace shows.
        limits: Sentences about what is missing.
    """
    meta = _read_meta(parquet)
    if meta is None:
        limits.append(message("assumed.sizes_of_workers"))
        meta = {}
    pp = meta.get("pp_size", int(workers["stage"].max()) + 1)
    dp = meta.get("dp_size", int(workers["dp_rank"].max()) + 1)
    vpp = meta.get("vpp_size", max(chunks, 1))
    world_size = meta.get("world_size") or max(pp * dp, int(workers["rank"].max()) + 1)
    tp = meta.get("tp_size") or (1 if world_size == pp * dp else None)
    layout = None
    if tp is not None:
        cp = meta.get("dsp_size", 1) if world_size != pp * dp * tp else 1
        layout = _layout({"pp": pp, "dp": dp, "tp": tp, "cp": cp}, vpp, world_size, workers)
    if layout is None:
        limits.append(message("unknown.layout_of_workers"))
    if len(workers) < world_size:
        limits.append(message("missing.workers", here=len(workers), ranks=world_size))
    return Job(layout, world_size, pp, tp, vpp)


def _layout(
    sizes: dict[str, int], vpp: int, world_size: int, workers: pd.DataFrame
) -> ParallelLayout | None:
    """Return the first order of axes that puts every worker where it says it is.

    The common order (stages slowest, tensor ranks fastest) is tried first; a
    worker is the first rank of its tensor- and sequence-parallel group.
    """
    rows = list(workers[["rank", "dp_rank", "stage"]].itertuples(index=False, name=None))
    for axes in permutations(MESH_AXES):
        layout = ParallelLayout(**sizes, vpp=vpp, order="-".join(axes))
        if layout.world_size != world_size:
            return None
        if all(layout.rank(pp=stage, dp=dp_rank) == rank for rank, dp_rank, stage in rows):
            return layout
    return None


def _read_meta(parquet: Path) -> dict[str, int] | None:
    """Return the sizes of the flat ``key: value`` file, or None without a file.

    What is no size that a mesh can have is passed over, as if it were not there.
    """
    own = parquet.with_name(f"meta-{parquet.stem.removeprefix('trace-')}.yaml")
    others = sorted(path for path in parquet.parent.glob("meta-*.yaml") if path.is_file())
    if not own.is_file():
        if len(others) != 1:
            return None
        own = others[0]
    with own.open("rb") as file:
        text = file.read(_MOST_META_BYTES).decode(errors="replace")
    found = {}
    for line in text.splitlines():
        key, colon, value = line.partition("#")[0].partition(":")
        number = _SIZE.fullmatch(value.strip())
        if colon and number:
            found[key.strip()] = int(number[0])
    return found
