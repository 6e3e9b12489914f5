"""Process groups of Kineto traces: one id for each, the same on all ranks."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from meshscope.probe.schema.message import message_to_cell
from meshscope.probe.schema.terms import Axis

from ...wording.message import message
from .events import to_int

_MOST_MEMBERS = 1 << 20
"""More ranks than any job has; a larger number is damage."""


class NamedGroup(NamedTuple):
    """A process group as one rank's file describes it."""

    ranks: tuple[int, ...]
    """Members as global ranks; empty where the file does not say."""
    description: str


def parse_ranks(value: object) -> tuple[int, ...]:
    """Return the members of a group; nothing where the list is cut short (``…``) or odd."""
    if isinstance(value, str):
        value = value.strip("[]() ").split(",") if "..." not in value else []
    if not isinstance(value, list):
        return ()
    members = tuple(to_int(str(rank).strip(), bits=32) for rank in value)
    return members if all(rank >= 0 for rank in members) else ()


def strided_ranks(first: object, stride: object, size: object) -> tuple[int, ...]:
    """Return members that are evenly spaced, for a list that was cut short; nothing if odd."""
    begin, step, count = (to_int(value, bits=32) for value in (first, stride, size))
    if begin < 0 or step < 1 or not 1 <= count <= _MOST_MEMBERS:
        return ()
    return tuple(range(begin, begin + count * step, step))


class GroupIdentity:
    """One id per distinct group: its name, with its ranks where ranks use a name twice.

    Where each member has another name for the same members, as when ranks make different numbers of groups before, it
    is the name that the first of them has.

    Args:
        found: For each rank of the capture, the groups that its file names.
    """

    def __init__(self, found: Mapping[int, Mapping[str, NamedGroup]]) -> None:
        self._found = found
        self._names = _common_names(found)
        self._variants: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        self._descriptions: dict[str, str] = {}
        for rank, groups in found.items():
            for own_name, group in groups.items():
                name = self._names.get((rank, own_name), own_name)
                self._descriptions[name] = self._descriptions.get(name) or group.description
                if group.ranks:
                    self._variants[name].add(group.ranks)

    def of(self, rank: int, name: str) -> str:
        """Return the id of the group that one rank calls by a name."""
        group = self._found[rank].get(name)
        return self._id(self._names.get((rank, name), name), group.ranks if group else ())

    def table(self, used: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
        """Return the rows of the group table: all groups that are listed or used.

        Args:
            used: Members of the groups that no file lists, by id: the ranks that use them.
        """
        rows: list[tuple[str, tuple[int, ...], str, str | None]] = [
            (self._id(name, ranks), ranks, name, None)
            for name, variants in self._variants.items()
            for ranks in sorted(variants)
        ]
        by_use = message_to_cell(message("axis.members_by_use"))
        listed = {row[0] for row in rows}
        rows += [(key, tuple(used[key]), key, by_use) for key in sorted(used.keys() - listed)]
        return [
            {
                "group_id": group_id,
                "axis": Axis.OTHER.value,
                "ranks": list(ranks),
                "description": self._descriptions.get(name) or None,
                "evidence": evidence,
            }
            for group_id, ranks, name, evidence in rows
        ]

    def _id(self, name: str, ranks: tuple[int, ...]) -> str:
        is_ambiguous = len(self._variants.get(name, ())) > 1
        return f"{name} ({_shorten(ranks)})" if is_ambiguous and ranks else name


def _common_names(
    found: Mapping[int, Mapping[str, NamedGroup]],
) -> dict[tuple[int, str], str]:
    """Return the name of a group on its first member, by rank and own name, where members name it differently.

    Only if all members that are there list one group of that description and these members, and no two the same name.
    """
    names: dict[tuple[tuple[int, ...], str], list[tuple[int, str]]] = defaultdict(list)
    for rank, groups in found.items():
        for name, group in groups.items():
            if group.ranks:
                names[group.ranks, group.description].append((rank, name))
    common: dict[tuple[int, str], str] = {}
    for (members, _), uses in names.items():
        users = sorted(rank for rank, _ in uses)
        is_each_once = users == sorted(set(members) & found.keys())
        if len(uses) > 1 and is_each_once and len({name for _, name in uses}) == len(uses):
            common |= dict.fromkeys(uses, min(uses)[1])
    return common


def _shorten(members: tuple[int, ...]) -> str:
    """Return ranks as text: all of them where few, else the ends, the count and a checksum."""
    if len(members) <= 8:
        return ",".join(map(str, members))
    checksum = zlib.crc32(",".join(map(str, members)).encode())
    return f"{members[0]}..{members[-1]} of {len(members)}, {checksum:08x}"
