"""The parts of records that are the same in all of their like, packed once.

Every number that goes into a record costs the training thread; these are made once and
stored as one piece. Words are positions in their enums (``schema.records``).
"""

from __future__ import annotations

from functools import lru_cache

from ..schema.records import (
    COLLECTIVE_RECORD,
    MEMORY_RECORD,
    NO_WORD,
    P2P_RECORD,
    SPAN_RECORD,
    STEP_RECORD,
)

_MOST = 4096
"""A rank has far fewer kinds of spans, groups and peers; what comes in excess is packed anew."""

STEP_HEADS = tuple(STEP_RECORD.pack_head(level) for level in range(NO_WORD + 1))
"""Heads of steps, by position in CaptureLevel of what was recorded."""

NOT_CARRIED = -1
"""Stands for a message of which neither microbatch nor chunk is known."""


@lru_cache(maxsize=_MOST)
def memory_head(phase: int, stage: int = -1) -> bytes:
    """Return the head of a memory record.

    Args:
        phase: Position in MemoryPhase.
        stage: Pipeline stage, -1 if none.

    Raises:
        struct.error: A number is no integer or too large.
    """
    return MEMORY_RECORD.pack_head(stage, phase)


@lru_cache(maxsize=_MOST)
def span_head(kind: int, stage: int = -1, chunk: int = -1) -> bytes:
    """Return the head of a span.

    Args:
        kind: Position in SpanKind.
        stage: Pipeline stage, -1 if none.
        chunk: Virtual stage on this rank, -1 if none.

    Raises:
        struct.error: A number is no integer or too large.
    """
    return SPAN_RECORD.pack_head(stage, chunk, kind)


@lru_cache(maxsize=_MOST)
def collective_head(group: int, kind: int, dtype: int) -> bytes:
    """Return the head of a collective.

    Args:
        group: Index from ``Recorder.register_group``.
        kind: Position in CollectiveKind.
        dtype: Index from ``Recorder.register_dtype``, -1 if unknown.

    Raises:
        struct.error: A number is no integer or too large.
    """
    return COLLECTIVE_RECORD.pack_head(group, dtype, kind)


@lru_cache(maxsize=_MOST)
def p2p_head(group: int, direction: int, peer: int, dtype: int) -> bytes:
    """Return the head of a send or receive.

    Args:
        group: Index from ``Recorder.register_group``.
        direction: Position in Direction.
        peer: Global rank of the other end, -1 if any.
        dtype: Index from ``Recorder.register_dtype``, -1 if unknown.

    Raises:
        struct.error: A number is no integer or too large.
    """
    return P2P_RECORD.pack_head(group, peer, dtype, direction)


def carried(microbatch: int, chunk: int = -1) -> int:
    """Return as one number which microbatch and chunk a message carries, -1 for unknown ones."""
    return (chunk << 32) | (microbatch & 0xFFFFFFFF)
