"""Operations of real processes that gloo completes although they do not fit: both are named, and nothing else."""

import pytest
from tests.distributed import differing_job
from tests.distributed.forked_ranks import join_ranks, start_ranks
from tests.ports import free_port

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace

pytestmark = pytest.mark.distributed


def test_what_ended_all_the_same_is_named(tmp_path):
    """Fails when a job that ends in order with wrong data is called healthy, or sparse tensors are called wrong."""
    run, port = tmp_path / "run", free_port()
    arguments = [(rank, port, run) for rank in range(differing_job.WORLD)]
    join_ranks(start_ranks(differing_job.main, arguments), 60.0)
    found = {one.cause: one for one in diagnose(load_trace(run)).findings if one.kind == "mismatch"}
    assert set(found) == {"mismatch_size", "mismatch_transfer"}
    broadcast, message = found["mismatch_size"], found["mismatch_transfer"]
    assert (broadcast.severity, broadcast.where["ranks"]) == ("critical", [differing_job.ODD])
    assert broadcast.claim.values["operations"] == differing_job.STEPS - differing_job.FIRST
    assert (message.severity, message.where["ranks"]) == ("warning", [0, 2])
    values = message.claim.values
    assert (values["sent"], values["expected"], values["messages"]) == (
        2000,
        4000,
        differing_job.STEPS,
    )
    said = [str(one) for one in broadcast.evidence]
    line = differing_job.LINE
    assert sum(f"differing_job.py:{line} in main" in one for one in said) == 2, said
