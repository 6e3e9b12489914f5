"""Ranks that make more passes than their peers: unequal accumulation, not a slow device."""

from __future__ import annotations

from typing import NamedTuple

from meshscope.probe.schema.terms import SpanKind

from ...explain.run_account import Account
from ...wording.message import Message, message

MIN_MORE = 1.05
"""Passes over those of the peers from which on a rank has more of them."""
MIN_OF_EXCESS = 0.5
"""Share of the excess of a rank that its passes explain, if each takes as long as a peer's."""


class PassCounts(NamedTuple):
    """Forward passes per step."""

    own: float
    peers: float
    """The median of the peers."""

    @property
    def fact(self) -> Message:
        """Return both, as evidence."""
        return message("straggler_rank.more_passes", own=self.own, peers=self.peers)

    def explain(self, slowdown: float) -> bool:
        """Tell whether they are most of what a rank works longer than its peers."""
        return self.own / self.peers - 1.0 >= MIN_OF_EXCESS * (slowdown - 1.0)


def more_passes(account: Account, rank: int) -> PassCounts | None:
    """Return how many passes a rank and its peers make, None where it makes no more than they."""
    peers = account.peers_of(rank)
    if not peers or not account.trace.row_count("span"):
        return None
    spans = account.windows.select(account.trace.frame("span")[["rank", "step", "kind"]])
    forwards = spans.loc[spans["kind"] == SpanKind.FORWARD.value, "rank"].value_counts()
    per_step = forwards / len(account.windows.steps)
    usual = float(per_step.reindex(peers).fillna(0.0).median())
    own = float(per_step.get(rank, 0.0))
    return PassCounts(own, usual) if usual > 0 and own >= MIN_MORE * usual else None
