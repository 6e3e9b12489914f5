"""A trainer whose mesh nobody states."""

import pytest
from tests.distributed import handwritten_mesh_job
from tests.distributed.forked_ranks import run_forked
from tests.texts import texts

from meshscope.analyze.account.bubble import schedule_of
from meshscope.analyze.load.load import load_trace

pytestmark = pytest.mark.distributed

STEPS = 4


def test_mesh_schedule_and_microbatches_are_inferred(tmp_path):
    """Fails when a trainer without framework or names has no stages, replicas or microbatches."""
    arguments = (tmp_path / "run", (2, 2, 2), STEPS)
    run_forked(tmp_path, handwritten_mesh_job.main, arguments, ranks=8)
    trace = load_trace(tmp_path / "run")
    layout = trace.layout
    assert layout is not None, texts(trace.limits)
    assert [layout.coordinates(rank) for rank in (1, 2, 4)] == [
        {"pp": 0, "dp": 0, "cp": 0, "tp": 1},
        {"pp": 0, "dp": 1, "cp": 0, "tp": 0},
        {"pp": 1, "dp": 0, "cp": 0, "tp": 0},
    ]
    assert schedule_of(trace) == "1f1b"
    spans = trace.frame("span")
    assert set(trace.frame("p2p")["axis"].astype(str)) == {"pp"}
    for rank in trace.ranks:
        for kind in ("forward", "backward"):
            own = spans[(spans["rank"] == rank) & (spans["kind"] == kind) & (spans["step"] == 2)]
            assert own.sort_values("start_ns")["microbatch"].tolist() == [0, 1, 2, 3]
