"""Memory by stage from a few samples."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.memory import memory_by_stage, peak_memory_frac, stage_imbalance
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
