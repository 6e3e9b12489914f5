"""Steps in which one rank sent another more or fewer messages than that one received: a send that was skipped.

Who skips one may go on and end in order. In the end somebody waits for a message that nobody sends, and is no more
than the last in a row. The counts of each step tell where that row began, as far as the step was recorded.
"""

from __future__ import annotations

from typing import NamedTuple

from meshscope.probe.schema.terms import Direction, StepDetail

from ...tables.trace import Trace

_SEND, _RECV = Direction.SEND.value, Direction.RECV.value


class MessagesApart(NamedTuple):
    """The first step in which the two ends of a pair of ranks counted different messages."""

    step: int
    source: int
    target: int
    sent: int
    received: int


def messages_apart(trace: Trace) -> MessagesApart | None:
    """Return the first such step that both ends recorded in full.

    None without any, or where most steps are so: then messages cross the borders of steps by design.
    """
    rows, steps = trace.frame("p2p"), trace.frame("step")
    rows = rows[(rows["peer"] >= 0) & (rows["step"] >= 0)]
    if rows.empty:
        return None
    is_send = rows["direction"].astype(str) == _SEND
    ends = {
        "source": rows["rank"].where(is_send, rows["peer"]),
        "target": rows["peer"].where(is_send, rows["rank"]),
        "direction": rows["direction"].astype(str),
    }
    counts = rows.assign(**ends).groupby(["step", "source", "target", "direction"]).size()
    found = counts.unstack("direction").reindex(columns=[_SEND, _RECV]).fillna(0).reset_index()
    full = steps.loc[~steps["detail"].isin([StepDetail.STEPS.value]), ["rank", "step"]]
    for end in ("source", "target"):
        found = found.merge(full.rename(columns={"rank": end}), on=["step", end])
    apart = found[found[_SEND] != found[_RECV]].sort_values("step", kind="stable")
    if apart.empty or 2 * apart["step"].nunique() > found["step"].nunique():
        return None
    return MessagesApart(*map(int, apart[["step", "source", "target", _SEND, _RECV]].iloc[0]))
