"""How findings about operations that differ say what a rank issued, and at which line of the program."""

from __future__ import annotations

from meshscope.probe.schema.sampling import FIRST_SEQ_BITS

from ...account.hangs.mismatch import Issue
from ...account.hangs.newest_attempt import rows_of_newest_attempt
from ...tables.trace import Trace
from ...wording.message import Message, message

ANY_PEER = -1
"""In place of the other end of a message: of a collective, or of a message from any rank."""


def differing_message(what: str, issue: Issue) -> Message:
    """Return an operation by its kind, and by its size, type or root where members differ in that."""
    if what == "root":
        return message("mismatch.kind_rooted", kind=issue.kind, root=int(issue.root))
    if what == "size" and issue.size_bytes <= 0:
        return message("mismatch.kind_counted", kind=issue.kind, elements=issue.elements)
    if what == "size":
        return message("mismatch.kind_sized", kind=issue.kind, size_bytes=issue.size_bytes)
    if what == "dtype":
        return message("mismatch.kind_typed", kind=issue.kind, dtype=issue.dtype)
    return message("mismatch.kind", kind=issue.kind)


def issue_message(issue: Issue) -> Message:
    """Return an operation as far as it is known."""
    kind, size_bytes, dtype, elements, root = issue
    if root:
        plain = issue_message(issue._replace(root=""))
        return message("mismatch.rooted", issue=plain, root=int(root))
    if size_bytes > 0 and dtype:
        return message("mismatch.kind_sized_typed", kind=kind, size_bytes=size_bytes, dtype=dtype)
    if size_bytes > 0:
        return message("mismatch.kind_sized", kind=kind, size_bytes=size_bytes)
    if dtype:
        return message("mismatch.kind_typed", kind=kind, dtype=dtype)
    if elements > 0:
        return message("mismatch.kind_counted", kind=kind, elements=elements)
    return message("mismatch.kind", kind=kind)


def number_message(trace: Trace, group_id: str, seq: int) -> Message | int:
    """Return the number of a collective of a group; its place in its step where the probe had begun to count anew.

    Args:
        trace: The capture.
        group_id: The group.
        seq: Its number there.
    """
    if seq < 1 << FIRST_SEQ_BITS or not trace.capabilities.counts_steps_by_rank:
        return seq
    rows = rows_of_newest_attempt(trace, "collective")
    rows = rows[(rows["group_id"] == group_id) & (rows["step"] >= 0)]
    step = rows.loc[rows["seq"] == seq, "step"].min()
    first = rows.loc[rows["step"] == step, "seq"].min()
    # What backends have counted has no record, and is no number of the probe.
    if first != first:
        return seq
    return message("operation.number_in_step", number=seq - int(first) + 1, step=int(step))


def issued_by(
    trace: Trace,
    group_id: str,
    ranks: tuple[int, ...],
    issue: Issue,
    *,
    peer: int = ANY_PEER,
    place: str | None = None,
) -> Message:
    """Return what ranks issued, and where in the program, as far as the first of them recorded that.

    Args:
        trace: The capture.
        group_id: The group of the operation.
        ranks: Who issued it.
        issue: What they issued.
        peer: The other end of a message.
        place: Where it was issued, if every call was recorded with its place; else the first place of its like counts.
    """
    if place is not None:
        return message("mismatch.issued_at", ranks=ranks, issue=issue_message(issue), place=place)
    places = trace.frame("call_place")
    own = places[(places["rank"] == ranks[0]) & (places["group_id"].astype(str) == group_id)]
    own = own[(own["kind"].astype(str) == issue.kind) & (own["peer"] == peer)]
    if issue.dtype:
        own = own[own["dtype"].astype(str) == issue.dtype]
    if issue.size_bytes > 0:
        own = own[own["size_bytes"] == issue.size_bytes]
    if own.empty:
        return message("mismatch.issued", ranks=ranks, issue=issue_message(issue))
    first = own.iloc[0]
    return message(
        "mismatch.issued_first_at",
        ranks=ranks,
        issue=issue_message(issue),
        file=str(first["file"]),
        line=int(first["line"]),
        function=str(first["function"]),
    )
