"""Which microbatch a point-to-point message carries."""

from __future__ import annotations

from typing import Any

from ..recording.record_heads import NOT_CARRIED, carried
from ..schema.terms import Direction

_MOST = 1024
"""More than any schedule has in flight: what is still here was never sent, and must not pile up."""


class MessageTags:
    """Microbatch and chunk by direction and buffer, set ahead by the pipeline hook.

    A schedule builds its send and receive operations right before it issues
    them, so the address of the buffer identifies the message. A tag whose
    message never comes is dropped with the rest when too many have gathered.

    Attributes:
        announced: Those that were not taken yet.
    """

    def __init__(self) -> None:
        self.announced: dict[tuple[Direction, int], int] = {}

    def put(self, direction: Direction, tensor: Any, microbatch: int, chunk: int) -> None:
        """Announce the message that uses this buffer next."""
        if len(self.announced) >= _MOST:
            self.announced.clear()
        self.announced[direction, tensor.data_ptr()] = carried(microbatch, chunk)

    def take(self, direction: Direction, tensors: list[Any]) -> int:
        """Return what a message carries (``heads.carried``), NOT_CARRIED when not announced."""
        if not self.announced or not tensors:
            return NOT_CARRIED
        return self.announced.pop((direction, tensors[0].data_ptr()), NOT_CARRIED)
