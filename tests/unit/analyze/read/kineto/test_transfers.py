"""Sends and receives: peers from their annotations, and the wait of grouped ones."""

import pytest
from tests.kineto_files import call, complete, kernel, step, write
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.read import import_trace


def transfer(note, ts, dur, correlation, at=None, **args):
    """Return annotation, launch and kernel of one transfer; all may be launched at one time."""
    at = ts - 15 if at is None else at
    external = {"External id": correlation}
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgs)"
    return [
        complete("user_annotation", note, at - 1, 6, **external),
        call("cudaLaunchKernel", at, 4, correlation),
        kernel(name, ts, dur, correlation, stream=20 + correlation % 2, **external, **args),
    ]


def test_peers_from_the_annotation(tmp_path):
    """Fails when every transfer of a trace without metadata waits for nobody known."""
    for rank, peer in ((0, 1), (1, 0)):
        events = [step(1, 0, 1_000)]
        events += transfer(f"nccl:send {rank}->{peer}", 100, 50, 1, at=80)
        events += transfer(f"nccl:recv {rank}<-{peer}", 101, 50, 2, at=80)
        write(tmp_path / f"rank{rank}.json", events, rank, 2)
    p2p = import_trace(tmp_path).frame("p2p").sort_values(["rank", "start_ns"])
    rows = p2p[["rank", "peer", "direction", "seq"]].astype({"direction": str}).to_numpy().tolist()
    assert rows == [[0, 1, "send", 0], [0, 1, "recv", 0], [1, 0, "send", 0], [1, 0, "recv", 0]]


def test_numbers_of_the_annotation_count_the_members_of_the_group(tmp_path):
    """Fails when peer 0 of a group of ranks 4 and 6 is taken for rank 0."""
    members = {"Process Group Name": "7", "Process Group Ranks": "[4, 6]", "dtype": "Float"}
    events = [step(1, 0, 1_000), *transfer("nccl:send 1->0", 100, 50, 1, **members)]
    trace = import_trace(write(tmp_path / "rank6.json", events, 6, 8))
    assert trace.frame("p2p")["peer"].tolist() == [4]


def test_grouped_transfers_are_split_into_wire_and_waiting(tmp_path):
    """Fails when a pipeline that uses batches of sends and receives cannot tell its bubble from its wire."""
    for rank in (0, 1):
        events = [step(1, 0, 10_000)]
        for at in range(8):
            dur = 100 if (at + rank) % 2 else 600
            events += transfer("nccl:coalesced", 1_000 * at + 50, dur, at + 1)
            begin = 1_000 * at + 50 + dur
            events += [call("cudaLaunchKernel", begin - 20, 4, 100 + at)]
            events += [kernel("gemm", begin, 1_000 - dur, 100 + at)]
        write(tmp_path / f"rank{rank}.json", events, rank, 2)
    account = measure(load_trace(tmp_path))
    by_step = account.ledger.by_step.set_index("rank")
    wire = by_step[[name for name in by_step if name.endswith("_wire")]].sum(axis=1)
    wait = by_step[[name for name in by_step if name.endswith("_wait")]].sum(axis=1)
    assert wire.tolist() == [pytest.approx(8 * 100_000)] * 2
    assert wait.tolist() == [pytest.approx(4 * 500_000)] * 2
    assert any(
        "100 us, the shortest of similar kernels" in limit for limit in texts(account.limits)
    )
