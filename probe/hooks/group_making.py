"""The making of process groups, in which members wait for each other without an operation.

Backends that connect their members at once (gloo) block in ``new_group`` until the last of them
has come. That is a barrier of the members that no dispatcher sees: without it a rank that waits
there for a late one seems to spend the time itself. It is recorded as one, on a group of its own
kind, as the backend does not count it among the operations of the new group.

The barrier of all ranks that ``TORCH_DIST_INIT_BARRIER=1`` puts behind each new group is another.
NCCL makes its communicators later, at the first operation, which is recorded anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Signature, signature
from typing import Any

from ..clock import now_ns
from ..compat.works import group_makers
from ..recording.record_heads import collective_head
from ..schema.message import message, message_to_json
from ..schema.records import COLLECTIVE_CODES
from ..schema.terms import CollectiveKind
from .base import Capture, Patches, Source
from .groups import GroupTable

_NO_TYPE = -1
_CONNECTS_AT_ONCE = ("gloo", "undefined")
"""What a backend's name holds whose members meet when the group is made. Undefined is torch's
default, of which gloo is a part."""

_Meeting = tuple[str, Sequence[int]]
"""Name of the group that is made, and the global ranks that wait for each other."""


class GroupMaking:
    """Records where ranks wait for each other while a group is made."""

    def __init__(self, capture: Capture, source: Source) -> None:
        self._capture = capture
        self._source = source
        self._patches = Patches(source)
        self._groups: GroupTable | None = None

    def install(self, groups: GroupTable) -> None:
        """Wrap the functions in which members meet; what this torch lacks is noted."""
        self._groups = groups
        owner, makers = group_makers()
        for name, of_call in _MEETINGS.items():
            if name in makers:
                self._patches.replace(owner, name, self._wrap(of_call))
        if missing := _MEETINGS.keys() - makers:
            lacking = message("absent.name", name=", ".join(sorted(missing)))
            self._capture.recorder.annotate("group_making.missing", message_to_json(lacking))

    def remove(self) -> None:
        """Restore what was wrapped."""
        self._patches.restore()

    def _wrap(self, of_call: Callable[[dict[str, Any]], _Meeting | None]) -> Any:
        def decorate(original: Any) -> Any:
            form = signature(original)

            @wraps(original)
            def meet(*args: Any, **kwargs: Any) -> Any:
                event_id = self._begin(of_call, form, args, kwargs)
                start_ns = now_ns()
                result = original(*args, **kwargs)
                if event_id >= 0:
                    self._end(event_id, start_ns)
                return result

            return meet

        return decorate

    def _begin(
        self,
        of_call: Callable[[dict[str, Any]], _Meeting | None],
        form: Signature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> int:
        """Record that this rank has come; return the event id, -1 where nobody waits."""
        try:
            if not self._source.on or self._groups is None:
                return -1
            meeting = of_call(form.bind(*args, **kwargs).arguments)
            if meeting is None:
                return -1
            group = self._groups.meeting(*meeting)
            kind = COLLECTIVE_CODES[CollectiveKind.BARRIER]
            head = collective_head(group.code, kind, _NO_TYPE)
            seq, group.seq = group.seq, group.seq + 1
            return self._capture.recorder.issue_collective(head, seq, 0, now_ns())
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)
            return -1

    def _end(self, event_id: int, start_ns: int) -> None:
        try:
            end_ns = now_ns()
            self._capture.recorder.complete(event_id, end_ns, start_ns, end_ns)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)


def _members_that_connect(arguments: dict[str, Any]) -> _Meeting | None:
    """Return who waits for whom in making a group; None in a rank or a backend that does not.

    The group of all ranks is made without a list of them, before anything can be recorded.
    """
    ranks = arguments["global_ranks_in_group"]
    backend = str(arguments["backend"]).lower()
    if arguments["group_rank"] is None or len(ranks) < 2:
        return None
    if not any(name in backend for name in _CONNECTS_AT_ONCE):
        return None
    return f"new_group {arguments['group_name']}", ranks


def _all_ranks(arguments: dict[str, Any]) -> _Meeting | None:
    """Return who waits at the barrier behind a new group, None where only its members do."""
    import torch.distributed as dist

    if not dist.is_initialized() or arguments["rendezvous_count"] != dist.get_world_size():
        return None
    return f"barrier after new_group {arguments['group_name']}", range(dist.get_world_size())


_MEETINGS = {
    "_new_process_group_helper": _members_that_connect,
    "_store_based_barrier": _all_ranks,
}
"""Which meeting a call is, by the name of the function."""
