"""SQLite exports of Nsight Systems become tables: ranks, steps, launches, collectives, limits."""

import sqlite3
import struct
from contextlib import closing

import pytest
from tests.nsight_exports import SCHEMA, Export, process, thread
from tests.texts import texts

from meshscope.analyze.account.kernels.breakdown import device_breakdown
from meshscope.analyze.align.communication.matching import match_collectives
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import TABLES

UTC = 1_700_000_000_000_000_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def mentions(trace, *words):
    """Say whether one sentence of the limits has all these words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


def named(trace, table):
    """Return a table with the names in it, ranks together."""
    names = trace.frame("name").set_index(["rank", "name_id"])["name"]
    rows = trace.frame(table)
    keys = zip(rows["rank"], rows["name_id"], strict=True)
    return rows.assign(name=[names[key] for key in keys])


def read(tmp_path, export, name="report_rank3.sqlite"):
    """Write an export and read it."""
    return import_trace(export.write(tmp_path / name))


def test_device_activities_become_kernels_with_their_launches(tmp_path):
    """Busy time, copies and launch delays of a profile would be wrong or missing."""
    export = Export().row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC)
    export.row("ENUM_CUDA_MEMCPY_OPER", id=1, name="HTOD", label="Host-to-Device")
    export.kernel("gemm<float>(int)", 100, 300, launch=50, streamId=13)
    export.kernel("orphan", 300, 350)
    export.activity("MEMCPY", 400, 450, bytes=4096, copyKind=1)
    export.activity("MEMSET", 460, 470, bytes=8)
    export.activity("SYNCHRONIZATION", 0, 500, syncType=4)
    export.row("TARGET_INFO_GPU", id=0, name="NVIDIA H100")
    trace = read(tmp_path, export)
    rows = named(trace, "kernel").sort_values("start_ns", kind="stable")
    assert rows[["name", "category"]].to_numpy().tolist() == [
        ["[CUDA sync]", "sync"],
        ["gemm<float>(int)", "compute"],
        ["orphan", "compute"],
        ["[CUDA memcpy Host-to-Device]", "memcpy"],
        ["[CUDA memset]", "memset"],
    ]
    gemm = rows.iloc[1]
    assert (gemm["start_ns"], gemm["dur_ns"], gemm["stream"]) == (UTC + 100, 200, 13)
    assert gemm["launch_ns"] == UTC + 50
    assert rows["size_bytes"].dropna().tolist() == [4096, 8]
    assert named(trace, "runtime_call")["name"].tolist() == ["cudaLaunchKernel_v7000"]
    assert trace.run["device_name"] == "NVIDIA H100"
    assert mentions(trace, "Rank 3", "4 of 5 device events have no launch")
    split = device_breakdown(trace).set_index("rank").loc[3]
    assert (split["computation_ns"], split["exposed_memcpy_ns"], split["span_ns"]) == (250, 60, 370)


def test_every_table_is_as_declared(tmp_path):
    """A trace could not be kept as a run, or a column would be read as another."""
    trace = read(tmp_path, Export().kernel("k", 1, 2, launch=0).nvtx("forward", 0, 5))
    for name, table in trace.tables.items():
        assert TABLES[name].conform(table).equals(table), name


@pytest.mark.parametrize(
    "name", ["iteration 7", "Iteration7", "step_7", "train step #7", "ProfilerStep#7"]
)
def test_ranges_that_number_steps_are_the_steps(tmp_path, name):
    """Work would not be distinguished by step, or a part of a step would be one."""
    export = Export().nvtx(name, 0, 1000).nvtx("step 9 forward", 0, 10).nvtx("layer 3", 0, 10)
    export.kernel("k", 1500, 1600, launch=900).kernel("later", 1700, 1800, launch=1200)
    trace = read(tmp_path, export)
    assert trace.frame("step")[["step", "start_ns", "dur_ns"]].to_numpy().tolist() == [[7, 0, 1600]]
    assert trace.frame("kernel")["step"].tolist() == [7, -1]


def test_steps_that_repeat_or_overlap_are_left_out_and_counted(tmp_path):
    """Windows of one rank would overlap, and a second epoch be added to the first."""
    export = Export().kernel("k", 5, 6, launch=1)
    for number, start, end in ((1, 0, 100), (2, 50, 150), (3, 100, 200), (1, 300, 400)):
        export.nvtx(f"step {number}", start, end)
    trace = read(tmp_path, export)
    assert trace.frame("step")["step"].tolist() == [1, 3]
    assert mentions(trace, "2 ranges", "not used as steps")


def test_without_step_ranges_the_capture_is_one_step(tmp_path):
    """A profile of a program that names nothing would be refused."""
    trace = read(tmp_path, Export().kernel("k", 100, 200, launch=40))
    assert trace.frame("step")[["step", "start_ns", "dur_ns"]].to_numpy().tolist() == [[0, 40, 160]]
    assert mentions(trace, "no NVTX range names a step")


def test_ranges_without_a_number_that_follow_each_other_are_steps(tmp_path):
    """Fails when a profile whose steps are all called alike is one long step."""
    export = Export()
    for at in range(4):
        export.nvtx("[pl][profile]run_training_batch", at * 1_000, at * 1_000 + 950)
        export.kernel("gemm", at * 1_000 + 100, at * 1_000 + 900, launch=at * 1_000 + 50)
    trace = read(tmp_path, export)
    step = trace.frame("step")
    assert (step["start_ns"] - step["start_ns"].min()).tolist() == [0, 1_000, 2_000, 3_000]
    assert trace.frame("kernel")["step"].tolist() == step["step"].tolist()
    assert mentions(trace, "4 annotations", "run_training_batch")


@pytest.mark.parametrize("end", [None, 0])
def test_a_range_that_the_capture_cuts_off_is_no_step(tmp_path, end):
    """Fails when a step of which only the begin was recorded counts as a very short one."""
    export = Export().kernel("gemm", 100, 900, launch=50)
    export.nvtx("step 1", 10, 1_000).nvtx("step 2", 1_000, end)
    trace = read(tmp_path, export)
    assert trace.frame("step")["step"].tolist() == [1]
    assert mentions(trace, "1 NVTX range", "no end")


def test_the_time_between_step_ranges_belongs_to_the_steps(tmp_path):
    """Fails when a loop that loads data outside of its ranges looks busy throughout."""
    export = Export()
    for at in range(4):
        export.nvtx(f"iteration {at}", at * 1_000, at * 1_000 + 600)
        export.kernel("gemm", at * 1_000 + 100, at * 1_000 + 600, launch=at * 1_000 + 50)
    assert read(tmp_path, export).frame("step")["dur_ns"].tolist() == [1_000, 1_000, 1_000, 600]


def test_model_ranges_are_carried_to_the_device(tmp_path):
    """The forward pass would last as long as its launches, which run ahead of the device."""
    export = Export().nvtx("step 1", 0, 1000)
    export.nvtx("forward_mb2", 10, 50).nvtx("backward", 60, 90).nvtx("DataLoader", 0, 9)
    export.nvtx("optimizer", 92, 95)
    export.kernel("f1", 100, 200, launch=20).kernel("f2", 200, 320, launch=49, streamId=9)
    export.kernel("b", 330, 400, launch=70, tid=2)
    spans = read(tmp_path, export).frame("span")
    found = spans[["kind", "microbatch", "start_ns", "dur_ns"]].to_numpy().tolist()
    assert sorted(found) == [
        ["backward", -1, 330, 70],
        ["data_load", -1, 0, 9],
        ["forward", 2, 100, 220],
        ["optimizer", -1, 92, 3],
    ]


def test_operators_are_distinguished_from_annotations(tmp_path):
    """Kernels would not be traced back to what launched them."""
    export = Export().nvtx("outer", 0, 100)
    export.nvtx("aten::linear, seq = 4, sizes = [[2, 3]]", 10, 50).nvtx("aten::addmm", 20, 40)
    export.kernel("gemm", 200, 300, launch=30).kernel("other", 300, 400, launch=60)
    trace = read(tmp_path, export)
    assert named(trace, "op")["name"].tolist() == ["aten::linear", "aten::addmm"]
    assert named(trace, "annotation")["name"].tolist() == ["outer"]
    assert trace.frame("kernel")["op_id"].tolist() == [1, -1]


def test_registered_strings_name_ranges(tmp_path):
    """Ranges of libraries, whose text is interned, would have no name."""
    export = Export().kernel("k", 5, 9, launch=1)
    export.nvtx(None, 0, 100, textId=export.string("iteration 4"))
    assert read(tmp_path, export).frame("step")["step"].tolist() == [4]


def test_collectives_without_payload_are_matched_in_their_order(tmp_path):
    """Waits between the ranks of a profile would not be told."""
    for rank, delay in ((0, 0), (1, 40_000)):
        export = Export().row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC)
        for start in range(100_000, 2_000_000, 200_000):
            export.kernel(ALL_REDUCE, start + delay, start + 60_000, launch=start - 50_000)
        export.write(tmp_path / f"rank{rank}.sqlite")
    trace = load_trace(tmp_path)
    match = match_collectives(trace)
    assert match.collectives["kind"].tolist() == ["all_reduce"] * 10
    assert match.members.groupby("rank")["wait_ns"].sum().to_dict() == {0: 400_000, 1: 0}
    assert match.members.groupby("rank")["arrived_last"].sum().to_dict() == {0: 0, 1: 10}
    assert mentions(trace, "20 operations", "unknown size")


def test_payloads_of_nccl_name_group_size_and_members(tmp_path):
    """Bandwidths would be unknown although the profile has the sizes."""
    export = Export()
    for pid, rank in ((10, 2), (11, 5)):
        export.row("MPI_RANKS", globalTid=thread(pid), rank=rank)
        init = f'{{"NCCL communicator ID": 255, "No. of ranks": 2, "Rank": {pid - 10}}}'
        export.nvtx("ncclCommInitRank", 0, 5, pid, jsonText=init)
        call = '{"NCCL communicator ID": "2,55", "Message size [bytes]": 100}'
        for name, start in (("ncclAllReduce", 10), ("ncclAllGather", 20)):
            export.nvtx(name, start, start + 5, pid, jsonText=call)
            export.kernel(name.replace("nccl", "ncclDevKernel_"), 100 + start, 105 + start, pid,
                          launch=start + 1)  # fmt: skip
        export.nvtx("ncclSend", 30, 35, pid, jsonText=call[:-1] + f', "Peer rank": {11 - pid}}}')
        export.kernel("ncclDevKernel_SendRecv(x)", 130, 135, pid, launch=31)
    trace = read(tmp_path, export)
    rows = trace.frame("collective")
    assert rows[["kind", "size_bytes", "group_id"]].drop_duplicates().to_numpy().tolist() == [
        ["all_reduce", 100, "nccl 0xff"],
        ["all_gather", 200, "nccl 0xff"],
    ]
    assert rows["dtype"].isna().all()
    sends = trace.frame("p2p")[["rank", "peer", "size_bytes"]].to_numpy().tolist()
    assert sends == [[2, 5, 100], [5, 2, 100]]
    assert trace.frame("group")["ranks"].tolist()[0].tolist() == [2, 5]


def test_a_group_of_calls_launches_with_its_end(tmp_path):
    """What PyTorch groups, which is every collective of it, would have no size."""
    export = Export()
    payload = '{"NCCL communicator ID": 7, "Message size [bytes]": 64}'
    for start, calls in ((0, ["ncclReduceScatter"]), (100, ["ncclSend", "ncclRecv"])):
        export.nvtx("ncclGroupStart", start, start + 1)
        for at, name in enumerate(calls):
            export.nvtx(name, start + 10 + at, start + 11 + at, jsonText=payload)
        export.nvtx("ncclGroupEnd", start + 20, start + 30)
        export.kernel("ncclDevKernel_x", start + 500, start + 520, launch=start + 25)
    trace = read(tmp_path, export)
    assert trace.frame("collective")[["kind", "group_id"]].to_numpy().tolist() == [
        ["reduce_scatter", "nccl 0x7"]
    ]
    assert mentions(trace, "1 kernel of grouped sends and receives")


def test_binary_payloads_are_read_by_their_layout(tmp_path):
    """Newer exports, which hold the payload as bytes, would have no sizes."""
    export = Export().row("NVTX_PAYLOAD_SCHEMAS", domainId=3, schemaId=9, payloadSize=16)
    for at, (kind, name, offset) in enumerate(
        ((18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8))
    ):
        export.row(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            domainId=3, schemaId=9, idx=at, type=kind, name=name, offset=offset,
        )  # fmt: skip
    good = struct.pack("<IIIIQQQQ", 3, 0, 9, 0, 16, 48, 11, 4096)
    for start, content in ((0, good), (50, good[:-1])):
        export.nvtx("ncclAllReduce", start, start + 9, binaryData=content)
        export.kernel(ALL_REDUCE, start + 100, start + 110, launch=start + 2)
    trace = read(tmp_path, export)
    rows = trace.frame("collective")[["group_id", "size_bytes"]].to_numpy().tolist()
    assert rows == [["nccl 0xb", 4096], ["unnamed", 0]]
    assert mentions(trace, "1 NVTX payload of", "unknown layout")


def test_the_rank_is_said_by_nvtx_or_the_file_name(tmp_path):
    """Ranks would be numbered by the order of processes."""
    export = Export().kernel("k", 1, 2, launch=0).nvtx("rank=6", 0, None, eventType=34)
    export.write(tmp_path / "a.sqlite")
    Export().kernel("k", 1, 2, launch=0).write(tmp_path / "job-rank_9.sqlite")
    Export().kernel("k", 1, 2, launch=0).write(tmp_path / "nobody.sqlite")
    trace = import_trace(tmp_path)
    assert trace.ranks == (6, 9)
    assert mentions(trace, "Left out", "nobody.sqlite", "names no rank")
    assert mentions(trace, "Rank 9", "file name")


def test_the_rank_in_the_largest_communicator_is_the_last_resort(tmp_path):
    """Several ranks in one file of which nothing else says the number would be refused."""
    export = Export()
    for pid, rank, inner in ((10, 3, 1), (11, 2, 0)):
        for ranks, own in ((2, inner), (4, rank)):
            text = f'{{"NCCL communicator ID": {ranks}, "No. of ranks": {ranks}, "Rank": {own}}}'
            export.nvtx("ncclCommInitRank", 0, 5, pid, jsonText=text)
        export.kernel(f"k{pid}", 10, 20, pid, launch=6)
    trace = read(tmp_path, export, "report.sqlite")
    assert trace.ranks == (2, 3)
    assert trace.run["world_size"] == 4
    assert mentions(trace, "Ranks 2 and 3", "largest communicator, of 4 ranks")
    kernels = named(trace, "kernel")
    assert kernels[["rank", "name"]].to_numpy().tolist() == [[2, "k11"], [3, "k10"]]


@pytest.mark.parametrize(("gpus", "ranks"), [((1, 0), (0, 1)), ((0, 0), None)])
def test_processes_of_a_lone_file_are_numbered_by_their_devices(tmp_path, gpus, ranks):
    """A profile of one node would be refused, or two processes of one device be guessed apart."""
    export = Export()
    for pid, gpu in zip((10, 11), gpus, strict=True):
        export.row("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
        export.kernel("k", 10, 20, pid, launch=6)
    path = export.write(tmp_path / "report.sqlite")
    if ranks is None:
        with pytest.raises(TraceFormatError, match=r"2 processes.*which ranks.*rank<N>"):
            import_trace(path)
    else:
        trace = import_trace(path)
        assert trace.ranks == ranks
        assert mentions(trace, "number of the device")


def test_a_lone_process_without_rank_is_rank_zero(tmp_path):
    """The most common profile, of one process, would be refused."""
    trace = read(tmp_path, Export().kernel("k", 1, 2, launch=0), "report.sqlite")
    assert trace.ranks == (0,)
    assert mentions(trace, "taken to be 0")


def test_two_files_of_one_rank_are_refused(tmp_path):
    """Two runs would be added up as one."""
    for name in ("a_rank1.sqlite", "b_rank1.sqlite"):
        Export().kernel("k", 1, 2, launch=0).write(tmp_path / name)
    with pytest.raises(TraceFormatError, match=r"b_rank1.*rank 1.*a_rank1"):
        import_trace(tmp_path)


def test_old_exports_with_fewer_tables_and_columns_are_read(tmp_path):
    """Profiles of older versions would be refused."""
    old = {
        "StringIds": SCHEMA["StringIds"],
        "CUPTI_ACTIVITY_KIND_KERNEL": "start INT NOT NULL, end INT NOT NULL, deviceId INT NOT NULL, "
        "contextId INT, streamId INT NOT NULL, correlationId INT NOT NULL, shortName INT NOT NULL",
    }
    export = Export(old)
    export.row(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        start=5, end=9, deviceId=0, streamId=7, correlationId=1, shortName=export.string("gemm"),
    )  # fmt: skip
    trace = read(tmp_path, export)
    assert named(trace, "kernel")[["rank", "name", "dur_ns"]].to_numpy().tolist() == [
        [3, "gemm", 4]
    ]


def test_odd_values_are_counted_and_left_out(tmp_path):
    """A range that never ended would last for ever, a torn row stop the reading."""
    export = Export().kernel("k", 10, 20, launch=5).nvtx("step 1", 0, None).nvtx("step 2", 0, 100)
    export.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="7.0.0")
    path = export.write(tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT 'soon', end, deviceId, contextId, "
            "greenContextId, streamId, 'x', globalPid, 999, 999, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "
            "0, 0, 0, 0, 0, 0, 0, 0 FROM CUPTI_ACTIVITY_KIND_KERNEL"
        )
        database.commit()
    trace = import_trace(path)
    assert trace.frame("kernel")["start_ns"].tolist() == [10]
    assert trace.frame("step")["step"].tolist() == [2]
    assert mentions(trace, "1 event of", "no start or no end")
    assert mentions(trace, "1 NVTX range of", "no end")
    assert mentions(trace, "schema version 7.0.0")


def test_views_are_never_evaluated(tmp_path):
    """A file could make its reader run a query without end."""
    path = Export().kernel("k", 10, 20, launch=5).write(tmp_path / "rank0.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(start) AS "
            "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end FROM n"
        )
        database.commit()
    assert len(import_trace(path).frame("kernel")) == 1


def test_graphs_traced_as_a_whole_are_reported(tmp_path):
    """What a graph computed would be missing from the busy time without a word."""
    export = Export().activity("GRAPH_TRACE", 10, 60, graphId=1, graphExecId=2)
    trace = read(tmp_path, export)
    assert trace.frame("kernel")[["category", "dur_ns"]].to_numpy().tolist() == [["unknown", 50]]
    assert mentions(trace, "1 CUDA graphs were traced as a whole")


@pytest.mark.parametrize("cut", [100, 5000, 9000])
def test_a_damaged_export_is_refused_in_one_line(tmp_path, cut):
    """The user would see a traceback."""
    path = Export().kernel("k", 1, 2, launch=0).write(tmp_path / "rank0.sqlite")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(TraceFormatError) as caught:
        import_trace(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_damaged_schema_is_refused_in_one_line(tmp_path):
    """Fails when the damaged bytes that SQLite puts into its message reach the terminal."""
    path = Export().kernel("k", 1, 2, launch=0).write(tmp_path / "rank0.sqlite")
    content = path.read_bytes().replace(b"NOT NULL, end", b"N\xcb( NULL, end", 1)
    path.write_bytes(content)
    with pytest.raises(TraceFormatError) as caught:
        import_trace(path)
    assert str(caught.value).isprintable()


def test_an_sqlite_file_of_something_else_is_no_trace(tmp_path):
    """A browser's history in the folder would be read as a run."""
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as database:
        database.execute("CREATE TABLE visits (url TEXT)")
        database.commit()
    with pytest.raises(TraceFormatError, match="not a trace"):
        import_trace(tmp_path / "x.sqlite")


def test_nothing_is_written_beside_the_export(tmp_path):
    """Traces on a read-only file system could not be read, and others' folders be littered."""
    path = Export().kernel("k", 1, 2, launch=0).write(tmp_path / "rank0.sqlite")
    before = path.read_bytes()
    import_trace(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rank0.sqlite"]
    assert path.read_bytes() == before


def test_a_profile_is_diagnosed(tmp_path):
    """Steps, compute and communication of a profile would not reach the account."""
    export = Export()
    for pid, rank, delay in ((10, 0, 0), (11, 1, 300)):
        export.row("MPI_RANKS", globalTid=thread(pid), rank=rank)
        for step in range(4):
            base = 10_000 * step
            export.nvtx(f"iteration {step}", base, base + 10_000, pid)
            export.kernel("gemm", base + 100, base + 4000 + delay, pid, launch=base + 10)
            export.kernel(ALL_REDUCE, base + 4000 + delay, base + 6000, pid, launch=base + 20)
    result = diagnose(load_trace(export.write(tmp_path / "report.sqlite")))
    assert result.step_time_ns == 10_000
    shares = {bar.name: bar.frac for bar in result.waterfall}
    assert shares["compute"] == pytest.approx((3900 + 4200) / 2 / 10_000)
    assert sum(shares.values()) == pytest.approx(1)
    assert process(10) != process(11)


@pytest.mark.parametrize("end", [1 << 60, 80 * 10**9])
def test_an_impossible_kernel_is_left_out(tmp_path, end):
    """Fails when one kernel of a wrong end fills every step behind it."""
    export = Export().kernel("gemm", 100, 300, launch=50).kernel("far", 400, end, launch=350)
    export.kernel("gemm", 900, 1000, launch=850)
    trace = read(tmp_path, export)
    assert named(trace, "kernel")["name"].tolist() == ["gemm", "gemm"]
    assert mentions(trace, "1 event left out", "far")


def test_calls_without_kernels_and_ranges_are_read(tmp_path):
    """Fails when a capture of the host's calls alone ends in a traceback."""
    export = Export()
    for number in range(9):
        export.call("cudaLaunchKernel_v7000", number * 1000, number * 1000 + 50, correlation=number)
    trace = read(tmp_path, export)
    assert trace.frame("step")["dur_ns"].tolist() == [8050]
    assert mentions(trace, "9 launches")


def test_two_devices_of_one_process_are_named(tmp_path):
    """Fails when the work of two devices is taken for that of one, and nothing says so."""
    export = Export()
    for device in (0, 1):
        export.kernel("gemm", 1000, 1000 + 500 * (device + 1), launch=900, deviceId=device)
    assert mentions(read(tmp_path, export), "2 devices in one process")


@pytest.mark.parametrize("devices", [1, 2])
def test_a_lone_report_that_communicates_lacks_its_peers(tmp_path, devices):
    """Fails when waiting for ranks that are not there is told as the speed of a link."""
    export = Export()
    for device in range(devices):
        export.kernel("gemm", 100, 200, launch=50, deviceId=device)
    export.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 200, 300, launch=60)
    trace = read(tmp_path, export, "report.sqlite")
    assert trace.run["world_size"] == (0 if devices == 1 else 1)
    assert mentions(trace, "This one communicates, so other ranks are missing") is (devices == 1)
