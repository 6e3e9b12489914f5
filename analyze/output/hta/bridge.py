"""From a run to an ``hta.trace_analysis.TraceAnalysis``, where that is there in a version that we know."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.printable import listed

from ...load.load import load_trace
from ...tables.trace import Trace
from ...wording.message import message
from .raw import raw_events, raw_header
from .rows import TABLES, Symbols, event_rows
from .trace import drop_like_parser, parsed_trace

if TYPE_CHECKING:
    from hta.trace_analysis import TraceAnalysis


SUPPORTED = "0.5.0"
_INSTALL = message("advice.install_hta")


def require_hta() -> None:
    """Return if HolisticTraceAnalysis can be imported and works in full.

    Raises:
        ConfigError: It is not installed, is another version, or stands beside pandas 3, with
            which its critical path and its kernel sequences fail.
    """
    try:
        found = version("HolisticTraceAnalysis")
    except PackageNotFoundError:
        raise ConfigError(message("refused.no_hta"), remedy=_INSTALL) from None
    if found != SUPPORTED:
        raise ConfigError(
            message("refused.other_hta", found=found, supported=SUPPORTED),
            remedy=_INSTALL,
        )
    pandas = version("pandas")
    if int(pandas.split(".", maxsplit=1)[0]) >= 3:
        raise ConfigError(
            message("refused.hta_with_pandas", supported=SUPPORTED, pandas=pandas),
            remedy=message("advice.older_pandas"),
        )
    if find_spec("psutil") is None:
        raise ConfigError(message("refused.no_psutil"), remedy=_INSTALL)


_EVENTS = tuple(name for name in TABLES if name != "name")
_NS_PER_S = 1_000_000_000


def open(
    run: str | Path | Trace,
    *,
    ranks: Sequence[int] | None = None,
    include_last_profiler_step: bool | None = None,
) -> TraceAnalysis:
    """Return the analyses of HolisticTraceAnalysis for a run, without its parser.

    Times are exact, in microseconds from the first event. ``docs/hta.md`` says where
    results differ from those on the trace file, and by how much.

    Args:
        run: A run directory, another tool's traces, or what ``load_trace`` returned.
        ranks: Ranks to open; all that have device events if not given. All of them are held
            in memory, as the analyses expect it.
        include_last_profiler_step: None keeps every event. True drops the device events
            without a launch in the file, as HolisticTraceAnalysis does; False, its
            default, drops the last profiler step too.

    Raises:
        ConfigError: HolisticTraceAnalysis is missing or does not work here, a rank is not in
            the run, or no rank has events of a profiler.
        MeshscopeError: The run cannot be read.
    """
    require_hta()
    from hta.trace_analysis import TraceAnalysis

    trace = run if isinstance(run, Trace) else load_trace(run)
    chosen = _chosen(trace, ranks)
    symbols = Symbols()
    frames = {rank: event_rows(rank_tables(trace, rank), symbols) for rank in chosen}
    empty = [rank for rank in chosen if frames[rank].empty]
    if empty:
        raise ConfigError(
            message("refused.rank_without_profiler", rank=empty[0]), where=str(trace.path)
        )
    base_ns = time_base_ns(trace, chosen)

    def raw_of(rank: int) -> dict[str, Any]:
        own = Symbols()
        rows = event_rows(rank_tables(trace, rank), own)
        events = raw_events(rows, own, rank=rank, base_ns=base_ns)
        return header(trace, rank, base_ns) | {
            "traceEvents": [event for batch in events for event in batch]
        }

    parsed = parsed_trace(frames, symbols, raw_of, header(trace, chosen[0], base_ns))
    if include_last_profiler_step is not None:
        drop_like_parser(parsed, include_last_profiler_step=include_last_profiler_step)
    # Its constructor parses files.
    analysis: Any = TraceAnalysis.__new__(TraceAnalysis)
    analysis.t = parsed
    opened: TraceAnalysis = analysis
    return opened


def rank_tables(trace: Trace, rank: int) -> dict[str, pa.Table]:
    """Return the rows of one rank in the tables that its events come from."""
    return {name: trace.rank_table(name, rank, columns) for name, columns in TABLES.items()}


def header(trace: Trace, rank: int, base_ns: int) -> dict[str, Any]:
    """Return the header of the trace file of a rank, see ``raw_header``."""
    world_size, device = trace.run.get("world_size"), trace.run.get("device_name")
    return raw_header(
        rank,
        world_size if isinstance(world_size, int) else None,
        device if isinstance(device, str) else None,
        base_ns,
    )


def time_base_ns(trace: Trace, ranks: Sequence[int]) -> int:
    """Return the whole second before the first event of the ranks."""
    starts = [
        pc.min(trace.rank_table(name, rank, ["start_ns"])["start_ns"]).as_py()
        for rank in ranks
        for name in _EVENTS
    ]
    first = min(int(start) for start in starts if start is not None)
    return first // _NS_PER_S * _NS_PER_S


def ranks_with_events(trace: Trace, tables: Sequence[str] = _EVENTS) -> list[int]:
    """Return the ranks of a trace that have rows in one of some tables."""
    return [
        rank
        for rank in trace.ranks
        if any(len(trace.rank_table(name, rank, ["rank"])) for name in tables)
    ]


def _chosen(trace: Trace, ranks: Sequence[int] | None) -> list[int]:
    if ranks is not None:
        unknown = sorted(set(ranks) - set(trace.ranks))
        if unknown or not ranks:
            raise ConfigError(
                message("refused.rank_not_in_run", name=unknown[0])
                if unknown
                else message("refused.no_rank_asked_for"),
                where=str(trace.path),
                remedy=message("advice.ranks_of_run", ranks=listed(trace.ranks, most=16)),
            )
        return sorted(set(ranks))
    found = ranks_with_events(trace, ["kernel"])
    if not found:
        raise ConfigError(
            message("refused.no_device_events"),
            where=str(trace.path),
            remedy=message("advice.record_profiler"),
        )
    if len(found) < len(trace.ranks):
        missing = sorted(set(trace.ranks) - set(found))
        warnings.warn(
            f"left out, because they have no device events: ranks {missing}", stacklevel=3
        )
    return found
