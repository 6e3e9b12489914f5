"""Volumes beside the formulas: a small job whose counts and bytes are worked out by hand.

Two tensor-parallel ranks, two replicas, two layers of width 8, two microbatches of 16 tokens in fp32.
A step has 2 x (4 x 2 + 2) = 20 all-reduces of 16 x 8 x 4 = 512 bytes, and one of all gradients.
"""

import json

import pytest
from tests.tables import trace_of

from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.volumes.compare import expected_and_seen
from meshscope.analyze.output.json.collectives import expected_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.text.collectives import expected_blocks
from meshscope.probe.schema.layout import ParallelLayout

LAYOUT = ParallelLayout(tp=2, dp=2)
MODEL = {
    "num_layers": 2,
    "hidden_size": 8,
    "num_heads": 2,
    "vocab_size": 16,
    "seq_len": 16,
    "ffn_size": 32,
}
PARAMETERS = 2 * ((4 * 64 + 2 * 256) // 2 + 2 * 8) + 2 * 64 + 8
"""Of a tensor-parallel rank: half of attention (4 h h) and MLP (2 h f), two norms; half of embedding
and head (8 rows of 8 each); the last norm."""
GRADIENTS = 4 * PARAMETERS
RUN = {"model": json.dumps(MODEL), "microbatches": 2, "tokens_per_step": 64}
GROUPS = [
    {"group_id": "t0", "axis": "tp", "ranks": [0, 1]},
    {"group_id": "t1", "axis": "tp", "ranks": [2, 3]},
    {"group_id": "d0", "axis": "dp", "ranks": [0, 2]},
    {"group_id": "d1", "axis": "dp", "ranks": [1, 3]},
]
STEPS = 3


def capture(tp=(("all_reduce", 20, 512),), dp=(("all_reduce", 1, GRADIENTS),), **changes):
    """Return a capture in which every step of every rank has the given operations."""
    rows = []
    for rank in range(4):
        for step in range(STEPS):
            for axis, group, operations in (
                ("tp", f"t{rank // 2}", tp),
                ("dp", f"d{rank % 2}", dp),
            ):
                for kind, count, size, *dtype in operations:
                    row = {"rank": rank, "step": step, "group_id": group, "axis": axis}
                    row |= {"kind": kind, "size_bytes": size, "dtype": [*dtype, "float32"][0]}
                    begin = step * 1000
                    rows += [
                        {**row, "seq": len(rows) + at, "start_ns": begin, "end_ns": begin + 1}
                        for at in range(count)
                    ]
    steps = [
        {"rank": rank, "step": step, "start_ns": step * 1000, "dur_ns": 1000}
        for rank in range(4)
        for step in range(STEPS)
    ]
    stated = {"layout": LAYOUT, "run": RUN, "group": GROUPS, **changes}
    return trace_of(collective=rows, step=steps, **stated)


def compared(*args, **changes):
    """Return the rows that differ, as axis, kind, reason, number."""
    trace = capture(*args, **changes)
    windows = step_windows(trace)
    found = expected_and_seen(trace, windows)
    assert found.unknown is None
    # The matched events say the same as the records that they are made of.
    assert expected_and_seen(trace, windows, communication_events(trace, windows).frame) == found
    return [(row.axis, row.kind, row.code, row.amount) for row in found.rows if row.code]


def test_a_job_as_planned():
    """Fails when the formulas and the records of a plain job do not agree to the byte."""
    trace = capture()
    found = expected_and_seen(trace, step_windows(trace))
    assert [(row.axis, row.expected_bytes, row.seen_bytes) for row in found.rows] == [
        ("dp", GRADIENTS, GRADIENTS),
        ("tp", 20 * 512, 20 * 512),
    ]
    assert all(row.code is None and row.difference_frac == 0 for row in found.rows)


@pytest.mark.parametrize(
    ("operations", "answer"),
    [
        # One more sum in each of 2 layers and 2 microbatches.
        ({"tp": [("all_reduce", 24, 512)]}, ("tp", "all_reduce", "more_per_layer", 1)),
        ({"tp": [("all_reduce", 16, 512)]}, ("tp", "all_reduce", "fewer_per_layer", 1)),
        # Full recomputation is 2 more for each layer and microbatch: that is taken for it.
        ({"tp": [("all_reduce", 28, 512)]}, None),
        ({"tp": [("all_reduce", 20, 256, "bfloat16")]}, ("dp", "all_reduce", "dtype", 2)),
        ({"dp": [("all_reduce", 2, GRADIENTS)]}, ("dp", "all_reduce", "every_microbatch", 2)),
        ({"dp": [("all_reduce", 8, GRADIENTS // 8)]}, ("dp", "all_reduce", "small_buckets", 8)),
        ({"dp": [("all_reduce", 7, GRADIENTS // 7)]}, None),
        (
            {"dp": [("all_reduce", 1, GRADIENTS), ("broadcast", 1, 400)]},
            ("dp", "broadcast", "broadcasts", None),
        ),
        # Less than 2 % of what the axis moves: the sum of a loss.
        ({"dp": [("all_reduce", 1, GRADIENTS), ("broadcast", 1, 4)]}, None),
        ({"dp": []}, ("dp", "all_reduce", "not_seen", None)),
        # ZeRO-1 and ZeRO-2.
        ({"dp": [("reduce_scatter", 1, GRADIENTS), ("all_gather", 1, GRADIENTS)]}, None),
        ({"dp": [("reduce_scatter", 2, GRADIENTS), ("all_gather", 1, GRADIENTS)]}, None),
        # ZeRO-3 gathers in each of 2 passes of 2 microbatches.
        ({"dp": [("reduce_scatter", 2, GRADIENTS), ("all_gather", 4, GRADIENTS)]}, None),
    ],
)
def test_reasons(operations, answer):
    """Fails when a difference of known cause has another reason, or a fine job has one."""
    assert compared(**operations) == ([] if answer is None else [answer])


def test_unknown_is_said():
    """Fails when volumes are expected of a job whose model or batch nobody stated."""
    for run, why in (({**RUN, "model": None}, "model"), ({**RUN, "microbatches": None}, "batch")):
        trace = capture(run=run)
        found = expected_and_seen(trace, step_windows(trace))
        assert found.unknown == why
        assert "unknown" in to_plain(expected_blocks(expected_to_json(found)))
    assert expected_and_seen(trace, step_windows(trace)).rows == ()


def test_a_step_apart():
    """Fails when a step that sends twice as much is lost in the median."""
    trace = capture()
    extra = {"rank": 0, "step": 1, "group_id": "d0", "size_bytes": 9 * GRADIENTS, "seq": 9999}
    more = trace_of(
        layout=LAYOUT, collective=[{**extra, "event_id": 9999, "start_ns": 1500, "end_ns": 1501}]
    )
    import pyarrow as pa

    both = pa.concat_tables([trace.tables["collective"], more.tables["collective"]])
    trace = trace.with_tables({"collective": both.unify_dictionaries()})
    rows = expected_and_seen(trace, step_windows(trace)).rows
    assert {row.axis: row.steps_apart for row in rows} == {"dp": (1,), "tp": ()}


def test_text_and_json():
    """Fails when the table lacks the reason, or JSON a number."""
    trace = capture(tp=[("all_reduce", 24, 512)])
    result = expected_to_json(expected_and_seen(trace, step_windows(trace)))
    row = next(row for row in result["rows"] if row["axis"] == "tp")
    assert row["difference_frac"] == pytest.approx(0.2)
    assert row["reason"] == "more_per_layer"
    text = to_plain(expected_blocks(result))
    assert "1 more all-reduces per layer and microbatch" in text
    assert "+20.0 %" in text
