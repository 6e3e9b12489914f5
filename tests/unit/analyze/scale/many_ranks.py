"""Summaries of many ranks, written as their files are, without a job of as many records."""

import numpy as np
import pyarrow as pa

from meshscope.analyze.scale.outline import Outline
from meshscope.analyze.scale.segments import SEGMENT_RANKS, SegmentFacts, write_rows
from meshscope.analyze.scale.store import Summaries
from meshscope.analyze.scale.summary import SCHEMA


def own_work(layout, steps, *, seed=0, cv=0.01, tails=False, unequal=0.0):
    """Return healthy own work [rank, step], s, with lasting differences of 0.3 % and unequal work of replicas."""
    rng = np.random.default_rng(seed)
    ranks = layout.world_size
    replica = np.array([layout.coordinates(rank)["dp"] for rank in range(ranks)])
    noise = rng.standard_t(3, (ranks, steps)) / 1.7 if tails else rng.normal(0, 1, (ranks, steps))
    lasting = 1 + 0.003 * rng.normal(0, 1, (ranks, 1))
    work = np.exp(unequal * rng.normal(0, 1, (layout.dp, steps)))[replica]
    return 0.05 * lasting * work * (1 + cv * noise)


def summaries_of(
    own_s,
    layout,
    folder,
    schedule="1f1b",
    microbatches=4,
    *,
    tokens=None,
    tells_mesh=True,
    first_rank=0,
):
    """Return the summaries of ranks that work so [rank, step]; replicas wait for the last one.

    With a first rank they are those of a part of a larger job.
    """
    ranks, steps = own_s.shape
    replica = np.array([layout.coordinates(rank)["dp"] for rank in range(ranks)])
    busy = np.zeros((layout.dp, steps))
    np.maximum.at(busy, replica, own_s)
    wall = busy.max(axis=0) + 0.001
    columns = {
        "rank": np.repeat(np.arange(first_rank, first_rank + ranks), steps),
        "step": np.tile(np.arange(steps), ranks),
        "wall_s": np.tile(wall, ranks),
        "own_forward_s": own_s.ravel() / 3,
        "own_backward_s": own_s.ravel() * 2 / 3,
        "forward_s": own_s.ravel() / 3,
        "backward_s": own_s.ravel() * 2 / 3,
        "exposed_dp_s": (wall - busy[replica]).ravel(),
        # What nobody asks for lies beside it in a real file, too, and is read.
        "exposed_tp_s": own_s.ravel() / 20,
        "exposed_pp_s": own_s[::-1].ravel() / 10,
        "span_rows": np.full(ranks * steps, 4 * microbatches),
        "p2p_rows": np.full(ranks * steps, 2 * microbatches),
    }
    if tokens is not None:
        columns |= {"tokens": tokens.ravel(), "sum_sq": tokens.ravel() ** 2}
    facts = []
    for first in range(0, ranks, SEGMENT_RANKS):
        last = min(first + SEGMENT_RANKS, ranks)
        table = _rows(columns, slice(first * steps, last * steps))
        held = tuple(range(first_rank + first, first_rank + last))
        name = f"{held[0]:05d}-{held[-1]:05d}.{0:016d}.parquet"
        write_rows(table, folder / name)
        facts.append(SegmentFacts(name, held, table.num_rows, 0, steps - 1, {}, True))
    outline = Outline(layout if tells_mesh else None, schedule, microbatches)
    return Summaries(run=folder, folder=folder, outline=outline, segments=tuple(facts))


def _rows(columns, part):
    size = part.stop - part.start
    zero, unknown = np.zeros(part.stop), pa.nulls(size, pa.float64())
    arrays = [
        unknown
        if one.name in ("tokens", "sum_sq") and one.name not in columns
        else pa.array(columns.get(one.name, zero)[part], one.type)
        for one in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
