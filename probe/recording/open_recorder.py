"""Opens the recorder of a rank, or one that records nothing where that cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .pair_notes import PairNotes
from .recorder import Recorder
from .writer import StorageSettings


class NullRecorder(Recorder):
    """A recorder that records nothing: hooks need not ask whether there is one.

    Attributes:
        reason: Why nothing is recorded; empty if that was asked for.
    """

    def __init__(self, rank: int = -1, *, reason: str = "") -> None:
        """Touch neither disk nor threads."""
        self.rank = rank
        self.step = -1
        self.directory = None
        self.pairs = PairNotes(None)
        self.reason = reason

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Store nothing."""

    def _no_index(self, *_: Any, **__: Any) -> int:
        """Store nothing; return an index or event id that stands for none."""
        return -1

    register_group = _no_index
    register_dtype = _no_index
    issue_collective = _no_index
    issue_p2p = _no_index
    record_step = _nothing
    record_span = _no_index
    record_device_time = _nothing
    complete = _nothing
    record_memory = _nothing
    record_microbatch = _nothing
    count = _nothing
    annotate = _nothing
    flush = _nothing
    keep_ring = _nothing
    give_sign_of_life = _nothing
    publish = _nothing
    close = _nothing


def open_recorder(
    run_path: Path,
    rank: int,
    *,
    device_uuid: str | None = None,
    settings: StorageSettings | None = None,
    place: Mapping[str, int | None] | None = None,
) -> Recorder:
    """Return a recorder for a rank, or a NullRecorder with the reason why there is none."""
    try:
        return Recorder(run_path, rank, device_uuid=device_uuid, settings=settings, place=place)
    except OSError as error:
        return NullRecorder(rank, reason=f"{error.filename or run_path}: {error.strerror}")
    except RuntimeError as error:
        return NullRecorder(rank, reason=f"no thread for the writer: {error}")
