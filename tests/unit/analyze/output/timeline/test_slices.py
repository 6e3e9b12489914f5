"""What a rank shows at each instant of a step."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from tests.deep_run import COMPUTE_NS, MOVE_NS, STEP_NS, add_trace, make_run

from meshscope.analyze import Trace, load_trace
from meshscope.analyze.align.steps.whole_capture import WHOLE_CAPTURE
from meshscope.analyze.output.timeline.categories import Category
from meshscope.analyze.output.timeline.slices import (
    bare_steps,
    in_window,
    of_ranks,
    ranks_around,
    step_outline,
    step_slices,
    steps_of,
    worst_ranks,
)
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

STEP = {"step": 4, "start_ns": 1000, "dur_ns": 20, "tokens": None}
PLACE = {"step": 4, "stage": 0, "chunk": 0, "microbatch": 1, "cpu_ns": None}
FORWARD = {**PLACE, "kind": "forward", "start_ns": 1000, "dur_ns": 10}
REDUCE = {
    "step": 4,
    "group_id": "g",
    "axis": "tp",
    "kind": "all_reduce",
    "seq": 0,
    "size_bytes": 64,
    "dtype": None,
    "issue_ns": 1004,
    "start_ns": 1004,
    "end_ns": 1014,
    "wait_start_ns": 1004,
    "wait_end_ns": 1006,
    "source": "host_blocking",
    "event_id": 1,
}


KERNEL = {"step": 4, "device": 0, "stream": 7, "name_id": 3, "category": "compute"}
KERNEL |= {"start_ns": 1000, "dur_ns": 10, "correlation": -1, "op_id": -1, "launch_ns": None}


def _trace(*, layout=None, ranks=(0,), per_step_clock=False, **rows) -> Trace:
    tables = {
        name: TABLES[name].conform(pa.Table.from_pylist([{"rank": 0, **row} for row in given]))
        for name, given in rows.items()
    }
    return Trace(
        path=Path("run"),
        run={},
        layout=layout,
        ranks=ranks,
        tables=tables,
        per_step_clock=per_step_clock,
    )


def _pieces(step) -> list[tuple[Category, int, int]]:
    columns = step.slices[["category", "start_ns", "end_ns"]]
    return [(Category(row[0]), row[1], row[2]) for row in columns.itertuples(index=False)]


def test_steps_of_which_nothing_but_the_length_is_known_are_not_offered():
    """Fails when a user of a sampled or large run goes through hundreds of empty pages."""
    details = {4: "full", 5: "steps", 6: "sums", 7: "steps", 8: "steps"}
    rows = [{**STEP, "step": step, "detail": detail} for step, detail in details.items()]
    rows.append({**STEP, "step": 7, "rank": 1, "detail": "stages"})
    trace = _trace(step=rows, ranks=(0, 1))
    assert steps_of(trace) == (4, 6, 7)
    assert bare_steps(trace) == {5, 8}
    traced = replace(trace, kernel_steps={0: (8,)})
    assert steps_of(traced) == (4, 6, 7, 8)
    lengths = _trace(step=[{**row, "detail": "steps"} for row in rows])
    assert steps_of(lengths) == (4, 5, 6, 7, 8)
    assert bare_steps(_trace(step=[STEP])) == frozenset()


def test_a_host_wait_covers_the_span_around_it():
    """Fails when a rank that waits inside a forward pass is drawn as computing."""
    step = step_slices(_trace(step=[STEP], span=[FORWARD], collective=[REDUCE]), 4)
    assert _pieces(step) == [
        (Category.FORWARD, 0, 4),
        (Category.COMM_TP, 4, 6),
        (Category.FORWARD, 6, 10),
    ]
    assert step.slices["text"].tolist()[:2] == [
        "forward, stage 0, microbatch 1",
        "waiting for all-reduce over TP, 64 bytes",
    ]
    assert (step.length_ns, step.undrawn) == (20, 0)


@pytest.mark.parametrize(("count", "words"), [(5_253_120, ", 5.01 MiB"), (0, "")])
def test_a_size_is_reported_as_everywhere_else(count, words):
    """Fails when one transfer has 5253120 bytes in a bar and 5.01 MiB below it, or an unknown size is 0."""
    step = step_slices(_trace(step=[STEP], collective=[{**REDUCE, "size_bytes": count}]), 4)
    assert f"waiting for all-reduce over TP{words}" in step.slices["text"].tolist()


def test_rows_that_are_alike_share_their_text():
    """Fails when a step of a million slices takes seconds and 100 MB for texts that are the same."""
    ranks = tuple(range(8))
    rows = [{**STEP, "rank": rank} for rank in ranks]
    spans = [{**FORWARD, "rank": rank} for rank in ranks]
    waits = [{**REDUCE, "rank": rank} for rank in ranks]
    waits[7] = {**waits[7], "size_bytes": 8}
    drawn = step_slices(_trace(ranks=ranks, step=rows, span=spans, collective=waits), 4)
    texts = drawn.slices["text"].tolist()
    assert set(texts) == {
        "forward, stage 0, microbatch 1",
        "waiting for all-reduce over TP, 64 bytes",
        "waiting for all-reduce over TP, 8 bytes",
    }
    assert len({id(text) for text in texts}) == 3


def test_device_compute_covers_communication():
    """Fails when overlapped communication is drawn as exposed."""
    device = {**REDUCE, "source": "device"}
    name = {"name_id": 3, "name": "gemm<float>"}
    step = step_slices(_trace(step=[STEP], kernel=[KERNEL], collective=[device], name=[name]), 4)
    assert _pieces(step) == [(Category.COMPUTE, 0, 10), (Category.COMM_TP, 10, 14)]
    assert step.slices["text"].tolist()[0] == "gemm<float>"


def test_device_work_of_unknown_kind_is_not_compute():
    """Fails when work that nobody knows hides communication, or is counted as compute."""
    unknown = {**KERNEL, "category": "unknown"}
    launched = {**unknown, "start_ns": 1015, "dur_ns": 4, "op_id": 7}
    device = {**REDUCE, "source": "device"}
    step = step_slices(_trace(step=[STEP], kernel=[unknown, launched], collective=[device]), 4)
    assert _pieces(step) == [
        (Category.UNKNOWN, 0, 4),
        (Category.COMM_TP, 4, 14),
        (Category.COMPUTE, 15, 19),
    ]


def test_a_rank_is_shown_with_its_groups():
    """Fails when one rank among thousands cannot be looked at, or beside ranks it never talks to."""
    layout = ParallelLayout(tp=2, pp=2, dp=2)
    rows = [{**STEP, "rank": rank} for rank in range(8)]
    spans = [{**FORWARD, "rank": rank, "start_ns": 1000 + rank} for rank in range(8)]
    trace = _trace(layout=layout, ranks=tuple(range(8)), step=rows, span=spans)
    step = step_slices(trace, 4)
    place = layout.coordinates(5)
    near = [r for r in step.ranks if sum(layout.coordinates(r)[a] != place[a] for a in place) <= 1]
    shown = of_ranks(step, ranks_around(step.ranks, 5, layout), (5,))
    assert shown.ranks == tuple(near)
    assert len(near) == 4
    assert shown.slices["rank"].tolist() == near
    assert shown.slices["row"].tolist() == [0, 1, 2, 3]
    assert shown.slices["start_ns"].tolist() == near
    assert ranks_around(step.ranks, 5, None) == (5,)


def test_some_ranks_of_a_step_are_as_among_all():
    """Fails when a large run shows other slices, rows or bounds of its ranks than a small one."""
    layout = ParallelLayout(tp=2, pp=2, dp=2)
    rows = [{**STEP, "rank": rank, "dur_ns": 20 + rank} for rank in range(8)]
    spans = [{**FORWARD, "rank": rank, "start_ns": 1000 + rank} for rank in range(8)]
    waits = [{**REDUCE, "rank": rank} for rank in range(8)]
    given = {"step": rows, "span": spans, "collective": waits}
    ranks = tuple(range(8))
    whole = step_slices(_trace(layout=layout, ranks=ranks, **given), 4)
    outline = step_outline(_trace(layout=layout, ranks=ranks, **given), 4)
    assert (outline.ranks, outline.labels) == (whole.ranks, whole.labels)
    assert outline.slices.empty
    wanted = of_ranks(whole, (3, 6), ())
    read_before = _trace(layout=layout, ranks=ranks, **given)
    read_before.frame("span")
    for trace in (_trace(layout=layout, ranks=ranks, **given), read_before):
        part = step_slices(trace, 4, (6, 3))
        assert (part.ranks, part.labels) == (wanted.ranks, wanted.labels)
        assert (part.origin_ns, part.length_ns) == (whole.origin_ns, whole.length_ns)
        assert part.longest_ns == whole.longest_ns == outline.longest_ns
        pd.testing.assert_frame_equal(part.slices, wanted.slices)
    everything = step_slices(trace, WHOLE_CAPTURE, (3,))
    assert everything.ranks == (3,)
    assert everything.length_ns == step_slices(trace, WHOLE_CAPTURE).length_ns


def test_the_last_record_of_an_event_counts():
    """Fails when an event that was written twice, before and after its end, is drawn twice."""
    unfinished = {**REDUCE, "end_ns": None, "wait_end_ns": None}
    step = step_slices(_trace(step=[STEP], collective=[unfinished, REDUCE]), 4)
    assert _pieces(step) == [(Category.COMM_TP, 4, 6)]
    assert step.undrawn == 0


def test_communication_without_an_end_is_counted():
    """Fails when communication that cannot be drawn disappears without a word."""
    unfinished = {**REDUCE, "end_ns": None, "wait_start_ns": None, "wait_end_ns": None}
    step = step_slices(_trace(step=[STEP], span=[FORWARD], collective=[unfinished]), 4)
    assert step.undrawn == 1
    assert _pieces(step) == [(Category.FORWARD, 0, 10)]


def test_a_slice_is_cut_at_the_border_of_the_step():
    """Fails when a span that crosses into a step is missing there, or runs out of it."""
    early = {**FORWARD, "step": 3, "start_ns": 995, "dur_ns": 8}
    late = {**FORWARD, "start_ns": 1018, "dur_ns": 9}
    step = step_slices(_trace(step=[STEP], span=[early, late]), 4)
    assert _pieces(step) == [(Category.FORWARD, 0, 3), (Category.FORWARD, 18, 20)]


def test_a_capture_without_steps_is_one_window():
    """Fails when a trace without step boundaries cannot be looked at."""
    trace = _trace(span=[FORWARD])
    assert steps_of(trace) == (WHOLE_CAPTURE,)
    assert _pieces(step_slices(trace, WHOLE_CAPTURE)) == [(Category.FORWARD, 0, 10)]


def test_rows_follow_the_mesh():
    """Fails when ranks of a stage are not drawn together under their place in the mesh."""
    layout = ParallelLayout(pp=2, dp=2, order="dp-pp-cp-tp")
    step = step_slices(_trace(layout=layout, ranks=(0, 1, 2, 3), step=[STEP]), 4)
    assert step.ranks == (0, 2, 1, 3)
    assert step.labels[1] == "rank 2 · pp0 dp1"
    assert step.slices.empty


@pytest.mark.parametrize(
    ("window", "count"), [((0, 4), 1), ((4, 6), 1), ((3, 7), 3), ((11, 20), 0)]
)
def test_window(window, count):
    """Fails when zooming shows slices outside the window, or loses one inside."""
    step = step_slices(_trace(step=[STEP], span=[FORWARD], collective=[REDUCE]), 4)
    assert len(in_window(step.slices, window)) == count


def test_a_run_with_deep_traces_shows_kernels_in_the_traced_steps(tmp_path):
    """Fails if a traced step shows the host, or a step that was not traced an idle device."""
    run = make_run(tmp_path)
    for rank in (0, 1):
        add_trace(run, rank, [5])
    trace = load_trace(run)
    drawn = {
        step: step_slices(trace, step).slices.query("rank == 1") for step in (4, 5)
    }  # fmt: skip
    lengths = {
        step: dict(zip(own["category"], own["end_ns"] - own["start_ns"], strict=True))
        for step, own in drawn.items()
    }
    assert lengths[4] == {Category.FORWARD: 0.8 * STEP_NS}
    assert lengths[5] == {Category.COMPUTE: COMPUTE_NS, Category.COMM_DP: MOVE_NS}
    assert set(drawn[5]["text"]) == {"compute_kernel", "ncclDevKernel_AllReduce"}


@pytest.mark.parametrize("ranks", [1024, 16_384])
def test_each_single_slow_rank_has_a_row(ranks):
    """Fails when a slow rank among healthy ones has no pixel because ranks share rows."""
    rows = tuple(range(ranks))
    healthy = dict.fromkeys(rows, 1.0)
    for slow in range(0, ranks, ranks // 61):
        seen = worst_ranks(rows, 640, healthy | {slow: 1.2}, ())
        assert len(seen) <= 640
        assert slow in seen
        assert slow in worst_ranks(rows, 640, healthy | {slow ^ 1: 2.0}, (slow,))
