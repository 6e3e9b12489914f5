"""Other tools' traces, read into the tables that our own captures fill.

The format is recognised by what is in the files; docs/inputs.md says what each
format gives and what it cannot give.
"""

from __future__ import annotations

from pathlib import Path

from meshscope.analyze.trace import Trace

from .detect import InputFormat, classify, find_files, nothing_readable
from .kineto import import_kineto
from .ndtimeline import import_ndtimeline

__all__ = ["import_trace"]


def import_trace(path: Path) -> Trace:
    """Read a file, a folder (with all below it) or a glob that is no meshscope run directory.

    Files of a folder that are no trace are left out and counted in ``limits``.

    Raises:
        TraceFormatError: Nothing is there, nothing there is a trace, or what is
            there cannot be one run.
    """
    files = find_files(path)
    formats = [classify(file) for file in files]
    timelines = [
        f for f, kind in zip(files, formats, strict=True) if kind == InputFormat.NDTIMELINE
    ]
    if timelines:
        return import_ndtimeline(path, timelines)
    readable = [f for f, kind in zip(files, formats, strict=True) if kind != InputFormat.UNKNOWN]
    if not readable:
        raise nothing_readable(path, len(files))
    ignored = len(files) - len(readable)
    limits = [f"{ignored} files of the input are no traces and are left out."] if ignored else []
    return import_kineto(path, readable, limits=limits)
