"""Which microbatch a point-to-point message carries."""

from __future__ import annotations

from typing import Any

from ..heads import NOT_CARRIED, carried
from ..schema.terms import Direction

_MOST = 1024


class MessageTags:
    """Microbatch and chunk by direction and buffer, told ahead by the pipeline hook.

    A schedule builds its send and receive operations right before it issues
    them, so the address of the buffer identifies the message. A tag whose
    message never comes is dropped with the rest when too many have gathered.
    """

    def __init__(self) -> None:
        self._tags: dict[tuple[Direction, int], int] = {}

    def put(self, direction: Direction, tensor: Any, microbatch: int, chunk: int) -> None:
        """Announce the message that uses this buffer next."""
        if len(self._tags) >= _MOST:
            self._tags.clear()
        self._tags[direction, tensor.data_ptr()] = carried(microbatch, chunk)

    def take(self, direction: Direction, tensors: list[Any]) -> int:
        """Return what a message carries (``heads.carried``), NOT_CARRIED when not announced."""
        if not self._tags or not tensors:
            return NOT_CARRIED
        return self._tags.pop((direction, tensors[0].data_ptr()), NOT_CARRIED)
