"""Communication metadata as recent and old profilers write it: all of it is optional."""

import json

import pytest
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.output.json import collectives_to_json
from meshscope.analyze.read.kineto.groups import strided_ranks


def event(cat, name, ts, dur, **args):
    """Return one complete event; times in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}  # fmt: skip


def kernel(name, ts, dur, *, stream=20, correlation=0, **args):
    """Return one device kernel."""
    return event("kernel", name, ts, dur, device=0, stream=stream, correlation=correlation, **args)


def metadata(name, group, ranks, *, size=8, **more):
    """Return what PyTorch attaches to the kernel of a collective."""
    return {
        "Collective name": name,
        "In msg nelems": size,
        "Out msg nelems": size,
        "dtype": "Float",
        "Process Group Name": group,
        "Process Group Ranks": ranks,
    } | more


def load(folder, files, *, world_size=None):
    """Write one file a rank and load them."""
    for rank, events in files.items():
        info = {"rank": rank} | ({} if world_size is None else {"world_size": world_size})
        text = json.dumps({"distributedInfo": info, "traceEvents": events})
        (folder / f"rank{rank}.json").write_text(text)
    return load_trace(folder)


def joined(trace):
    """Return how many members each collective has, by group and position."""
    rows = collectives_to_json(trace)["collectives"]
    return [(row["group_id"], row["kind"], row["members_present"]) for row in rows]


def test_hashed_group_names_are_separated_by_their_members(tmp_path):
    """Groups of recent versions have hashes for names: data and tensor groups would be mixed."""
    name = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    files = {
        rank: [
            kernel(name, 10, 5, **metadata("allreduce", "9f86d081", own, Seq=1)),
            kernel(name, 20, 5, **metadata("_allgather_base", "2c26b46b", "[0, 1, 2, 3]", Seq=1)),
        ]
        for rank, own in ((0, "[0, 1]"), (1, "[0, 1]"), (2, "[2, 3]"), (3, "[2, 3]"))
    }
    trace = load(tmp_path, files, world_size=4)
    assert joined(trace) == [
        ("2c26b46b", "all_gather", 4),
        ("9f86d081 (0,1)", "all_reduce", 2),
        ("9f86d081 (2,3)", "all_reduce", 2),
    ]


def test_counters_that_started_elsewhere_still_join(tmp_path):
    """A rank whose counter ran ahead would have no partner in any collective."""
    sizes = [8, 16, 24, 32, 40]
    files = {
        rank: [
            kernel("ncclDevKernel_x", 100 * n, 5, **metadata("allreduce", "0", "[0, 1]", size=s, Seq=first + n))
            for n, s in enumerate(sizes)
        ]
        for rank, first in ((0, 1), (1, 500))
    }  # fmt: skip
    trace = load(tmp_path, files)
    assert [members for _, _, members in joined(trace)] == [2] * 5
    assert any(
        "capture of rank 1 begins at another collective of group 0" in limit
        for limit in texts(trace.limits)
    )


def test_a_coalesced_call_is_one_kernel_a_collective(tmp_path):
    """Kernels of one coalesced call share its number: they would collapse into one member."""
    note = event("user_annotation", "nccl:all_gather_into_tensor_coalesced", 0, 9)
    shared = {
        rank: [
            note,
            *(
                kernel(
                    "ncclDevKernel_AllGather_RING_LL(x)", 10 + 10 * n, 5,
                    **metadata("all_gather_into_tensor_coalesced", "1", "[0, 1]", size=8 << n, Seq=7),
                )
                for n in range(3)
            ),
        ]
        for rank in (0, 1)
    }  # fmt: skip
    trace = load(tmp_path, shared)
    assert joined(trace) == [("1", "all_gather", 2)] * 3
    assert trace.frame("collective")["size_bytes"].tolist() == [32, 64, 128] * 2


def test_kernels_of_a_coalescing_manager_without_metadata(tmp_path):
    """The manager launches at its end, outside of the recorded call: kind and size would be lost."""
    launch = event("cuda_runtime", "cudaLaunchKernelExC", 5, 1, correlation=1)
    files = {
        rank: [
            event("user_annotation", "nccl:coalesced", 0, 9),
            launch,
            kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", 10 + rank, 5, correlation=1),
        ]
        for rank in (0, 1)
    }
    result = collectives_to_json(load(tmp_path, files, world_size=2))
    (row,) = result["collectives"]
    assert (row["group_id"], row["kind"], row["members_present"]) == (
        "unnamed",
        "reduce_scatter",
        2,
    )
    assert row["bus_bandwidth_bytes_per_s"] is None
    assert row["bandwidth_unknown_because"] == "the message size is not known"
    assert row["messages"]["bandwidth_unknown_because"]["code"] == "bandwidth.no_size"


def test_kernels_without_metadata_are_matched_by_stream(tmp_path):
    """Two communicators that run side by side would be matched across each other."""
    order = {0: [(10, 20), (12, 24), (30, 20)], 1: [(10, 24), (11, 20), (30, 20)]}
    files = {
        rank: [kernel("ncclKernel_AllReduce_RING_LL", ts, 5, stream=s) for ts, s in rows]
        for rank, rows in order.items()
    }
    trace = load(tmp_path, files, world_size=2)
    assert sorted(joined(trace)) == [
        ("unnamed, stream 20", "all_reduce", 2),
        ("unnamed, stream 20", "all_reduce", 2),
        ("unnamed, stream 24", "all_reduce", 2),
    ]
    assert {tuple(ranks) for ranks in trace.frame("group")["ranks"]} == {(0, 1)}


def test_streams_with_other_numbers_are_matched_by_their_order(tmp_path):
    """Stream numbers are given out by each process: equal work would find no partner."""
    files = {
        rank: [kernel("ncclKernel_AllReduce_RING_LL", 10 * n, 5, stream=s) for n, s in enumerate(streams)]
        for rank, streams in ((0, [20, 24]), (1, [21, 33]))
    }  # fmt: skip
    assert [members for _, _, members in joined(load(tmp_path, files, world_size=2))] == [2, 2]


def test_sends_inside_a_collective_group_do_not_shift_it(tmp_path):
    """One send more on one rank would move all collectives of the group by one."""
    both = [
        kernel("ncclDevKernel_x", 10 * n, 5, **metadata("allreduce", "0", "[0, 1]", size=8 + n))
        for n in (1, 5)
    ]
    send = kernel(
        "ncclDevKernel_SendRecv(x)", 30, 5, **metadata("send", "0", "[0, 1]", **{"Dst Rank": 1})
    )
    recv = kernel("ncclDevKernel_SendRecv(x)", 29, 7, **metadata("recv", "0", "[0, 1]", **{"Src Rank": 0}))  # fmt: skip
    result = collectives_to_json(load(tmp_path, {0: [*both, send], 1: [*both, recv]}))
    assert [row["members_present"] for row in result["collectives"]] == [2, 2]
    (transfer,) = result["transfers"]
    assert (transfer["source"], transfer["target"], transfer["count"]) == (0, 1, 1)
    assert transfer["bus_bandwidth_p50_bytes_per_s"] == pytest.approx(32 / 6e-6)
    assert {row["kind"] for row in result["sizes"]} == {"all_reduce", "send_recv"}


def test_members_of_a_list_that_was_cut_short(tmp_path):
    """The members of a large group would be unknown, and with them its axis and bandwidth."""
    more = {"Group size": 64, "Global rank start": 3, "Global rank stride": 8}
    events = [kernel("ncclDevKernel_x", 1, 5, **metadata("allreduce", "5", "[3, 11, ...]", **more))]
    trace = load(tmp_path, {3: events}, world_size=512)
    assert list(trace.frame("group")["ranks"].iloc[0]) == list(range(3, 512, 8))


@pytest.mark.parametrize(
    ("first", "stride", "size"), [(-1, 1, 4), (0, -1, 4), (0, 1, 0), (0, 1, 1 << 30), ("x", 1, 2)]
)
def test_odd_strides_are_no_members(first, stride, size):
    """A damaged header would make a group of a thousand million ranks."""
    assert strided_ranks(first, stride, size) == ()


def test_a_missing_rank_keeps_the_numbers_of_the_others(tmp_path):
    """Ranks behind a gap would be renumbered, and a healthy one blamed."""
    files = {
        rank: [kernel("ncclDevKernel_x", start, 100 - start, **metadata("allreduce", "0", "[0, 1, 2, 3]"))]
        for rank, start in ((0, 10), (2, 50), (3, 20))
    }  # fmt: skip
    result = collectives_to_json(load(tmp_path, files, world_size=4))
    (row,) = result["collectives"]
    assert (row["last_rank"], row["members_present"], row["members_expected"]) == (2, 3, 4)
    assert set(result["ranks"]) == {"0", "2", "3"}
    assert result["ranks"]["2"]["arrived_last_frac"] == 1
