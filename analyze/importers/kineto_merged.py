"""Kineto files into which a tool has merged several ranks, taken apart again.

Such a tool notes the rank in the arguments of every event. The events are sorted
by it without being decoded, and each rank becomes a file in memory, so that it is
read exactly as if the rank had written it. Identifiers that the tool has made
unique over the ranks stay as they are: they still join the events of a rank.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from meshscope.probe.schema.errors import TraceFormatError

from .detect import DAMAGED_JSON, InputFile
from .kineto_events import to_int

_RANK_KEY = re.compile(rb'"rank"\s*:')
_UNMERGED_RANK_KEYS = 1
"""The header of a file that one rank wrote names the rank once."""
_NO_RANK = -1


class _Arguments(msgspec.Struct, gc=False):
    rank: Any = None


class _Event(msgspec.Struct, gc=False):
    ph: Any = None
    args: _Arguments | None = None


class _Ranks(msgspec.Struct, rename="camel"):
    trace_events: list[_Event]


class _Parts(msgspec.Struct, rename="camel", omit_defaults=True):
    """A file whose events are kept as text."""

    trace_events: list[msgspec.Raw]
    device_properties: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    base_time_nanoseconds: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    distributed_info: dict[str, Any] | None = None


def split_merged(files: Iterable[InputFile]) -> tuple[list[InputFile], list[str]]:
    """Return the files with each merged one replaced by one file per rank.

    A file that cannot be decoded stays as it is, and fails where it is read.

    Returns:
        The files, and a sentence for each that was taken apart.
    """
    found: list[InputFile] = []
    limits: list[str] = []
    for file in files:
        parts, lost = _split(file) if _may_be_merged(file) else ([], 0)
        found += parts or [file]
        if parts:
            limits.append(
                f"The file {file.name} holds the events of {len(parts)} ranks, told apart by their arguments"
                + (f"; {lost} events name no rank and are left out." if lost else ".")
            )
    return found, limits


def _may_be_merged(file: InputFile) -> bool:
    head = file.head().lstrip()
    return head.startswith(b"{") and len(_RANK_KEY.findall(head)) > _UNMERGED_RANK_KEYS


def _split(file: InputFile) -> tuple[list[InputFile], int]:
    """Return one file per rank, and how many complete events name none.

    No file is returned where there is one rank, or where most events name none: a
    single rank may name its peers like that.
    """
    try:
        content = file.read()
        events = msgspec.json.decode(content, type=_Ranks).trace_events
        whole = msgspec.json.decode(content, type=_Parts)
    except (*DAMAGED_JSON, TraceFormatError):
        return [], 0
    by_rank: dict[int, list[msgspec.Raw]] = defaultdict(list)
    lost = 0
    for event, text in zip(events, whole.trace_events, strict=True):
        rank = to_int(event.args.rank, _NO_RANK, bits=32) if event.args else _NO_RANK
        if rank >= 0:
            by_rank[rank].append(text)
        else:
            lost += event.ph == "X"
    if len(by_rank) < 2 or lost > sum(map(len, by_rank.values())):
        return [], 0
    return [_rank_file(file, whole, rank, by_rank[rank]) for rank in sorted(by_rank)], lost


def _rank_file(file: InputFile, whole: _Parts, rank: int, events: list[msgspec.Raw]) -> InputFile:
    """Return the file of one rank; of the header only what holds for all ranks is kept."""
    info = {"rank": rank}
    if whole.distributed_info and "world_size" in whole.distributed_info:
        info["world_size"] = whole.distributed_info["world_size"]
    part = _Parts(events, whole.device_properties, whole.base_time_nanoseconds, info)
    return InputFile(f"{file.label}!rank{rank}", file.path, msgspec.json.encode(part))
