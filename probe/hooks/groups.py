"""Process groups as the collective hook meets them: identity, members, sequence.

Operators carry their group as an opaque script object. Its Python object is
unboxed on every call, which is cheap, and everything else about it is looked
up once per object. Groups are held weakly: the probe must not keep a group
alive that the training code destroys.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable
from typing import Any

from ..schema.terms import Axis, Direction
from .base import Capture

_AXIS_NAMES = {
    "tp": Axis.TP,
    "pp": Axis.PP,
    "dp": Axis.DP,
    "dp_shard": Axis.DP,
    "dp_replicate": Axis.DP,
    "shard": Axis.DP,
    "replicate": Axis.DP,
    "fsdp": Axis.DP,
    "ddp": Axis.DP,
    "cp": Axis.CP,
    "ep": Axis.EP,
}

_SPELLED_OUT = 8
"""Groups up to this size are named by all their members."""


class Group:
    """One process group of this rank, and its counters.

    Attributes:
        code: Its index in the capture.
        ranks: Members as global ranks in group order; empty when not known.
        size: Number of members.
        seq: Position of the next collective on it.
    """

    __slots__ = ("_messages", "code", "ranks", "seq", "size")

    def __init__(self, code: int, ranks: tuple[int, ...], size: int, seq: int) -> None:
        self.code = code
        self.ranks = ranks
        self.size = size
        self.seq = seq
        self._messages: dict[tuple[Direction, int], int] = {}

    def next_message(self, direction: Direction, peer: int) -> int:
        """Return the position of the next message to or from a peer."""
        key = (direction, peer)
        seq = self._messages.get(key, 0)
        self._messages[key] = seq + 1
        return seq

    def global_rank(self, group_rank: int) -> int:
        """Return the global rank of a member, -1 when the members are not known."""
        return self.ranks[group_rank] if 0 <= group_rank < len(self.ranks) else -1


class GroupTable:
    """All process groups that were seen, by object and by name."""

    def __init__(self, capture: Capture, unbox: Callable[[Any], Any]) -> None:
        self._capture = capture
        self._unbox = unbox
        self._by_object: dict[int, Group] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._by_id: dict[str, Group] = {}

    def of(self, boxed: Any) -> Group:
        """Return the group of an operator's script object."""
        process_group = self._unbox(boxed)
        return self._by_object.get(id(process_group)) or self._meet(process_group)

    def _meet(self, process_group: Any) -> Group:
        self._capture.open()
        name, ranks = process_group.group_name, _members(process_group)
        group_id = _group_id(name, ranks)
        group = self._by_id.get(group_id)
        if group is None:
            code = self._capture.recorder.register_group(
                group_id, ranks, process_group.group_desc, _axis(process_group.group_desc)
            )
            group = Group(code, ranks, process_group.size(), _operations_so_far(process_group))
            self._by_id[group_id] = group
            if not ranks:
                self._capture.recorder.count("group_members_unseen")
        key = id(process_group)
        self._by_object[key] = group
        self._references[key] = weakref.ref(process_group, lambda _: self._forget(key))
        return group

    def _forget(self, key: int) -> None:
        """Drop an object that is gone: another one may get its identity."""
        self._by_object.pop(key, None)
        self._references.pop(key, None)


def _members(process_group: Any) -> tuple[int, ...]:
    """Return the global ranks of a group in group order, or () when nobody knows.

    A group that was made in C++ is not registered in Python. If it has the
    size of the world, it can still be only the world.
    """
    import torch.distributed as dist

    try:
        return tuple(dist.get_process_group_ranks(process_group))
    except (KeyError, ValueError, RuntimeError):
        size = process_group.size()
        return tuple(range(size)) if size == dist.get_world_size() else ()


def _group_id(name: str, ranks: tuple[int, ...]) -> str:
    """Return a name that is the same on all members and on no other group.

    The framework's name alone is not enough: sibling groups that were split
    from one parent may share it.
    """
    if len(ranks) <= _SPELLED_OUT:
        return f"{name}[{','.join(map(str, ranks))}]"
    check = zlib.crc32(",".join(map(str, ranks)).encode())
    return f"{name}[{ranks[0]}..{ranks[-1]} x{len(ranks)} {check:08x}]"


def _axis(description: str) -> Axis | None:
    """Return the axis that a group is named after, None where its name says nothing.

    A device mesh calls its groups ``mesh_<name of the mesh dimension>``.
    """
    return _AXIS_NAMES.get(description.lower().removeprefix("mesh_"))


def _operations_so_far(process_group: Any) -> int:
    """Return how many collectives the backend counts on a group already.

    Ranks that attach late, each at its own moment, agree on the numbering only
    if it starts from the backend's count. A backend without one starts at 0.
    """
    try:
        return int(process_group._get_sequence_number_for_group())
    except RuntimeError:
        return 0
