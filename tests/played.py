"""Plays the rows of a trace to recorders, as hooks would have, so that a run is on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from meshscope.analyze.tables.trace import Trace
from meshscope.probe.recording.record_heads import collective_head, p2p_head, span_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.recording.step_sums import FullRecords
from meshscope.probe.schema.records import (
    COLLECTIVE_CODES,
    DIRECTION_CODES,
    LEVEL_CODES,
    SPAN_CODES,
)
from meshscope.probe.schema.rundir import create_run
from meshscope.probe.schema.terms import Axis, CaptureLevel, CollectiveKind, Direction, SpanKind

_ORDER = ("issue", "end", "span", "step")


def play(
    trace: Trace,
    root: Path,
    full: FullRecords,
    *,
    level: CaptureLevel = CaptureLevel.COLLECTIVES,
    slot_count: int = 64,
    empty_ring: bool = False,
    into: Path | None = None,
    device_name: str = "CPU",
    devices: Mapping[int, str] | None = None,
) -> Path:
    """Record a trace anew; return the run. The ring is small, so that it keeps little.

    With ``empty_ring`` it keeps nothing but spans of no length that come at the end.

    ``into`` names a run that is there already, ``devices`` the device of each rank.

    Below the level ``collectives`` no communication is recorded, below ``stages`` no span.
    """
    run = {
        "world_size": trace.run["world_size"],
        "layout": trace.layout.to_json(),
        "schedule": trace.run["schedule"],
        "microbatches": trace.run["microbatches"],
        "device_name": device_name,
    }
    path = create_run(root, "run", run) if into is None else into
    for rank in trace.ranks:
        settings = StorageSettings(
            wake_s=3600.0, slot_count=slot_count, free_floor_frac=0.0, full_records=full
        )
        uuid = (devices or {}).get(rank)
        recorder = Recorder(path, rank, device_uuid=uuid, settings=settings)
        _play_rank(trace, rank, recorder, level)
        for _ in range(4 if empty_ring else 0):
            for _ in range(slot_count // 3):
                recorder.record_span(span_head(SPAN_CODES[SpanKind.GC]), 0, 0, 0)
            recorder.flush()
        recorder.close()
    return path


def _play_rank(trace: Trace, rank: int, recorder: Recorder, level: CaptureLevel) -> None:
    groups = {
        row["group_id"]: recorder.register_group(
            row["group_id"], row["ranks"], "", Axis(row["axis"])
        )
        for row in trace.tables["group"].to_pylist()
    }
    ids: dict[int, int] = {}
    for number, (_, what, row) in enumerate(sorted(_moments(trace, rank, level), key=_by_time)):
        recorder.step = row["step"]
        if what == "issue":
            ids[row["event_id"]] = _issue(recorder, groups[row["group_id"]], row)
        elif what == "end":
            times = (row["end_ns"], row["wait_start_ns"], row["wait_end_ns"])
            recorder.complete(ids[row["event_id"]], *times)
        elif what == "span":
            kind = SPAN_CODES[SpanKind(row["kind"])]
            recorder.record_span(
                span_head(kind, row["stage"], 0),
                row["start_ns"],
                row["dur_ns"],
                -1,
                row["microbatch"],
            )
        else:
            recorder.record_step(
                row["step"], row["start_ns"], row["dur_ns"], -1, LEVEL_CODES[level]
            )
        if number % 30 == 29:
            recorder.flush()


def _moments(trace: Trace, rank: int, level: CaptureLevel) -> list[tuple[int, str, dict]]:
    """Return when each row was, what it is, and itself."""
    rows = {
        name: [row for row in trace.tables[name].to_pylist() if row["rank"] == rank]
        for name in ("step", "span", "collective", "p2p")
        if name in trace.tables
    }
    found = [(row["start_ns"] + row["dur_ns"], "step", row) for row in rows["step"]]
    if level is not CaptureLevel.STEPS:
        found += [(row["start_ns"] + row["dur_ns"], "span", row) for row in rows["span"]]
    if level is CaptureLevel.COLLECTIVES:
        for row in (*rows["collective"], *rows.get("p2p", ())):
            found += [(row["issue_ns"], "issue", row), (row["end_ns"], "end", row)]
    return found


def _by_time(moment: tuple[int, str, dict]) -> tuple:
    time_ns, what, row = moment
    return time_ns, row["step"], _ORDER.index(what), row.get("event_id", 0)


def _issue(recorder: Recorder, group: int, row: dict) -> int:
    if "peer" in row:
        direction = DIRECTION_CODES[Direction(row["direction"])]
        head = p2p_head(group, direction, row["peer"], -1)
        return recorder.issue_p2p(head, row["seq"], row["size_bytes"], row["issue_ns"])
    kind = COLLECTIVE_CODES[CollectiveKind(row["kind"])]
    return recorder.issue_collective(
        collective_head(group, kind, -1), row["seq"], row["size_bytes"], row["issue_ns"]
    )
