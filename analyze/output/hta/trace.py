"""What ``hta.common.trace.Trace`` holds after parsing, made from event rows instead.

HolisticTraceAnalysis 0.5.0 keeps times in microseconds from the first event of all
ranks. It rounds stamps of a nanosecond clock inwards to whole microseconds; here they
stay exact, as fractions, and are integers only where all of them are whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from .rows import Symbols

NS_PER_US = 1_000


def parsed_trace(
    frames: dict[int, pd.DataFrame],
    symbols: Symbols,
    raw_of: Callable[[int], dict[str, Any]],
    header: Mapping[str, Any],
) -> Any:
    """Return a parsed ``Trace`` of all events.

    Args:
        frames: Events of each rank, as ``event_rows`` returns them; used up.
        symbols: What their codes mean.
        raw_of: Returns the events of a rank as the content of a trace file, in the
            order of the frame; the analyses that draw into a trace need it.
        header: The header that those files share; ``baseTimeNanoseconds`` is what
            their stamps count from.
    """
    from hta.common.trace import Trace, transform_correlation_to_index

    trace: Any = Trace(trace_files={}, trace_dir="")
    trace.symbol_table.add_symbols(symbols)
    start_ns = min(int(frame["start_ns"].min()) for frame in frames.values())
    is_whole = all(_is_whole(frame, start_ns) for frame in frames.values())
    for rank in sorted(frames):
        frame = _in_microseconds(frames.pop(rank), start_ns, is_whole=is_whole)
        trace.traces[rank] = transform_correlation_to_index(frame, trace.symbol_table)
        trace.meta_data[rank] = dict(header)
        trace.trace_files[rank] = f"rank{rank}.json.gz"
    after_base_ns = start_ns - header["baseTimeNanoseconds"]
    trace.min_ts = after_base_ns // NS_PER_US if is_whole else after_base_ns / NS_PER_US
    # Some analyses copy the whole trace; a function is not copied with it.
    trace.get_raw_trace_for_one_rank = lambda rank=0: raw_of(rank)
    trace.is_parsed = True
    return trace


def drop_like_parser(trace: Any, *, include_last_profiler_step: bool) -> None:
    """Drop what the parser of HolisticTraceAnalysis drops.

    These are the device events without a launch, and, unless it is included, the last
    profiler step. The parser compares starts from the first event with ends on the clock
    of the file, so that nothing is late enough to be dropped behind the last step.
    """
    for frame in trace.traces.values():
        frame["end"] = float("inf")
    trace._filter_irrelevant_gpu_kernels(include_last_profiler_step)
    for rank, frame in trace.traces.items():
        whole = frame.set_index("index", drop=False).rename_axis(index=None)
        trace.traces[rank] = whole.assign(end=whole["ts"] + whole["dur"])


def _is_whole(frame: pd.DataFrame, start_ns: int) -> bool:
    after_ns = frame["start_ns"] - start_ns
    return not ((after_ns % NS_PER_US).any() or (frame["dur_ns"] % NS_PER_US).any())


def _in_microseconds(frame: pd.DataFrame, start_ns: int, *, is_whole: bool) -> pd.DataFrame:
    after_ns = frame.pop("start_ns") - start_ns
    ts = after_ns // NS_PER_US if is_whole else after_ns / NS_PER_US
    dur = frame.pop("dur_ns") / NS_PER_US
    frame["ts"], frame["dur"], frame["end"] = ts, dur, ts + dur
    return frame
