"""Dumps of PyTorch 2.2, which number the groups of each rank by itself: who waits at all is known, for whom is not."""

import pickle

import pytest

from meshscope.analyze import diagnose
from meshscope.analyze.read import import_trace


def entry(record, number, state, line):
    """Return an entry of that recorder, of a group by its number on the rank."""
    return {
        "record_id": record, "pg_id": number, "seq_id": record + 1, "state": state,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1_700_000_000_000_000_000 + record,
        "input_sizes": [[4]], "output_sizes": [[4]],
        "frames": [{"name": "step", "filename": "t.py", "line": line}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("idle", "code", "ranks", "severity"),
    [
        ((3,), "hang.nothing_open", [3], "critical"),
        ((), "hang.open_unnamed", [0, 1, 2, 3], "warning"),
        ((1, 2, 3), "hang.open_unnamed", [0], "warning"),
    ],
)
def test_the_few_ranks_that_have_nothing_open_are_named(tmp_path, idle, code, ranks, severity):
    """Fails when a hang in dumps without names of groups is not told at all, or the ranks that wait are blamed for it."""
    for rank in range(4):
        last = entry(1, 2, "completed", 20) if rank in idle else entry(1, 1, "started", 30)
        content = pickle.dumps([entry(0, 1, "completed", 10), last], 2)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(content)
    (found,) = diagnose(import_trace(tmp_path)).findings
    assert (found.claim.code, found.where["ranks"], found.severity) == (code, ranks, severity)
    said = [fact for fact in found.evidence if fact.code == "hang.issued_last_at"]
    assert [fact.values["place"] for fact in said] == ["step (t.py:20)"] * bool(idle)
    assert "PyTorch 2.2" in str(found.evidence[0])
