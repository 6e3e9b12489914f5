"""An all-to-all whose pairs differ, of real processes: the rank that differs is named, not the one that died of it."""

import pytest
from tests.distributed import pairs_job
from tests.distributed.forked_ranks import join_ranks, start_ranks
from tests.ports import free_port

from meshscope.analyze.account.hangs.mismatch import mismatches
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace

pytestmark = pytest.mark.distributed

PATIENCE_S = 20.0
"""The backend fails at once, or waits for ever."""


@pytest.mark.parametrize("form", ["one tensor", "lists"])
def test_the_rank_whose_pairs_differ_is_named(tmp_path, form):
    """Fails when the rank that the backend aborted over another's sizes is blamed for the end of the job."""
    run, port = tmp_path / "run", free_port()
    arguments = [(rank, port, run, form) for rank in range(pairs_job.WORLD)]
    join_ranks(start_ranks(pairs_job.main, arguments), PATIENCE_S)
    (found,) = mismatches(load_trace(run))
    assert (found.seq, found.what, list(found.different)) == (3, "splits", [pairs_job.ODD])
    sizes = (pairs_job.SPLITS[0] * pairs_job.ROW_BYTES, 4 * pairs_job.ROW_BYTES)
    assert (found.pair, found.sent_bytes, found.received_bytes) == ((2, 0), *sizes)
    first = diagnose(load_trace(run)).findings[0]
    assert (first.cause, first.where["ranks"]) == ("mismatch_splits", [pairs_job.ODD])
