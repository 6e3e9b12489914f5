"""Parts that follow each other made one: numbers that go on, and names in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .assemble import manifest_groups, manifest_names
from .rank_records import Made, RankRecords
from .step_numbers import attached_while_running

_SLOT_COLUMNS = ("slot_seq", "event_id", "end_seq")
"""Columns that count the records of one part."""


class Shifts:
    """How far the numbers of the next attempt are moved."""

    def __init__(self) -> None:
        self._steps = 0
        self._slots: dict[int, int] = {}
        self._operations: dict[str, int] = {}

    def move(self, parts: Mapping[int, RankRecords], *, steps: int) -> None:
        """Move the numbers of an attempt behind those of the attempts so far.

        A part that was attached while its process ran took the numbers of
        collectives from the backend, which kept counting: these stay.

        Args:
            parts: Those of the attempt by rank, changed in place.
            steps: How many steps the attempt has.
        """
        ends: dict[str, int] = {}
        for rank, part in parts.items():
            groups = manifest_names(part.manifest)[0]
            counted = not attached_while_running(part)
            for name, table in part.tables.items():
                moved = self._moved(table, rank, groups, counted=counted)
                part.tables[name] = moved
                for group_id, end in _ends_of_groups(moved, groups).items():
                    ends[group_id] = max(end, ends.get(group_id, 0))
            newest = [int(pc.max(table["slot_seq"]).as_py()) for table in part.tables.values()]
            self._slots[rank] = max(newest, default=self._slots.get(rank, 0))
        self._steps += steps
        for group_id, end in ends.items():
            self._operations[group_id] = max(end, self._operations.get(group_id, 0))

    def _moved(
        self, table: pa.Table, rank: int, groups: Mapping[int, str], *, counted: bool
    ) -> pa.Table:
        for name in _SLOT_COLUMNS:
            if name in table.column_names:
                table = _plus(table, name, self._slots.get(rank, 0))
        if "step" in table.column_names:
            table = _plus(table, "step", self._steps)
        if counted and "seq" in table.column_names and "group" in table.column_names:
            codes = table["group"].to_numpy()
            by_code = {code: self._operations.get(name, 0) for code, name in groups.items()}
            shift = np.array([by_code.get(int(code), 0) for code in np.unique(codes)])
            table = _plus(table, "seq", shift[np.searchsorted(np.unique(codes), codes)])
        return table


def _plus(table: pa.Table, name: str, amount: Any) -> pa.Table:
    place = table.column_names.index(name)
    kind = table.schema.field(place)
    moved = np.asarray(table[name].to_numpy()) + amount
    return table.set_column(place, kind, pa.array(moved, kind.type))


def _ends_of_groups(table: pa.Table, groups: Mapping[int, str]) -> dict[str, int]:
    """Return one more than the highest number of an operation, by group."""
    if "seq" not in table.column_names or "group" not in table.column_names:
        return {}
    ends = table.group_by("group").aggregate([("seq", "max")]).to_pylist()
    return {groups[row["group"]]: int(row["seq_max"]) + 1 for row in ends if row["group"] in groups}


def concatenated(parts: Sequence[RankRecords], *, is_in_newest: bool) -> RankRecords:
    """Return the parts of a rank as one, with the manifest of the newest."""
    names = _Names(parts[-1].manifest)
    pieces: dict[str, list[pa.Table]] = {}
    for part in parts:
        for name, table in part.tables.items():
            pieces.setdefault(name, []).append(names.translated(table, part.manifest))
    manifest = names.manifest()
    if manifest is not None:
        first_event_id = _first_slot_of_newest(parts)
        manifest["newest_attempt"] = {"recorded": is_in_newest, "first_event_id": first_event_id}
    return replace(
        parts[-1],
        manifest=manifest,
        tables={name: pa.concat_tables(found) for name, found in pieces.items()},
        limits=[limit for part in parts for limit in part.limits],
        made=sum((part.made for part in parts), Made()),
    )


def _first_slot_of_newest(parts: Sequence[RankRecords]) -> int:
    """Return where the newest part begins; behind all others where it has recorded nothing yet."""
    own = [int(pc.min(table["slot_seq"]).as_py()) for table in parts[-1].tables.values()]
    before = (table for part in parts[:-1] for table in part.tables.values())
    last = max((int(pc.max(table["slot_seq"]).as_py()) for table in before), default=-1)
    return min(own, default=last + 1)


class _Names:
    """Groups and element types of several parts under common numbers."""

    def __init__(self, newest: Mapping[str, Any] | None) -> None:
        self._newest = newest
        self._groups: dict[str, dict[str, Any]] = {}
        self._dtypes: list[str] = []

    def translated(self, table: pa.Table, manifest: Mapping[str, Any] | None) -> pa.Table:
        """Return records with the common numbers; what has no name keeps none (-1)."""
        for column, codes in (("group", self._group_codes), ("dtype", self._dtype_codes)):
            if column in table.column_names:
                known = codes(manifest or {})
                found, places = np.unique(table[column].to_numpy(), return_inverse=True)
                common = np.array([known.get(int(code), -1) for code in found], dtype=np.int64)
                place = table.column_names.index(column)
                kind = table.schema.field(place)
                table = table.set_column(place, kind, pa.array(common[places], kind.type))
        return table

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest of the newest part with the common names."""
        if self._newest is None:
            return None
        return {**self._newest, "groups": list(self._groups.values()), "dtypes": self._dtypes}

    def _group_codes(self, manifest: Mapping[str, Any]) -> dict[int, int]:
        codes = {}
        for group in manifest_groups(manifest):
            name = group["group_id"]
            common = self._groups.setdefault(name, {**group, "index": len(self._groups)})
            codes[int(group["index"])] = int(common["index"])
        return codes

    def _dtype_codes(self, manifest: Mapping[str, Any]) -> dict[int, int]:
        codes = {}
        for code, name in enumerate(manifest_names(manifest)[1]):
            if name not in self._dtypes:
                self._dtypes.append(name)
            codes[code] = self._dtypes.index(name)
        return codes
