"""Collectives joined across ranks and sends with receives: wire, wait, last arrival, limits."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.align.communication.matching import match_collectives, match_p2p
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.tables import TABLES


def trace_of(groups=(("g", [0, 1, 2]),), **tables):
    """Return a trace of the given rows; columns that do not matter get one value."""
    fixed = {
        "step": 1, "group_id": "g", "axis": "dp", "kind": "all_reduce", "size_bytes": 1000,
        "microbatch": -1, "chunk": -1, "source": "device",
    }  # fmt: skip
    rows = {"group": [{"group_id": name, "axis": "dp", "ranks": ranks} for name, ranks in groups]}
    for name, given in tables.items():
        rows[name] = [
            fixed | row | {"issue_ns": row["start_ns"], "event_id": i}
            for i, row in enumerate(given)
        ]
    arrow = {
        name: TABLES[name].conform(pa.Table.from_pylist(rows[name]))
        if rows.get(name)
        else spec.empty()
        for name, spec in TABLES.items()
    }
    ranks = tuple(sorted({row["rank"] for given in tables.values() for row in given}))
    return Trace(path=Path("x"), run={}, layout=None, ranks=ranks, tables=arrow)


def member(rank, start_ns, end_ns, seq=0, **other):
    """Return one member of one collective."""
    return {"rank": rank, "seq": seq, "start_ns": start_ns, "end_ns": end_ns} | other


def waits(match):
    """Return the wait of every rank, summed."""
    return match.members.groupby("rank")["wait_ns"].sum().to_dict()


def test_wire_is_the_least_duration_and_wait_the_rest():
    """Waiting for others would be reported as slow transfer."""
    match = match_collectives(
        trace_of(collective=[member(0, 0, 100), member(1, 60, 101), member(2, 80, 102)])
    )
    row = match.collectives.iloc[0]
    assert row[["wire_ns", "start_spread_ns", "end_spread_ns"]].tolist() == [22, 80, 2]
    assert waits(match) == {0: 78, 1: 19, 2: 0}
    assert (row["last_rank"], row["members"], row["expected"]) == (2, 3, 3)
    assert match.members.set_index("rank")["arrived_last"].to_dict() == {
        0: False,
        1: False,
        2: True,
    }
    assert texts(match.limits) == ()


def test_clocks_that_differ_do_not_name_the_wrong_straggler():
    """With clocks a millisecond apart the rank whose clock is ahead would be blamed."""
    ahead = 5_000_000
    match = match_collectives(
        trace_of(collective=[member(0, ahead, ahead + 100), member(1, 60, 101), member(2, 80, 102)])
    )
    assert match.collectives["last_rank"].tolist() == [2]


def test_a_tie_and_a_broadcast_name_nobody():
    """The lowest rank would be blamed for every tie, the root of a broadcast for being first."""
    rows = [member(rank, 0, 10) for rank in range(3)]
    rows += [member(rank, rank, 20, seq=1, kind="broadcast") for rank in range(3)]
    match = match_collectives(trace_of(collective=rows))
    assert match.collectives["last_rank"].isna().all()
    assert not match.members["arrived_last"].any()


def test_missing_members_and_unknown_ends_are_stated():
    """The whole duration of the only captured member would be called transfer."""
    rows = [member(0, 0, 100), member(0, 200, 300, seq=1), member(1, 250, None, seq=1)]
    match = match_collectives(trace_of(collective=rows))
    assert match.collectives["wire_ns"].isna().tolist() == [True, False]
    assert match.members["wait_ns"].isna().tolist() == [True, False, True]
    assert any("2 of 2 collectives lack members" in limit for limit in texts(match.limits))
    assert any("1 of 3 members" in limit for limit in texts(match.limits))


def test_a_rank_that_saw_one_more_is_moved_back():
    """One collective too many at the head of one rank would mismatch all that follow."""
    sizes = [10, 20, 20, 30, 10, 40]
    rows = [
        member(rank, 100 * seq, 100 * seq + 10, seq=seq, size_bytes=size)
        for rank in (0, 2)
        for seq, size in enumerate(sizes)
    ]
    rows += [
        member(1, 100 * (seq - 1), 100 * (seq - 1) + 10, seq=seq, size_bytes=size)
        for seq, size in enumerate([99, *sizes])
    ]
    match = match_collectives(trace_of(collective=rows))
    complete = match.collectives[match.collectives["members"] == 3]
    assert complete["size_bytes"].tolist() == sizes
    assert (complete["start_spread_ns"] == 0).all()
    assert sum("shifted by" in limit for limit in texts(match.limits)) == 2
    assert not any("differ in kind or size" in limit for limit in texts(match.limits))


def test_a_disagreement_that_no_move_explains_is_counted():
    """A desynchronised job would be forced into agreement."""
    rows = [member(0, 10 * seq, 10 * seq + 5, seq=seq, size_bytes=seq) for seq in range(6)]
    rows += [member(1, 10 * seq, 10 * seq + 5, seq=seq, size_bytes=99) for seq in range(6)]
    match = match_collectives(trace_of(collective=rows))
    assert any("6 collectives differ in kind or size" in limit for limit in texts(match.limits))


def test_members_that_do_not_overlap_are_stated():
    """Waits between collectives that were not the same one would be taken for true."""
    late = 1_000_000
    rows = [member(0, 0, 100), member(1, late, late + 100)]
    match = match_collectives(trace_of(collective=rows))
    assert any("1 of 1 collective " in x and "not overlap" in x for x in texts(match.limits))


def test_a_later_row_of_an_event_replaces_the_earlier():
    """A collective whose end was learned later would count twice."""
    rows = [member(0, 0, None), member(0, 0, 50), member(1, 10, 50)]
    trace = trace_of(collective=rows)
    table = trace.tables["collective"].to_pandas().assign(event_id=[7, 7, 7])
    tables = dict(trace.tables) | {
        "collective": TABLES["collective"].conform(
            pa.Table.from_pandas(table, preserve_index=False)
        )
    }
    match = match_collectives(
        Trace(path=Path("x"), run={}, layout=None, ranks=(0, 1), tables=tables)
    )
    assert waits(match) == {0: 10, 1: 0}


def test_sends_meet_their_receives():
    """A stage's waiting for its predecessor would be called transfer time."""
    rows = [
        member(0, 50, 70, direction="send", peer=1),
        member(1, 0, 71, direction="recv", peer=0),
        member(0, 80, 90, seq=1, direction="send", peer=1),
        member(2, 80, 90, direction="recv", peer=-1),
    ]
    match = match_p2p(trace_of(p2p=rows))
    assert match.transfers[["source", "target", "seq"]].to_numpy().tolist() == [[0, 1, 0]]
    columns = ["wire_ns", "receive_wait_ns", "send_wait_ns"]
    assert match.transfers[columns].to_numpy().tolist() == [[21, 50, 0]]
    assert texts(match.limits) == (
        "1 transfer without a named peer",
        "1 transfer without the other end in the capture",
    )


def test_transfers_that_share_a_position_are_not_joined():
    """A capture that holds a send twice would end ``collectives`` with a traceback."""
    rows = [
        member(0, 50, 70, direction="send", peer=1),
        member(0, 52, 72, direction="send", peer=1),
        member(1, 0, 71, direction="recv", peer=0),
        member(0, 80, 90, seq=1, direction="send", peer=1),
        member(1, 80, 95, seq=1, direction="recv", peer=0),
    ]
    match = match_p2p(trace_of(p2p=rows))
    assert match.transfers["seq"].tolist() == [1]
    assert texts(match.limits) == (
        "2 transfers with the same position as another: not matched",
        "1 transfer without the other end in the capture",
    )


def test_nothing_to_match():
    """A capture without communication would crash the report."""
    trace = trace_of(groups=())
    assert match_collectives(trace).collectives.empty
    assert match_collectives(trace).members.empty
    assert match_p2p(trace).transfers.empty


@pytest.mark.traces
def test_the_real_straggler(traces_dir):
    """The known late rank and the known waits of a real job would come out differently."""
    match = match_collectives(load_trace(traces_dir / "amd_hpctraining" / "split"))
    rows = match.members[match.members["kind"] == "all_reduce"].groupby("rank")
    assert (rows["wait_ns"].sum() / 1e6).astype(float).round(3).tolist() == [
        60.881,
        35.953,
        37.315,
        0,
    ]
    assert rows["arrived_last"].sum().to_dict() == {0: 0, 1: 0, 2: 0, 3: 15}
    reduced = match.collectives[match.collectives["kind"] == "all_reduce"]
    gib = reduced.groupby("size_bytes")["bus_bandwidth_bytes_per_s"].mean().astype(float) / 2**30
    assert gib.round(1).tolist() == [84.5, 99.3, 117.1, 115.2, 120.0]


@pytest.mark.traces
def test_a_real_job_without_metadata(traces_dir):
    """The known late ranks of eight would come out differently."""
    match = match_collectives(load_trace(traces_dir / "param"))
    last = match.members.groupby("rank")["arrived_last"].sum()
    assert last.tolist() == [0, 0, 0, 0, 1, 2, 0, 5]
    assert (match.collectives["members"] == 8).all()


@pytest.mark.traces
def test_a_sampled_pair_is_not_forced_into_agreement(traces_dir):
    """Two ranks of which only some kernels were kept would be shifted by a whole step."""
    match = match_collectives(load_trace(traces_dir / "hta" / "trace_filter"))
    assert not any("shifted by" in limit for limit in texts(match.limits))
    assert any("lack members" in limit for limit in texts(match.limits))


@pytest.mark.traces
def test_the_published_job_is_matched_completely(traces_dir):
    """A pipeline transfer without its other end would be left out of the bubble."""
    trace = load_trace(traces_dir / "straggler_analysis")
    match, transfers = match_collectives(trace), match_p2p(trace)
    assert texts(match.limits) == texts(transfers.limits) == ()
    assert len(transfers.transfers) == 1536
    assert (match.collectives["members"] == match.collectives["expected"]).all()
    typical = pd.to_numeric(transfers.transfers["wire_ns"]).median()
    assert 0 < typical < 1_000_000
