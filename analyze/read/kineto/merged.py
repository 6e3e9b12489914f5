"""Kineto files into which a tool has merged several ranks, taken apart again.

Such a tool notes the rank in the arguments of every event. The events are sorted by it
without being decoded otherwise, into one temporary file for each rank, which is then read
exactly as if the rank had written it. Identifiers that the tool has made unique over the
ranks stay as they are: they still join the events of a rank.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from meshscope.probe.schema.errors import TraceFormatError

from ...wording.limits import Limit
from ...wording.message import message
from ..files import DAMAGED_JSON, InputFile
from ..scratch import Scratch
from .events import DistributedInfo, KinetoHeader, to_int
from .rewritten import EventWriter
from .stream import JsonEvents

_RANK_KEY = re.compile(rb'"rank"\s*:')
_UNMERGED_RANK_KEYS = 1
"""The header of a file that one rank wrote names the rank once."""
_NO_RANK = -1
_HELD_BYTES = 16 << 20
"""Events of all ranks that are collected before they are written."""


class _Arguments(msgspec.Struct, gc=False):
    rank: Any = None


class _Event(msgspec.Struct, gc=False):
    ph: Any = None
    args: _Arguments | None = None


_BATCH = msgspec.json.Decoder(list[_Event])


def split_merged(
    files: Iterable[InputFile], scratch: Scratch
) -> tuple[list[InputFile], list[Limit]]:
    """Return the files with each merged one replaced by one file per rank.

    A file that cannot be decoded stays as it is, and fails where it is read.

    Args:
        files: Files recognised as Kineto JSON.
        scratch: Where the files of the ranks go.

    Returns:
        The files, and a sentence for each that was taken apart.
    """
    found: list[InputFile] = []
    limits: list[Limit] = []
    for file in files:
        split = _split(file, scratch) if _may_be_merged(file) else None
        found += split.parts if split else [file]
        limits += split.limits(file) if split else []
    return found, limits


def _may_be_merged(file: InputFile) -> bool:
    head = file.head().lstrip()
    return head[:1] in (b"{", b"[") and len(_RANK_KEY.findall(head)) > _UNMERGED_RANK_KEYS


class _Split:
    """The events of one file, sorted by rank.

    Args:
        scratch: Where the files of the ranks go.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._folder = scratch.new_folder()
        self._writers: dict[int, EventWriter] = {}
        self._held: dict[int, list[bytes]] = defaultdict(list)
        self._held_bytes = 0
        self._ranked = 0
        self._lost = 0
        self._losses: Sequence[Limit] = ()
        self.parts: list[InputFile] = []

    def add(self, texts: Sequence[msgspec.Raw]) -> None:
        """Take a batch of events."""
        for text, (rank, is_whole) in zip(texts, _ranks(texts), strict=True):
            if rank < 0:
                self._lost += is_whole
                continue
            event = bytes(text)
            self._held[rank].append(event)
            self._held_bytes += len(event)
            self._ranked += 1
        if self._held_bytes > _HELD_BYTES:
            self._write()

    def finish(self, file: InputFile, stream: JsonEvents[msgspec.Raw]) -> bool:
        """Complete the files of the ranks; return whether there are several.

        A file in which most events name no rank is none: a single rank may name its
        peers like that. Of the header only what holds for all ranks is kept.
        """
        self._write()
        if len(self._writers) < 2 or self._lost > self._ranked:
            for writer in self._writers.values():
                writer.path.unlink()
            return False
        self._losses = stream.losses
        for rank in sorted(self._writers):
            self._writers[rank].finish(_header_of(rank, stream.header))
            self.parts.append(InputFile(f"{file.label}!rank{rank}", self._writers[rank].path))
        return True

    def limits(self, file: InputFile) -> list[Limit]:
        """Return what is said of the file."""
        found: list[Limit] = [
            message("scope.merged_file", file=file.name, ranks=len(self.parts)),
            *(message("missing.in_file", file=file.name, loss=loss) for loss in self._losses),
        ]
        if self._lost:
            found.append(message("missing.events_without_rank", file=file.name, count=self._lost))
        return found

    def _write(self) -> None:
        for rank, events in self._held.items():
            if rank not in self._writers:
                self._writers[rank] = EventWriter(self._folder / f"rank{rank}.json")
            self._writers[rank].write(events)
        self._held.clear()
        self._held_bytes = 0


def _split(file: InputFile, scratch: Scratch) -> _Split | None:
    """Return the parts of a file; None where it is no merged file, or cannot be decoded."""
    split = _Split(scratch)
    stream = JsonEvents(file, msgspec.Raw)
    try:
        for texts in stream.batches():
            split.add(texts)
    except TraceFormatError:
        return None
    return split if split.finish(file, stream) else None


def _ranks(texts: Sequence[msgspec.Raw]) -> list[tuple[int, bool]]:
    """Return the rank of each event, -1 if it names none, and whether it is complete."""
    try:
        events = _BATCH.decode(b"[%b]" % b",".join(texts))
    except DAMAGED_JSON:
        return [_rank_alone(bytes(text)) for text in texts]
    return [_rank_and_phase(event.args.rank if event.args else None, event.ph) for event in events]


def _rank_alone(text: bytes) -> tuple[int, bool]:
    """Return the same of one event that is laid out differently."""
    try:
        event = msgspec.json.decode(text.decode(errors="replace"))
    except DAMAGED_JSON:
        return _NO_RANK, False
    if not isinstance(event, dict):
        return _NO_RANK, False
    args = event.get("args")
    return _rank_and_phase(args.get("rank") if isinstance(args, dict) else None, event.get("ph"))


def _rank_and_phase(rank: object, phase: object) -> tuple[int, bool]:
    return to_int(rank, _NO_RANK, bits=32), phase == "X"


def _header_of(rank: int, header: KinetoHeader) -> KinetoHeader:
    world_size = header.distributed_info.world_size if header.distributed_info else None
    return KinetoHeader(
        distributed_info=DistributedInfo(rank=rank, world_size=world_size),
        device_properties=header.device_properties,
        base_time_nanoseconds=header.base_time_nanoseconds,
    )
