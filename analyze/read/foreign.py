"""Files of other tools that we do not read, recognised, with the way to one that we do.

Nothing here is read beyond its first bytes and its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from meshscope.probe.schema.errors import TraceFormatError

from ..wording.message import Message, message
from .detect import WHAT_WE_READ, why_unknown
from .files import InputFile
from .formats import LIST_OF_TRACES

_LOOKED_INTO = 16
"""Files of an unknown format that are looked into to say what they are."""


class Foreign(NamedTuple):
    """What a file is, and the way out."""

    what: Message
    remedy: Message


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
            message("foreign.git_lfs"),
            message("convert.git_lfs"),
        ),
        head=re.compile(rb"\Aversion https://git-lfs\.github\.com/spec/"),
    ),
    _Sign(
        Foreign(message("foreign.git_annex"), message("convert.git_annex")),
        head=re.compile(rb"\A\S{0,200}/annex/objects/\S+\s*\Z"),
    ),
    _Sign(
        Foreign(
            message("foreign.nsight_systems"),
            message("convert.nsight_systems"),
        ),
        _name(r"\.(?:nsys-rep|qdrep|qdstrm)$"),
    ),
    _Sign(
        Foreign(
            message("foreign.nsight_compute"),
            message("convert.nsight_compute"),
        ),
        _name(r"\.ncu-rep$"),
        re.compile(rb'\A(?:==PROF==|"ID","Process ID")'),
    ),
    _Sign(
        Foreign(
            message("foreign.xplane"),
            message("convert.xplane"),
        ),
        _name(r"\.xplane\.pb(?:\.gz)?$"),
    ),
    _Sign(
        Foreign(
            message("foreign.dlprof"),
            message("convert.dlprof"),
        ),
        _name(r"dlprof"),
        re.compile(rb"(?i)CREATE TABLE \W?dlprof|DLProf"),
    ),
    _Sign(
        Foreign(message("foreign.nvprof"), message("convert.dlprof")),
        _name(r"\.(?:nvvp|nvprof)$"),
        re.compile(rb"CREATE TABLE \W?StringTable\b"),
    ),
    _Sign(
        Foreign(
            message("foreign.rocprof"),
            message("convert.rocprof"),
        ),
        _name(
            r"rocprof(?!.*\.proto$)|\.rocpd$|results_.*\.db$|_kernel_trace\.csv$|_hip_api_trace\.csv$"
        ),
        re.compile(
            rb'rocprofiler-sdk|CREATE TABLE \W?rocpd_|"?Kernel_Name"?,|"?KernelName"?,"?gpu-id|'
            rb'"Name","Calls","TotalDurationNs"'
        ),
    ),
    _Sign(
        Foreign(
            message("foreign.ascend"),
            message("convert.ascend"),
        ),
        _name(
            r"ascend_pytorch_profiler|^(?:msprof|analysis|communication)\S*\.(?:db|json)$|_ascend_pt"
            r"|^(?:op_summary|op_statistic|kernel_details|operator_details|step_trace|task_time)\w*\.csv$"
            r"|^profiler_info_\d+\.json$"
        ),
        re.compile(rb"CREATE TABLE \W?(?:TASK|COMPUTE_TASK_INFO|CANN_API)\b"),
    ),
    _Sign(
        Foreign(
            message("foreign.perfetto"),
            message("convert.perfetto"),
        ),
        _name(r"\.(?:pftrace|perfetto-trace|perfetto)$|(?:perfetto|rocprof).*\.proto$"),
    ),
    _Sign(
        Foreign(
            message("foreign.nsys_stats"),
            message("convert.nsys_stats"),
        ),
        head=re.compile(
            rb'\A\W*(?:Time \(%\)|Start(?: Time)? \(\w+\)"?,"?(?:End|Duration)\b[^,]*),?'
        ),
    ),
    _Sign(
        Foreign(
            message("foreign.nsys_json"),
            message("convert.nsys_stats"),
        ),
        head=re.compile(rb'"(?:CudaEvent|NvtxEvent|TraceProcessEvent|CompositeEvent)"\s*:\s*\{'),
    ),
    _Sign(
        Foreign(message("foreign.torch_save"), message("convert.torch_save")),
        _name(r"^(?:data\.pkl|byteorder|\.format_version)$"),
    ),
    _Sign(
        Foreign(message("foreign.packed"), message("convert.packed")),
        head=re.compile(rb"\A(?:7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|\x04\x22\x4d\x18|\x5d\0\0.\0\xff)"),
    ),
    _Sign(
        Foreign(message("foreign.packed_twice"), message("convert.packed_twice")),
        head=re.compile(rb"\A\x1f\x8b\x08"),
    ),
    _Sign(
        Foreign(message("foreign.tensorboard"), message("convert.tensorboard")),
        _name(r"\btfevents\b"),
    ),
    _Sign(
        Foreign(message("foreign.linux_perf"), message("convert.host_profile")),
        head=re.compile(rb"\APERFILE2"),
    ),
    _Sign(
        Foreign(message("foreign.host_samples"), message("convert.host_profile")),
        _name(r"\.(?:prof|cprofile|cpuprofile|pstats|speedscope\.json)$"),
        re.compile(
            rb"www\.speedscope\.app/file-format-schema|\Amemray\0|\A\s*\{[^}]{0,200}\"alloc_samples\""
            rb"|\A\s*\{\s*\"session\"[\s\S]*\"root_frame\"|\A(?:[^\n;{]{1,300};)+[^\n;]{1,300} \d+\r?(?:\n|\Z)"
        ),
    ),
    _Sign(
        Foreign(message("foreign.profiler_table"), message("convert.host_profile")),
        head=re.compile(rb"Self (?:CPU|CUDA|XPU) (?:%|time total)"),
    ),
    _Sign(
        Foreign(message("foreign.execution_trace"), message("convert.host_profile")),
        name=_name(r"\.et$"),
        head=re.compile(rb'\A(?=[\s\S]*"nodes"\s*:\s*\[)\s*\{[\s\S]*"schema"\s*:\s*"'),
    ),
    _Sign(
        Foreign(message("foreign.list_of_traces"), message("convert.list_of_traces")),
        head=LIST_OF_TRACES,
    ),
    _Sign(
        Foreign(message("foreign.event_lines"), message("convert.event_lines")),
        head=re.compile(rb'\A\s*\{[^\n]*"ph"\s*:[^\n]*\}[ \t\r]*\n\s*\{'),
    ),
    _Sign(
        Foreign(message("foreign.nccl_log"), message("convert.nccl_log")),
        head=re.compile(rb'\bNCCL INFO\b|"cat"\s*:\s*"(?:GROUP_API|COLL_API|P2P_API|COLL|P2P)"'),
    ),
    _Sign(
        Foreign(message("foreign.training_log"), message("convert.host_profile")),
        head=re.compile(
            rb"elapsed time per iteration|\bfwd_microstep\b|\btrain_step_timing\b|'grad_norm': "
            rb"|\bstep\b\W{1,12}\d+\b[^\n]{0,80}\bloss\b\W{1,12}\d"
        ),
    ),
    _Sign(
        Foreign(message("foreign.wide_text"), message("convert.wide_text")),
        head=re.compile(rb"\A(?:\xff\xfe|\xfe\xff|\0{0,3}[\[{]\0)"),
    ),
    _Sign(
        Foreign(message("foreign.samples"), message("convert.host_profile")),
        head=re.compile(
            rb"\A(?:timestamp, |index, |#\s?(?:Entity|gpu)\b|Timestamp, ?DeviceId)"
            rb"|\A(?:[^\n]{0,200}\n){0,3}[^\n]{0,200}"
            rb"(?:(?:NVIDIA|HL|npu)-smi|ROCm System Management|AMD-?SMI)",
            re.IGNORECASE,
        ),
    ),
    _Sign(
        Foreign(message("foreign.counters"), message("convert.host_profile")),
        head=re.compile(
            rb"\A(?:# (?:HELP|TYPE) |=+NVSMI LOG=|NIC statistics:|CA '|# Port [^\n]*counters)"
        ),
    ),
    _Sign(
        Foreign(message("foreign.results"), message("convert.results")),
        head=re.compile(
            rb'"time \(ns\)"|\Arank,idle_time|compute_time_pctg|"(?:mean_ttft_ms|request_throughput\w*)"\s*:'
        ),
    ),
    _Sign(
        Foreign(message("foreign.error_reply"), message("convert.html")),
        head=re.compile(
            rb"\A\s*(?:<\?xml[^>]*>\s*)?<Error>|\A\s*\{\s*\"(?:message|error|detail)\"\s*:\s*[\"{]"
        ),
    ),
    _Sign(
        Foreign(
            message("foreign.html"),
            message("convert.html"),
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
        unknown: Those of no format that we know; what the first ones are is reported.
    """
    looked_into = unknown[:_LOOKED_INTO]
    known = [one for one in map(recognised, looked_into) if one is not None]
    if known and len(_distinct(one.what for one in known)) == 1 and count == len(looked_into):
        what = (
            message("refused.foreign", what=known[0].what)
            if count == 1
            else message("refused.foreign_files", count=count, what=known[0].what)
        )
        return TraceFormatError(what, where=str(path), remedy=known[0].remedy)
    what = (
        message("refused.no_trace") if count == 1 else message("refused.no_trace_of", count=count)
    )
    reasons = _distinct([*(one.what for one in known), *map(why_unknown, looked_into)])
    if reasons:
        what = message("refused.because", what=what, reasons=reasons)
    remedies = [*_distinct(one.remedy for one in known), WHAT_WE_READ]
    return TraceFormatError(
        what, where=str(path), remedy=message("advice.several", advice=remedies)
    )


def _distinct(sentences: Iterable[Message]) -> list[Message]:
    """Return each sentence once, in their order."""
    return list({str(one): one for one in sentences}.values())
