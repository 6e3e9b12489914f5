"""Other tools' traces, read into the tables that our own captures fill.

The format is recognised by what is in the files; docs/inputs.md says what each
format gives and what it cannot give.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from meshscope.analyze.trace import Trace

from ..words import counted
from .chrome_pairs import complete_pairs
from .detect import InputFile, InputFormat, classify, find_files, nothing_readable
from .flight_recorder import import_flight_recorder
from .kineto import import_kineto
from .kineto_merged import split_merged
from .nccl_inspector import import_nccl_inspector
from .ndtimeline import import_ndtimeline
from .pipeline_visualiser import import_pipeline_visualiser

__all__ = ["import_trace"]


def import_trace(path: Path) -> Trace:
    """Read a file, a folder (with all below it) or a glob that is no meshscope run directory.

    Files of a folder that are no trace are left out and counted in ``limits``.

    Raises:
        TraceFormatError: Nothing is there, nothing there is a trace, or what is
            there cannot be one run.
    """
    files = find_files(path)
    by_format: dict[InputFormat, list[InputFile]] = defaultdict(list)
    for file in files:
        by_format[classify(file)].append(file)
    if timelines := by_format[InputFormat.NDTIMELINE]:
        return import_ndtimeline(path, timelines)
    if traces := [f for kind in _PROFILER for f in by_format[kind]]:
        paired, alone = complete_pairs(traces)
        parts, merged = split_merged(paired)
        limits = [*_left_out(len(files) - len(traces)), *alone, *merged]
        return import_kineto(path, parts, limits=limits)
    if dumps := by_format[InputFormat.PIPELINE_VISUALISER]:
        configs = by_format[InputFormat.PIPELINE_CONFIG]
        limits = _left_out(len(files) - len(dumps) - len(configs))
        return import_pipeline_visualiser(path, dumps, configs, limits=limits)
    if logs := by_format[InputFormat.NCCL_INSPECTOR]:
        return import_nccl_inspector(path, logs, limits=_left_out(len(files) - len(logs)))
    if rings := by_format[InputFormat.FLIGHT_RECORDER]:
        limits = _left_out(len(files) - len(rings))
        return import_flight_recorder(path, rings, limits=limits)
    raise nothing_readable(path, len(files))


_PROFILER = (InputFormat.KINETO, InputFormat.ARCHIVE)


def _left_out(count: int) -> list[str]:
    if not count:
        return []
    return [f"{counted(count, 'file')} of the input left out: no trace, or of another format."]
