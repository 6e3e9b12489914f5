"""From other tools' files to a run directory, once for each content."""

from __future__ import annotations

from pathlib import Path

from meshscope.probe.schema.errors import RunDirectoryError

from .ingested import Ingested, content_key, find_ingested, source_files, write_ingested
from .load import load_trace
from .trace import Trace
from .words import counted, sentence


def ingest(path: Path, runs_dir: Path) -> Ingested:
    """Read traces and keep their tables; the same content is read only once.

    Raises:
        RunDirectoryError: There is no file at the path.
        TraceFormatError: It is no trace of a known format.
        OSError: A file cannot be read or written.
    """
    files = source_files(path)
    if not files:
        raise RunDirectoryError("no file to read", where=str(path), remedy="Check the path")
    key, size = content_key(files)
    known = find_ingested(runs_dir, key)
    if known is not None:
        return Ingested(path=known, trace=load_trace(known), source_bytes=size, reused=True)
    trace = load_trace(path)
    run_path = write_ingested(trace, runs_dir, key)
    return Ingested(path=run_path, trace=trace, source_bytes=size, reused=False)


def understood(trace: Trace) -> list[str]:
    """Return what was understood of a trace, one line a fact."""
    steps = trace.frame("step")["step"].nunique()
    world = trace.run.get("world_size")
    lines = [
        f"format: {trace.origin}",
        f"ranks: {len(trace.ranks)} of {world if world is not None else 'an unknown number'}",
        f"steps: {steps}",
    ]
    rows = [(name, table.num_rows) for name, table in trace.tables.items() if table.num_rows]
    lines.append("rows: " + ", ".join(f"{name} {count:,}" for name, count in rows))
    lines += [
        f"group {group['group_id']}: axis {group['axis']}, {counted(len(group['ranks']), 'rank')}"
        f" ({group['evidence'] or 'no evidence'})"
        for group in trace.frame("group").to_dict("records")
    ]
    return [*lines, *(f"limit: {sentence(limit)}" for limit in trace.limits)]
