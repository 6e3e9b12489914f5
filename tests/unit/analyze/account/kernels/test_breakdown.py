"""The split of each rank's device time, against hand counts and known real traces."""

import gzip
import json
from decimal import Decimal

import pytest

from meshscope.analyze.account.kernels.breakdown import device_breakdown
from meshscope.analyze.read import import_trace

COLUMNS = [
    "span_ns",
    "computation_ns",
    "communication_ns",
    "exposed_communication_ns",
    "exposed_memcpy_ns",
    "idle_ns",
    "device_events",
]


def device_event(cat, name, ts, dur, **args):
    """Return one complete event; times in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


@pytest.fixture
def small(tmp_path):
    """Return a rank with every class of device activity, and one with none."""
    events = [
        device_event("kernel", "gemm", 0, 10),
        device_event("kernel", "ncclDevKernel_x", 5, 10),
        device_event("gpu_memcpy", "Memcpy DtoH", 14, 4),
        device_event("gpu_memset", "Memset", 30, 1),
        device_event("cuda_sync", "Stream Sync", 18, 90),
        device_event("kernel", "multimem_all_reduce_kernel", 40, 2),
    ]
    (tmp_path / "rank1.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    host = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 10}]
    (tmp_path / "rank4.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": host}))
    return import_trace(tmp_path)


def test_every_class_is_counted_once(small):
    """Overlapping work would be counted twice, or waiting as work."""
    table = device_breakdown(small).set_index("rank")
    assert table.loc[1, COLUMNS].tolist() == [42_000, 10_000, 10_000, 5_000, 4_000, 21_000, 5]
    unknown = ["unknown_ns", "exposed_unknown_ns", "unknown_events", "unlinked_events"]
    assert table.loc[1, unknown].tolist() == [2_000, 2_000, 1, 5]


def test_a_rank_without_device_events_has_zeros(small):
    """One idle host rank would crash the account of all others."""
    assert device_breakdown(small).set_index("rank").loc[4].sum() == 0


def test_the_parts_add_up_to_the_span(small):
    """The account would not be exact."""
    table = device_breakdown(small)
    parts = [
        "computation_ns",
        "exposed_communication_ns",
        "exposed_unknown_ns",
        "exposed_memcpy_ns",
        "idle_ns",
    ]
    assert table[parts].sum(axis=1).tolist() == table["span_ns"].tolist()


def test_one_step_alone(small):
    """Asking for a step would answer for the whole file."""
    assert device_breakdown(small, step=0)["device_events"].tolist() == [5, 0]
    assert device_breakdown(small, step=7)["device_events"].tolist() == [0, 0]


REAL = {
    "amd_hpctraining/split": {
        0: [140_042, 47_634, 64_471, 41_068, 48_853, 4095],
        1: [133_749, 43_711, 46_985, 37_330, 49_133, 4064],
        2: [133_994, 43_631, 49_845, 39_781, 46_978, 4064],
        3: [135_513, 42_112, 3_591, 3_384, 87_408, 4064],
    },
    "hta/nccl_parser_config": {0: [660_551, 115_656, 46_876, 39_559, 503_051, 3774]},
    "hta/trace_filter": {
        0: [1_222_847, 210_320, 396_199, 336_983, 675_191, 1204],
        1: [1_231_186, 271_973, 379_053, 303_523, 651_136, 1154],
    },
    "tracelens/b200": {0: [84_487, 10_772, 22, 22, 72_891, 929]},
}
"""Microseconds by independent interval arithmetic: span, compute, communication, exposed, idle; events."""


@pytest.mark.traces
@pytest.mark.parametrize("folder", REAL)
def test_real_traces_to_the_microsecond(traces_dir, folder):
    """Our numbers would differ from exact arithmetic on traces that others know too."""
    table = device_breakdown(import_trace(traces_dir / folder)).set_index("rank")
    columns = [c for c in COLUMNS if c != "exposed_memcpy_ns"]
    found = (table[columns[:-1]] / 1000).round().astype(int).assign(events=table["device_events"])
    assert {rank: row.tolist() for rank, row in found.iterrows()} == REAL[folder]


def covered(intervals):
    """Return the length of a union by one sorted walk, in exact decimals."""
    total, reach = Decimal(0), Decimal(0)
    for start, end in sorted(intervals):
        total += max(end - max(start, reach), Decimal(0))
        reach = max(reach, end)
    return total


@pytest.mark.traces
def test_stamps_of_unix_size_are_summed_exactly(traces_dir):
    """Doubles of that size resolve 0.25 us: thousands of small kernels would gain 20 us in all."""
    folder = traces_dir / "hta" / "ns_resolution_trace"
    (path,) = folder.iterdir()
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    by_class = {"kernel": [], "gpu_memcpy": [], "gpu_memset": []}
    for one in events:
        if one.get("cat") in by_class:
            by_class[one["cat"]].append((Decimal(one["ts"]), Decimal(one["ts"]) + one["dur"]))
    everything = [interval for rows in by_class.values() for interval in rows]
    table = device_breakdown(import_trace(folder)).iloc[0]
    assert table["computation_ns"] == covered(by_class["kernel"]) * 1000 == 468_153_602
    assert table["span_ns"] - table["idle_ns"] == covered(everything) * 1000 == 472_454_441
    assert table["communication_ns"] == 0
