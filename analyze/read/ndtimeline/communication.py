"""Collectives, sends and receives of an NDTimeline job, with groups made from its mesh."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.message import message_to_cell
from meshscope.probe.schema.tables import COLLECTIVE, GROUP, P2P
from meshscope.probe.schema.terms import Axis, CollectiveKind, Direction, TimeSource

from ...wording.limits import Limit
from ...wording.message import message
from .job import Job
from .ops import SEQUENCE_END

_STEP_STRIDE = 1_000_000
"""Positions set aside for each step in ``seq``; steps are numbered by their order in the trace."""
_TYPE_STRIDE = SEQUENCE_END
"""Positions set aside, within a step, for each operation type that shares a group."""


@dataclass(frozen=True, slots=True)
class _Collective:
    kind: CollectiveKind
    group: str
    """Name of the group; ``{stage}``, ``{dp}`` and ``{rank}`` are filled in."""
    axis: Axis


@dataclass(frozen=True, slots=True)
class _Transfer:
    direction: Direction
    hop: int
    """Stages from this worker to its peer."""
    compute: str
    """Operation whose microbatch it carries."""
    offset: int
    """Part of the step's positions: forward and backward may join the same two ranks."""


_DP = "dp stage {stage}"
_COLLECTIVES = {
    "params-all-gather": _Collective(CollectiveKind.ALL_GATHER, _DP, Axis.DP),
    "grads-reduce-scatter": _Collective(CollectiveKind.REDUCE_SCATTER, _DP, Axis.DP),
    "separate-grads-all-reduce": _Collective(CollectiveKind.ALL_REDUCE, _DP, Axis.DP),
    "embedding-grads-all-reduce": _Collective(
        CollectiveKind.ALL_REDUCE, "embedding dp {dp}", Axis.PP
    ),
    # The gradient norm is reduced over all workers: the operation is a synchronisation.
    "optimizer-clip-main-grad": _Collective(
        CollectiveKind.ALL_REDUCE, "all workers (gradient clip)", Axis.OTHER
    ),
    # Runs inside the tensor-parallel group, of which one rank only is recorded.
    "layernorm-grads-all-reduce": _Collective(
        CollectiveKind.ALL_REDUCE, "tensor group of rank {rank}", Axis.TP
    ),
}
_TRANSFERS = {
    "forward-send": _Transfer(Direction.SEND, 1, "forward-compute", 0),
    "forward-recv": _Transfer(Direction.RECV, -1, "forward-compute", 0),
    "backward-send": _Transfer(Direction.SEND, -1, "backward-compute", _TYPE_STRIDE),
    "backward-recv": _Transfer(Direction.RECV, 1, "backward-compute", _TYPE_STRIDE),
}
COMMUNICATION = (*_COLLECTIVES, *_TRANSFERS)
"""Operation types that become collective or p2p rows."""


def communication_tables(
    ops: pd.DataFrame, workers: pd.DataFrame, job: Job, limits: list[Limit]
) -> dict[str, pa.Table]:
    """Return the collective, p2p and group tables.

    Sizes are not recorded and given as 0, which ``limits`` then says.

    Args:
        ops: All operations, with integer ns times.
        workers: One row per recorded rank: rank, dp_rank, stage.
        job: The mesh.
        limits: Sentences about what is missing.
    """
    rows = ops[ops["optype"].isin(COMMUNICATION)].copy()
    if len(rows):
        limits.append(message("missing.message_sizes"))
    rows["event_id"] = rows.groupby("rank").cumcount()
    rows["step_seq"] = rows["step"].rank(method="dense").astype("int64").sub(1) * _STEP_STRIDE
    rows["issue_ns"] = rows["start_ns"]
    rows["source"] = TimeSource.IMPORTED.value
    rows["size_bytes"] = 0
    is_p2p = rows["optype"].isin(_TRANSFERS)
    collective = _collectives(rows[~is_p2p].copy(), job)
    p2p = _transfers(rows[is_p2p].copy(), ops, workers, job, limits)
    group = _groups(collective, p2p)
    return {
        spec.name: spec.conform(pa.Table.from_pandas(frame, preserve_index=False))
        for spec, frame in ((COLLECTIVE, collective), (P2P, p2p), (GROUP, group))
        if len(frame)
    }


def _collectives(rows: pd.DataFrame, job: Job) -> pd.DataFrame:
    names = list(_COLLECTIVES)
    what = [_COLLECTIVES[optype] for optype in rows["optype"]]
    rows["kind"] = [one.kind.value for one in what]
    rows["group_id"] = [
        one.group.format(stage=stage, dp=dp, rank=rank)
        for one, stage, dp, rank in zip(
            what, rows["stage"], rows["dp_rank"], rows["rank"], strict=True
        )
    ]
    no_axis = {Axis.TP} if job.tp == 1 else set()
    rows["axis"] = [(Axis.OTHER if one.axis in no_axis else one.axis).value for one in what]
    place = rows["optype"].map({name: i * _TYPE_STRIDE for i, name in enumerate(names)})
    rows["seq"] = rows["step_seq"] + place.astype("int64") + rows["seq_id"]
    return rows


def _transfers(
    rows: pd.DataFrame, ops: pd.DataFrame, workers: pd.DataFrame, job: Job, limits: list[Limit]
) -> pd.DataFrame:
    """Give every send and receive its peer: the next stage on its way, of the same replica."""
    what = [_TRANSFERS[optype] for optype in rows["optype"]]
    rank_at = workers.set_index(["dp_rank", "stage"])["rank"].to_dict()
    peer_stages = (rows["stage"] + [one.hop for one in what]) % job.pp
    rows["peer"] = [
        rank_at.get(place, -1) for place in zip(rows["dp_rank"], peer_stages, strict=True)
    ]
    lost = int((rows["peer"] < 0).sum())
    if lost:
        limits.append(message("missing.peers", count=lost))
    rows["direction"] = [one.direction.value for one in what]
    rows["seq"] = rows["step_seq"] + [one.offset for one in what] + rows["seq_id"]
    rows["group_id"] = "pipeline dp " + rows["dp_rank"].astype(str)
    rows["axis"] = Axis.PP.value
    rows["microbatch"] = _carried_microbatch(rows, [one.compute for one in what], ops, job)
    rows["chunk"] = rows["mc"].where(rows["mc"] >= 0, 0 if job.vpp == 1 else -1)
    return rows


def _carried_microbatch(
    rows: pd.DataFrame, compute: list[str], ops: pd.DataFrame, job: Job
) -> pd.Series[int]:
    """Return the microbatch of each transfer.

    Where the row does not say it: with one chunk per worker the k-th transfer of
    a direction belongs to the k-th computation of that direction. With several
    chunks the first and last stage skip some transfers and it stays unknown.
    """
    if job.vpp != 1:
        return rows["mb_id"]
    keys = ["rank", "step", "optype", "seq_id"]
    known = ops.drop_duplicates(keys).set_index(keys)["mb_id"]
    wanted = pd.MultiIndex.from_frame(rows.assign(optype=compute)[keys])
    found = pd.Series(known.reindex(wanted).fillna(-1).astype("int64").to_numpy(), rows.index)
    return rows["mb_id"].where(rows["mb_id"] >= 0, found)


def _groups(collective: pd.DataFrame, p2p: pd.DataFrame) -> pd.DataFrame:
    """Return the groups with their recorded members; a pipeline's are in stage order."""
    used = pd.concat([collective, p2p])[["group_id", "axis", "rank", "stage"]].drop_duplicates()
    ranks = used.sort_values(["stage", "rank"]).groupby("group_id", sort=True)
    rows = pd.DataFrame({"axis": ranks["axis"].first(), "ranks": ranks["rank"].agg(list)})
    rows["evidence"] = message_to_cell(message("axis.of_workers"))
    return rows.reset_index()
