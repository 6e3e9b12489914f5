"""The ledger on time lines that can be drawn on paper."""

import pytest
from tests.tables import host_row, trace_of

from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.tables.classes import CLASSES, class_code, compute_code

US = 1_000
STEP = [{"dur_ns": 100}]


def ledger_of(**rows):
    """Return the non-zero classes of the only row of the ledger of rank 0."""
    trace = trace_of(**rows)
    windows = step_windows(trace)
    table = build_ledger(trace, windows, communication_events(trace, windows)).by_step
    row = table[table["rank"] == 0].iloc[0]
    assert row[list(CLASSES)].sum() == row["step_ns"]
    return {name: row[name] for name in CLASSES if row[name]}


def test_a_wait_inside_a_span_is_not_compute():
    """A rank that waits for its tensor-parallel peers would seem to compute."""
    found = ledger_of(
        step=[{"dur_ns": 100 * US}, {"rank": 1, "dur_ns": 100 * US}],
        span=[{"kind": "forward", "start_ns": 10 * US, "dur_ns": 80 * US}],
        collective=[
            host_row(30 * US, 90 * US, axis="tp"),
            host_row(45 * US, 90 * US, axis="tp", rank=1),
        ],
    )
    assert found == {
        "forward": 20 * US,
        "exposed_tp_wait": 15 * US,
        "exposed_tp_wire": 45 * US,
        "unattributed": 20 * US,
    }


def test_passes_inside_an_optimizer_step_are_passes():
    """Fails when an optimizer that evaluates the model by a closure has all the computing."""
    closure = [("optimizer", 10, 80), ("forward", 20, 20), ("backward", 40, 30)]
    hook = [("backward", 0, 60), ("optimizer", 20, 10)]
    in_closure, in_backward = (
        ledger_of(
            step=[{"dur_ns": 100}],
            span=[{"kind": kind, "start_ns": at, "dur_ns": ns} for kind, at, ns in spans],
        )
        for spans in (closure, hook)
    )
    assert in_closure == {"optimizer": 30, "forward": 20, "backward": 30, "unattributed": 20}
    assert in_backward == {"backward": 60, "unattributed": 40}


def test_a_compute_kernel_hides_the_collective_under_it():
    """Overlapped communication would be billed although it costs nothing."""
    found = ledger_of(
        step=STEP,
        kernel=[
            {"start_ns": 0, "dur_ns": 50},
            {"category": "memcpy", "start_ns": 75, "dur_ns": 10},
        ],
        collective=[{"start_ns": 40, "end_ns": 70}],
    )
    assert found == {
        "compute": 50,
        "exposed_dp_wire": 20,
        "exposed_memcpy": 10,
        "unattributed": 20,
    }


def test_exposed_time_is_split_where_the_last_member_came():
    """Waiting for a peer and transferring would be one number."""
    found = ledger_of(
        step=[{"dur_ns": 100}, {"rank": 1, "dur_ns": 100}],
        kernel=[{"start_ns": 0, "dur_ns": 20}, {"rank": 1, "start_ns": 0, "dur_ns": 55}],
        collective=[{"start_ns": 20, "end_ns": 60}, {"rank": 1, "start_ns": 55, "end_ns": 60}],
    )
    assert found == {
        "compute": 20,
        "exposed_dp_wait": 35,
        "exposed_dp_wire": 5,
        "unattributed": 40,
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("forward", "forward"),
        ("backward_weight", "backward"),
        ("grad_clip", "optimizer"),
        ("data_load", "data_load"),
        ("gc", "gc"),
        ("checkpoint", "checkpoint"),
        ("host_blocked", "host_blocked"),
    ],
)
def test_each_span_kind_has_its_class(kind, name):
    """Host time would be called compute, or vanish."""
    found = ledger_of(step=STEP, span=[{"kind": kind, "start_ns": 0, "dur_ns": 100}])
    assert found == {name: 100}


def test_garbage_collection_inside_a_forward_pass_is_garbage_collection():
    """A pause would hide in the span around it."""
    found = ledger_of(
        step=STEP,
        span=[
            {"kind": "forward", "start_ns": 0, "dur_ns": 100},
            {"kind": "gc", "start_ns": 20, "dur_ns": 30},
        ],
    )
    assert found == {"forward": 70, "gc": 30}


def test_events_are_cut_at_the_borders_of_their_step():
    """A collective that spans two steps would make one step longer than it was."""
    trace = trace_of(
        step=[{"dur_ns": 100}, {"step": 1, "start_ns": 100, "dur_ns": 50}],
        collective=[{"start_ns": 90, "end_ns": 120}],
        span=[{"kind": "forward", "start_ns": -20, "dur_ns": 200}],
    )
    windows = step_windows(trace)
    ledger = build_ledger(trace, windows, communication_events(trace, windows))
    table = ledger.by_step.set_index("step")
    assert table["exposed_dp_wire"].tolist() == [10, 20]
    assert table["forward"].tolist() == [90, 30]
    assert (ledger.segments["end_ns"] > ledger.segments["start_ns"]).all()


def test_a_rank_without_events_is_all_unattributed():
    """An empty rank would crash the account of all the others."""
    assert ledger_of(step=STEP) == {"unattributed": 100}


def test_compute_codes_are_the_compute_classes():
    """Waiting would count as compute in the comparison of ranks."""
    codes = [class_code(name) for name in ("forward", "optimizer", "gc", "exposed_tp_wait")]
    assert compute_code(codes).tolist() == [True, True, False, False]


def test_a_span_that_the_device_ran_later_is_there_then():
    """Launching would count as computing, and computing as idle, on a device that is behind."""
    found = ledger_of(
        step=STEP,
        span=[
            {"kind": "forward", "start_ns": 0, "dur_ns": 5, "device_start_ns": 10, "device_dur_ns": 60},
            {"kind": "backward", "start_ns": 5, "dur_ns": 5, "device_start_ns": 70, "device_dur_ns": None},
        ],
    )  # fmt: skip
    assert found == {"forward": 60, "backward": 5, "unattributed": 35}


def test_ranks_of_which_only_kernels_were_seen_have_their_own():
    """Fails when the kernels of all ranks but the first are lost without spans and communication."""
    kernels = [{"rank": rank, "start_ns": 0, "dur_ns": 60} for rank in (0, 1, 2)]
    trace = trace_of(step=[{"rank": rank, "dur_ns": 100} for rank in (0, 1, 2)], kernel=kernels)
    windows = step_windows(trace)
    table = build_ledger(trace, windows, communication_events(trace, windows)).by_step
    assert table["compute"].tolist() == [60, 60, 60]


def test_a_communication_kernel_without_an_operation_is_communication():
    """Fails when a transfer that nothing matches leaves the device idle: grouped sends, DeepEP."""
    found = ledger_of(
        step=STEP,
        kernel=[
            {"start_ns": 0, "dur_ns": 30},
            {"category": "communication", "start_ns": 20, "dur_ns": 50},
            {"category": "memcpy", "start_ns": 60, "dur_ns": 30},
        ],
    )
    assert found == {"compute": 30, "exposed_sums": 40, "exposed_memcpy": 20, "unattributed": 10}


def test_an_activity_of_no_length_leaves_the_others_their_classes():
    """Fails when one kernel that took less than the clock shows gives all later ones the class of the next."""
    kernels = [
        {"start_ns": 0, "dur_ns": 30},
        {"category": "communication", "start_ns": 20, "dur_ns": 50},
        {"category": "memcpy", "start_ns": 60, "dur_ns": 30},
    ]
    none = {"category": "memset", "start_ns": 10, "dur_ns": 0}
    assert ledger_of(step=STEP, kernel=[none, *kernels]) == ledger_of(step=STEP, kernel=kernels)


def test_a_communication_kernel_that_is_an_operation_is_counted_once():
    """Fails when the kernel of a matched collective takes it out of its axis."""
    found = ledger_of(
        step=STEP,
        kernel=[{"category": "communication", "start_ns": 20, "dur_ns": 50}],
        collective=[{"start_ns": 20, "end_ns": 70}],
    )
    assert found == {"exposed_dp_wire": 50, "unattributed": 50}
