"""Exposed communication of which nobody knows whether it waits."""

import pytest
from tests.kineto_files import launched, step, write

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.read import import_trace

MS = 1000
"""In the microseconds of a file."""
ALL_REDUCE = {
    "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float", "Group size": 2,
    "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
}  # fmt: skip


@pytest.mark.parametrize("metadata", [ALL_REDUCE, {}], ids=["its peer is missing", "no operation"])
def test_communication_of_one_of_two_ranks_is_a_finding(tmp_path, metadata):
    """Fails when a quarter of the step is communication and only a limit says so, as the file of the peer is missing."""
    events = []
    for number in range(4):
        at = number * 40 * MS
        events.append(step(number, at, 40 * MS))
        events += launched("gemm", at, at + 20, 29 * MS, 10 * number + 1)
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        nccl = {"stream": 20, **metadata}
        events += launched(name, at + 10, at + 29 * MS + 30, 10 * MS, 10 * number + 2, **nccl)
    result = diagnose(import_trace(write(tmp_path / "rank0.json", events, world_size=2)))
    (found,) = (f for f in result.findings if f.kind == "exposed_communication")
    assert found.claim.code == "exposed_communication.claim_unsplit"
    assert found.cost_frac == pytest.approx(0.25, abs=0.01)
