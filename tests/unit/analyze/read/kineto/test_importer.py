"""Kineto files become tables: ranks, exact times, steps, links, groups, limits."""

import gzip
import io
import json
import tarfile
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from tests.texts import texts

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.output.json.topology import template
from meshscope.analyze.output.text.diagnosis import to_text
from meshscope.analyze.read import import_trace
from meshscope.analyze.read.kernel_names import (
    collective_kind,
    dtype_name,
    item_bytes,
    kernel_category,
)
from meshscope.analyze.read.kineto.groups import parse_ranks
from meshscope.analyze.read.kineto.stamps import microseconds_to_ns
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.tables import TABLES


def event(cat, name, ts, dur, **args):
    """Return one complete event; times in microseconds, as text or number."""
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args,
    }  # fmt: skip


def kernel(name, ts, dur, correlation=0, **args):
    """Return one device kernel."""
    place = {"device": 0, "stream": 7, "correlation": correlation}
    return event("kernel", name, ts, dur, **place | args)


def launch(ts, correlation):
    """Return the host call that launched a device activity."""
    return event("cuda_runtime", "cudaLaunchKernel", ts, 1, correlation=correlation)


def collective(ts, dur, name="allreduce", group="0", **args):
    """Return one communication kernel with the metadata that PyTorch attaches."""
    metadata = {
        "Collective name": name,
        "In msg nelems": 8,
        "Out msg nelems": 16,
        "dtype": "BFloat16",
        "Process Group Name": group,
    }
    return kernel("ncclDevKernel_Generic(x)", ts, dur, **metadata | args)


def write_rank(path, events, *, rank=None, world_size=None, groups=(), **header):
    """Write one file; a rank of None leaves the header without one."""
    info = {"rank": rank, "world_size": world_size, "pg_config": list(groups)}
    header["distributedInfo"] = {key: value for key, value in info.items() if value is not None}
    Path(path).write_text(json.dumps(header | {"traceEvents": list(events)}))
    return Path(path)


def step_note(number, ts, dur):
    """Return the host annotation of one profiler step."""
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur)


def mentions(trace, *words):
    """Say whether one sentence of the limits has all these words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


def test_ranks_come_from_the_header_before_the_name(tmp_path):
    """A renamed file would become another rank, and the order of files would decide who is slow."""
    write_rank(tmp_path / "a_rank7.json", [kernel("k", 1, 1)], rank=3, world_size=8)
    write_rank(tmp_path / "b-worker5.x.json", [kernel("k", 1, 1)])
    trace = import_trace(tmp_path)
    assert trace.ranks == (3, 5)
    assert sorted(set(trace.frame("kernel")["rank"])) == [3, 5]
    assert mentions(trace, "Rank 3", "file name says rank 7")
    assert mentions(trace, "Rank 5", "file name")
    assert mentions(trace, "8 ranks", "3, 5")


def test_a_folder_called_after_a_rank_names_it(tmp_path):
    """A profiler handler with a folder a rank would be refused, though its tree says who is who."""
    for name in ("rank_0", "rank_1"):
        (tmp_path / name).mkdir()
        write_rank(tmp_path / name / "trace.json", [kernel("k", 1, 1)])
    trace = import_trace(tmp_path)
    assert trace.ranks == (0, 1)
    assert mentions(trace, "names no rank", "folder does")


def test_two_files_of_one_rank_are_refused_by_name(tmp_path):
    """Two runs in one folder would be added up as if they were one."""
    write_rank(tmp_path / "first.json", [kernel("k", 1, 1)], rank=0)
    write_rank(tmp_path / "second.json", [kernel("k", 2, 1)], rank=0)
    with pytest.raises(TraceFormatError, match=r"second\.json.*rank 0.*first\.json"):
        import_trace(tmp_path)


def test_a_file_without_rank_beside_others_is_left_out_with_the_reason(tmp_path):
    """A guessed rank would blame a healthy one."""
    write_rank(tmp_path / "host_1234.json", [kernel("k", 1, 1)])
    write_rank(tmp_path / "rank1.json", [kernel("k", 1, 1)], rank=1)
    trace = import_trace(tmp_path)
    assert trace.ranks == (1,)
    assert mentions(trace, "host_1234.json", "names no rank")


def test_a_single_file_without_rank_is_rank_zero(tmp_path):
    """The most common input, one file of one process, would be refused."""
    trace = import_trace(write_rank(tmp_path / "trace.json", [kernel("k", 1, 1)]))
    assert trace.ranks == (0,)
    assert mentions(trace, "names a rank")
    assert mentions(trace, "world size", "taken to be 1")


@pytest.mark.parametrize("stamp", ["1712195495505543.251", "4458676522690.655", "12", "1.5e3"])
def test_stamps_are_exact(stamp):
    """A Unix time read as a double would move events by up to 125 ns, and gaps would open."""
    assert microseconds_to_ns([stamp.encode()], "").tolist() == [int(Decimal(stamp) * 1000)]


def test_stamps_finer_than_a_nanosecond_are_rounded():
    """A rewritten trace with 17 digits would be refused."""
    assert microseconds_to_ns([b"0.30000000000000004", b"-2.0015"], "").tolist() == [300, -2002]


def test_the_time_base_is_added(tmp_path):
    """Ranks whose files have different bases would seem to start seconds apart."""
    for rank, (base, ts) in enumerate([(1_000_000_000, 5), (1_000_004_000, 1)]):
        write_rank(
            tmp_path / f"{rank}.json", [kernel("k", ts, 2)], rank=rank, baseTimeNanoseconds=base
        )
    assert import_trace(tmp_path).frame("kernel")["start_ns"].tolist() == [1_000_005_000] * 2


def test_a_device_event_belongs_to_the_step_that_launched_it(tmp_path):
    """Work that the device does late would be charged to the next step; it ends the step it is of."""
    events = [
        step_note(5, 100, 50),
        step_note(6, 150, 50),
        launch(120, 1),
        kernel("late", 160, 5, correlation=1),
        kernel("unlinked", 170, 5),
        kernel("outside", 300, 5),
    ]
    trace = import_trace(write_rank(tmp_path / "rank0.json", events))
    rows = trace.frame("kernel")
    assert rows["step"].tolist() == [5, 6, -1]
    assert rows["launch_ns"].isna().tolist() == [False, True, True]
    assert rows["launch_ns"].iloc[0] == 120_000
    assert mentions(trace, "2 of 3 device events have no launch")
    assert trace.frame("step")[["step", "start_ns", "dur_ns"]].to_numpy().tolist() == [
        [5, 100_000, 65_000],
        [6, 165_000, 35_000],
    ]


def test_a_file_without_steps_is_one_step(tmp_path):
    """An export without a schedule would have no step to analyse."""
    events = [kernel("k", 10, 5), event("cpu_op", "aten::mm", 2, 3)]
    trace = import_trace(write_rank(tmp_path / "rank0.json", events))
    assert trace.frame("step")[["step", "start_ns", "dur_ns"]].to_numpy().tolist() == [
        [0, 2_000, 13_000]
    ]
    assert trace.frame("kernel")["step"].tolist() == [0]
    assert mentions(trace, "whole file is step 0")


def test_an_operator_is_linked_only_if_it_was_open_at_the_launch(tmp_path):
    """Old files write correlations where new ones write operator ids: kernels would get a random operator."""
    events = [
        event("cpu_op", "aten::mm", 100, 10, **{"External id": 4}),
        event("cpu_op", "aten::add", 120, 10, **{"External id": 9}),
        launch(105, 1),
        launch(115, 9),
        launch(125, 5),
        kernel("nested", 202, 1, correlation=5, **{"External id": 5}),
        kernel("good", 200, 1, correlation=1, **{"External id": 4}),
        kernel("accident", 201, 1, correlation=9, **{"External id": 9}),
    ]
    trace = import_trace(write_rank(tmp_path / "rank0.json", events))
    # By its id; by nesting on the thread of the launch; between two operators, whatever its id.
    assert trace.frame("kernel")["op_id"].tolist() == [1, 0, -1]
    names = trace.frame("name").set_index("name_id")["name"]
    assert names[trace.frame("op")["name_id"]].tolist() == ["aten::mm", "aten::add"]


def test_recognised_annotations_become_spans(tmp_path):
    """Data loading would be an unexplained gap; the optimizer would be timed by its launches."""
    events = [
        step_note(1, 0, 100),
        event("user_annotation", "Optimizer.step#Adam.step", 80, 5, **{"External id": 3}),
        event("gpu_user_annotation", "Optimizer.step#Adam.step", 101, 9, **{"External id": 3}),
        event("user_annotation", "enumerate(DataLoader)#_Iter.__next__", 1, 7),
        event("user_annotation", "my own note", 1, 7),
        kernel("k", 101, 1),
    ]
    spans = import_trace(write_rank(tmp_path / "rank0.json", events)).frame("span")
    found = spans[["kind", "step", "start_ns", "dur_ns"]].to_numpy().tolist()
    assert found == [["optimizer", 1, 101_000, 9_000], ["data_load", 1, 1_000, 7_000]]


def test_collectives_get_group_kind_size_and_order(tmp_path):
    """Members would not be joined across ranks, or bandwidth would be off by the element size."""
    events = [
        collective(50, 5, "_allgather_base"),
        collective(10, 5, "allreduce"),
        collective(30, 5, "reduce_scatter_tensor_coalesced", group="1"),
    ]
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]
    trace = import_trace(write_rank(tmp_path / "rank0.json", events, groups=groups))
    rows = trace.frame("collective")
    assert rows[["group_id", "seq", "kind", "size_bytes"]].to_numpy().tolist() == [
        ["0", 0, "all_reduce", 16],
        ["1", 0, "reduce_scatter", 16],
        ["0", 1, "all_gather", 32],
    ]
    assert (rows["end_ns"] - rows["start_ns"]).tolist() == [5_000] * 3
    assert rows["event_id"].is_unique
    groups = trace.tables["group"]
    assert dict(
        zip(*(groups[c].to_pylist() for c in ("group_id", "description")), strict=True)
    ) == {
        "0": "default_pg",
        "1": None,
    }


def test_recorded_sequence_numbers_join_shifted_windows(tmp_path):
    """A rank whose profile begins one collective later would be matched with the wrong ones."""
    for rank, first in ((0, 40), (1, 41)):
        rows = [collective(10 * n, 5, Seq=n) for n in range(first, 44)]
        write_rank(tmp_path / f"{rank}.json", rows, rank=rank)
    rows = import_trace(tmp_path).frame("collective")
    assert rows.loc[rows["rank"] == 1, "seq"].tolist() == [41, 42, 43]
    assert rows.loc[rows["rank"] == 0, "seq"].tolist() == [40, 41, 42, 43]


def test_kernels_that_share_a_sequence_number_stay_apart(tmp_path):
    """Coalesced collectives would collapse into one member, or join across each other."""
    rows = [collective(10, 5, Seq=3), collective(20, 5, Seq=3), collective(30, 5, Seq=4)]
    frame = import_trace(write_rank(tmp_path / "rank0.json", rows)).frame("collective")
    assert frame["seq"].is_unique
    assert frame["seq"].is_monotonic_increasing


def test_one_name_for_two_groups_gives_two_ids(tmp_path):
    """Tensor groups of two replicas with one name would be matched with each other."""
    for rank, members in ((0, [0, 1]), (2, [2, 3])):
        groups = [{"pg_name": "tp", "pg_desc": "mesh_tp", "ranks": members}]
        write_rank(
            tmp_path / f"{rank}.json", [collective(1, 1, group="tp")], rank=rank, groups=groups
        )
    trace = import_trace(tmp_path)
    assert trace.frame("collective")["group_id"].tolist() == ["tp (0,1)", "tp (2,3)"]
    ranks = {row.group_id: list(row.ranks) for row in trace.frame("group").itertuples()}
    assert ranks == {"tp (0,1)": [0, 1], "tp (2,3)": [2, 3]}


def test_sends_and_receives_become_p2p_rows(tmp_path):
    """A pipeline's transfers would be counted as collectives of the whole group."""
    for rank, other, name, key in ((0, 1, "send", "Dst Rank"), (1, 0, "recv", "Src Rank")):
        rows = [collective(10 * n, 4, name, **{key: str(other)}) for n in (1, 2)]
        write_rank(tmp_path / f"{rank}.json", rows, rank=rank)
    trace = import_trace(tmp_path)
    assert trace.tables["collective"].num_rows == 0
    rows = trace.frame("p2p")[["rank", "peer", "direction", "seq", "size_bytes"]]
    assert rows.to_numpy().tolist() == [
        [0, 1, "send", 0, 16],
        [0, 1, "send", 1, 16],
        [1, 0, "recv", 0, 16],
        [1, 0, "recv", 1, 16],
    ]


def test_without_metadata_the_host_announcement_says_the_kind(tmp_path):
    """The SendRecv kernels of an all-to-all would be taken for pipeline transfers."""
    events = [
        event("user_annotation", "nccl:all_to_all", 100, 10),
        launch(105, 1),
        kernel("ncclKernel_SendRecv_RING(x)", 200, 5, correlation=1),
        kernel("ncclDevKernel_AllGather_RING_LL(x)", 210, 5),
        kernel("vllm::cross_device_reduce_1stage", 220, 5),
    ]
    trace = import_trace(write_rank(tmp_path / "rank0.json", events, rank=0, world_size=4))
    assert trace.frame("collective")["kind"].tolist() == ["all_to_all", "all_gather"]
    assert [list(ranks) for ranks in trace.frame("group")["ranks"]] == [[0, 1, 2, 3]]
    assert mentions(trace, "2 collectives", "without a process group")
    assert mentions(trace, "2 operations", "unknown size")
    assert mentions(trace, "1 communication kernel of other libraries")


def test_grouped_transfers_are_counted_not_matched(tmp_path):
    """Batched sends of a pipeline would be joined as if all stages took part."""
    trace = import_trace(write_rank(tmp_path / "rank0.json", [collective(1, 1, "coalesced")]))
    assert trace.tables["collective"].num_rows == 0
    assert trace.frame("kernel")["category"].tolist() == ["communication"]
    assert mentions(trace, "grouped sends and receives")


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "communication"),
        ("ncclKernel_SendRecv_RING_SIMPLE", "communication"),
        ("rcclGenericKernel<2>", "communication"),
        ("multimem_all_reduce_kernel<bf16>", "unknown"),
        ("void two_shot_all_reduce_kernel_inplace<bf16>", "communication"),
        ("allreduce_fusion_kernel_oneshot_lamport<1>", "unknown"),
        ("deep_ep::internode::dispatch<1>", "communication"),
        ("nvshmemi_transfer_rma_put", "communication"),
        ("vllm::cross_device_reduce_1stage", "communication"),
        ("mscclpp::allreduce7", "communication"),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs", "communication"),
        ("hcclAicpuKernel", "communication"),
        ("ucp_proto_put", "communication"),
        ("void cutlass::duct_reduce<2>", "compute"),
        ("void at::native::reduce_kernel<512>", "compute"),
    ],
)
def test_kernel_names_tell_communication(name, category):
    """Communication of a new library version would be counted as computation."""
    assert kernel_category(name).value == category


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("_broadcast_oop", "broadcast"),
        ("gather", "gather"),
        ("barrier", "barrier"),
        ("wait", "other"),
    ],
)
def test_collective_names_tell_the_kind(name, kind):
    """A reduce-scatter would be reported as a scatter or a reduce."""
    assert collective_kind(name).value == kind


def test_element_sizes():
    """Message sizes of reduced precision would be wrong."""
    names = ["Float", "c10::BFloat16", "Long", "Float8_e4m3fn", "Nonsense"]
    assert [item_bytes(name) for name in names] == [4, 2, 8, 1, 0]


def test_element_types_are_named_as_the_probe_names_them():
    """A line of the program, which is kept by element type, would not be found for a dump."""
    torch = pytest.importorskip("torch")
    written = {"Half": "float16", "Double": "float64", "Char": "int8", "ComplexFloat": "complex64"}
    assert {name: dtype_name(name) for name in written} == written
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in written.values())
    assert dtype_name("torch.bfloat16") == dtype_name("c10::BFloat16") == "bfloat16"


def test_member_lists_that_are_cut_short_are_not_believed():
    """A group of 128 ranks would be taken for one of 31."""
    assert parse_ranks("[0, 1, 2]") == (0, 1, 2)
    assert parse_ranks("[0, 1, ..., 127]") == ()
    assert parse_ranks(None) == ()


def test_archives_and_gzip_are_read_without_unpacking(tmp_path):
    """The way people send traces around would have to be undone by hand first."""
    written = write_rank(tmp_path / "x.json", [kernel("k", 1, 1)], rank=2).read_bytes()
    (tmp_path / "x.json").unlink()
    with tarfile.open(tmp_path / "job.tar.gz", "w:gz") as tar:
        for name, content in (("d/rank2.json.gz", gzip.compress(written)), ("d/notes", b"hello")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    trace = import_trace(tmp_path / "job.tar.gz")
    assert trace.ranks == (2,)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job.tar.gz"]


def test_one_torn_file_does_not_hide_the_other_ranks(tmp_path):
    """A job of 64 ranks would be lost to one file that was cut off."""
    write_rank(tmp_path / "rank0.json", [kernel("k", 1, 1)], rank=0, world_size=3)
    whole = write_rank(tmp_path / "rank1.json", [kernel("k", 1, 1)], rank=1).read_text()
    (tmp_path / "rank1.json").write_text(whole[:-20])
    (tmp_path / "rank2.json.gz").write_bytes(gzip.compress(whole.encode())[:-30])
    trace = import_trace(tmp_path)
    assert trace.ranks == (0,)
    assert mentions(trace, "Left out", "rank1.json")
    assert mentions(trace, "Left out", "rank2.json.gz", "cut off")


@pytest.mark.parametrize("number", [b"-Infinity", b"N/A"])
def test_bad_text_and_numbers_that_are_none_are_repaired(tmp_path, number):
    """One kernel name in another encoding, or one infinite bandwidth, would refuse the whole file."""
    path = write_rank(tmp_path / "rank0.json", [kernel("kNAME", 1, 1, bandwidth="VALUE")])
    content = path.read_bytes().replace(b"NAME", b"\xff\xfe").replace(b'"VALUE"', number)
    path.write_bytes(content)
    assert import_trace(path).tables["kernel"].num_rows == 1


def test_a_trace_of_another_tool_is_refused(tmp_path):
    """A browser trace would be reported as a training run that did nothing."""
    path = write_rank(tmp_path / "x.json", [event("blink", "paint", 1, 2)])
    with pytest.raises(TraceFormatError, match="no events of the PyTorch profiler"):
        import_trace(path)


def test_unsigned_and_quoted_numbers_are_understood(tmp_path):
    """Profilers write -1 as 4294967295 or 18446744073709551615: the whole file would be refused."""
    rows = [kernel("k", "5.25", "1", correlation=2**64 - 1, stream=2**64 - 1, device=2**32 - 1)]
    header = {"deviceProperties": None, "baseTimeNanoseconds": None}
    found = import_trace(write_rank(tmp_path / "rank0.json", rows, **header)).frame("kernel")
    columns = ["start_ns", "dur_ns", "device", "stream", "correlation"]
    assert found[columns].to_numpy().tolist() == [[5_250, 1_000, -1, -1, -1]]


@pytest.mark.parametrize("stamp", ["soon", 1e30, 5e15])
def test_a_stamp_that_cannot_be_is_refused(tmp_path, stamp):
    """A wrapped 64-bit time would put the event before all others."""
    path = write_rank(tmp_path / "rank0.json", [kernel("k", stamp, 1)])
    with pytest.raises(TraceFormatError, match="time stamp"):
        import_trace(path)


def test_events_without_a_time_are_counted(tmp_path):
    """An incomplete event would be placed at time zero and stretch the span over decades."""
    lost = kernel("k", 5, 1)
    del lost["ts"]
    trace = import_trace(write_rank(tmp_path / "rank0.json", [kernel("k", 5, 1), lost]))
    assert trace.tables["kernel"].num_rows == 1
    assert mentions(trace, "1 event without a time stamp")


def test_every_table_conforms(tmp_path):
    """An analysis would meet a missing column or another type on imported input."""
    trace = import_trace(write_rank(tmp_path / "rank0.json", [collective(1, 1)], rank=0))
    assert trace.tables.keys() == TABLES.keys()
    for name, table in trace.tables.items():
        assert table.schema.equals(TABLES[name].arrow_schema()), name
    assert trace.run.keys() == set(TABLES["run"].column_names())


@pytest.fixture(scope="module")
def amd(traces_dir):
    """Return the real four-rank set, read once."""
    return import_trace(traces_dir / "amd_hpctraining" / "split")


@pytest.mark.traces
def test_the_real_straggler_set(amd):
    """The known waits and the known late rank of a real job would come out differently."""
    assert amd.ranks == (0, 1, 2, 3)
    (lost,) = texts(amd.limits)
    assert lost.startswith("Ranks 1, 2 and 3: 22 launches at the end have no device work")
    rows = amd.frame("collective")
    assert Counter(rows["kind"]) == {"all_reduce": 60, "broadcast": 24}
    own = rows["end_ns"] - rows["start_ns"]
    assert (own.groupby(rows["rank"]).sum() / 1e6).round(3).tolist() == [
        64.471,
        46.985,
        49.845,
        3.591,
    ]
    rows = rows[rows["kind"] == "all_reduce"].assign(own=own)
    groups = rows.groupby(["group_id", "seq"], observed=True)
    assert groups["rank"].nunique().tolist() == [4] * 15
    wait = (rows["own"] - groups["own"].transform("min")).groupby(rows["rank"]).sum()
    assert (wait / 1e6).round(3).tolist() == [60.881, 35.953, 37.315, 0.0]
    assert set(rows.loc[groups["start_ns"].idxmax(), "rank"]) == {3}


@pytest.mark.traces
def test_the_real_set_is_linked(amd):
    """Launch and operator of real kernels would be lost."""
    rows = amd.frame("kernel")
    assert (rows["op_id"] >= 0).all()
    assert (rows["launch_ns"] <= rows["start_ns"]).all()
    assert rows.groupby("rank")["step"].value_counts().loc[0].to_dict() == dict.fromkeys(
        (9, 10, 11), 1365
    )


@pytest.mark.traces
@pytest.mark.parametrize(
    ("folder", "rank", "words"),
    [
        ("hta/cpu_only", 34, ("300 ranks", "34")),
        ("hta/distributed_info_unavailable", 0, ("names a rank",)),
        ("hta/rank_unavailable", 0, ("world size", "taken to be 1")),
        ("hta/rank_non_gpu", 0, ("no device events",)),
        ("tracelens/b200", 0, ("whole file is step 0",)),
    ],
)
def test_odd_headers_load_with_a_limit(traces_dir, folder, rank, words):
    """A file with an incomplete header would crash instead of saying what it lacks."""
    trace = import_trace(traces_dir / folder)
    assert trace.ranks == (rank,)
    assert mentions(trace, *words)


@pytest.mark.traces
def test_an_archive_without_metadata(traces_dir):
    """The eight-rank set of an older version would lose its collectives."""
    trace = import_trace(traces_dir / "param" / "dlrm_kineto.tar.gz")
    assert trace.ranks == tuple(range(8))
    rows = trace.frame("collective")
    wait = rows["end_ns"] - rows["start_ns"]
    wait -= wait.groupby(rows["seq"]).transform("min")
    waits_ms = np.round(wait.groupby(rows["rank"]).sum() / 1e6, 2).tolist()
    assert waits_ms == [5.58, 11.12, 3.28, 9.56, 6.37, 6.03, 3.34, 1.53]
    order = rows.loc[rows["rank"] == 0, "kind"].tolist()
    assert order == ["all_to_all"] * 4 + ["all_reduce", "all_to_all"] + ["all_reduce"] * 2


@pytest.mark.parametrize(
    ("dur", "count"), [(-5, 1), (None, 1), ("", 1), ("abc", 1), (1e30, 1), (0, 0), (2, 0)]
)
def test_work_of_no_length_is_left_out_and_counted(tmp_path, dur, count):
    """Time that was lost to a damaged length would be idle time, with a cause."""
    rows = [kernel("k", 1, 1), kernel("k", 5, dur)]
    trace = import_trace(write_rank(tmp_path / "rank0.json", rows))
    lengths = [1000] if count else [1000, 2000 if dur == 2 else 0]
    assert trace.frame("kernel")["dur_ns"].tolist() == lengths
    assert mentions(trace, "1 of 2 device events left out: no length") is bool(count)


@pytest.mark.parametrize(("world_size", "waits"), [(None, True), (1, False)])
def test_a_lone_file_that_communicates_lacks_its_peers(tmp_path, world_size, waits):
    """Fails when waiting for ranks that are not there is told as the speed of a link."""
    events = [
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at * 1000, 500, tid=20) for at in range(3)
    ]
    header = {"distributedInfo": {"world_size": world_size}} if world_size else {}
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events} | header))
    trace = load_trace(file)
    assert trace.run["world_size"] == (0 if waits else 1)
    assert mentions(trace, "This one communicates, so other ranks are missing") is waits
    text = to_text(diagnose(trace))
    assert ("communication: waiting or wire" in text) is waits
    assert ("1 of an unknown number of ranks" in text) is waits
    assert "0 ranks" not in template(trace)


@pytest.mark.parametrize("stamp", ["abc", [], True, 1e30, 1e18, {"a": [1, 2]}, None])
def test_an_event_without_a_time_is_left_out_and_counted(tmp_path, stamp):
    """One damaged stamp would cost the whole rank."""
    rows = [kernel("k", 1, 1), kernel("odd", stamp, 1), kernel("k", 5, 1)]
    trace = import_trace(write_rank(tmp_path / "rank0.json", rows))
    assert trace.frame("kernel")["start_ns"].tolist() == [1000, 5000]
    assert mentions(trace, "1 event without a time stamp that can be read")


def test_a_rank_beyond_the_world_is_stated(tmp_path):
    """A header that contradicts itself would put a rank outside of the mesh."""
    trace = import_trace(write_rank(tmp_path / "a.json", [kernel("k", 1, 1)], rank=7, world_size=2))
    assert trace.run["world_size"] == 8
    assert mentions(trace, "Rank 7", "2 ranks in all")


@pytest.mark.parametrize("size", [10**9, 2**40])
def test_an_absurd_world_size_is_none(tmp_path, size):
    """Fails when a group of a thousand million ranks is made, for which there is no memory."""
    trace = import_trace(write_rank(tmp_path / "a.json", [kernel("k", 1, 1)], world_size=size))
    assert trace.run["world_size"] == 1
    assert mentions(trace, "absurd world size")


def test_an_absurd_rank_is_no_rank(tmp_path):
    """Tables for two thousand million ranks would be made."""
    path = write_rank(tmp_path / "rank3.json", [kernel("k", 1, 1)], rank=2147483647)
    trace = import_trace(path)
    assert trace.ranks == (3,)
    assert mentions(trace, "absurd rank")
