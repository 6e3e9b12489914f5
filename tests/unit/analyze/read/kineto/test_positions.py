"""Positions of operations in their groups and pairs, against a count by hand."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.read.kineto.communication import RankCommunication, assemble

_ROW = {
    "step": 0,
    "kind": "all_reduce",
    "size_bytes": 8,
    "dtype": None,
    "event_id": 0,
    "issue_ns": 0,
    "stream": 7,
}
_OPERATION = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from(["", "send", "recv"]),
    st.integers(0, 2),
    st.integers(-1, 2),
)


def _rows(rank, operations):
    return [
        _ROW
        | {"rank": rank, "group_name": group, "direction": direction, "recorded_seq": recorded}
        | {"peer": peer if direction else -1, "start_ns": at, "end_ns": at + 1}
        for at, (group, direction, peer, recorded) in enumerate(operations)
    ]


@given(st.lists(st.lists(_OPERATION, max_size=8), min_size=1, max_size=3))
def test_positions_are_those_counted_by_hand(operations):
    """Fails when an operation is matched with another one than that of the same place."""
    rows = [_rows(rank, own) for rank, own in enumerate(operations)]
    found = [RankCommunication(rank, own) for rank, own in enumerate(rows)]
    tables = assemble(found, range(3)).tables()
    everything = [row for own in rows for row in own]
    collectives = [row for row in everything if not row["direction"]]
    transfers = [row for row in everything if row["direction"]]
    for name, wanted in (("collective", _by_hand(collectives)), ("p2p", _pairs(transfers))):
        assert (tables[name]["seq"].to_pylist() if name in tables else []) == wanted


def _pairs(rows):
    seen, found = Counter(), []
    for row in rows:
        key = (row["rank"], row["group_name"], row["peer"], row["direction"])
        found.append(seen[key])
        seen[key] += 1
    return found


def _by_hand(rows):
    in_order, in_number, seen = [], [], Counter()
    for row in rows:
        place = (row["rank"], row["group_name"])
        number = (*place, row["recorded_seq"])
        in_order.append(seen[place])
        in_number.append(seen[number])
        seen[place] += 1
        seen[number] += 1
    found = []
    for at, row in enumerate(rows):
        own = [i for i, other in enumerate(rows) if other["group_name"] == row["group_name"]]
        if min(rows[i]["recorded_seq"] for i in own) < 0:
            found.append(in_order[at])
        else:
            factor = max(in_number[i] for i in own) + 1
            found.append(row["recorded_seq"] * factor + in_number[at])
    return found
