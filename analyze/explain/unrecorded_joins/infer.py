"""Infer joins from the times of a program, and count the waiting in them.

Ranks may wait for one another in the groups of the mesh, or in the recorded ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.layout import MESH_AXES
from meshscope.probe.schema.terms import Axis, CollectiveKind, StepDetail

from ...account.ledger.build import Ledger, build_ledger
from ...align.communication.events import CommunicationEvents
from ...align.steps.windows import StepWindows
from ...tables.arrays import FloatArray, IntArray, narrow
from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import Message, message
from ..replay.program import Program, build_program
from .evidence import Tested, held_against, widest_of_the_best
from .places import IDLE, Places, names_of, places_of

ENDS = "pipeline ends"
"""The family of first and last stages."""
WORLD = "world"
AXIS = {axis.value: axis.value for axis in Axis} | {ENDS: Axis.PP.value}
"""Axis by which waiting in a join of a family is counted; the others are of several axes."""


def families_of(trace: Trace, ranks: IntArray) -> dict[str, dict[int, int]]:
    """Return the candidates: a label a rank, equal for the members of a group; the smallest first.

    Along each axis of the mesh and each two of them, and both ends of each pipeline; or the recorded groups of an axis, where no mesh
    is known. And all ranks.
    """
    families: dict[str, dict[int, int]] = {}
    if trace.layout is not None:
        places = {int(rank): trace.layout.coordinates(int(rank)) for rank in ranks}
        for axes in (*((axis,) for axis in MESH_AXES), *combinations(MESH_AXES, 2)):
            rest = [axis for axis in MESH_AXES if axis not in axes]
            keys = [tuple(places[int(rank)][axis] for axis in rest) for rank in ranks]
            families["+".join(axes)] = dict(zip(ranks.tolist(), _numbered(keys), strict=True))
        families[ENDS] = _ends_of_pipelines(families["pp"], places, trace.layout.pp)
    else:
        groups = trace.frame("group")
        for axis, recorded in groups.groupby(groups["axis"].astype(str))["ranks"]:
            own = {int(rank): n for n, ranks_of in enumerate(recorded) for rank in ranks_of}
            families[str(axis)] = {rank: own.get(rank, -1 - rank) for rank in ranks.tolist()}
    families[WORLD] = dict.fromkeys(ranks.tolist(), 0)
    by_size = sorted(families.items(), key=lambda item: -len(set(item[1].values())))
    seen: dict[tuple[int, ...], tuple[str, dict[int, int]]] = {}
    for axis, labels in by_size:
        members = tuple(_numbered([labels[rank] for rank in ranks.tolist()]))
        if len(set(members)) < len(ranks):
            seen.setdefault(members, (axis, labels))
    return dict(seen.values())


def _ends_of_pipelines(
    pipelines: dict[int, int], places: dict[int, dict[str, int]], stages: int
) -> dict[int, int]:
    """Return the first and last stage of each pipeline as a group: they share an embedding."""
    return {
        rank: number if places[rank]["pp"] in (0, stages - 1) else -1 - rank
        for rank, number in pipelines.items()
    }


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    return [number[key] for key in keys]


def with_inferred(events: CommunicationEvents, joins: pd.DataFrame) -> CommunicationEvents:
    """Return the events with inferred joins as operations of their own.

    They have no size: nothing was seen to be sent. On a capture of hosts they are waited for from the
    first to the last instant.

    Args:
        events: What was recorded.
        joins: rank, step, group_id, axis, join (from 0 on), start_ns, split_ns, end_ns.
    """
    frame = events.frame
    is_host = bool(frame["host"].any())
    waited = joins[["start_ns", "end_ns"]].to_numpy(np.float64)
    first = int(frame["join"].max()) + 1 if len(frame) else 0
    rows = pd.DataFrame(
        {
            "rank": joins["rank"].to_numpy(np.int64),
            "step": joins["step"].to_numpy(np.int64),
            "group_id": joins["group_id"].to_numpy(object),
            "axis": joins["axis"].to_numpy(object),
            "kind": CollectiveKind.BARRIER.value,
            "link": "",
            "size_bytes": 0,
            "is_p2p": False,
            "is_send": False,
            "is_buffered": False,
            "host": is_host,
            "float_bytes": 0,
            "join": narrow(joins["join"].to_numpy(np.int64) + first),
            "start_ns": joins["start_ns"].to_numpy(np.int64),
            "end_ns": joins["end_ns"].to_numpy(np.float64),
            "wait_start_ns": waited[:, 0] if is_host else np.nan,
            "wait_end_ns": waited[:, 1] if is_host else np.nan,
            "wire_ns": joins["end_ns"].to_numpy(np.float64)
            - joins["split_ns"].to_numpy(np.float64),
            "split_ns": joins["split_ns"].to_numpy(np.float64),
            "is_inferred": True,
        }
    )
    columns = {str(name): _appended(frame[name], rows[name]) for name in frame}
    return events._replace(frame=pd.DataFrame(columns, copy=False))


def _appended(column: pd.Series, more: pd.Series) -> pd.Series:
    """Return a column with more rows; categories stay in sorted order."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return pd.concat([column, more.astype(column.dtype)], ignore_index=True)
    names = sorted({*column.cat.categories, *more.unique()})
    dtype = pd.CategoricalDtype(pd.Index(names))
    return pd.concat([column.astype(dtype), more.astype(dtype)], ignore_index=True)


LEAST_FRAC = 0.001
"""Share of the step from which on the gaps of a place in the program are looked at."""
OWN_QUANTILE = 0.1
"""Of the time from the last ready to the first departure, what lies below is the members' own."""
MOST_LISTED = 8
ORIGIN = "inferred join"
"""Begin of the names of groups of such joins."""


class Joined(NamedTuple):
    """Events and ledger with the joins that only the times show."""

    events: CommunicationEvents
    ledger: Ledger
    axes: frozenset[str] = frozenset()
    """Axes along which such joins hold every rank."""
    unexplained_frac: float = 1.0
    """Share of the step that a rank may still wait where no record and no join shows it, at most."""
    limits: tuple[Limit, ...] = ()


def with_hidden_joins(
    trace: Trace, windows: StepWindows, recorded: Joined, resolution_ns: float
) -> Joined:
    """Return events and ledger with the joins that no record, but the times show.

    Args:
        trace: The capture.
        windows: The analysed steps.
        recorded: What was recorded of them.
        resolution_ns: How far apart stamps of one instant may lie.
    """
    events, ledger = recorded.events, recorded.ledger
    if windows.detail is not StepDetail.FULL or events.frame.empty:
        return recorded
    idle_ns = ledger.by_step[list(IDLE)].to_numpy().sum()
    if idle_ns < LEAST_FRAC * ledger.by_step["step_ns"].sum():
        return recorded._replace(unexplained_frac=0.0)
    program = _program(windows, events, ledger, resolution_ns)
    if program is None:
        return recorded
    least_ns = max(LEAST_FRAC * windows.step_time_ns, 3 * resolution_ns)
    places = places_of(trace, program, ledger).with_gaps(least_ns)
    joins = hidden_joins(trace, program, places, resolution_ns)
    unexplained_ns = _unexplained(places, joins) / len(windows.steps)
    recorded = recorded._replace(unexplained_frac=unexplained_ns / windows.step_time_ns)
    if joins.empty:
        return recorded
    events = with_inferred(events, joins)
    ledger = build_ledger(trace, windows, events)
    if _program(windows, events, ledger, resolution_ns) is None:
        return recorded
    return Joined(
        events,
        ledger,
        frozenset(axis.value for axis in Axis if _holds_all(joins, axis, len(windows.ranks))),
        recorded.unexplained_frac,
        tuple(_limits(joins, len(windows.steps))),
    )


def _program(
    windows: StepWindows, events: CommunicationEvents, ledger: Ledger, resolution_ns: float
) -> Program | None:
    """Return the replay graph; None where operations depend on themselves."""
    try:
        return build_program(windows, events, ledger, resolution_ns)
    except ValueError:
        return None


def _unexplained(places: Places, joins: pd.DataFrame) -> float:
    """Return how long a rank stands beyond what its like do at least, over all steps, at most, ns.

    Without what joins explain: of these the time from their end on counts.
    """
    ready_ns = places.ready_ns.copy()
    if len(joins):
        ends = joins.groupby("place")["end_ns"].max()
        ready_ns[ends.index.to_numpy()] = ends.to_numpy()
    gap = pd.Series(places.depart_ns - ready_ns)
    usual = gap.groupby(places.key).transform("quantile", OWN_QUANTILE)
    beyond = (gap - usual).clip(lower=0).groupby(places.rank).sum()
    return float(beyond.max()) if len(beyond) else 0.0


def _holds_all(joins: pd.DataFrame, axis: Axis, ranks: int) -> bool:
    """Tell whether every rank is in a join of all that differ from it along an axis alone."""
    families = joins["family"].str.split("+")
    along = families.map(lambda axes: axis.value in axes or WORLD in axes)
    return int(joins.loc[along, "rank"].nunique()) == ranks


def hidden_joins(
    trace: Trace, program: Program, places: Places, resolution_ns: float
) -> pd.DataFrame:
    """Return the joins that the times show and no operation does, one row a member and step.

    Args:
        trace: The capture.
        program: The replay graph of what was recorded.
        places: Where ranks stand.
        resolution_ns: How far apart stamps of one instant may lie.

    Returns:
        place (row of the places), rank, step, group_id, family, axis, before (the activity that it holds
        up), join (from 0 on), start_ns (the member came), split_ns (the last one came), end_ns (the join
        was over).
    """
    least_ns = max(LEAST_FRAC * program.windows.step_time_ns, 3 * resolution_ns)
    families = families_of(trace, np.unique(places.rank))
    longest = places.by_longest()
    axes = [axis for axis in families for _ in range(2)]
    tested = [
        held_against(aligned, labels, resolution_ns, least_ns)
        for labels in families.values()
        for aligned in (longest, places)
    ]
    if not any(own.is_explained.any() for own in tested):
        return _no_rows()
    best = widest_of_the_best(tested, resolution_ns)
    ready_ns, found, joins, names = places.ready_ns.copy(), [], 0, 0
    for number, (axis, own) in enumerate(zip(axes, tested, strict=True)):
        chosen = np.isin(own.group, own.group[(best == number) & own.is_explained])
        rows = np.flatnonzero(chosen & own.is_whole)
        if len(rows):
            held = _join_rows(places, ready_ns, own, rows)
            ready_ns[rows] = np.maximum(ready_ns[rows], held["end_ns"])
            number_of = names + pd.factorize(held["group"])[0]
            held["group_id"] = pd.Series(number_of).map(lambda name: f"{ORIGIN} {name}")
            held["before"] = names_of(program, places.kind[rows])
            held["family"], held["axis"] = axis, AXIS.get(axis, Axis.OTHER.value)
            found.append(held.assign(join=held["join"] + joins))
            joins, names = int(found[-1]["join"].max()) + 1, int(number_of.max()) + 1
    return pd.concat(found, ignore_index=True).drop(columns="group")


def _no_rows() -> pd.DataFrame:
    columns = ["place", "rank", "step", "group_id", "family", "axis", "before", "join"]
    columns += ["start_ns", "split_ns", "end_ns"]
    return pd.DataFrame(columns=columns)


def _join_rows(
    places: Places, ready_ns: FloatArray, tested: Tested, rows: IntArray
) -> pd.DataFrame:
    """Return the members of the joins at some places: rank, step, group, join, and their times.

    A join is over when the first member departs. What always passes from the last ready to that is
    work of the members themselves, and comes before the join.
    """
    join = pd.Series(np.unique(tested.join[rows], return_inverse=True)[1])
    ready, depart = pd.Series(ready_ns[rows]), pd.Series(places.depart_ns[rows])
    last, first = ready.groupby(join).transform("max"), depart.groupby(join).transform("min")
    between = (first - last).clip(lower=0)
    group = pd.Series(tested.group[rows])
    own = between.groupby(group).transform("quantile", OWN_QUANTILE)
    came = np.minimum(ready + np.minimum(own, between), first)
    return pd.DataFrame(
        {
            "place": rows,
            "rank": places.rank[rows],
            "step": places.step[rows],
            "group": group,
            "join": join,
            "start_ns": came.round().astype(np.int64),
            "split_ns": np.minimum(last + np.minimum(own, between), first),
            "end_ns": first,
        }
    )


def _limits(joins: pd.DataFrame, steps: int) -> Iterator[Limit]:
    """Yield which joins were inferred, and how long ranks waited in them.

    Args:
        joins: As ``hidden_joins`` returns them.
        steps: Number of analysed steps.
    """
    for (axis, before), rows in joins.groupby(["axis", "before"], sort=False):
        wait = (rows["split_ns"] - rows["start_ns"]).groupby(rows["rank"]).sum() / steps
        yield message(
            "assumed.joins",
            groups=_groups_of(rows),
            before=str(before),
            steps=int(rows["step"].nunique()),
            wait_ns=float(wait.max()),
            rank=int(wait.index[int(wait.argmax())]),
            axis=str(axis),
        )


def _groups_of(rows: pd.DataFrame) -> list[Message]:
    """Return the ranks that wait for one another, of many groups the first ones."""
    groups = rows.groupby("group_id")["rank"].agg(lambda ranks: sorted(set(ranks)))
    named = [message("assumed.joined", ranks=list(map(int, own))) for own in groups[:MOST_LISTED]]
    more = len(groups) - len(named)
    return [*named, message("assumed.more_joined", count=more)] if more > 0 else named
