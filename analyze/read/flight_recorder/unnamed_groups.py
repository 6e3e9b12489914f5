"""Names for groups of dumps that name none: PyTorch 2.2 numbers the groups of each rank by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshscope.probe.schema.imported_tables import UNNAMED_GROUP

from .values import to_number


def with_own_groups(entries: Sequence[Mapping[str, Any]], rank: int) -> list[Mapping[str, Any]]:
    """Return entries in which each group without a name is one of its rank alone.

    Which numbers of two ranks mean one group is in no dump, but for number 0: that is the first group of all. So
    nothing is compared, and yet it is known which operation of a rank is open.

    Args:
        entries: Those of one dump, the way PyTorch wrote them.
        rank: Whose they are.
    """
    return [_named(entry, rank) for entry in entries]


def _named(entry: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    number = to_number(entry.get("pg_id"))
    is_named = "process_group" in entry or "pg_id" not in entry
    if is_named or "seq_id" not in entry or number <= 0:
        return entry
    return {**entry, "process_group": (f"{number} of rank {rank}", UNNAMED_GROUP)}
