"""Memory by stage from a few samples."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.memory.by_stage import (
    memory_by_stage,
    peak_memory_frac,
    stage_excess,
    stage_imbalance,
)
from meshscope.probe.schema.layout import ParallelLayout

LAYOUT = ParallelLayout(pp=2, dp=2)


def table_of(*rows, layout=LAYOUT):
    """Return the table of (rank, peak, allocated, rss, capacity) samples."""
    names = ("rank", "peak_bytes", "allocated_bytes", "rss_bytes", "capacity_bytes")
    samples = [dict(zip(names, row, strict=True)) for row in rows]
    return memory_by_stage(trace_of(layout=layout, memory=samples))


def test_a_stage_has_the_highest_peak_of_its_ranks():
    """A rank that nearly runs out of memory would hide behind its peers."""
    table = table_of((0, 60, 5, None, 100), (1, 80, 5, None, 100), (2, 40, 5, None, 100))
    assert table["stage"].tolist() == [0, 1]
    assert table["ranks"].tolist() == [2, 1]
    assert table["peak_bytes"].tolist() == [80, 40]
    assert table["peak_frac"].tolist() == pytest.approx([0.8, 0.4])
    assert peak_memory_frac(table) == pytest.approx(0.8)
    assert stage_imbalance(table) == (0, 2.0)


def test_without_a_device_allocator_the_resident_set_counts():
    """A run on CPUs would have no memory account."""
    table = table_of((0, None, None, 30, 100), (2, None, None, 90, 100))
    assert table["peak_frac"].tolist() == pytest.approx([0.3, 0.9])
    assert stage_imbalance(table) == (1, 3.0)


def test_unknown_memory_stays_unknown():
    """A missing capacity would become a share of zero, and a gate would pass."""
    table = table_of((0, 50, None, None, None), (2, None, None, None, None))
    assert peak_memory_frac(table) is None
    assert stage_imbalance(table) is None


def test_no_samples_no_rows():
    """A capture without memory samples would crash."""
    assert memory_by_stage(trace_of()).empty
    assert peak_memory_frac(memory_by_stage(trace_of())) is None


def stages(*peaks, **parts):
    """Return the memory of one rank a stage."""
    rows = [
        {
            "rank": rank,
            "peak_bytes": peak,
            **{f"{name}_bytes": row[rank] for name, row in parts.items()},
        }
        for rank, peak in enumerate(peaks)
    ]
    layout = ParallelLayout(pp=len(peaks))
    return memory_by_stage(trace_of(layout=layout, memory=rows, step=[{"dur_ns": 1}]))


@pytest.mark.parametrize(
    ("peaks", "ratios"),
    [
        ((1057, 785, 1072), [1.35, 1.37]),
        ((40, 32, 24, 16), [1.0, 1.0]),
        ((8400, 5700, 5400, 9000), [1.4, 1.76]),
        ((104, 96, 88, 80, 72, 64, 56, 48), [1.0, 1.0]),
        ((40, 32, 24), [1.0, 1.0]),
        ((10, 10, 14, 10), [1.0, 1.0]),
    ],
)
def test_ends_are_compared_with_the_line_through_the_middle(peaks, ratios):
    """Fails when a heavy end hides behind the other, or the falling memory of 1F1B is a fault."""
    found = stage_excess(stages(*peaks))
    assert [found[0].ratio, found[-1].ratio] == pytest.approx(ratios, abs=0.01)


@pytest.mark.parametrize(
    ("peaks", "heavy"),
    [
        ((10, 10, 14, 10), [2]),
        ((20, 10, 10, 14, 10, 10, 18), [0, 3, 6]),
        ((48, 40, 52, 24, 16, 8), [2]),
        ((10, 11, 12, 13, 14), []),
        ((10, 10, 10, 10, 6), []),
    ],
)
def test_every_stage_that_stands_out_is_found(peaks, heavy):
    """Fails when a heavy stage between the ends hides, or a light one makes the others heavy."""
    assert [one.stage for one in stage_excess(stages(*peaks)) if one.ratio >= 1.2] == heavy


def test_microbatches_in_flight_are_those_of_the_schedule():
    """Fails when a pipeline with fewer microbatches than stages is taken for a straight line."""
    table = stages(4, 4, 4, 4, 3, 2)
    straight = [one.ratio for one in stage_excess(table)]
    assert [one.ratio for one in stage_excess(table, [3, 3, 3, 3, 2, 1])] == pytest.approx(
        [1.0] * 6
    )
    assert max(straight) > 1.0


def test_the_settled_peak_is_not_that_of_the_first_step():
    """Fails when the creation of the optimizer in the first step is held against the formulas."""
    rows = [
        {"rank": 0, "step": step, "peak_bytes": peak, "reserved_bytes": 100}
        for step, peak in enumerate((90, 60, 70))
    ]
    table = memory_by_stage(trace_of(layout=ParallelLayout(), memory=rows))
    assert (table["peak_bytes"].item(), table["steady_bytes"].item()) == (90, 70)
    assert table["is_steady"].item()
    rows[1]["peak_bytes"] = rows[2]["peak_bytes"] = 90
    table = memory_by_stage(trace_of(layout=ParallelLayout(), memory=rows, origin="meshscope"))
    assert (table["steady_bytes"].item(), table["is_steady"].item()) == (90, False)


def test_what_an_end_holds_beyond_the_others():
    """Fails when the logits of the last stage cannot be distinguished from its microbatches in flight."""
    table = stages(
        8400, 5700, 5400, 9000, activations=(1200, 900, 600, 1800), optimizer=(48, 32, 32, 48)
    )
    found = stage_excess(table)
    first, last = found[0], found[-1]
    assert (first.by_category["activations"], last.by_category["activations"]) == (0, 1500)
    assert (first.by_category["optimizer"], last.by_category["optimizer"]) == (16, 16)
    assert last.bytes_per_stage == -300


def test_two_stages_have_no_middle():
    """Fails when the line through nothing makes a stage heavy."""
    assert stage_excess(stages(2, 1)) == []


def test_what_a_device_holds_beside_the_allocator():
    """Fails when context and NCCL buffers of a stage's fullest device are not shown, or another's are."""
    uuids = ("a", "b", "c")
    samples = [
        {"host": "h", "uuid": uuid, "time_ns": at, "mem_used_bytes": size + at}
        for uuid, size in zip(uuids, (70, 80, 50), strict=True)
        for at in (1, 2)
    ]
    joined = [{"rank": rank, "host": "h", "uuid": uuid} for rank, uuid in enumerate(uuids)]
    memory = [{"rank": rank, "peak_bytes": 40} for rank in range(4)]
    found = memory_by_stage(
        trace_of(layout=LAYOUT, memory=memory, device_sample=samples, rank_device=joined)
    )
    assert found["device_used_bytes"].tolist() == [82.0, 52.0]
    assert memory_by_stage(trace_of(layout=LAYOUT, memory=memory))["device_used_bytes"].isna().all()
