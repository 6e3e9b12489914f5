"""Logs of the NCCL Inspector become collectives; written from the documented form of a line."""

import json

import pytest
from tests.texts import texts

from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.communication.waiting import waits_by_rank
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import TABLES

WORLD = "0x7f8c496ae9f661"
NESTED = "{" + '"a": {' * 100_000


def line(
    rank, exec_us, *, sn=1, coll="AllReduce", comm=WORLD, members=2, pid=None, at=1000, **perf
):
    """Return one line as the documentation shows it; the process of a rank is 100 + rank."""
    record = {
        "header": {"id": comm, "rank": rank, "n_ranks": members, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0", "git_rev": "",
            "rec_mechanism": "profiler_plugin", "dump_timestamp_us": at, "hostname": "a",
            "pid": 100 + rank if pid is None else pid,
        },
        "coll_perf": {
            "coll": coll, "coll_sn": sn, "coll_msg_size_bytes": 4096,
            "coll_exec_time_us": exec_us, "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 1.5, "coll_busbw_gbs": 2.5,
        } | perf,
    }  # fmt: skip
    return json.dumps(record)


def write_logs(folder, *logs):
    """Write one log per process."""
    for number, lines in enumerate(logs):
        (folder / f"a-pid{number}.log").write_text("\n".join(lines) + "\n")
    return folder


def mentions(trace, *words):
    """Say whether one sentence of the limits has all these words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


def test_a_line_becomes_one_member_of_a_collective(tmp_path):
    """Durations, sizes or positions would be other ones than the log says."""
    trace = import_trace(write_logs(tmp_path, [line(0, 300)], [line(1, 120.5, at=1001)]))
    rows = trace.frame("collective").astype({"kind": str, "group_id": str, "source": str})
    columns = ["rank", "step", "group_id", "kind", "size_bytes", "start_ns", "end_ns", "source"]
    assert rows[columns].to_numpy().tolist() == [
        [0, -1, WORLD, "all_reduce", 4096, 700_000, 1_000_000, "imported"],
        [1, -1, WORLD, "all_reduce", 4096, 879_500, 1_000_000, "imported"],
    ]
    assert rows["seq"].nunique() == 1
    assert (trace.run["world_size"], trace.origin) == (2, "nccl_inspector")
    assert mentions(trace, "does not say when a collective began")
    for name, table in trace.tables.items():
        assert table.schema.equals(TABLES[name].arrow_schema()), name


def test_who_came_last_does_not_depend_on_when_the_log_was_written(tmp_path):
    """A rank would be blamed because its log was written late."""
    trace = import_trace(
        write_logs(
            tmp_path,
            [line(0, 300, sn=1, at=9000), line(0, 200, sn=2, at=9000)],
            [line(1, 100, sn=1, at=1000), line(1, 100, sn=2, at=1200)],
        )
    )
    events = communication_events(trace, step_windows(trace))
    table = waits_by_rank(events, [0, 1])
    assert table["wait_ns"].tolist() == [300_000, 0]
    assert table["arrived_last"].tolist() == [0, 2]


def test_positions_are_counted_by_operation(tmp_path):
    """The first all-reduce of one rank would be joined with the first all-gather of another."""
    both = [[line(rank, 10, coll=coll) for coll in ("AllReduce", "AllGather")] for rank in (0, 1)]
    rows = import_trace(write_logs(tmp_path, *both)).frame("collective")
    assert rows.groupby("seq")["kind"].nunique().tolist() == [1, 1]
    assert rows.groupby("seq")["rank"].agg(list).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("coll", "size"),
    [("AllReduce", 4096), ("AllGather", 8192), ("ReduceScatter", 8192), ("Broadcast", 4096)],
)
def test_sizes_of_sharded_operations_are_of_all_members(tmp_path, coll, size):
    """Bandwidths of all-gathers would be too small by the size of the group."""
    rows = import_trace(write_logs(tmp_path, [line(0, 10, coll=coll)])).frame("collective")
    assert rows["size_bytes"].tolist() == [size]


def test_ranks_of_small_communicators_are_those_of_the_largest(tmp_path):
    """Rank 1 of every small group would be taken for rank 1 of the job."""
    logs = [
        [line(rank, 10, members=4), line(rank // 2, 10, comm=f"0xb{rank % 2}", pid=100 + rank)]
        for rank in range(4)
    ]
    trace = import_trace(write_logs(tmp_path, *logs))
    groups = trace.frame("group").set_index("group_id")["ranks"]
    assert {name: list(ranks) for name, ranks in groups.items()} == {
        WORLD: [0, 1, 2, 3],
        "0xb0": [0, 2],
        "0xb1": [1, 3],
    }
    assert mentions(trace, WORLD, "largest")


def test_processes_without_a_common_communicator_are_numbered_and_named(tmp_path):
    """A number would be taken for a rank that nobody knows."""
    logs = [[line(0, 10, comm=f"0x{number}", pid=number)] for number in (11, 7)]
    trace = import_trace(write_logs(tmp_path, *logs))
    assert trace.ranks == (0, 1)
    assert mentions(trace, "Ranks are unknown", "0 is a pid 7", "1 is a pid 11")
    assert mentions(trace, "2 of 2 communicators have members that are not in the input")


def test_a_process_of_several_ranks_keeps_what_is_known(tmp_path):
    """Records of one device would be given to another."""
    own = [line(rank, 10, pid=5) for rank in (0, 1)]
    trace = import_trace(write_logs(tmp_path, [*own, line(0, 10, comm="0xb", members=1, pid=5)]))
    assert trace.frame("collective")["rank"].tolist() == [0, 1]
    assert mentions(trace, "1 record left out", "several ranks")


def test_torn_lines_and_other_records_are_counted(tmp_path):
    """A log that was cut off would end in a traceback, or lose lines without a word."""
    sends = json.loads(line(0, 10))
    sends["p2p_perf"] = sends.pop("coll_perf")
    logs = [
        line(0, 10),
        json.dumps(sends),
        line(5, 10),
        "",
        line(0, 10, sn=2)[:-40],
        "\x00",
        NESTED,
    ]
    trace = import_trace(write_logs(tmp_path, logs, [line(0, -4), line(0, 10, sn=10**30)]))
    assert len(trace.frame("collective")) == 1
    assert mentions(trace, "5 lines left out: torn")
    assert mentions(trace, "2 records", "sends")


def test_a_collective_that_was_written_twice_counts_once(tmp_path):
    """A member would wait for itself."""
    trace = import_trace(write_logs(tmp_path, [line(0, 10), line(0, 10, at=2000)]))
    assert trace.frame("collective")["end_ns"].tolist() == [1_000_000]
    assert mentions(trace, "1 collective written again")


def test_durations_of_the_host_are_counted(tmp_path):
    """Launch delays would pass for time on the wire."""
    timed = line(0, 10, coll_timing_source="collective_cpu")
    assert mentions(import_trace(write_logs(tmp_path, [timed])), "1 of 1 durations", "host")


def test_a_log_without_collectives_is_refused(tmp_path):
    """An empty job would be reported as a healthy one."""
    with pytest.raises(TraceFormatError, match=r"no record of a collective.*1 line left out: torn"):
        import_trace(write_logs(tmp_path, [line(0, 10)[:-1]]))
