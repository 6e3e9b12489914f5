"""Files of other tools that we do not read, recognised, with the way to one that we do.

Nothing here is read beyond its first bytes and its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from meshscope.probe.schema.errors import TraceFormatError

from .detect import WHAT_WE_READ, InputFile, why_unknown

_KINETO = "record with torch.profiler and export_chrome_trace"


_LOOKED_INTO = 16
"""Files of an unknown format that are looked into to say what they are."""


class Foreign(NamedTuple):
    """What a file is, and the way out."""

    what: str
    remedy: str


class _Sign(NamedTuple):
    """How a kind of file is recognised: by its name, or by its first bytes."""

    foreign: Foreign
    name: re.Pattern[str] | None = None
    head: re.Pattern[bytes] | None = None

    def matches(self, file: InputFile, head: bytes) -> bool:
        """Return whether a file is of this kind."""
        if self.head is not None and self.head.search(head):
            return True
        return self.name is not None and bool(self.name.search(file.name))


def _name(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_SIGNS = (
    _Sign(
        Foreign(
            "a Git LFS pointer: the file itself was not downloaded",
            "Fetch it: git lfs pull",
        ),
        head=re.compile(rb"\Aversion https://git-lfs\.github\.com/spec/"),
    ),
    _Sign(
        Foreign(
            "a report of Nsight Systems, in its own format",
            "Export it: nsys export --type sqlite FILE, and give the .sqlite file",
        ),
        _name(r"\.(?:nsys-rep|qdrep|qdstrm)$"),
    ),
    _Sign(
        Foreign(
            "a report of Nsight Compute: kernels one by one, without a timeline",
            "Record a timeline: nsys profile --trace=cuda,nvtx, then nsys export --type sqlite",
        ),
        _name(r"\.ncu-rep$"),
    ),
    _Sign(
        Foreign(
            "a profile of XLA or TensorFlow (XPlane)",
            "For PyTorch, " + _KINETO + "; for JAX, record with nsys profile and export to SQLite",
        ),
        _name(r"\.xplane\.pb(?:\.gz)?$"),
    ),
    _Sign(
        Foreign(
            "a database of DLProf, which is no longer made",
            "Record with nsys profile --trace=cuda,nvtx, then nsys export --type sqlite",
        ),
        _name(r"dlprof"),
        re.compile(rb"(?i)CREATE TABLE \W?dlprof|DLProf"),
    ),
    _Sign(
        Foreign(
            "output of rocprof, the profiler of ROCm",
            "For PyTorch on ROCm, " + _KINETO + ": that trace holds the kernels too",
        ),
        _name(r"rocprof|\.rocpd$|results_.*\.db$|_kernel_trace\.csv$|_hip_api_trace\.csv$"),
        re.compile(
            rb'rocprofiler-sdk|CREATE TABLE \W?rocpd_|"?Kernel_Name"?,|"?KernelName"?,"?gpu-id|'
            rb'"Name","Calls","TotalDurationNs"'
        ),
    ),
    _Sign(
        Foreign(
            "raw data of the Ascend profiler",
            "Analyse it (torch_npu.profiler.profiler.analyse) and give ASCEND_PROFILER_OUTPUT/trace_view.json",
        ),
        _name(
            r"ascend_pytorch_profiler|^(?:msprof|analysis|communication)\S*\.(?:db|json)$|_ascend_pt"
        ),
        re.compile(rb"CREATE TABLE \W?(?:TASK|COMPUTE_TASK_INFO|CANN_API)\b"),
    ),
    _Sign(
        Foreign(
            "a trace of Perfetto, in its binary form",
            "Give the JSON that the profiler wrote, or convert it: traceconv json FILE",
        ),
        _name(r"\.(?:pftrace|perfetto-trace)$"),
    ),
    _Sign(
        Foreign(
            "a table of nsys stats: sums, without a timeline",
            "Give the SQLite export of the report: nsys export --type sqlite",
        ),
        head=re.compile(rb"\A\W*Time \(%\),"),
    ),
    _Sign(
        Foreign("a file of torch.save", "Give the trace, dump or snapshot itself"),
        _name(r"^(?:data\.pkl|byteorder|\.format_version)$"),
    ),
    _Sign(
        Foreign(
            "a page of HTML: the download of a web page, or of an error",
            "Download the file itself (of a repository the raw file)",
        ),
        head=re.compile(rb"(?i)\A\s*<(?:!doctype html|html)"),
    ),
)


def recognised(file: InputFile) -> Foreign | None:
    """Return what a file of no format that we read is; None where that is not plain."""
    head = file.head() or file.first_bytes(256)
    return next((sign.foreign for sign in _SIGNS if sign.matches(file, head)), None)


def nothing_readable(path: Path, count: int, unknown: Sequence[InputFile] = ()) -> TraceFormatError:
    """Return the error for an input in which no file is a trace.

    Args:
        path: The input.
        count: How many files it has.
        unknown: Those of no format that we know; of the first ones it is told what they are.
    """
    looked_into = unknown[:_LOOKED_INTO]
    known = [one for one in map(recognised, looked_into) if one is not None]
    if known and len(set(known)) == 1 and count == len(looked_into):
        what = (
            f"is {known[0].what}"
            if count == 1
            else f"holds {count} files; the first is {known[0].what}"
        )
        return TraceFormatError(what, where=str(path), remedy=known[0].remedy)
    what = "is no trace that we can read" if count == 1 else f"none of its {count} files is a trace"
    reasons = dict.fromkeys(
        [*(one.what for one in known), *filter(None, map(why_unknown, looked_into))]
    )
    if reasons:
        what += f" ({'; '.join(reasons)})"
    remedy = ". ".join([*dict.fromkeys(one.remedy for one in known), WHAT_WE_READ])
    return TraceFormatError(what, where=str(path), remedy=remedy)
