"""Positions of collectives that differ between ranks."""

from dataclasses import replace

import pandas as pd
import pyarrow as pa
from tests.texts import texts

from meshscope.analyze.align.communication.realignment import (
    realign,
    with_agreed_positions,
)
from meshscope.analyze.synthetic import SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import COLLECTIVE


def rows_of(sizes, *, first=None, begin=None):
    """Return members of one group: sizes by rank, numbered from ``first``, 100 ns apart."""
    return pd.DataFrame(
        [
            {
                "rank": rank,
                "step": 0,
                "group_id": "g",
                "seq": (first or {}).get(rank, 0) + place,
                "kind": "all_reduce",
                "size_bytes": size,
                "start_ns": (begin or {}).get(rank, 0) + 100 * place,
                "end_ns": (begin or {}).get(rank, 0) + 100 * place + 10,
            }
            for rank, own in sizes.items()
            for place, size in enumerate(own)
        ]
    )


def positions(rows, rank):
    """Return the positions of one rank in the order of its rows."""
    return rows.loc[rows["rank"] == rank, "seq"].tolist()


COMMON = [10, 20, 30, 40, 50, 60, 70, 80]


def test_one_more_in_between_is_stepped_over():
    """One extra collective on one rank would put all that follow it at odds."""
    extra = [*COMMON[:4], 99, *COMMON[4:]]
    rows, limits = realign(rows_of({0: COMMON, 1: COMMON, 2: extra}))
    joined = rows.groupby("seq")["size_bytes"].nunique()
    assert (joined == 1).all()
    assert rows.groupby("seq").size().value_counts().to_dict() == {3: 8, 1: 1}
    assert any("between them" in limit for limit in texts(limits))
    assert not any("differ in kind or size" in limit for limit in texts(limits))


def test_one_less_in_between_is_stepped_over():
    """A rank that skipped a collective would be matched with the wrong ones from there on."""
    rows, _ = realign(rows_of({0: COMMON, 1: [*COMMON[:3], *COMMON[4:]]}))
    assert positions(rows, 1) == [0, 1, 2, 4, 5, 6, 7]


def test_recorded_numbers_that_start_elsewhere_are_laid_head_to_head():
    """Counters that began at different values would join nothing."""
    rows, limits = realign(rows_of({0: COMMON, 1: COMMON}, first={1: 1000}))
    assert positions(rows, 0) == positions(rows, 1)
    assert any("shifted by" in limit for limit in texts(limits))


def test_windows_at_different_times_are_not_laid_over_each_other():
    """Equal collectives of different minutes would be given waits of a minute."""
    before = rows_of({0: COMMON, 1: COMMON}, first={1: 1000}, begin={1: 60_000_000_000})
    after, limits = realign(before)
    assert after["seq"].tolist() == before["seq"].tolist()
    assert limits == []


def test_equal_collectives_that_differ_in_number_stay():
    """Of equal ones nobody can tell which is missing: no rank would be moved by a guess."""
    before = rows_of({0: [5] * 8, 1: [5] * 7})
    after, limits = realign(before)
    assert after["seq"].tolist() == before["seq"].tolist()
    assert limits == []


def test_a_difference_near_the_end_is_not_explained_by_a_guess():
    """Two sampled ranks would be forced into agreement by what little follows."""
    before = rows_of({0: [10, 20, 30, 40, 50, 60, 70], 1: [10, 20, 30, 40, 99, 50, 60]})
    after, limits = realign(before)
    assert after["seq"].tolist() == before["seq"].tolist()
    assert any("differ in kind or size" in limit for limit in texts(limits))


def steps_of(first_step, ends_ns):
    """Return what one rank did: an all-reduce a step, numbered from 0 where it was first seen."""
    return [
        {
            "step": first_step + place,
            "seq": place,
            "group_id": "g",
            "kind": "all_reduce",
            "size_bytes": 8,
            "start_ns": end - 10,
            "end_ns": end,
        }
        for place, end in enumerate(ends_ns)
    ]


def of_ranks(*ranks):
    """Return the rows of some ranks."""
    return pd.DataFrame([row | {"rank": rank} for rank, own in enumerate(ranks) for row in own])


def test_a_head_that_is_missing_is_no_wrong_clock():
    """Fails when a rank without its first collective is matched a step late: clocks say otherwise."""
    rows, limits = realign(of_ranks(steps_of(5, (1000, 4000, 7000)), steps_of(6, (4000, 7000))))
    assert positions(rows, 1) == [1, 2]
    assert any(
        "capture of rank 1 begins at another collective of group g" in limit
        for limit in texts(limits)
    )


def test_steps_that_are_numbered_otherwise_move_nothing():
    """Fails when a counter that is one ahead parts collectives that ended together."""
    rows, limits = realign(
        of_ranks(steps_of(5, (1000, 4000, 7000)), steps_of(6, (1000, 4000, 7000)))
    )
    assert positions(rows, 1) == [0, 1, 2]
    assert not limits


def _shifted(origin):
    """Return a capture in which rank 0 did not see its first collective, and the positions that are right."""
    trace, _ = generate(SyntheticJob(layout=ParallelLayout(dp=4), steps=6))
    frame = trace.frame("collective").sort_values(["rank", "seq"]).reset_index(drop=True)
    frame = frame[(frame["rank"] != 0) | (frame["seq"] != frame["seq"].min())]
    right = frame["seq"].tolist()
    frame = frame.assign(seq=frame["seq"] - (frame["rank"] == 0))
    table = COLLECTIVE.conform(pa.Table.from_pandas(frame, preserve_index=False))
    return replace(trace.with_tables({"collective": table}), origin=origin), right


def test_a_rank_that_saw_one_collective_less_is_matched_again():
    """Fails when every collective of a rank is matched with the one before it."""
    trace, right = _shifted("kineto")
    found = with_agreed_positions(trace)
    rows = found.frame("collective").sort_values(["rank", "start_ns"])
    # Positions are of one count for all ranks; where it begins is free.
    moved = rows["seq"].to_numpy() - right
    assert len(set(moved.tolist())) == 1
    assert len(found.limits) > len(trace.limits)


def test_positions_of_our_own_captures_stay():
    """Fails when numbers that the library gave to all members alike are changed."""
    trace, _ = _shifted("meshscope")
    assert with_agreed_positions(trace) is trace


ENDS_NS = [1000 * at + at * at * 7919 % 500 for at in range(160)]
"""Ends of 40 collectives in each of four steps."""


def test_more_collectives_than_are_tried_one_by_one():
    """Fails when a rank that lacks a first step of many collectives is matched a step late."""
    rows, limits = realign(
        of_ranks(
            [row | {"step": 5 + row["seq"] // 40} for row in steps_of(0, ENDS_NS)],
            [row | {"step": 6 + row["seq"] // 40} for row in steps_of(0, ENDS_NS[40:])],
        )
    )
    assert positions(rows, 1) == list(range(40, 160))
    assert len(limits) == 1
