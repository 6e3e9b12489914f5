"""Calls of the host that wait for the device: where, how long, and what the device loses."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.kernels.host_waits import best_function, host_waits
from meshscope.analyze.account.kernels.idle import WAITING_CALL, device_idle
from meshscope.analyze.output.json import kernels_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.text import kernels_document
from meshscope.analyze.synthetic import SyntheticJob, generate
from meshscope.analyze.tables.trace import ranks_to_look_at
from meshscope.probe.schema.layout import ParallelLayout

NAMES = ["gemm", "cudaStreamSynchronize", "aten::item", "aten::_local_scalar_dense",
         "Optimizer.step#Adam.step", "cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)"]  # fmt: skip
GEMM, SYNC, ITEM, LOCAL, ADAM, COPY, PAGEABLE = range(len(NAMES))


def event(name_id, start_ns, end_ns, **row):
    """Return a row of any table of events."""
    return {"name_id": name_id, "start_ns": start_ns, "dur_ns": end_ns - start_ns, **row}


def capture(calls, kernels, **tables):
    """Return a capture of one rank."""
    names = [{"name_id": at, "name": name} for at, name in enumerate(NAMES)]
    return trace_of(name=names, runtime_call=calls, kernel=kernels, **tables)


def test_a_call_costs_the_idle_time_that_it_leaves_behind():
    """Fails when the gap after a synchronisation is not charged to it, or more than it lasted is."""
    trace = capture(
        [event(SYNC, 40, 110), event(SYNC, 250, 260), event(SYNC, 300, 450)],
        [
            event(GEMM, 0, 100, launch_ns=-5),
            event(GEMM, 155, 200, launch_ns=150),
            event(GEMM, 290, 320, launch_ns=280),
            event(GEMM, 330, 500, launch_ns=285),
        ],
        op=[
            event(ITEM, 30, 120, op_id=0),
            event(LOCAL, 35, 115, op_id=1),
            event(ITEM, 240, 270, op_id=2),
        ],
        annotation=[event(ADAM, 290, 600)],
    )
    waits = host_waits(trace).set_index(["call", "operator", "phase"])
    item = waits.loc[("cudaStreamSynchronize", "aten::item", "forward")]
    # 100..150 after the first, and of 250..280 no more than the second call lasted. What was launched
    # before the third, and waited, is not its doing.
    assert item[["count", "blocked_ns", "starved_ns"]].tolist() == [2, 80, 50 + 10]
    hidden = waits.loc[("cudaStreamSynchronize", "", "optimizer")]
    assert hidden[["count", "blocked_ns", "starved_ns"]].tolist() == [1, 150, 0]
    starved = device_idle(trace, 0, trace.rank_frame("kernel", 0)).starved_ns
    assert waits["starved_ns"].sum() <= starved


def test_neighbouring_calls_do_not_share_a_gap():
    """Fails when one gap is charged twice, so that calls cost more than the device idled."""
    trace = capture(
        [event(SYNC, 60, 110), event(SYNC, 120, 190, thread=2), event(SYNC, 125, 200)],
        [event(GEMM, 0, 100, launch_ns=-5), event(GEMM, 200, 300, launch_ns=200)],
    )
    assert host_waits(trace)["starved_ns"].sum() == 20 + 5 + 75


def test_copies_from_pageable_memory_block_although_they_are_called_asynchronous():
    """Fails when an input that is not pinned stops the host unseen."""
    trace = capture(
        [event(COPY, 100, 180, correlation=5), event(COPY, 200, 202, correlation=6)],
        [
            event(GEMM, 0, 90, launch_ns=-5),
            event(PAGEABLE, 185, 195, category="memcpy", correlation=5, launch_ns=185),
            event(GEMM, 205, 300, correlation=6, launch_ns=200),
        ],
    )
    waits = host_waits(trace)
    assert waits["call"].tolist() == ["cudaMemcpyAsync (pageable memory)"]
    assert waits[["blocked_ns", "starved_ns"]].to_numpy().tolist() == [[80, 80]]


def test_the_command_shows_them():
    """Fails when calls that wait are found, but neither programs nor people are told."""
    trace = capture(
        [event(SYNC, 60, 110)],
        [event(GEMM, 0, 100, launch_ns=-5), event(GEMM, 150, 200, launch_ns=150)],
    )
    row = kernels_to_json(trace)["host_waits"][0]
    assert (row["call"], row["operator"], row["starved_ns"]) == ("cudaStreamSynchronize", None, 50)
    assert row["span_frac"] == pytest.approx(50 / 200)
    assert "Calls of the host that wait for the device" in to_plain(
        kernels_document(kernels_to_json(trace))
    )


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaDeviceSynchronize_v3020", True),
        ("cudaMemcpy_v3020", True),
        ("cuMemcpyDtoH_v2", True),
        ("hipMemcpyWithStream", True),
        ("urQueueFinish", True),
        ("urEventWait", True),
        ("urEnqueueEventsWait", False),
        ("cudaMemcpyAsync_v3020", False),
        ("cuMemcpyDtoD_v2", False),
        ("cudaStreamWaitEvent", False),
    ],
)
def test_which_calls_wait(name, waits):
    """Fails when a call that stops the host under another tool's or vendor's name is overlooked."""
    assert bool(WAITING_CALL.search(name)) is waits


def test_a_capture_without_calls_has_none():
    """Fails when a capture of kernels alone ends in an error."""
    assert host_waits(capture([], [event(GEMM, 0, 100)])).empty
    assert host_waits(trace_of(step=[{"dur_ns": 1}])).empty


def test_without_launches_the_cost_is_not_known():
    """Fails when a device that may have had work waiting is said to have been starved by a call."""
    waits = kernels_to_json(capture([event(SYNC, 60, 110)], [event(GEMM, 0, 100)]))["host_waits"]
    assert (waits[0]["blocked_ns"], waits[0]["starved_ns"]) == (50, None)


def test_a_run_without_device_events_is_not_searched_rank_by_rank():
    """A run of a thousand ranks would take a minute to say that it has no kernels."""
    job = SyntheticJob(layout=ParallelLayout(dp=4), microbatches=2, steps=1)
    trace, _ = generate(job)
    assert ranks_to_look_at(trace, "kernel", "op") == trace.ranks[:1]
    assert ranks_to_look_at(trace, "kernel", "span") == trace.ranks
    assert host_waits(trace).empty


TORCH = "torch/_ops.py(1255): __call__"
MINE = "train/step.py(41): loss"
TENSOR = "<built-in method view of Tensor object at 0x7fdc681d0910>"
BOUND = "<built-in method all_reduce of pybind11_builtins.pybind11_detail_record object at 0x7f1>"


@pytest.mark.parametrize(
    ("names", "best"),
    [
        ([], ""),
        ([TENSOR, TORCH, MINE, "train/main.py(7): main"], MINE),
        ([TENSOR, TORCH], TORCH),
        ([TENSOR], "Tensor.view"),
        ([BOUND], "all_reduce"),
        (["<built-in function _disabled_torch_function_impl>"], "_disabled_torch_function_impl"),
        (["<frozen importlib._bootstrap>(1): f"], "<frozen importlib._bootstrap>(1): f"),
    ],
)
def test_the_line_of_the_user_is_named(names, best):
    """Fails when a call is placed in torch's own code, or at an address of memory, instead of the user's line."""
    assert best_function(names) == best
