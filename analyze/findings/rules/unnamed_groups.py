"""Dumps that do not say who is in a group: who waits for whom is unknown, but not who waits at all."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from meshscope.probe.schema.imported_tables import UNNAMED_GROUP
from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.hangs.hang import WaitGraph
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from .standstill_words import SHOWN, oldest_open, where_of


def unnamed_findings(trace: Trace, graph: WaitGraph) -> Iterator[Finding]:
    """Yield which ranks had nothing open while others had, where groups are known to one rank each.

    Args:
        trace: The capture.
        graph: Who waited for whom, as far as groups are known.
    """
    groups = trace.frame("group")
    alone = groups["description"].astype(object).eq(UNNAMED_GROUP)
    unnamed = set(groups.loc[alone, "group_id"].astype(str))
    if len(trace.ranks) < 2 or not any(found.key[0] in unnamed for found in graph.stuck):
        return
    idle = [rank for rank in trace.ranks if rank not in graph.waiting]
    is_telling = bool(idle) and 2 * len(idle) <= len(trace.ranks)
    named = idle if is_telling else list(graph.waiting)
    waiting = len(graph.waiting)
    yield Finding(
        kind=FindingKind.HANG,
        severity=Severity.CRITICAL if is_telling else Severity.WARNING,
        where=where_of(named, trace),
        claim=message("hang.nothing_open", idle=idle, waiting=waiting)
        if is_telling
        else message("hang.open_unnamed", waiting=waiting),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.6 if is_telling else 0.4,
        evidence=(
            message("hang.unnamed_groups"),
            *_places(trace, graph, idle),
            oldest_open(trace, graph),
        ),
        remedy=message("hang.unnamed_remedy"),
    )


def _places(trace: Trace, graph: WaitGraph, idle: list[int]) -> Iterator[Message]:
    """Yield in what ranks waited and what the others issued last, with the line; where fewest are first."""
    waits = [(rank, *found.key[:2]) for found in graph.operations for rank in found.since_ns]
    rows = trace.frame("collective").astype({"group_id": str, "kind": str})
    keys = ["rank", "group_id", "seq"]
    calls = trace.frame("collective_call").astype({"group_id": str})[[*keys, "place"]]
    rows = rows.merge(calls.astype({"place": object}), on=keys, how="left")
    rows = rows.fillna({"place": ""}).sort_values("event_id")
    waited = rows.merge(pd.DataFrame(waits, columns=keys), on=keys).drop_duplicates("rank")
    last = rows[rows["rank"].isin(idle)].drop_duplicates("rank", keep="last")
    for own, is_open in ((last, False), (waited, True)):
        together = own.groupby(["kind", "place"])["rank"].agg(list).reset_index()
        fewest_first = together.sort_values("rank", key=lambda ranks: ranks.map(len), kind="stable")
        for row in fewest_first.head(SHOWN).to_dict("records"):
            place = row["place"] or "an unknown line"
            values = {"ranks": sorted(row["rank"]), "kind": row["kind"], "place": place}
            yield (
                message("hang.waits_at", **values)
                if is_open
                else message("hang.issued_last_at", **values)
            )
