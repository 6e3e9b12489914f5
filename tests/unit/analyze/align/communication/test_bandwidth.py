"""Bandwidths by the conventions of the NCCL tests, and their distribution over sizes."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.align.communication.bandwidth import (
    bus_factor,
    fixed_times,
    size_buckets,
    with_bandwidth,
)

COLUMNS = ["algorithm_bandwidth_bytes_per_s", "bus_bandwidth_bytes_per_s"]


def table_of(*rows):
    """Return collectives: kind, size in bytes, members of the group, wire time in ns."""
    table = pd.DataFrame(rows, columns=["kind", "size_bytes", "expected", "wire_ns"])
    return table.assign(axis="dp", wire_ns=table["wire_ns"].astype("Int64"))


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
        ("broadcast", 1),
        ("reduce", 1),
        ("send_recv", 1),
        ("barrier", None),
    ],
)
def test_factors_of_the_nccl_tests(kind, factor):
    """Numbers could not be compared with those that the hardware is known for."""
    assert bus_factor(kind, 8) == factor


def test_the_published_measurement_of_eight_gpus():
    """One GiB over 8 GPUs in 8.193 ms is 229.35 GB/s on the bus, and would come out otherwise."""
    found = with_bandwidth(table_of(("all_reduce", 1 << 30, 8, 8_193_000)))
    assert found["bus_bandwidth_bytes_per_s"].iloc[0] / 1e9 == pytest.approx(229.35, abs=0.005)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (("all_reduce", 0, 4, 100), "bandwidth.no_size"),
        (("all_reduce", 64, 0, 100), "bandwidth.no_group"),
        (("all_reduce", 64, 1, 100), "bandwidth.alone"),
        (("all_reduce", 64, 4, None), "bandwidth.no_wire"),
        (("all_reduce", 64, 4, 0), "bandwidth.no_time"),
        (("barrier", 64, 4, 100), "bandwidth.no_kind"),
    ],
)
def test_what_cannot_be_known_is_null_with_the_reason(row, why):
    """A bandwidth would be made up from a guessed group, or be infinite."""
    found = with_bandwidth(table_of(row)).iloc[0]
    assert found[COLUMNS].isna().all()
    assert found["bandwidth_unknown_because"] == why


def test_buckets_begin_at_powers_of_two():
    """Sizes would slip into a neighbour's bucket, and unknown ones into the smallest."""
    collectives = with_bandwidth(
        table_of(
            ("all_reduce", 1023, 2, 10),
            ("all_reduce", 1024, 2, 10),
            ("all_reduce", 2047, 2, 30),
            ("all_reduce", 0, 2, 50),
        )
    )
    sent = pd.DataFrame({"axis": ["pp"], "size_bytes": [4096], "wire_ns": [1000]})
    found = size_buckets(collectives, sent).set_index(["kind", "size_from_bytes"])
    assert found["count"].to_dict() == {
        ("all_reduce", 512): 1,
        ("all_reduce", 1024): 2,
        ("all_reduce", pd.NA): 1,
        ("send_recv", 4096): 1,
    }
    row = found.loc[("all_reduce", 1024)]
    assert (row["size_below_bytes"], row["total_bytes"], row["wire_p50_ns"]) == (2048, 3071, 20)
    assert row["wire_p95_ns"] == pytest.approx(29)
    speed = found.loc[("send_recv", 4096)]["bus_bandwidth_p50_bytes_per_s"]
    assert speed == pytest.approx(4.096e9)


def test_no_rows_give_no_buckets():
    """A capture without communication would crash the report."""
    none = pd.DataFrame({"axis": [], "size_bytes": [], "wire_ns": []})
    assert size_buckets(with_bandwidth(table_of()), none).empty


def transfers(rows):
    """Return transfers from (kind, size, wire)."""
    frame = pd.DataFrame(rows, columns=["kind", "size_bytes", "wire_ns"])
    return frame.assign(axis="dp", members=4)


@given(
    fixed=st.floats(10.0, 1e6),
    byte_ns=st.floats(1e-3, 10.0),
    sizes=st.lists(st.integers(1, 1 << 30), min_size=2, max_size=6, unique=True),
)
def test_a_line_gives_back_its_fixed_time(fixed, byte_ns, sizes):
    """Fails when latency is taken for bandwidth, so that a narrower type would return too much."""
    table = fixed_times(
        transfers([("all_reduce", s, fixed + byte_ns * s) for s in sizes for _ in range(3)])
    )
    row = table.iloc[0]
    assert row["low_ns"] <= row["fixed_ns"] <= row["high_ns"]
    assert row["low_ns"] <= fixed * (1 + 1e-6) + 1e-6
    assert row["high_ns"] >= min(fixed, fixed + byte_ns * min(sizes)) * (1 - 1e-6)


def test_one_size_leaves_it_open():
    """Fails when a fixed time is made up where all operations are equal."""
    row = fixed_times(transfers([("all_reduce", 1000, 50.0)] * 4)).iloc[0]
    assert (row["low_ns"], row["high_ns"]) == (0.0, 50.0)
    assert not row["is_fitted"]


def test_small_operations_of_other_kinds_bound_it():
    """Fails when an all-reduce may have a longer fixed time than two of the smallest operations."""
    rows = [("all_reduce", 1000, 50.0)] * 4 + [("broadcast", 8, 3.0)] * 4
    table = fixed_times(transfers(rows))
    high = dict(zip(table.index.get_level_values("kind"), table["high_ns"], strict=True))
    assert high["all_reduce"] == 6.0


def test_what_queues_is_no_fixed_time():
    """Fails when small operations that wait behind large ones make all time look fixed."""
    small = [("all_reduce", 4, 10.0)] * 5 + [("all_reduce", 4, 900.0)] * 5
    large = [("all_reduce", 10_000, 1010.0)] * 10
    assert fixed_times(transfers(small + large)).iloc[0]["fixed_ns"] == pytest.approx(10, rel=0.05)
    assert np.isfinite(fixed_times(transfers(small)).iloc[0]["fixed_ns"])
