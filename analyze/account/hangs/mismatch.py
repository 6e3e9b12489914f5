"""Members of one collective that issued different things: another kind, size, type, root, or order.

A collective joins the members of a group by their count of operations alone. Where one rank
leaves an operation out, or gives another size, the backend waits for ever, fails, or breaks the sockets of
its neighbours; so who ended first, or waits, tells nothing. The records tell: up to the first
collective of a group in which its members differ, all have issued the same.

Four ranks; 2 has left an operation out::

    number        28    29    30
    0, 1, 3       A     B     C
    2             A     B     A     A follows B in the steps before: 2 left out C
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.imported_tables import ELEMENTS
from meshscope.probe.schema.standstill_tables import NO_GROUP
from meshscope.probe.schema.terms import CollectiveKind

from ...tables.trace import Trace
from .newest_attempt import rows_of_newest_attempt

UNEVEN = frozenset({CollectiveKind.ALL_TO_ALL.value, CollectiveKind.OTHER.value})
"""Kinds whose members may give different sizes. Those with a root count what each of its peers gives or gets."""
SPARSE = "sparse_"
"""How the type of a sparse tensor begins: members may give different sizes of it."""
LOOKED_BACK = 10_000
"""Operations of a group that are compared: the job stands in one of its last."""
_COLUMNS = ["rank", "step", "group_id", "seq", "kind", "size_bytes", "dtype", "root", "end_ns"]
_ISSUED = ["kind", "size_bytes", "dtype", "elements", "root"]


class Issue(NamedTuple):
    """What a member issued; a number -1 and an empty type are not known."""

    kind: str
    size_bytes: int
    dtype: str
    elements: int = -1
    """Of a message whose bytes are not known."""
    root: str = ""
    """The global rank that gives or gets, of a rooted one."""


_COMPARED = (
    ("kind", "kind"),
    ("dtype", "dtype"),
    ("size", "size_bytes"),
    ("size", "elements"),
    ("root", "root"),
)
"""What is compared in this order: how a difference is called, and the field."""


class Mismatch(NamedTuple):
    """The first collective of a group in which members differ, and that did not end."""

    group_id: str
    seq: int
    usual: Issue
    """What most members issued."""
    usual_ranks: tuple[int, ...]
    different: dict[int, Issue]
    """The other members; of two members that differ both are here."""
    what: str
    """``kind``, ``size``, ``dtype``, ``root``, ``order``, ``left_out``, ``extra`` or ``splits``."""
    sent_bytes: int | None = None
    """Of an all-to-all, all that its members send, or what the first of ``pair`` sends to the second."""
    received_bytes: int | None = None
    """And all that they expect, or the second does."""
    pair: tuple[int, int] | None = None
    """Sender and receiver of an all-to-all that differ, where the sizes of each pair are recorded."""
    is_counted: bool = False
    """True where what an all-to-all sends and expects is in elements: the types are not recorded."""
    is_first: bool = True
    """False where members differed before, in operations that ended all the same."""


def mismatches(trace: Trace, *, ended: bool = False) -> list[Mismatch]:
    """Return the first mismatch of each group, where a capture broke off; the smallest number first.

    Args:
        trace: The capture.
        ended: Whether those are wanted that ended on all members all the same, instead of those that did not. Only
            where the job itself numbered its collectives: elsewhere members that differ there lack records.
    """
    progress = trace.frame("progress")
    if ended and not trace.capabilities.job_numbers_collectives:
        return []
    rows = rows_of_newest_attempt(trace, "collective")
    # Of a rank without any group here the newest attempt has no collective: it stands in none.
    there = progress.loc[progress["group_id"] != NO_GROUP, "rank"]
    rows = rows[rows["rank"].isin(there)]
    if rows.empty:
        return []
    last = rows.groupby("group_id", observed=True)["seq"].transform("max")
    rows = rows.loc[(rows["seq"] >= 0) & (rows["seq"] > last - LOOKED_BACK), _COLUMNS]
    rows = rows.astype({"dtype": object, "root": object})
    rows = rows.drop_duplicates(["rank", "group_id", "seq"], keep="last")
    rows = rows.assign(is_open=_is_open(rows, progress), elements=_elements(trace, rows))
    found = [
        one
        for group, own in rows.groupby("group_id")
        if (one := _of_group(trace, str(group), own, ended=ended)) is not None
    ]
    return sorted(found, key=lambda one: one.seq)


def _elements(trace: Trace, rows: pd.DataFrame) -> pd.Series:
    """Return the elements of messages whose bytes are not known, -1 for others."""
    calls = trace.frame("collective_call").dropna(subset=["elements"])
    known = calls.astype({"group_id": str}).set_index(["rank", "group_id", "seq"])["elements"]
    keys = pd.MultiIndex.from_frame(rows[["rank", "group_id", "seq"]])
    found = known[~known.index.duplicated()].reindex(keys).fillna(-1).to_numpy(np.int64)
    return pd.Series(found, index=rows.index)


def _is_open(rows: pd.DataFrame, progress: pd.DataFrame) -> pd.Series:
    known = progress.astype({"group_id": str}).set_index(["rank", "group_id"])["completed_seq"]
    keys = pd.MultiIndex.from_frame(rows[["rank", "group_id"]])
    done = known[~known.index.duplicated()].reindex(keys).fillna(-1).to_numpy(np.int64)
    return rows["end_ns"].isna() & (rows["seq"].to_numpy(np.int64) > done)


def _of_group(trace: Trace, group: str, rows: pd.DataFrame, *, ended: bool) -> Mismatch | None:
    is_sparse = rows["dtype"].fillna("").astype(str).str.startswith(SPARSE)
    is_even = ~rows["kind"].isin(UNEVEN) & ~is_sparse
    issued = rows.assign(
        size_bytes=rows["size_bytes"].where(is_even, -1),
        elements=rows["elements"].where(is_even, -1),
        dtype=rows["dtype"].fillna("").astype(str),
        root=rows["root"].fillna("").astype(str),
    )
    known = issued[_ISSUED].replace({0: -1})
    # One number for each different issue, so that numbers are compared and no rows.
    code = known.groupby(_ISSUED, sort=False).ngroup()
    per_seq = code.groupby(rows["seq"]).agg(["min", "max", "size"])
    differs = per_seq.index[(per_seq["min"] != per_seq["max"]) & (per_seq["size"] > 1)]
    open_seqs = set(rows.loc[rows["is_open"], "seq"])
    is_first = True
    for seq in sorted(differs.tolist()):
        own = issued[rows["seq"] == seq]
        found = _compared(trace, group, int(seq), own)
        if found is None:
            continue
        is_wanted = (seq in open_seqs) is not ended
        if is_wanted and (is_first or _is_aligned(rows, int(seq), whole=False)):
            return _explained(found, issued)._replace(is_first=is_first)
        if not trace.capabilities.job_numbers_collectives:
            if not _is_aligned(rows, int(seq), whole=True):
                return None
            is_first = False
    for seq in () if ended else sorted(open_seqs):
        own = rows[rows["seq"] == seq]
        found = _splits(trace, group, int(seq), own)
        if found is not None:
            return found
    return None


def _is_aligned(rows: pd.DataFrame, seq: int, *, whole: bool) -> bool:
    """Return whether a number is one operation on all members, though each counted by itself.

    In its step they all began with the same number and left none out, and ended with the same one where the
    step is whole.
    """
    steps = rows.loc[rows["seq"] == seq, "step"].unique()
    if len(steps) != 1 or steps[0] < 0:
        return False
    numbers = rows[rows["step"] == steps[0]].groupby("rank")["seq"].agg(["min", "max", "size"])
    has_no_gap = (numbers["max"] - numbers["min"] + 1 == numbers["size"]).all()
    is_same_end = not whole or numbers["max"].nunique() == 1
    return bool(has_no_gap and is_same_end and numbers["min"].nunique() == 1)


def _issue(kind: str, size_bytes: int, dtype: str, elements: int, root: str) -> Issue:
    size_bytes = int(size_bytes) if size_bytes > 0 else -1
    return Issue(str(kind), size_bytes, str(dtype), int(elements) if elements > 0 else -1, root)


def _compared(trace: Trace, group: str, seq: int, own: pd.DataFrame) -> Mismatch | None:
    """Return how the members of one collective differ, in what all of them tell."""
    issues = {
        int(rank): _issue(*issue)
        for rank, *issue in own[["rank", *_ISSUED]].itertuples(index=False, name=None)
    }
    for what, field in _COMPARED:
        recorded = {
            rank: one for rank, one in issues.items() if getattr(one, field) not in (-1, "")
        }
        values = Counter(getattr(one, field) for one in recorded.values())
        if len(values) > 1:
            return _named(group, seq, issues, recorded, field, what)
    return None


def _named(
    group: str,
    seq: int,
    issues: dict[int, Issue],
    recorded: dict[int, Issue],
    field: str,
    what: str,
) -> Mismatch:
    values = Counter(getattr(one, field) for one in recorded.values())
    (most, count), *others = values.most_common()
    is_even = others[0][1] == count
    different = {
        rank: one for rank, one in recorded.items() if is_even or getattr(one, field) != most
    }
    usual = next(one for one in recorded.values() if getattr(one, field) == most)
    usual_ranks = tuple(sorted(rank for rank in issues if rank not in different))
    return Mismatch(group, seq, usual, usual_ranks, dict(sorted(different.items())), what)


def _explained(found: Mismatch, issued: pd.DataFrame) -> Mismatch:
    """Return the mismatch as one of order or of a missing operation, where the others tell so."""
    if len(found.different) != 1 or not found.usual_ranks:
        return found
    ((rank, own),) = found.different.items()
    usual_rank = found.usual_ranks[0]
    at = {
        (int(r), int(seq)): _issue(*issue)
        for r, seq, *issue in issued.loc[
            issued["rank"].isin([rank, usual_rank]), ["rank", "seq", *_ISSUED]
        ].itertuples(index=False, name=None)
    }
    after_own, after_usual = at.get((rank, found.seq + 1)), at.get((usual_rank, found.seq + 1))
    if after_own is not None and after_own == after_usual:
        # Both go on alike: nothing is shifted.
        return found
    if after_own == found.usual and after_usual == own and own != found.usual:
        return found._replace(what="order")
    if after_usual == own and own != found.usual and after_own != found.usual:
        return found._replace(what="left_out")
    if after_own == found.usual and own != found.usual:
        return found._replace(what="extra")
    before = at.get((usual_rank, found.seq - 1))
    history = [
        at.get((usual_rank, seq)) for r, seq in sorted(at) if r == usual_rank and seq < found.seq
    ]
    pairs = set(pairwise(history))
    if (before, own) in pairs and (before, found.usual) not in pairs:
        return found._replace(what="left_out")
    return found


def _splits(trace: Trace, group: str, seq: int, own: pd.DataFrame) -> Mismatch | None:
    """Return the members of an all-to-all that send more, or less, than the others expect."""
    if set(own["kind"]) != {CollectiveKind.ALL_TO_ALL.value}:
        return None
    calls = trace.frame("collective_call").astype({"group_id": str})
    calls = calls[(calls["group_id"] == group) & (calls["seq"] == seq)]
    members = _members(trace, group)
    if calls.empty or set(calls["rank"]) != set(members):
        return None
    is_counted = _is_counted(calls)
    if is_counted:
        calls = _with_elements(calls)
    dtypes = own.set_index("rank")["dtype"]
    found = _pair(trace, group, seq, calls, dtypes)
    if found is not None:
        return _in_elements(found) if is_counted else found
    sent, received = int(calls["input_bytes"].sum()), int(calls["output_bytes"].sum())
    if sent == received or not sent or not received:
        return None
    apart = calls["input_bytes"] - calls["output_bytes"]
    odd = calls[apart.abs() == apart.abs().max()]
    odd = odd if len(odd) < len(calls) else calls
    kind = CollectiveKind.ALL_TO_ALL.value
    different = {
        int(rank): Issue(kind, int(size), str(dtypes.get(rank) or ""))
        for rank, size in odd[["rank", "input_bytes"]].itertuples(index=False, name=None)
    }
    rest = calls[~calls["rank"].isin(odd["rank"])]
    usual = int(rest["input_bytes"].mode().iloc[0]) if len(rest) else -1
    ranks = tuple(sorted(map(int, rest["rank"])))
    sums = Mismatch(group, seq, Issue(kind, usual, ""), ranks, different, "splits", sent, received)
    return _in_elements(sums) if is_counted else sums


def _is_counted(calls: pd.DataFrame) -> bool:
    """Return whether what each member sends and expects is in elements."""
    splits = calls[["input_splits", "output_splits"]]
    return bool(splits.map(lambda text: str(text).endswith(ELEMENTS)).all(axis=None))


def _with_elements(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with elements in place of bytes."""
    changed = calls.copy()
    for side in ("input", "output"):
        counts = changed[f"{side}_splits"].str.removesuffix(ELEMENTS).str.strip()
        changed[f"{side}_splits"] = counts
        changed[f"{side}_bytes"] = [sum(map(int, text.split())) for text in counts]
    return changed


def _in_elements(found: Mismatch) -> Mismatch:
    """Return a mismatch whose sizes are elements as one that says so."""
    return found._replace(
        usual=_counted(found.usual),
        different={rank: _counted(one) for rank, one in found.different.items()},
        is_counted=True,
    )


def _counted(issue: Issue) -> Issue:
    return issue._replace(size_bytes=-1, elements=issue.size_bytes)


def _pair(
    trace: Trace, group: str, seq: int, calls: pd.DataFrame, dtypes: pd.Series
) -> Mismatch | None:
    """Return the member in most pairs that differ, with the first of these; None without any, or if unknown."""
    order = _members(trace, group)
    by_rank = calls.drop_duplicates("rank").set_index("rank")
    splits = by_rank[["input_splits", "output_splits"]]
    if splits.isna().any(axis=None):
        return None
    sent, expected = (
        np.array([text.split() for text in splits.loc[order, side]], dtype=object)
        for side in splits.columns
    )
    if sent.shape != (len(order), len(order)) or expected.shape != sent.shape:
        return None
    sent, expected = sent.astype(np.int64), expected.astype(np.int64).T
    differs = sent != expected
    if not differs.any():
        return None
    count = differs.sum(axis=0) + differs.sum(axis=1)
    odd = np.flatnonzero(count == count.max())
    kind = CollectiveKind.ALL_TO_ALL.value
    size_of = by_rank["input_bytes"]
    issues = {
        rank: Issue(kind, int(size_of[rank]), str(dtypes.get(rank) or "")) for rank in sorted(order)
    }
    different = {order[at]: issues.pop(order[at]) for at in sorted(odd.tolist())}
    usual = next(iter(issues.values()))._replace(dtype="") if issues else Issue(kind, -1, "")
    at, to = map(int, np.argwhere(differs)[0])
    return Mismatch(
        group, seq, usual, tuple(issues), different, "splits",
        int(sent[at, to]), int(expected[at, to]), (order[at], order[to]),
    )  # fmt: skip


def _members(trace: Trace, group: str) -> list[int]:
    groups = trace.frame("group")
    rows: Iterator[list[int]] = (
        list(map(int, ranks))
        for name, ranks in zip(groups["group_id"], groups["ranks"], strict=True)
        if str(name) == group
    )
    return next(rows, [])
