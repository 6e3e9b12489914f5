"""Files of servers, named by their places on a mesh, have ranks together that none of them says."""

import json

import pytest
from tests.kineto_files import launched, step
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError


def written(tmp_path, names):
    """Write a file for each name, whose kernel lasts as long as its position says; return the folder."""
    for at, name in enumerate(names):
        events = [step(0, 0, 1_000), *launched("gemm", 5, 100, 100 + at, 1)]
        (tmp_path / name).write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return tmp_path


def places(trace):
    """Return which file each rank is, by the length of its kernel."""
    kernel = trace.frame("kernel").set_index("rank")["dur_ns"]
    return {int(rank): int(ns) // 1_000 - 100 for rank, ns in kernel.items()}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            [f"17-TP-{tp}-PP-{pp}.trace.json" for tp in range(2) for pp in range(2)],
            {0: 0, 1: 2, 2: 1, 3: 3},
        ),
        # Attention in data-parallel: the replica follows from the place in the tensor group.
        (["17-TP-0-DP-0.trace.json", "17-TP-1-DP-1.trace.json"], {0: 0, 1: 1}),
        ([f"dp{dp}_pp0_tp{tp}.json" for dp in range(2) for tp in range(2)], {at: at for at in range(4)}),
    ],
)  # fmt: skip
def test_a_whole_mesh_of_places_has_ranks(tmp_path, names, expected):
    """Fails when the traces of a server of several axes are refused, or in another order."""
    trace = import_trace(written(tmp_path, names))
    assert places(trace) == expected
    assert any("follow the places in the file names" in said for said in texts(trace.limits))


@pytest.mark.parametrize(
    "names",
    [
        ["dp0_tp0.json", "dp1_tp1.json", "dp0_tp1.json"],
        ["dp0_tp0_a.json", "dp0_tp0_b.json"],
    ],
)
def test_a_part_of_a_mesh_has_none(tmp_path, names):
    """Fails when a missing or doubled place gives other files a wrong rank."""
    with pytest.raises(TraceFormatError):
        import_trace(written(tmp_path, names))
