"""An NDTimeline job as arrays: the operations of its whole steps, on every worker.

A step is whole if every worker is there and all replicas ran the same operations.
Steps that ran the same operations form a *pattern*, which one graph describes.
Times stay in seconds and in the precision of the file: a published number is a
difference of such times, and an end rounded elsewhere would shift the wire time
of a short message. Facts about the job are in the ``meta-*.yaml`` beside its trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshscope.probe.schema.errors import TraceFormatError

from ...read.ndtimeline.columns import read_columns
from ...tables.arrays import FloatArray, IntArray
from ...wording.limits import Limit, limit_text
from ...wording.message import message
from . import optypes as op
from .rules import Operation

_DEFAULTS: dict[str, object] = {
    "trial_name": None,
    "run_id": 0,
    "dp_size": 1,
    "pp_size": 1,
    "tp_size": 1,
    "dsp_size": 1,
    "vpp_size": 1,
    "world_size": 1,
}
"""What the published tool assumes where a key is absent."""


def read_meta(parquet: Path) -> dict[str, object] | None:
    """Return name, run and sizes from the flat ``key: value`` file, or None without a file.

    The file is ``meta-<name>.yaml`` for ``trace-<name>.parquet``, or the only ``meta-*.yaml`` there.
    """
    own = parquet.with_name(f"meta-{parquet.stem.removeprefix('trace-')}.yaml")
    others = sorted(parquet.parent.glob("meta-*.yaml"))
    if not own.is_file():
        if len(others) != 1:
            return None
        own = others[0]
    meta = dict(_DEFAULTS)
    for line in own.read_text(encoding="utf-8", errors="replace").splitlines():
        key, colon, value = line.partition("#")[0].partition(":")
        if colon and key.strip() in meta:
            meta[key.strip()] = _scalar(value.strip())
    return meta


def _scalar(value: str) -> object:
    return int(value) if value.isdigit() else value.strip("'\"")


Columns = dict[str, npt.NDArray[Any]]

_PLACE = ("dp_rank", "stage", "rank")
_NATURAL = (*_PLACE, "step", "seq_id")
_COUNTED = ("stage", "seq_id")
_END = 1 << 24
"""Stages and positions from here on are damage: one number stands for both and a type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Steps that ran the same operations.

    Arrays over operations have the order of ``graph``: operation by operation, replica by replica.
    """

    steps: IntArray
    operations: tuple[Operation, ...]
    """Those of one replica, as its first step recorded them."""
    start_s: FloatArray
    """``(operations of all replicas, steps)``."""
    end_s: FloatArray
    dur_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The whole steps of a job."""

    meta: dict[str, object]
    """trial_name, run_id and the sizes; None where one is not known."""
    dp_ranks: IntArray
    """The replicas."""
    rank: dict[tuple[int, int], int]
    """Global rank by replica and stage."""
    declared: tuple[str, ...]
    """Operation types that the file names, also those without operations."""
    patterns: tuple[Pattern, ...]
    limits: tuple[Limit, ...]


def read_job(parquet: Path) -> Job:
    """Read a job; its ``meta-*.yaml`` lies beside the parquet file and may be absent.

    Raises:
        TraceFormatError: The file is damaged, or no step of it is whole.
    """
    limits: list[Limit] = []
    columns, declared = _usable_rows(parquet, limits)
    ranks = _ranks(columns, parquet)
    columns = _only_first_ranks(columns, ranks, limits)
    rank = {place: own[0] for place, own in ranks.items()}
    dp_ranks = _whole_replicas(rank, limits)
    if not dp_ranks:
        raise TraceFormatError(
            message("refused.no_whole_replica"),
            where=str(parquet),
            remedy=message("advice.all_stages"),
        )
    patterns = _patterns(columns, dp_ranks, limits)
    if not patterns:
        raise TraceFormatError(
            message("refused.no_whole_step"),
            where=str(parquet),
            remedy=message("advice.whole_step"),
        )
    return Job(
        meta=_meta(parquet, rank, limits),
        dp_ranks=np.array(dp_ranks, np.int64),
        rank=rank,
        declared=declared,
        patterns=patterns,
        limits=tuple(limits),
    )


def _usable_rows(parquet: Path, limits: list[Limit]) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns without rows that have no time or an unknown type."""
    table = _read(parquet)
    encoded = table["optype"]
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    # Each row group has names of its own.
    encoded = encoded.unify_dictionaries().combine_chunks()
    declared = tuple(map(str, encoded.dictionary.to_pylist()))
    number = {name: i for i, name in enumerate(op.KNOWN)}
    codes = np.array([number.get(name, -1) for name in declared], np.int64)
    columns: Columns = {
        name: table[name].to_numpy() for name in table.column_names if name != "optype"
    }
    own = encoded.indices.fill_null(len(declared)).to_numpy(zero_copy_only=False)
    columns["optype"] = np.append(codes, -1)[own]
    columns["end_ts"] = columns["start_ts"] + columns["duration"]
    usable = np.isfinite(columns["end_ts"]) & (columns["optype"] >= 0)
    usable &= np.logical_and.reduce([columns[name] >= 0 for name in _NATURAL])
    usable &= np.logical_and.reduce([columns[name] < _END for name in _COUNTED])
    if not usable.all():
        lost = int((~usable).sum())
        limits.append(message("missing.unusable_operations", lost=lost, count=len(usable)))
        columns = {name: values[usable] for name, values in columns.items()}
    if not len(columns["step"]):
        raise TraceFormatError(
            message("refused.no_operation"),
            where=str(parquet),
            remedy=" ".join(map(limit_text, limits)),
        )
    if backwards := int((columns["duration"] < 0).sum()):
        limits.append(message("doubt.ends_before_starts", count=backwards))
    _fill_global_chunk(columns, limits)
    return columns, declared


def _read(parquet: Path) -> pa.Table:
    """Return the columns that count; integers as 64 bits, with -1 for a null, times as they are.

    Raises:
        TraceFormatError: The file is damaged, or a column holds something else.
    """
    table = read_columns(parquet, optional=["gmc"], is_bounded=False)
    names = [name for name in table.column_names if name != "mb_id"]
    try:
        columns = {name: _as_number(name, table[name]) for name in names}
    except pa.ArrowException as error:
        raise TraceFormatError(
            message("refused.not_opened", reason=error), where=str(parquet)
        ) from error
    return pa.table(columns)


def _as_number(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if name == "optype":
        return column
    if name in ("start_ts", "duration"):
        return column if pa.types.is_floating(column.type) else column.cast(pa.float64())
    return column.cast(pa.int64()).fill_null(-1)


def _fill_global_chunk(columns: Columns, limits: list[Limit]) -> None:
    """Number the chunks of the model where the file does not: chunk by chunk, stage by stage."""
    if "gmc" in columns:
        return
    chunk, stage = columns["mc"], columns["stage"]
    columns["gmc"] = np.where(chunk < 0, -1, chunk * (int(stage.max()) + 1) + stage)
    limits.append(message("assumed.chunk_numbers"))


def _ranks(columns: Columns, parquet: Path) -> dict[tuple[int, int], list[int]]:
    """Return the ranks at each place, in ascending order."""
    rows = np.unique(np.column_stack([columns[name] for name in _PLACE]), axis=0)
    ranks: dict[tuple[int, int], list[int]] = {}
    for dp_rank, stage, own in rows.tolist():
        ranks.setdefault((dp_rank, stage), []).append(own)
    if len(np.unique(rows[:, 2])) < len(rows):
        raise TraceFormatError(message("refused.several_places"), where=str(parquet))
    return ranks


def _only_first_ranks(
    columns: Columns, ranks: dict[tuple[int, int], list[int]], limits: list[Limit]
) -> Columns:
    """Keep one rank for each place: the format has one for a tensor-parallel group."""
    extra = [own for place in ranks.values() for own in place[1:]]
    if not extra:
        return columns
    limits.append(message("scope.shared_places", count=len(extra)))
    kept = ~np.isin(columns["rank"], extra)
    return {name: values[kept] for name, values in columns.items()}


def _whole_replicas(rank: dict[tuple[int, int], int], limits: list[Limit]) -> list[int]:
    """Return the replicas with a worker on every stage."""
    stages = range(max(stage for _, stage in rank) + 1)
    replicas = sorted({dp_rank for dp_rank, _ in rank})
    whole = [r for r in replicas if all((r, stage) in rank for stage in stages)]
    if len(whole) < len(replicas):
        lost = sorted(set(replicas) - set(whole))
        limits.append(message("missing.broken_replicas", replicas=list(map(int, lost))))
    return whole


def _patterns(columns: Columns, dp_ranks: list[int], limits: list[Limit]) -> tuple[Pattern, ...]:
    """Group the whole steps by the operations that they ran."""
    kept = np.isin(columns["dp_rank"], dp_ranks)
    columns = {name: values[kept] for name, values in columns.items()}
    step, dp_rank, stage = columns["step"], columns["dp_rank"], columns["stage"]
    per_type = int(columns["seq_id"].max()) + 1
    per_stage = len(op.KNOWN) * per_type
    key = stage * per_stage + columns["optype"] * per_type + columns["seq_id"]
    order = np.lexsort((key, dp_rank, step))
    step, dp_rank, key = step[order], dp_rank[order], key[order]
    is_new = np.append(True, (step[1:] != step[:-1]) | (dp_rank[1:] != dp_rank[:-1]))
    low = np.flatnonzero(is_new)
    blocks: dict[int, list[slice]] = {}
    for first, last in zip(low.tolist(), np.append(low[1:], len(step)).tolist(), strict=True):
        blocks.setdefault(int(step[first]), []).append(slice(first, last))
    alike: dict[bytes, list[int]] = {}
    broken = []
    for number, parts in blocks.items():
        ran = {key[part].tobytes() for part in parts}
        own = key[parts[0]]
        stages = np.unique(own // per_stage)
        is_whole = len(ran) == 1 and len(parts) == len(dp_ranks) and len(stages) == stage.max() + 1
        if is_whole and (own[1:] != own[:-1]).all():
            alike.setdefault(ran.pop(), []).append(number)
        else:
            broken.append(number)
    if broken:
        named = list(map(int, broken))
        limits.append(
            message("missing.broken_steps", lost=len(named), steps=len(blocks), named=named)
        )
    return tuple(
        _pattern(columns, order, [blocks[number] for number in steps], steps)
        for steps in alike.values()
    )


def _pattern(
    columns: Columns, order: IntArray, blocks: Sequence[Sequence[slice]], steps: list[int]
) -> Pattern:
    rows = np.stack([np.concatenate([order[part] for part in parts]) for parts in blocks])
    by_operation = rows.reshape(len(steps), len(blocks[0]), -1).transpose(2, 1, 0)
    shape = (-1, len(steps))
    first = by_operation[:, 0, 0]
    names = ("stage", "optype", "seq_id", "mc", "gmc", "start_ts", "end_ts")
    lists = zip(*(columns[name][first].tolist() for name in names), strict=True)
    return Pattern(
        steps=np.array(steps, np.int64),
        operations=tuple(
            Operation(stage, op.KNOWN[optype], *rest) for stage, optype, *rest in lists
        ),
        start_s=columns["start_ts"][by_operation].reshape(shape).astype(np.float64),
        end_s=columns["end_ts"][by_operation].reshape(shape).astype(np.float64),
        dur_s=columns["duration"][by_operation].reshape(shape).astype(np.float64),
    )


def _meta(
    parquet: Path, rank: dict[tuple[int, int], int], limits: list[Limit]
) -> dict[str, object]:
    meta = read_meta(parquet)
    if meta is not None:
        return meta
    limits.append(message("unknown.no_meta_file"))
    return {
        "trial_name": parquet.stem.removeprefix("trace-"),
        "run_id": 0,
        "dp_size": max(dp_rank for dp_rank, _ in rank) + 1,
        "pp_size": max(stage for _, stage in rank) + 1,
        "tp_size": None,
        "dsp_size": None,
        "vpp_size": None,
        "world_size": None,
    }
