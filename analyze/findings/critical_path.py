"""The critical path of a step: the chain of work and transfers that its length consists of.

The step ends when its last rank ends. From there the path goes back along whatever was
waited for: the rank's own work, or, where it had to wait, the transfer and the rank that
was the last to come to it. Its pieces follow one another without a gap, so their lengths
sum to the step. Shortening anything off the path does not shorten the step.

Source: J. E. Kelley and M. R. Walker, "Critical-path planning and scheduling" (1959), on
the graph of ``program``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from meshscope.probe.schema.errors import MeshscopeError

from ..align.steps.time_lookup import last_before, microbatch_spans, overlaps
from ..explain.replay.marks import END
from ..explain.replay.program import Program
from ..explain.run_account import Account
from ..tables.arrays import FloatArray, IntArray
from ..tables.classes import CLASSES, UNATTRIBUTED
from ..wording.limits import limit_text
from ..wording.message import Message, message
from .step_to_show import not_analysed, step_to_show

NO_PLACE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The path of one step."""

    step: int
    start_ns: int
    """End of the last rank in the step before, on the common time line of the windows."""
    end_ns: int
    pieces: pd.DataFrame
    """rank, stage, start_ns, end_ns, dur_ns, class (of the ledger), microbatch (-1: none),
    group_id and link (empty for work); in the order of time, without gaps."""
    because: Message | None = None
    """Why it is this step; empty where it was asked for."""
    longest_ns: int = 0
    """The longest of the ranks' own windows of the step; 0 if not known. Ranks begin and end a step
    apart, so that the path may be longer or shorter."""
    is_chained: bool = True
    """Whether it begins with the end of the step before, else where the first rank begins."""

    def by(self, *columns: str) -> pd.DataFrame:
        """Return the length of the path by columns of its pieces, the longest first.

        Returns:
            The columns, dur_ns, and frac of the step.
        """
        table = self.pieces.groupby(list(columns), observed=True)["dur_ns"].sum().reset_index()
        table["frac"] = table["dur_ns"] / max(self.end_ns - self.start_ns, 1)
        return table.sort_values("dur_ns", ascending=False, ignore_index=True)


def critical_path(account: Account, step: int | None = None) -> CriticalPath:
    """Return the critical path of a step.

    Args:
        account: The measured run.
        step: Which step; if not given, the one of median length among those of the first finding.

    Raises:
        MeshscopeError: The run cannot be replayed, or the step is not among the analysed ones.
    """
    program = account.program
    if program is None:
        raise MeshscopeError(
            message("refused.no_critical_path"),
            where=str(account.trace.path),
            remedy="; ".join(map(limit_text, account.limits[-1:])),
        )
    ends = _step_ends(program)
    chosen, because = _chosen(account, ends, step)
    row = ends.index.get_loc(chosen)
    node, start, end = (int(ends[name].to_numpy()[row]) for name in ("node", "begin_ns", "end_ns"))
    links = _links(program, node, start)
    pieces = pd.concat([_work_pieces(account, program, links), _wires(account, program, links)])
    pieces = _cut(pieces, start, end)
    pieces["stage"] = pieces["rank"].map(account.stage)
    columns = ["rank", "stage", "start_ns", "end_ns", "dur_ns", "class", "microbatch"]
    windows = account.windows.frame[account.windows.frame["step"] == chosen]
    return CriticalPath(
        step=chosen,
        because=because,
        start_ns=start,
        end_ns=end,
        pieces=pieces[[*columns, "group_id", "link"]],
        longest_ns=int((windows["end_ns"] - windows["start_ns"]).max()),
        is_chained=account.windows.chained,
    )


def _step_ends(program: Program) -> pd.DataFrame:
    """Return, by step: node (the last rank's end), begin_ns (the end before it), end_ns."""
    marks = program.marks
    ends = marks[(marks["mark"] == END) & ~marks["is_root"]]
    last = ends.loc[ends.groupby("step")["end_ns"].idxmax()]
    table = pd.DataFrame(
        {"node": last.index.to_numpy(), "end_ns": last["end_ns"].to_numpy(np.int64)},
        index=pd.Index(last["step"].to_numpy(np.int64), name="step"),
    )
    roots = marks[marks["is_root"]]
    if program.windows.chained:
        table["begin_ns"] = table["end_ns"].shift(fill_value=0)
        first = roots.groupby("step")["end_ns"].max()
        table.loc[first.index, "begin_ns"] = first
    else:
        table["begin_ns"] = roots.groupby("step")["end_ns"].min().reindex(table.index)
    return table


def _chosen(account: Account, ends: pd.DataFrame, step: int | None) -> tuple[int, Message | None]:
    if step is None:
        return step_to_show(account, ends["end_ns"] - ends["begin_ns"])
    if step not in ends.index:
        raise not_analysed(account, step)
    return step, None


@dataclass(frozen=True, slots=True)
class _Links:
    """Edges along the path, the last first, with the times of their two ends."""

    edge: IntArray
    begin_ns: IntArray
    end_ns: IntArray


def _links(program: Program, node: int, begin_ns: int) -> _Links:
    """Walk back from a node along the edges that decided its time, until a time."""
    times = _recorded_times(program)
    deciding = _deciding_edges(program, times)
    graph = program.graph
    edge = graph.edge[deciding]
    source = graph.source[deciding]
    found = []
    while deciding[node] >= 0 and times[node] > begin_ns:
        found.append((int(edge[node]), times[source[node]], times[node]))
        node = int(source[node])
    table = np.array(found, dtype=np.float64).reshape(-1, 3).astype(np.int64)
    # Who left an operation before its last member came has an edge back in time. The path
    # never goes forward on its way back: what lies beyond the last border is left out.
    begin = np.minimum.accumulate(table[:, 1])
    end = np.append(table[:1, 2], begin[:-1])
    return _Links(table[:, 0], begin, end)


def _recorded_times(program: Program) -> FloatArray:
    nothing = np.zeros((program.edge_count, 1))
    times: FloatArray = program.graph.replay(program.base_ns, nothing, np.ones((1, 1)))[:, 0]
    return times


def _deciding_edges(program: Program, times: FloatArray) -> IntArray:
    """Return, for each node, the incoming edge (in the order of the graph) that came last.

    -1 at a root. Of equal ones the rank's own work decides: nobody else was waited for.
    """
    graph = program.graph
    reached = times[graph.source] + program.base_ns[graph.edge]
    order = np.lexsort((graph.edge, -reached, graph.target))
    first = np.flatnonzero(np.append(True, np.diff(graph.target[order]) != 0))
    result = np.full(graph.node_count, NO_PLACE)
    if len(order):
        result[graph.target[order[first]]] = order[first]
    return result


def _work_pieces(account: Account, program: Program, links: _Links) -> pd.DataFrame:
    """Return the work on the path, cut by the classes of the ledger and by microbatch."""
    is_work = links.edge < len(program.work_edges)
    mark = program.work_edges[links.edge[is_work]]
    outer = pd.DataFrame(
        {
            "rank": program.marks["rank"].to_numpy(np.int64)[mark],
            "start_ns": links.begin_ns[is_work],
            "end_ns": links.end_ns[is_work],
        }
    )
    segments = account.ledger.segments.sort_values(["rank", "start_ns"], ignore_index=True)
    own, place, low, high = overlaps(outer, segments)
    rank = outer["rank"].to_numpy()[own]
    names = np.array(CLASSES, dtype=object)
    return pd.DataFrame(
        {
            "rank": rank,
            "start_ns": low,
            "end_ns": high,
            "class": names[segments["code"].to_numpy()[place]],
            "microbatch": _microbatch(account, rank, (low + high) / 2),
            "group_id": "",
            "link": "",
        }
    )


def _microbatch(account: Account, rank: IntArray, time: FloatArray) -> IntArray:
    spans = microbatch_spans(account.trace, account.windows)
    if spans.empty:
        return np.full(len(rank), NO_PLACE)
    start = spans["start_ns"].to_numpy(np.float64)
    place = last_before(spans["rank"].to_numpy(), start, rank, time)
    inside = (place >= 0) & (spans["rank"].to_numpy()[place] == rank)
    inside &= time < start[place] + spans["dur_ns"].to_numpy()[place]
    return np.where(inside, spans["microbatch"].to_numpy()[place], NO_PLACE)


def _wires(account: Account, program: Program, links: _Links) -> pd.DataFrame:
    """Return the transfers on the path: from the last issue to the end of the wait."""
    is_wire = links.edge >= program.first_wire
    own = program.wire_event[links.edge[is_wire] - program.first_wire]
    event = account.events.frame.iloc[own]
    return pd.DataFrame(
        {
            "rank": event["rank"].to_numpy(np.int64),
            "start_ns": links.begin_ns[is_wire],
            "end_ns": links.end_ns[is_wire],
            "class": ("exposed_" + event["axis"].astype(str) + "_wire").to_numpy(),
            "microbatch": NO_PLACE,
            "group_id": event["group_id"].astype(str).to_numpy(),
            "link": event["link"].astype(str).to_numpy(),
        }
    )


def _cut(pieces: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    """Return the pieces inside a window in the order of time."""
    pieces = pieces.assign(
        start_ns=pieces["start_ns"].clip(start_ns, end_ns),
        end_ns=pieces["end_ns"].clip(start_ns, end_ns),
    )
    pieces["dur_ns"] = pieces["end_ns"] - pieces["start_ns"]
    kept = pieces[pieces["dur_ns"] > 0].sort_values(["start_ns", "end_ns"], ignore_index=True)
    return _without_gaps(kept, start_ns, end_ns)


def _without_gaps(pieces: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    """Return pieces that tile a window: what the ledger does not hold is not attributed."""
    if pieces.empty:
        return pieces
    ends = np.append(start_ns, pieces["end_ns"].to_numpy(np.int64))
    starts = np.append(pieces["start_ns"].to_numpy(np.int64), end_ns)
    at = np.flatnonzero(starts > ends)
    holes = pieces.iloc[np.minimum(at, len(pieces) - 1)].assign(
        start_ns=ends[at], end_ns=starts[at], dur_ns=starts[at] - ends[at], microbatch=NO_PLACE
    )
    holes["class"] = UNATTRIBUTED
    holes["group_id"] = holes["link"] = ""
    whole: pd.DataFrame = pd.concat([pieces, holes]).sort_values("start_ns", ignore_index=True)
    return whole
