"""Files of several jobs in one folder are separated, or refused."""

import json

import pytest
from tests.texts import texts

from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError

BASE_NS = 1_700_000_000_000_000_000
HOUR_NS = 3_600_000_000_000


def write(folder, rank, *, world_size=None, backend=None, base_ns=None):
    """Write the file of one rank with one kernel."""
    info = {"rank": rank, "world_size": world_size, "backend": backend}
    header = {"distributedInfo": {key: value for key, value in info.items() if value is not None}}
    if base_ns is not None:
        header["baseTimeNanoseconds"] = base_ns
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"stream": 7}}
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps(header | {"traceEvents": [event]}))


def left_out(trace):
    """Return the sentences on files of another job."""
    return [limit for limit in texts(trace.limits) if "another job" in limit]


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ({"world_size": 8}, {"world_size": 16}, "16 ranks"),
        ({"world_size": 8, "backend": "nccl"}, {"world_size": 8, "backend": "gloo"}, "gloo"),
        ({"base_ns": BASE_NS}, {"base_ns": BASE_NS + HOUR_NS}, "60 minutes"),
    ],
    ids=["world size", "backend", "time"],
)
def test_a_file_of_another_job_is_left_out_and_named(tmp_path, ours, theirs, word):
    """Waits would be told between ranks that never met."""
    for rank in (0, 1, 2):
        write(tmp_path, rank, **ours)
    write(tmp_path, 5, **theirs)
    trace = import_trace(tmp_path)
    assert trace.ranks == (0, 1, 2)
    (limit,) = left_out(trace)
    assert "rank5.json (rank 5)" in limit
    assert word in limit


def test_two_jobs_of_equal_size_are_refused(tmp_path):
    """One of the two would be chosen by chance."""
    write(tmp_path, 0, world_size=8)
    write(tmp_path, 1, world_size=16)
    with pytest.raises(TraceFormatError, match=r"several jobs.*8 ranks.*16 ranks") as raised:
        import_trace(tmp_path)
    assert raised.value.remedy == "Give the files of one job"


def test_headers_that_do_not_say_and_close_starts_are_one_job(tmp_path):
    """Ranks of one job would be dropped for want of a header."""
    write(tmp_path, 0, world_size=8, backend="nccl", base_ns=BASE_NS)
    write(tmp_path, 1, world_size=8, base_ns=BASE_NS + 60_000_000_000)
    write(tmp_path, 2, base_ns=BASE_NS)
    trace = import_trace(tmp_path)
    assert trace.ranks == (0, 1, 2)
    assert left_out(trace) == []


def test_clocks_that_count_from_the_start_of_a_host_tell_nothing(tmp_path):
    """Hosts that were started on different days would be taken for different jobs."""
    write(tmp_path, 0, base_ns=HOUR_NS)
    write(tmp_path, 1, base_ns=100 * HOUR_NS)
    assert import_trace(tmp_path).ranks == (0, 1)


def write_steps(folder, rank, ends_us, *, base_ns):
    """Write a rank whose all-reduces end at given times, half a millisecond long."""
    metadata = {
        "Collective name": "allreduce",
        "In msg nelems": 8,
        "Out msg nelems": 8,
        "dtype": "Float",
        "Process Group Name": "0",
        "stream": 20,
        "device": 0,
    }
    events = [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": end - 500, "dur": 500, "args": metadata}
        for end in ends_us
    ]  # fmt: skip
    info = {"rank": rank, "world_size": 4, "pg_config": [{"pg_name": "0", "ranks": [0, 1, 2, 3]}]}
    header = {"distributedInfo": info, "baseTimeNanoseconds": base_ns}
    (folder / f"rank{rank}.json").write_text(json.dumps(header | {"traceEvents": events}))


ENDS_US = (1000, 4310, 7650, 10920)


def test_a_host_whose_clock_is_hours_off_is_of_the_same_job(tmp_path):
    """Fails when a wrong time zone costs the ranks of a host: their collectives end with the others'."""
    for rank in range(4):
        write_steps(tmp_path, rank, ENDS_US, base_ns=BASE_NS + 3 * HOUR_NS * (rank == 1))
    trace = import_trace(tmp_path)
    assert trace.ranks == (0, 1, 2, 3)
    assert not left_out(trace)


def test_the_same_program_run_again_is_another_job(tmp_path):
    """Fails when runs are joined because they do the same: no two have the same pauses."""
    again = [end + pause for end, pause in zip(ENDS_US, (0, 80, -40, 150), strict=True)]
    for rank in range(4):
        is_other = rank == 1
        ends = again if is_other else ENDS_US
        write_steps(tmp_path, rank, ends, base_ns=BASE_NS + 3 * HOUR_NS * is_other)
    trace = import_trace(tmp_path)
    assert trace.ranks == (0, 2, 3)
    (limit,) = left_out(trace)
    assert "baseTimeNanoseconds" in limit
