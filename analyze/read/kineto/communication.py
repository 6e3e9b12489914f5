"""Communication kernels of Kineto traces as collective, p2p and group rows.

PyTorch attaches the collective's name, sizes, dtype and process group to the
kernel. Where it does not, the host annotation around the launch (``nccl:…``) and
then the kernel's own name say what it is, and the group is ``unnamed``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.tables import COLLECTIVE, GROUP, P2P
from meshscope.probe.schema.terms import Axis, CollectiveKind, Direction, TimeSource

from ...tables.arrays import combined
from ..kernel_names import collective_kind, dtype_name, item_bytes
from .columns import DeviceLinks, StepWindows, first_match
from .counted import Counted
from .event_columns import IntArray, Intervals, RoledEvents
from .events import DistributedInfo, EventArgs, to_int
from .groups import GroupIdentity, NamedGroup, parse_ranks, strided_ranks

UNNAMED_GROUP = "unnamed"
"""Group of the collectives for which the trace names none."""

_LIBRARY = re.compile(r"nccl|rccl|hccl|oneccl|msccl", re.IGNORECASE)
_HOST_NOTE = re.compile(r"(?:nccl|rccl|xccl|hccl|ucc|gloo|mpi):(.+)")
_CUSTOM_ALL_REDUCE = re.compile(r"cross_device_reduce\w*<[^<>]*?,\s*(\d{1,4})\s*[,>]")
"""Element type and number of members are parameters of the kernel."""
_CUSTOM_GROUP = "tensor parallel: custom all-reduce"
"""What these engines reduce so."""
_GROUPED = re.compile(r"coalesc|batch|isend|irecv", re.IGNORECASE)
_TRANSFER = re.compile(r"(send|recv)\s+(\d{1,9})\s*(?:->|<-)\s*(\d{1,9})")
"""The host's word for a transfer: own number, then that of the peer, both inside the group."""
_SENDS, _RECEIVES = frozenset({"send", "isend"}), frozenset({"recv", "irecv", "recv_anysource"})


class RankCommunication(msgspec.Struct):
    """What one rank's file says about its communication."""

    rank: int
    rows: list[dict[str, object]] = msgspec.field(default_factory=list)
    groups: dict[str, NamedGroup] = msgspec.field(default_factory=dict)
    """Process groups by name, as far as this rank knows them."""
    counts: Counter[Counted] = msgspec.field(default_factory=Counter)
    """How often something could not be read, by the sentence about it."""
    world_size: int = -1
    """Ranks of the job by its header, -1 if it does not say."""


def rank_communication(
    rank: int,
    info: DistributedInfo,
    roles: RoledEvents,
    issued: IssueContext,
) -> RankCommunication:
    """Return one row per communication kernel of a rank, and its groups."""
    found = RankCommunication(rank, world_size=to_int(info.world_size, bits=32))
    for config in info.pg_config or ():
        group = NamedGroup(parse_ranks(config.ranks), str(config.pg_desc or ""))
        found.groups[str(config.pg_name)] = group
    device = roles.device
    places = np.array(sorted(roles.communication), dtype=np.int64)
    for i in places[np.argsort(device.start[places], kind="stable")].tolist():
        named = _Kernel(roles.names[device.name[i]], roles.communication[i])
        row = _row(found, named, issued.host_name(i), i)
        if row is not None:
            found.rows.append(row | {"stream": int(device.stream[i])} | issued.times(i))
    return found


class IssueContext(msgspec.Struct, frozen=True):
    """When each device activity was issued, in which step, and what the host said around it."""

    time: Intervals
    """When the device worked."""
    links: DeviceLinks
    step: IntArray
    note_names: list[str]
    notes: Intervals
    """Host annotations of collectives, sorted by start."""
    note_of: IntArray
    """The annotation of each device activity by its id, -1 if none."""

    @classmethod
    def of(cls, roles: RoledEvents, links: DeviceLinks, steps: StepWindows) -> IssueContext:
        """Keep the host annotations that name a collective."""
        word_of = {code: match[1] for code, match in roles.names_like(_HOST_NOTE).items()}
        named = roles.host_note.named(word_of)
        order = np.argsort(named.start, kind="stable")
        return cls(
            roles.device.time,
            links,
            steps.step_of(links.launch),
            [word_of[code] for code in named.name[order].tolist()],
            Intervals(named.start[order], named.dur[order]),
            first_match(roles.device.external_id, named.external_id[order], named.start[order])
            if len(named.external_id) and len(roles.device.external_id)
            else np.full(len(roles.device), -1, dtype=np.int64),
        )

    def host_name(self, i: int) -> str:
        """Return the collective that the host announced around the launch, or nothing."""
        if not self.links.is_linked[i]:
            return ""
        launch = self.links.launch[i]
        place = int(self.note_of[i])
        if place < 0 or not self.notes.start[place] <= launch <= self.notes.end[place]:
            place = int(np.searchsorted(self.notes.start, launch, side="right")) - 1
        if place < 0 or self.notes.end[place] < launch:
            return ""
        return self.note_names[place]

    def times(self, i: int) -> dict[str, object]:
        """Return the step and times of one row, ns."""
        time = self.time
        return {
            "step": int(self.step[i]),
            "issue_ns": int(self.links.launch[i]),
            "start_ns": int(time.start[i]),
            "end_ns": int(time.start[i] + time.dur[i]),
        }


class _Kernel(NamedTuple):
    name: str
    args: EventArgs


def _row(
    found: RankCommunication, kernel: _Kernel, host_name: str, i: int
) -> dict[str, object] | None:
    """Return what one communication kernel is, or None where it is no one operation."""
    args = kernel.args
    name = str(args.collective_name or host_name)
    if not name and not _LIBRARY.search(kernel.name) and not _joins_all(kernel.name, found):
        found.counts[Counted.FOREIGN] += 1
        return None
    direction, peer, kind = _operation(name, kernel.name, args)
    is_custom = args.group_name is None and not name and _joins_all(kernel.name, found)
    group = _CUSTOM_GROUP if is_custom else ""
    if not is_custom and (direction or not _GROUPED.search(name)):
        group = _group_of(found, args)
    if direction and peer < 0:
        peer = _peer_in_name(found, group, host_name)
    if not direction and kind == CollectiveKind.OTHER and _GROUPED.search(name):
        found.counts[Counted.GROUPED_TRANSFERS] += 1
        return None
    if direction and peer < 0:
        found.counts[Counted.NO_PEER] += 1
    return {
        "rank": found.rank,
        "group_name": group or _group_of(found, args),
        "direction": direction,
        "peer": peer,
        "kind": kind.value,
        "size_bytes": _size_bytes(found, args, kind),
        "dtype": None if args.dtype is None else dtype_name(str(args.dtype)),
        "event_id": i,
        "recorded_seq": to_int(args.seq),
    }


def _joins_all(kernel_name: str, found: RankCommunication) -> bool:
    """Return whether it is the all-reduce of an inference engine over all ranks of the job.

    Its members are a parameter of the kernel; of which ranks a smaller group consists is not known.
    """
    custom = _CUSTOM_ALL_REDUCE.search(kernel_name)
    if custom is None or int(custom[1]) != found.world_size:
        return False
    found.groups.setdefault(
        _CUSTOM_GROUP, NamedGroup(tuple(range(found.world_size)), _CUSTOM_GROUP)
    )
    return True


def _peer_in_name(found: RankCommunication, group: str, host_name: str) -> int:
    """Return the rank that ``send 0->1`` names, -1 if it names none.

    Its numbers count the members of the group; where these are not known, or the first number is not
    that of this rank among them, the ranks of the job are meant.
    """
    transfer = _TRANSFER.search(host_name)
    if transfer is None:
        return -1
    own, peer = int(transfer[2]), int(transfer[3])
    known = found.groups.get(group)
    ranks = known.ranks if known is not None else ()
    if max(own, peer) < len(ranks) and ranks[own] == found.rank:
        return int(ranks[peer])
    return peer if own == found.rank else -1


def _operation(name: str, kernel_name: str, args: EventArgs) -> tuple[str, int, CollectiveKind]:
    """Return direction and peer of a send or receive, or the kind of a collective."""
    word = name.lower().partition(" ")[0]
    if word in _SENDS:
        return Direction.SEND.value, to_int(args.destination_rank, bits=32), CollectiveKind.OTHER
    if word in _RECEIVES:
        return Direction.RECV.value, to_int(args.source_rank, bits=32), CollectiveKind.OTHER
    kind = collective_kind(name)
    return "", -1, collective_kind(kernel_name) if kind == CollectiveKind.OTHER else kind


def _group_of(found: RankCommunication, args: EventArgs) -> str:
    if args.group_name is None:
        found.counts[Counted.NO_GROUP] += 1
        return UNNAMED_GROUP
    name = str(args.group_name)
    known = found.groups.get(name)
    if known is None or not known.ranks:
        description = known.description if known else str(args.group_description or "")
        ranks = parse_ranks(args.group_ranks) or strided_ranks(
            args.first_rank, args.rank_stride, args.group_size
        )
        found.groups[name] = NamedGroup(ranks, description)
    return name


def _size_bytes(found: RankCommunication, args: EventArgs, kind: CollectiveKind) -> int:
    """Return the message size: output for all-gather, input otherwise."""
    elements = args.out_elements if kind == CollectiveKind.ALL_GATHER else args.in_elements
    item = item_bytes(str(args.dtype))
    if elements is None or not item:
        found.counts[Counted.NO_SIZE] += 1
        return 0
    return max(to_int(elements, 0, bits=56), 0) * item


class CommunicationTables(msgspec.Struct, frozen=True):
    """Rows of the three tables over all ranks."""

    group: list[dict[str, Any]]
    rows: pa.Table | None = None
    """Collectives and transfers, of which ``seq`` counts each kind by itself."""

    def tables(self) -> dict[str, pa.Table]:
        """Return those that have rows, by name."""
        tables = {}
        if self.rows is not None:
            is_p2p = pc.not_equal(self.rows["direction"], "")
            parts = {COLLECTIVE: self.rows.filter(pc.invert(is_p2p)), P2P: self.rows.filter(is_p2p)}
            tables = {spec.name: spec.conform(own) for spec, own in parts.items() if own.num_rows}
        if self.group:
            tables[GROUP.name] = GROUP.conform(pa.Table.from_pylist(self.group))
        return tables


def assemble(found: Sequence[RankCommunication], world: Sequence[int]) -> CommunicationTables:
    """Give groups one identity over all ranks, and rows their position in them.

    Args:
        found: What each rank's file says.
        world: Members that the collectives without a group are taken to have.
    """
    identity = GroupIdentity({one.rank: one.groups for one in found})
    rows = pa.Table.from_pylist([row for one in found for row in one.rows], schema=_ROWS)
    if not rows.num_rows:
        return CommunicationTables(identity.table({}))
    rank = rows["rank"].to_numpy()
    names = _by_stream(rows)
    group_ids = [identity.of(one, name) for one, name in zip(rank.tolist(), names, strict=True)]
    group = pa.array(group_ids).dictionary_encode()
    count = rows.num_rows
    added = {
        "group_id": group,
        "axis": pa.repeat(Axis.OTHER.value, count),
        "seq": pa.array(_positions(rows, np.asarray(group.indices, dtype=np.int64))),
        "microbatch": pa.repeat(-1, count),
        "chunk": pa.repeat(-1, count),
    }
    for name, column in added.items():
        rows = rows.append_column(name, column)
    source = pc.fill_null(rows["source"], TimeSource.DEVICE.value)
    rows = rows.set_column(rows.column_names.index("source"), "source", source)
    used: dict[str, set[int]] = defaultdict(set)
    for key, one in set(zip(group_ids, rank.tolist(), strict=True)):
        used[key].add(one)
    members = {
        key: list(world) if key.startswith(UNNAMED_GROUP) else sorted(own)
        for key, own in used.items()
    }
    return CommunicationTables(identity.table(members), rows)


def _by_stream(rows: pa.Table) -> list[str]:
    """Return the names of the groups, the unnamed one divided by stream where that is plain.

    A communicator has a stream of its own. The streams of two ranks are taken to be the
    same where all ranks use the same ids, else, if they use equally many, where they began
    to be used in the same place.
    """
    names: list[str] = rows["group_name"].to_pylist()
    # A transfer with a peer is matched by its pair, and both ends may be on streams of their own.
    is_pair = pc.and_(pc.not_equal(rows["direction"], ""), pc.greater_equal(rows["peer"], 0))
    is_unnamed = pc.and_not(pc.equal(rows["group_name"], UNNAMED_GROUP), is_pair)
    places = np.flatnonzero(is_unnamed.to_numpy())
    places = places[np.argsort(rows["start_ns"].to_numpy()[places], kind="stable")]
    ranks = rows["rank"].to_numpy()[places].tolist()
    streams = rows["stream"].to_numpy()[places].tolist()
    used: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, stream in dict.fromkeys(zip(ranks, streams, strict=True)):
        used[rank][stream] = len(used[rank])
    if max(map(len, used.values()), default=0) < 2 or len(set(map(len, used.values()))) > 1:
        return names
    is_alike = len(set(map(frozenset, used.values()))) == 1
    for place, rank, stream in zip(places.tolist(), ranks, streams, strict=True):
        label = str(stream) if is_alike else f"number {used[rank][stream]}"
        names[place] = f"{UNNAMED_GROUP}, stream {label}"
    return names


_WHOLE = (
    "rank",
    "step",
    "peer",
    "size_bytes",
    "event_id",
    "recorded_seq",
    "stream",
    "issue_ns",
    "start_ns",
    "end_ns",
    "wait_start_ns",
    "wait_end_ns",
)
_WORDS = ("group_name", "kind", "direction", "dtype", "source")
_ROWS = pa.schema(
    [(name, pa.int64()) for name in _WHOLE] + [(name, pa.string()) for name in _WORDS]
)
"""What the ranks say of each operation."""


def _positions(rows: pa.Table, group: IntArray) -> IntArray:
    """Return the position of each collective in its group, and of each transfer in its pair.

    Of a collective the recorded sequence number where all rows of the group carry one; grouped
    kernels share a number and are distinguished by their order. Otherwise the order
    of their starts on the rank.
    """
    rank, recorded = rows["rank"].to_numpy(), rows["recorded_seq"].to_numpy()
    direction = np.asarray(
        rows["direction"].combine_chunks().dictionary_encode().indices, dtype=np.int64
    )
    is_p2p = pc.not_equal(rows["direction"], "").to_numpy()
    seq = np.zeros(len(rank), dtype=np.int64)
    # Sender and receiver count their operations on the whole group, not on the
    # pair, so a recorded number does not join them; the order within the pair does.
    peer = rows["peer"].to_numpy()
    seq[is_p2p] = _running(combined(rank, group, peer, direction)[is_p2p])
    rank, group, recorded = (column[~is_p2p] for column in (rank, group, recorded))
    by_order = _running(combined(rank, group))
    repeat = _running(combined(rank, group, recorded))
    groups = int(group.max(initial=-1)) + 1
    least, most = np.full(groups, np.iinfo(np.int64).max), np.zeros(groups, dtype=np.int64)
    np.minimum.at(least, group, recorded)
    np.maximum.at(most, group, repeat)
    by_number = recorded * (most[group] + 1) + repeat
    seq[~is_p2p] = np.where(least[group] >= 0, by_number, by_order)
    return seq


def _running(keys: IntArray) -> IntArray:
    """Return for each row how many rows before it have its key."""
    order = np.argsort(keys, kind="stable")
    grouped = keys[order]
    first = np.append(True, grouped[1:] != grouped[:-1])[: len(keys)]
    begin = np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0))
    found = np.empty(len(keys), dtype=np.int64)
    found[order] = np.arange(len(keys)) - begin
    return found
