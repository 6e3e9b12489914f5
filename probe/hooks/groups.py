"""Process groups as the collective hook meets them: identity, members, sequence.

Operators carry their group as an opaque script object. Its Python object is
unboxed on every call, which is cheap, and everything else about it is looked
up once per object. Groups are held weakly: the probe must not keep a group
alive that the training code destroys.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..compat.works import process_group_named, process_groups
from ..schema.records import DIRECTION_CODES
from ..schema.terms import Axis, CollectiveKind, Direction
from .base import Capture

_AXIS_NAMES = {
    "tp": Axis.TP,
    "tensor": Axis.TP,
    "pp": Axis.PP,
    "pipe": Axis.PP,
    "pipeline": Axis.PP,
    "dp": Axis.DP,
    "data": Axis.DP,
    "dp_shard": Axis.DP,
    "dp_replicate": Axis.DP,
    "dp_shard_cp": Axis.DP,
    "dp_shard_mod_ep": Axis.DP,
    "dp_shard_in_ep": Axis.DP,
    "batch": Axis.DP,
    "shard": Axis.DP,
    "replicate": Axis.DP,
    "fsdp": Axis.DP,
    "ddp": Axis.DP,
    "cp": Axis.CP,
    "context": Axis.CP,
    "ep": Axis.EP,
    "expert": Axis.EP,
}

_SPELLED_OUT = 8
"""Groups up to this size are named by all their members."""


class Channel:
    """The messages of one direction between this rank and a peer in a group.

    Attributes:
        peer: Global rank of the peer, -1 for any.
        seq: Position of the next one.
        heads: Heads of their records by element type (None: no tensor).
        sizes: Message sizes that were seen.
    """

    __slots__ = ("heads", "peer", "seq", "sizes")

    def __init__(self, peer: int, seq: int) -> None:
        self.peer = peer
        self.seq = seq
        self.heads: dict[Any, bytes] = {}
        self.sizes: set[int] = set()


class Group:
    """One process group of this rank, and its counters.

    Attributes:
        code: Its index in the capture.
        ranks: Members as global ranks in group order; empty when not known.
        size: Number of members.
        seq: Position of the next collective on it.
        sizes: Message sizes of its collectives that were seen, by position of the kind.
        heads: Heads of the records of its collectives, by position of the kind, then
            by element type (None: no tensor).
        ends: Messages by position of the direction, then by the peer's rank in the group.
    """

    __slots__ = (
        "_channels",
        "_first_seq",
        "code",
        "ends",
        "heads",
        "ranks",
        "seq",
        "size",
        "sizes",
    )

    def __init__(
        self, code: int, ranks: tuple[int, ...], size: int, seq: int, first_seq: int = 0
    ) -> None:
        self.code = code
        self.ranks = ranks
        self.size = size
        self.seq = seq
        self.sizes: tuple[set[int], ...] = tuple(set() for _ in CollectiveKind)
        self.heads: tuple[dict[Any, bytes], ...] = tuple({} for _ in CollectiveKind)
        self.ends: tuple[dict[int, Channel], ...] = tuple({} for _ in Direction)
        self._channels: dict[tuple[Direction, int], Channel] = {}
        self._first_seq = first_seq

    def meet(self, direction: Direction, group_rank: int) -> Channel:
        """Return the messages to or from a member that had none so far, and remember them."""
        found = self.channel(direction, self.global_rank(group_rank))
        self.ends[DIRECTION_CODES[direction]][group_rank] = found
        return found

    def channel(self, direction: Direction, peer: int) -> Channel:
        """Return the messages to or from a peer."""
        key = (direction, peer)
        found = self._channels.get(key)
        if found is None:
            found = self._channels[key] = Channel(peer, self._first_seq)
        return found

    def continue_from(self, before: Group) -> None:
        """Count on after a time without watching, so that no position is given twice.

        Collectives of that time are counted where the backend counts them; some count messages
        with them. Messages are not: ranks that cease and resume at the same steps agree on
        their numbers. Others agree on all where the first number after it is given.
        """
        self.seq = max(self.seq, before.seq)
        for key in list(before._channels):
            self.channel(*key).seq = max(self._first_seq, before._channels[key].seq)

    def global_rank(self, group_rank: int) -> int:
        """Return the global rank of a member, -1 when the members are not known."""
        return self.ranks[group_rank] if 0 <= group_rank < len(self.ranks) else -1


class GroupTable:
    """All process groups that were seen, by object and by name.

    Attributes:
        by_object: Groups by the identity of their process group.
    """

    def __init__(
        self,
        capture: Capture,
        unbox: Callable[[Any], Any],
        before: GroupTable | None = None,
        first_seq: int = 0,
    ) -> None:
        """Start with no group.

        Args:
            capture: Where new groups are registered.
            unbox: Returns the process group of a script object.
            before: The table of an earlier hook, whose counting is continued.
            first_seq: Number of the first operation on any group and channel; 0 to count on.
        """
        self._capture = capture
        self._first_seq = first_seq
        self._unbox = unbox
        self.by_object: dict[int, Group] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._by_id: dict[str, Group] = {}
        self._before: dict[str, Group] = {}
        if before is not None:
            self._before = before._before | before._by_id
        self._watcher: Callable[[Any], None] | None = None

    def of(self, boxed: Any) -> Group:
        """Return the group of an operator's script object."""
        process_group = self._unbox(boxed)
        return self.by_object.get(id(process_group)) or self.meet(process_group)

    def meet(self, process_group: Any) -> Group:
        """Return the group of an object that was not seen before, and remember it."""
        self._capture.open()
        name, ranks = process_group.group_name, _members(process_group)
        group_id = _group_id(name, ranks)
        group = self._by_id.get(group_id)
        if group is None:
            description = process_group.group_desc
            # A device mesh calls its groups ``mesh_<name of the mesh dimension>``.
            axis = axis_named(description.removeprefix("mesh_"))
            code = self._capture.recorder.register_group(group_id, ranks, description, axis)
            # Ranks that attach late, each at its own moment, agree on the numbering only if it starts from
            # the backend's count. A backend without one starts at 0.
            seq = self._first_seq or _counted_by_backend(process_group) or 0
            group = Group(code, ranks, process_group.size(), seq, self._first_seq)
            self._remember(group_id, group)
            if not ranks:
                self._capture.recorder.count("group_members_unseen")
        key = id(process_group)
        self.by_object[key] = group
        self._references[key] = weakref.ref(process_group, lambda _: self._forget(key))
        if self._watcher is not None:
            self._watcher(process_group)
        return group

    def meeting(self, name: str, ranks: Sequence[int]) -> Group:
        """Return what stands for a place at which ranks wait for each other without a group of theirs."""
        self._capture.open()
        group_id = _group_id(name, tuple(ranks))
        group = self._by_id.get(group_id)
        if group is None:
            code = self._capture.recorder.register_group(group_id, tuple(ranks), name, None)
            group = Group(code, tuple(ranks), len(ranks), self._first_seq, self._first_seq)
            self._remember(group_id, group)
        return group

    def any_object(self) -> Any:
        """Return some process group that is alive, None if there is none."""
        alive = (reference() for reference in list(self._references.values()))
        return next((found for found in alive if found is not None), None)

    def operations_so_far(self) -> dict[str, int]:
        """Return how many collectives the backend counts on each group that is alive; any thread.

        Groups of backends that do not count are left out. One without an operation so far is met now: who waits in
        its first may wait for this rank.
        """
        for process_group in process_groups():
            if id(process_group) not in self.by_object:
                self.meet(process_group)
        names = {id(group): group_id for group_id, group in list(self._by_id.items())}
        found = {}
        for key, reference in list(self._references.items()):
            process_group, group = reference(), self.by_object.get(key)
            if process_group is not None and group is not None and id(group) in names:
                found[names[id(group)]] = _counted_by_backend(process_group)
        return {group_id: count for group_id, count in found.items() if count is not None}

    def ids_of(self, names: Iterable[str]) -> dict[str, str]:
        """Return the ids of groups that are alive by the names that torch gives them; any thread.

        One without an operation so far is met now.
        """
        alive = [reference() for reference in list(self._references.values())]
        objects = {one.group_name: one for one in alive if one is not None}
        found = {}
        for name in names:
            process_group = objects.get(name) or process_group_named(name)
            if process_group is not None:
                group = self.by_object.get(id(process_group)) or self.meet(process_group)
                found[name] = _group_id(name, group.ranks)
        return found

    def watch(self, act: Callable[[Any], None] | None) -> None:
        """Call something with each process group, those seen before and those to come."""
        self._watcher = act
        for reference in list(self._references.values()):
            process_group = reference()
            if act is not None and process_group is not None:
                act(process_group)

    def _remember(self, group_id: str, group: Group) -> None:
        """Keep a group that is new to this table, and count on from an earlier one."""
        if (before := self._before.get(group_id)) is not None:
            group.continue_from(before)
        self._by_id[group_id] = group

    def _forget(self, key: int) -> None:
        """Drop an object that is gone: another one may get its identity."""
        self.by_object.pop(key, None)
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


def axis_named(name: str) -> Axis | None:
    """Return the axis that a mesh dimension is named after, None where its name says nothing."""
    return _AXIS_NAMES.get(name.lower())


def _counted_by_backend(process_group: Any) -> int | None:
    """Return how many collectives the backend counts on a group; None where it does not count, or is not made yet."""
    try:
        return int(process_group._get_sequence_number_for_group())
    except RuntimeError:
        return None
