"""Collectives that ended although their members issued different things.

Some backends complete what does not fit: gloo casts bytes of another type, and leaves the rest of a longer
buffer as it was. Then nothing hangs, and the result is wrong on some rank.

Each rank counts its operations by itself, so a rank that counted one more than the others seems to differ
in all that follows. Positions are therefore compared only where they are proven to be the same operation:
in steps in which all recorded members issued the same numbers of a group, without a gap::

    step              7           8           9
    rank 0, numbers   20 to 22    23 to 25    26 to 28
    rank 1            20 to 22    23 to 26    27 to 29
                      compared    one more    shifted: not compared
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.terms import CollectiveKind

from ..align.communication.rows import encoded, integers
from ..tables.arrays import BoolArray, IntArray, combined
from ..tables.numbering import numbered
from ..tables.sorting import greatest_of_group, least_of_group
from ..tables.trace import Trace
from .hangs.mismatch import SPARSE, UNEVEN, Issue

_BY_LIST = frozenset({CollectiveKind.ALL_GATHER.value, CollectiveKind.REDUCE_SCATTER.value})
"""Kinds that also take lists of tensors, which NCCL lets differ from rank to rank. That it ended proves nothing then."""
_COMPARED = ("kind", "dtype", "size")
"""In what members may differ, in the order in which it is looked for."""
_UNKNOWN = -1
_LEAST_AFTER = 2
"""Steps after an operation too many, all shifted alike, that prove it."""


class Differing(NamedTuple):
    """Operations of a group that ended and in which the same members differ in the same thing."""

    group_id: str
    what: str
    """``kind``, ``dtype`` or ``size``."""
    different: dict[int, Issue]
    """What they issued in the first of them; of two members that differ both are here."""
    usual: Issue
    usual_ranks: tuple[int, ...]
    operations: int
    steps: int
    first_step: int
    """-1 where no steps were counted."""
    seq: int
    """Of the first."""


class Shifted(NamedTuple):
    """A rank that issued more, or fewer, operations of a group in one step, and went on."""

    group_id: str
    rank: int
    step: int
    own: int
    """How many it issued in that step."""
    usual: int
    """How many each of the others issued."""
    ranks: tuple[int, ...]
    """All members that were recorded."""


def differing_collectives(trace: Trace) -> tuple[list[Differing], list[Shifted]]:
    """Return where members of one collective differed and it ended, and ranks whose count went astray.

    Only of captures in which each rank counted every operation from the first one on.
    """
    if not trace.capabilities.counts_every_operation or not trace.row_count("collective"):
        return [], []
    table = trace.tables["collective"]
    code = _issued(table)
    group, names = encoded(table, "group_id")
    operation = numbered(np.asarray(group, np.int64), integers(table, "seq"))
    differs = least_of_group(code, operation) != greatest_of_group(code, operation)
    if not differs.any():
        return [], []
    concerned = np.isin(group, np.unique(group[differs]))
    rows = _rows(table, concerned, names).assign(
        op=operation[concerned], differs=differs[concerned]
    )
    rows = rows.drop_duplicates(["rank", "event_id"], keep="last")
    members = _members(rows)
    rows = rows[rows["differs"] & ~_is_open(trace, rows)]
    proven = _proven(members)
    at = pd.MultiIndex.from_frame(rows[["group_id", "step"]])
    rows = rows[proven.reindex(at, fill_value=False).to_numpy(bool)]
    return list(_grouped(rows)), list(_shifted(members, proven))


def _issued(table: pa.Table) -> IntArray:
    """Return one number for each different issue: kind, element type, and size where members must agree on it."""
    kind = np.asarray(encoded(table, "kind")[0], np.int64)
    return combined(_sizes(table), kind, type_codes(table)[0])


def _sizes(table: pa.Table) -> IntArray:
    """Return the size of each row, -1 where members may give different ones."""
    kind, kinds = encoded(table, "kind")
    dtype, types = type_codes(table)
    is_even = np.array([word not in UNEVEN | _BY_LIST for word in kinds], dtype=bool)[kind]
    is_dense = np.array([not str(word).startswith(SPARSE) for word in [*types, ""]], dtype=bool)
    return np.where(is_even & is_dense[dtype], integers(table, "size_bytes"), _UNKNOWN)


def type_codes(table: pa.Table) -> tuple[IntArray, list[str]]:
    """Return the codes of the element types, -1 where unknown, and their names."""
    column = table["dtype"].unify_dictionaries().combine_chunks()
    codes = pc.fill_null(column.indices, _UNKNOWN).to_numpy(zero_copy_only=False)
    return np.asarray(codes, dtype=np.int64), column.dictionary.to_pylist()


def _rows(table: pa.Table, wanted: BoolArray, groups: list[str]) -> pd.DataFrame:
    """Return some rows with names as categories; unknown types are "", sizes that may differ -1."""
    own = table.filter(pa.array(wanted))
    kind, kinds = encoded(own, "kind")
    dtype, types = type_codes(own)
    return pd.DataFrame(
        {
            "rank": integers(own, "rank"),
            "event_id": integers(own, "event_id"),
            "step": integers(own, "step"),
            "group_id": words_of(encoded(own, "group_id")[0], groups),
            "seq": integers(own, "seq"),
            "kind": words_of(kind, kinds),
            "dtype": words_of(dtype, [*types, ""]),
            "size": _sizes(own),
            "is_ended": pc.is_valid(own["end_ns"]).to_numpy(),
        }
    )


def words_of(codes: npt.NDArray[np.integer], words: list[str]) -> npt.NDArray[np.object_]:
    """Return the words that codes stand for."""
    return np.asarray(np.array([str(word) for word in words], dtype=object)[codes])


def _is_open(trace: Trace, rows: pd.DataFrame) -> BoolArray:
    """Return the operations that may not have ended, where a capture broke off: another rule has those."""
    progress = trace.frame("progress")
    if progress.empty:
        return np.zeros(len(rows), dtype=bool)
    key = ["group_id", "rank"]
    done = progress.astype({"group_id": str}).groupby(key)["completed_seq"].max()
    at = pd.MultiIndex.from_frame(rows[key])
    completed = done.reindex(at).fillna(-1).to_numpy(np.int64)
    # Operations of a group end in their order.
    ended = rows["seq"].where(rows["is_ended"]).groupby([rows[name] for name in key])
    last = ended.transform("max").fillna(-1).to_numpy(np.int64)
    is_open = pd.Series(rows["seq"].to_numpy() > np.maximum(completed, last), rows.index)
    return np.asarray(is_open.groupby(rows["op"]).transform("max"), dtype=bool)


def _members(rows: pd.DataFrame) -> pd.DataFrame:
    """Return first and last number and count of each member, by group, step and rank."""
    numbers = rows.groupby(["group_id", "step", "rank"])["seq"]
    return numbers.agg(["min", "max", "size"])


def _proven(members: pd.DataFrame) -> pd.Series[bool]:
    """Return by group and step whether all recorded members issued the same numbers, without a gap."""
    whole = members["max"] - members["min"] + 1 == members["size"]
    by_step = members.assign(whole=whole).groupby(level=["group_id", "step"])
    least, most = by_step.min(), by_step.max()
    same = (least["min"] == most["min"]) & (least["max"] == most["max"])
    proven: pd.Series[bool] = same & least["whole"] & (by_step.size() > 1)
    return proven


def _grouped(rows: pd.DataFrame) -> Iterator[Differing]:
    """Yield the differences: one for all operations of a group in which the same members differ in the same thing."""
    if rows.empty:
        return
    known = rows.assign(
        dtype=rows["dtype"].where(rows["dtype"] != ""), size=rows["size"].where(rows["size"] >= 0)
    )
    count = known.groupby("op")[list(_COMPARED)].nunique()
    count = count[(count > 1).any(axis=1)]
    what = pd.Series(
        np.array(_COMPARED, object)[(count > 1).to_numpy().argmax(axis=1)], count.index
    )
    known = known[known["op"].isin(what.index)]
    known = known.assign(what=known["op"].map(what))
    value = pd.Series(index=known.index, dtype=object)
    for name in _COMPARED:
        value = value.mask(known["what"] == name, known[name])
    known = known.assign(value=value)[value.notna()]
    alike = known.groupby(["op", "value"], sort=False)["rank"].transform("size")
    most = alike.groupby(known["op"]).transform("max")
    # Where as many did the one as the other, nobody can say who was right.
    is_most = alike == most
    choices = known["value"].where(is_most).groupby(known["op"]).transform("nunique")
    known = known.assign(odd=~is_most | (choices > 1))
    odd = known[known["odd"]]
    who = (_mixed(odd["rank"]).groupby(odd["op"])).sum()
    known = known.assign(who=known["op"].map(who)).sort_values(["seq", "rank"])
    for (group_id, reason, _), own in known.groupby(["group_id", "what", "who"], sort=False):
        yield _one(str(group_id), str(reason), own)


def _mixed(rank: pd.Series[int]) -> pd.Series[int]:
    """Return numbers whose sum tells sets of ranks apart."""
    bits = (rank.to_numpy().astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed: IntArray = (bits >> np.uint64(16)).astype(np.int64)
    return pd.Series(mixed, rank.index)


def _one(group_id: str, what: str, own: pd.DataFrame) -> Differing:
    first = own[own["op"] == own["op"].iloc[0]]
    issues = {
        int(rank): _issue(kind, size, dtype)
        for rank, kind, size, dtype in first[["rank", "kind", "size", "dtype"]].itertuples(
            index=False, name=None
        )
    }
    odd = [int(rank) for rank in first.loc[first["odd"], "rank"]]
    usual_ranks = tuple(rank for rank in issues if rank not in odd)
    return Differing(
        group_id=group_id,
        what=what,
        different={rank: issues[rank] for rank in odd},
        usual=issues[usual_ranks[0]] if usual_ranks else issues[odd[-1]],
        usual_ranks=usual_ranks,
        operations=int(own["op"].nunique()),
        steps=int(own["step"].nunique()),
        first_step=int(first["step"].iloc[0]),
        seq=int(first["seq"].iloc[0]),
    )


def _issue(kind: object, size: float, dtype: object) -> Issue:
    known = isinstance(dtype, str)
    return Issue(str(kind), int(size) if size > 0 else -1, str(dtype) if known else "")


def _shifted(members: pd.DataFrame, proven: pd.Series[bool]) -> Iterator[Shifted]:
    """Yield the first rank of each group whose count differs in one step and is off by that from then on."""
    for group_id, own in members.groupby(level="group_id"):
        numbers = own.droplevel("group_id")
        first, size = numbers["min"].unstack(), numbers["size"].unstack()
        whole = (numbers["max"] - numbers["min"] + 1 == numbers["size"]).unstack()
        is_same = proven[proven.index.get_level_values("group_id") == group_id].droplevel(
            "group_id"
        )
        is_same = is_same.reindex(first.index)
        if is_same.all() or first.shape[1] < 3:
            continue
        at = int(np.flatnonzero(~is_same.to_numpy(bool))[0])
        later = first.iloc[at:]
        if len(later) <= _LEAST_AFTER or later.isna().any(axis=None):
            continue
        if not whole.iloc[at:-1].all(axis=None):
            continue
        usual = int(size.iloc[at].median())
        apart = size.iloc[at] - usual
        if (apart != 0).sum() != 1 or first.iloc[at].nunique() > 1:
            continue
        rank = int(apart.index[(apart != 0).to_numpy()][0])
        others = later.drop(columns=rank)
        gap = later[rank] - others.iloc[:, 0]
        is_alike = others.nunique(axis=1).eq(1).all()
        if is_alike and (gap.iloc[1:] == apart[rank]).all():
            step, own_count = int(first.index[at]), int(size.iloc[at][rank])
            yield Shifted(
                str(group_id), rank, step, own_count, usual, tuple(map(int, first.columns))
            )
