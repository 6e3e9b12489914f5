"""Turns the records of a rank into the declared tables.

An issue record is joined with the completions of its event id. A time that no
completion knew stays null, and such a row says ``host_issue`` as its source.

Times on the device are joined to the spans and operations that they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schema.records import DEVICE_TIME_RECORD, MEMORY_VALUES, ROOT_MARK
from ..schema.tables import TABLES
from ..schema.terms import (
    Axis,
    CollectiveKind,
    Direction,
    MemoryPhase,
    SpanKind,
    StepDetail,
    TimeSource,
)
from .rank_records import RankRecords
from .step_detail import UNKNOWN_DETAIL, StepDetails, step_details


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """The device times of a rank by event id, sorted; of several the largest."""

    event_id: Ints
    start_ns: Ints
    dur_ns: Ints

    @classmethod
    def of(cls, records: RankRecords) -> DeviceTimes:
        """Return the device times of a rank."""
        raw = records.tables.get(DEVICE_TIME_RECORD.name)
        if raw is None:
            none = np.zeros(0, np.int64)
            return cls(none, none, none)
        columns = [
            np.asarray(raw[name].to_numpy(), np.int64)
            for name in ("event_id", "start_ns", "dur_ns")
        ]
        order = np.argsort(columns[0], kind="stable")
        event_id, start, dur = (column[order] for column in columns)
        first = np.flatnonzero(np.diff(event_id, prepend=event_id[:1] - 1))
        if not len(first):
            return cls(event_id, start, dur)
        # Start and length may come apart; one that is not known is -1.
        latest = (np.maximum.reduceat(times, first) for times in (start, dur))
        return cls(event_id[first], *latest)

    def columns(self, raw: pa.Table) -> dict[str, pa.Array]:
        """Return the device columns of records; null where the device was not timed."""
        wanted = np.asarray(raw["slot_seq"].to_numpy(), np.int64)
        start, dur = np.full(len(wanted), -1), np.full(len(wanted), -1)
        if len(self.event_id):
            place = np.minimum(np.searchsorted(self.event_id, wanted), len(self.event_id) - 1)
            known = self.event_id[place] == wanted
            start[known], dur[known] = self.start_ns[place[known]], self.dur_ns[place[known]]
        return {
            "device_start_ns": pa.array(start, mask=start < 0),
            "device_dur_ns": pa.array(dur, mask=dur < 0),
        }


Ints = NDArray[np.int64]

_TIMES = ("end_ns", "wait_start_ns", "wait_end_ns")


def rank_tables(records: RankRecords, axes: Mapping[str, Axis]) -> dict[str, pa.Table]:
    """Return the step, span, collective, p2p, memory and microbatch tables of a rank.

    Adds to its limits what could not be assembled.

    Args:
        records: What the rank recorded.
        axes: Axis of each group id, from all ranks together.
    """
    details = step_details(records.tables)
    device = DeviceTimes.of(records)
    makers: dict[str, Callable[[pa.Table], dict[str, pa.Array]]] = {
        "step": lambda raw: _step_columns(raw, details),
        "span": lambda raw: {**_span_columns(raw), **device.columns(raw)},
        "memory": _memory_columns,
        "microbatch": lambda raw: _microbatch_columns(_possible(raw, records)),
        "communication_sum": lambda raw: sum_columns(raw, records, axes, details),
    }
    tables = {}
    for name, make in makers.items():
        if (raw := _known_words(records, name)) is not None:
            tables[name] = _conform(name, records.rank, make(raw))
    completed = np.zeros(0, dtype=np.int64)
    for name in ("collective", "p2p"):
        if (raw := _known_words(records, name)) is not None:
            on_device = device.columns(raw)
            columns = _communication_columns(raw, records, axes, on_device["device_start_ns"])
            extra = _collective_columns(raw) if name == "collective" else _p2p_columns(raw)
            extra["device_dur_ns"] = on_device["device_dur_ns"]
            table = _conform(name, records.rank, {**columns, **extra})
            tables[name] = table.filter(pa.array(_kept(table, details)))
            completed = np.concatenate([completed, _ints(raw, "slot_seq")])
    _note_orphans(records, completed)
    return tables


def _kept(table: pa.Table, details: StepDetails) -> NDArray[np.bool_]:
    """Tell which operations to show: not the odd ones that the ring held of a summed step."""
    step = _ints(table, "step")
    detail = details.of(step)
    shown = (detail == UNKNOWN_DETAIL) | (detail == list(StepDetail).index(StepDetail.FULL))
    until = table["wait_end_ns"].fill_null(0).to_numpy().astype(np.int64)
    return np.asarray(shown | details.reach_into_full(step, until))


_WORDS = {
    "span": ("kind", len(SpanKind)),
    "collective": ("kind", len(CollectiveKind)),
    "p2p": ("direction", len(Direction)),
    "memory": ("phase", len(MemoryPhase)),
    "communication_sum": ("operation", len(CollectiveKind) + len(Direction)),
}


def _known_words(records: RankRecords, name: str) -> pa.Table | None:
    """Return the records of a name whose kind is in its vocabulary."""
    raw = records.tables.get(name)
    if raw is None or name not in _WORDS:
        return raw
    column, most = _WORDS[name]
    known = _ints(raw, column) < most
    if not known.all():
        records.note("missing.of_unknown_word", lost=int((~known).sum()), table=name, column=column)
        raw = raw.filter(pa.array(known))
    return raw


def _step_columns(raw: pa.Table, details: StepDetails) -> dict[str, pa.Array]:
    known = details.detail != UNKNOWN_DETAIL
    return {
        "detail": _dictionary(details.detail, [word.value for word in StepDetail], known=known),
        "step": raw["step"],
        "start_ns": raw["start_ns"],
        "dur_ns": raw["dur_ns"],
        "tokens": _nullable(_ints(raw, "tokens"), least=0),
    }


def _span_columns(raw: pa.Table) -> dict[str, pa.Array]:
    return {
        **{name: raw[name] for name in ("step", "stage", "chunk", "microbatch")},
        "kind": _words(_ints(raw, "kind"), SpanKind),
        "start_ns": raw["start_ns"],
        "dur_ns": raw["dur_ns"],
        "cpu_ns": _nullable(_ints(raw, "cpu_ns"), least=0),
    }


def _memory_columns(raw: pa.Table) -> dict[str, pa.Array]:
    return {
        **{name: raw[name] for name in ("step", "stage", "time_ns")},
        "phase": _words(_ints(raw, "phase"), MemoryPhase),
        **{name: _nullable(_ints(raw, name), least=0) for name in MEMORY_VALUES},
    }


def _possible(raw: pa.Table, records: RankRecords) -> pa.Table:
    """Return the microbatches whose lengths can be: of n tokens the squares sum to n at least, n^2 at most."""
    tokens, squares = (_ints(raw, name).astype(np.float64) for name in ("tokens", "sum_sq"))
    fits = (tokens >= 0) & (tokens <= squares) & (squares <= tokens**2)
    if not fits.all():
        records.note("missing.impossible_lengths", lost=int((~fits).sum()))
        raw = raw.filter(pa.array(fits))
    return raw


def _microbatch_columns(raw: pa.Table) -> dict[str, pa.Array]:
    return {name: raw[name] for name in ("step", "microbatch", "tokens", "sum_sq")}


def _collective_columns(raw: pa.Table) -> dict[str, pa.Array]:
    return {"kind": _words(_ints(raw, "kind"), CollectiveKind)}


def _p2p_columns(raw: pa.Table) -> dict[str, pa.Array]:
    names = ("peer", "microbatch", "chunk")
    return {
        **{name: raw[name] for name in names},
        "direction": _words(_ints(raw, "direction"), Direction),
    }


def _communication_columns(
    raw: pa.Table, records: RankRecords, axes: Mapping[str, Axis], device_start: pa.Array
) -> dict[str, pa.Array]:
    """Return the columns that collectives and p2p share.

    Args:
        raw: The records.
        records: All of the rank.
        axes: Axis of each group.
        device_start: When the stream got to the issue, ns; null where that was not timed.
    """
    group_ids = group_column(raw, records)
    times = _completion_times(_ints(raw, "slot_seq"), records)
    ended = times["end_ns"] > 0
    on_device = ended & device_start.is_valid().to_numpy(zero_copy_only=False)
    sources = (TimeSource.HOST_ISSUE, TimeSource.HOST_BLOCKING, TimeSource.DEVICE_BLOCKING)
    source = ended.astype(np.int32) + on_device
    return {
        **{name: raw[name] for name in ("step", "seq", "size_bytes", "issue_ns")},
        "group_id": group_ids,
        "axis": axis_column(group_ids, axes),
        **_type_columns(raw, records),
        "start_ns": pa.array(
            np.where(on_device, device_start.fill_null(0).to_numpy(), _ints(raw, "issue_ns"))
        ),
        **{name: _nullable(times[name], least=1) for name in _TIMES},
        "source": _dictionary(source.astype(np.int32), [source.value for source in sources]),
        "event_id": raw["slot_seq"],
    }


def _completion_times(event_ids: Ints, records: RankRecords) -> dict[str, Ints]:
    """Return the times of each event, 0 where unknown; the last known value counts."""
    times = {name: np.zeros(len(event_ids), dtype=np.int64) for name in _TIMES}
    completions = records.tables.get("completion")
    if completions is None or not len(event_ids):
        return times
    wanted = _ints(completions, "event_id")
    rows = np.searchsorted(event_ids, wanted)
    rows[rows == len(event_ids)] = 0
    matched = event_ids[rows] == wanted
    for name in _TIMES:
        values = _ints(completions, name)
        known = matched & (values > 0)
        # Rows repeat in the order of recording, and numpy keeps the last assignment.
        times[name][rows[known]] = values[known]
    return times


def _note_orphans(records: RankRecords, event_ids: Ints) -> None:
    completions = records.tables.get("completion")
    if completions is None:
        return
    orphans = int((~np.isin(_ints(completions, "event_id"), event_ids)).sum())
    if orphans:
        records.note("missing.ends_without_begin", lost=orphans)


def group_column(raw: pa.Table, records: RankRecords) -> pa.DictionaryArray:
    """Return the group ids of records; what has no name gets one of its rank's own."""
    groups, _ = manifest_names(records.manifest)
    codes = _ints(raw, "group")
    used = np.unique(codes)
    unnamed = [int(code) for code in used if int(code) not in groups]
    if unnamed:
        records.note("unknown.names_of_groups", groups=len(unnamed))
    labels = [groups.get(int(c), f"rank{records.rank:05d}-group{int(c)}") for c in used]
    return _dictionary(np.searchsorted(used, codes), labels)


def _type_columns(raw: pa.Table, records: RankRecords) -> dict[str, pa.DictionaryArray]:
    """Return element types, and the roots that rooted collectives name with them."""
    _, names = manifest_names(records.manifest)
    codes = _ints(raw, "dtype")
    parts = [name.partition(ROOT_MARK) for name in names]
    return {
        "dtype": _recoded(codes, [dtype for dtype, _, _ in parts]),
        "root": _recoded(codes, [root if root.isdecimal() else "" for _, _, root in parts]),
    }


def _recoded(codes: Ints, texts: list[str]) -> pa.DictionaryArray:
    """Return the text of each code; null where there is none, or it is empty."""
    labels = sorted({text for text in texts if text})
    place = {text: at for at, text in enumerate(labels)}
    # The last one stands for codes outside, among them -1.
    table = np.array([*(place.get(text, -1) for text in texts), -1], dtype=np.int64)
    found = table[np.where((codes >= 0) & (codes < len(texts)), codes, len(texts))]
    return _dictionary(found, labels, known=found >= 0)


def manifest_names(manifest: Mapping[str, Any] | None) -> tuple[dict[int, str], list[str]]:
    """Return group ids by index, and dtypes, of a rank manifest; none if it is malformed."""
    groups = {int(group["index"]): str(group["group_id"]) for group in manifest_groups(manifest)}
    dtypes = (manifest or {}).get("dtypes")
    return groups, [str(name) for name in dtypes] if isinstance(dtypes, list) else []


def manifest_groups(manifest: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the well-formed group entries of a rank manifest."""
    groups = (manifest or {}).get("groups")
    if not isinstance(groups, list):
        return []
    return [group for group in groups if _is_group(group)]


def _is_group(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("group_id"), str):
        return False
    ranks = value.get("ranks")
    return (
        type(value.get("index")) is int
        and isinstance(ranks, list)
        and all(type(rank) is int and 0 <= rank < 1 << 31 for rank in ranks)
    )


def axis_column(group_ids: pa.DictionaryArray, axes: Mapping[str, Axis]) -> pa.Array:
    """Return the axis of each group id."""
    words = list(Axis)
    positions = [
        words.index(axes.get(label, Axis.OTHER)) for label in group_ids.dictionary.to_pylist()
    ]
    indices = group_ids.indices.to_numpy()
    return _words(np.asarray(positions, dtype=np.int64)[indices], Axis)


def sum_columns(
    raw: pa.Table, records: RankRecords, axes: Mapping[str, Axis], details: StepDetails
) -> dict[str, pa.Array]:
    """Return the columns of the sums of steps whose operations are not there one by one."""
    shown = details.of(_ints(raw, "step")) != list(StepDetail).index(StepDetail.FULL)
    raw = raw.filter(pa.array(shown))
    groups = group_column(raw, records)
    words = [word.value for word in (*CollectiveKind, *Direction)]
    operation, within = _ints(raw, "operation"), _ints(raw, "within")
    plain = ("step", "peer", "size_log2", "count", "ended", "waited", "size_bytes")
    columns = {
        **{name: raw[name] for name in plain},
        "group_id": groups,
        "axis": axis_column(groups, axes),
        "operation": _dictionary(operation, words),
        "within": _dictionary(
            within, [kind.value for kind in SpanKind], known=within < len(SpanKind)
        ),
    }
    for length, count in (("dur_ns", "ended"), ("wait_ns", "waited")):
        unknown = _ints(raw, count) == 0
        for name in (length, f"min_{length}", f"max_{length}"):
            columns[name] = pa.array(_ints(raw, name), mask=unknown)
    return columns


def _conform(name: str, rank: int, columns: Mapping[str, pa.Array]) -> pa.Table:
    rows = len(columns["step"])
    full = {"rank": pa.array(np.full(rows, rank, dtype=np.int32)), **columns}
    return TABLES[name].conform(pa.table(full))


def _ints(raw: pa.Table, name: str) -> Ints:
    return np.asarray(raw[name].to_numpy(), dtype=np.int64)


def _nullable(values: Ints, *, least: int) -> pa.Array:
    """Return values with null for those below the least possible one."""
    return pa.array(values, mask=values < least)


def _words(codes: Ints, words: type[StrEnum]) -> pa.Array:
    return _dictionary(codes, [word.value for word in words])


def _dictionary(
    codes: NDArray[Any], labels: list[str], *, known: NDArray[np.bool_] | None = None
) -> pa.DictionaryArray:
    mask = None if known is None else ~known
    indices = pa.array(codes.astype(np.int32), mask=mask)
    return pa.DictionaryArray.from_arrays(indices, pa.array(labels, pa.string()))
