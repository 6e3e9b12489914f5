"""The capture as trace files of the PyTorch profiler, which HolisticTraceAnalysis loads.

One file a rank, ``rank00000.json.gz``, in one folder. The header stands on the first line
and names the rank with a space before it: that is how the rank of a file is found.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec

from meshscope.probe.schema.errors import ConfigError

from ...tables.trace import Trace
from ...wording.message import message
from ..hta.bridge import header, rank_tables, ranks_with_events, time_base_ns
from ..hta.raw import raw_events
from ..hta.rows import Symbols, event_rows

_COMPRESSION = 4
"""A faster level than the default, for a somewhat larger file."""


def export_hta(trace: Trace, folder: Path) -> list[Path]:
    """Write every rank that has events of a profiler; return the files.

    Args:
        trace: The capture.
        folder: Gets the files.

    Raises:
        ConfigError: No rank has events of a profiler, or the folder holds other traces.
        OSError: A file cannot be written.
    """
    ranks = ranks_with_events(trace)
    if not ranks:
        raise ConfigError(
            message("refused.export_other_form"),
            where=str(trace.path),
            remedy=message("advice.export_other_form"),
        )
    folder.mkdir(parents=True, exist_ok=True)
    files = {rank: folder / f"rank{rank:05d}.json.gz" for rank in ranks}
    others = {file for file in folder.iterdir() if file.suffix in (".json", ".gz")}
    if others - set(files.values()):
        raise ConfigError(
            message("refused.other_traces_in_folder"),
            where=str(folder),
            remedy=message("advice.empty_folder"),
        )
    base_ns = time_base_ns(trace, ranks)
    for rank, file in files.items():
        _write_rank(trace, rank, base_ns, file)
    return list(files.values())


def _write_rank(trace: Trace, rank: int, base_ns: int, file: Path) -> None:
    draft = file.with_name(f".{file.name}.part")
    symbols = Symbols()
    rows = event_rows(rank_tables(trace, rank), symbols)
    try:
        with gzip.open(draft, "wb", compresslevel=_COMPRESSION) as stream:
            head = json.dumps(header(trace, rank, base_ns))
            stream.write(head[:-1].encode() + b', "traceEvents": [')
            comma = b"\n"
            for batch in raw_events(rows, symbols, rank=rank, base_ns=base_ns):
                stream.write(comma + msgspec.json.encode(batch)[1:-1])
                comma = b",\n"
            stream.write(b"\n]}")
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
