"""Positions of collectives that each rank counted by itself."""

from dataclasses import replace

import pyarrow as pa

from meshscope.analyze.align.communication.agreed_positions import with_agreed_positions
from meshscope.analyze.synthetic import SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import COLLECTIVE


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
