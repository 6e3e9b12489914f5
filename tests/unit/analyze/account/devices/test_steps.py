"""Clocks and memory bandwidth of devices, step by step, from literal samples."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.devices.steps import HOLD_NS, NO_AGENT, NO_DEVICE, device_steps
from meshscope.analyze.align.steps.windows import step_windows

S = 1_000_000_000
MHZ = 1e6
FULL = 1980 * MHZ


def steps_of(samples, *, steps=2, ranks=1, name="some device", peak=None, full=FULL, **tables):
    """Return what samples tell of steps of ten seconds.

    Args:
        samples: By rank, one dictionary of columns each.
        steps: How many there are.
        ranks: How many there are.
        name: What the devices are called.
        peak: Peak FLOP/s.
        full: The highest clock that the driver states.
        **tables: Tables that are given in other ways.
    """
    rows = [
        {"uuid": f"GPU-{rank}", "clock_hz": FULL, **sample}
        for rank, own in enumerate(samples)
        for sample in own
    ]
    own = [{"uuid": f"GPU-{rank}", "name": name, "max_clock_hz": full} for rank in range(ranks)]
    trace = trace_of(
        step=[
            {"rank": rank, "step": step, "start_ns": 10 * S * step, "dur_ns": 10 * S}
            for rank in range(ranks)
            for step in range(steps)
        ],
        **{
            "device_sample": rows,
            "device": own,
            "rank_device": [{"rank": rank, "uuid": f"GPU-{rank}"} for rank in range(ranks)],
        }
        | tables,
    )
    return device_steps(trace, step_windows(trace), peak)


def each_second(count=20, **columns):
    """Return one sample a second, at half past."""
    return [{"time_ns": S * at + S // 2, **columns} for at in range(count)]


def test_a_constant_clock_loses_its_share():
    """Fails when the time that a low clock costs is not what its cycles would have taken less."""
    found = steps_of([each_second(clock_hz=FULL * 0.8)])
    assert found.frame["clock_hz"].tolist() == pytest.approx([0.8 * FULL] * 2)
    assert found.frame["clock_lost_frac"].tolist() == pytest.approx([0.2] * 2)
    assert found.reference == "the highest clock of the device"
    assert str(found.clock_unknown) == ""


def test_a_clock_that_falls_is_weighed_by_time():
    """Fails when a step counts samples instead of time, or one step's clock is another's."""
    rows = [
        {"time_ns": S * at + S // 2, "clock_hz": FULL / 2 if at >= 16 else FULL} for at in range(20)
    ]
    lost = steps_of([rows]).frame["clock_lost_frac"].tolist()
    assert lost == pytest.approx([0.0, 0.2])
    burst = [{"time_ns": 15 * S + S // 100 * at, "clock_hz": FULL} for at in range(51, 99)]
    lost = steps_of([sorted([*rows, *burst], key=lambda row: row["time_ns"])]).frame
    # The last of the burst, at 15.98 s, holds until halfway to the next sample, 16.24 s.
    assert lost["clock_lost_frac"].tolist() == pytest.approx([0.0, 0.188])


def test_a_clock_above_the_full_one_gains_nothing():
    """Fails when a boost hides what other seconds have lost."""
    rows = [{"time_ns": S * at + S // 2, "clock_hz": FULL * (1.2, 0.8)[at % 2]} for at in range(20)]
    assert steps_of([rows]).frame["clock_lost_frac"].tolist() == pytest.approx([0.1] * 2)


def test_steps_without_samples_are_unknown_and_not_zero():
    """Fails when an agent that died says that all is well."""
    frame = steps_of([each_second(10)], steps=3).frame
    assert frame["clock_hz"].notna().tolist() == [True, False, False]
    assert frame["clock_lost_frac"].isna().tolist() == [False, True, True]


def test_a_sample_does_not_hold_for_ever():
    """Fails when the last sample of an agent stands for the hours after it."""
    # Samples of the first 5 s hold for 2 s more, which covers 7 of 10 s.
    assert steps_of([each_second(5)]).frame["clock_hz"].notna().tolist() == [True, False]
    # Those of 2 s cover 4 of 10, which is not enough.
    early = [{"time_ns": S // 2 * at} for at in range(1, 5)]
    found = steps_of([early])
    assert found.frame["clock_hz"].isna().all()
    assert "do not cover" in str(found.clock_unknown)
    assert HOLD_NS == 2 * S


def test_slow_sampling_covers_what_lies_between():
    """Fails when an agent that samples every five seconds is said to miss most of the time."""
    rows = [{"time_ns": 5 * S * at} for at in range(6)]
    assert steps_of([rows]).frame["clock_hz"].notna().all()


def test_an_idle_device_says_nothing_of_its_clock():
    """Fails when the low clock of a device that waits is billed to computing."""
    idle = each_second(sm_util_frac=0.2, clock_hz=FULL / 4)
    found = steps_of([idle])
    assert found.frame["clock_hz"].isna().all()
    mixed = [{**row, "sm_util_frac": 1.0, "clock_hz": FULL} if at < 6 else row
             for at, row in enumerate(idle)]  # fmt: skip
    assert steps_of([mixed]).frame["clock_lost_frac"].tolist()[0] == 0.0
    assert steps_of([mixed]).frame["clock_lost_frac"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    ("name", "peak", "full", "lost", "words"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12, FULL, 1 - 1464 / (989e12 / (132 * 4096) / MHZ), "peak"),
        ("NVIDIA H100 80GB HBM3", 600e12, FULL, 1 - 1464 / 1980, "highest clock"),
        ("NVIDIA H100 80GB HBM3", None, FULL, 1 - 1464 / 1980, "highest clock"),
        ("some device", 989e12, FULL, 1 - 1464 / 1980, "highest clock"),
    ],
    ids=["data-sheet peak", "measured peak", "no peak", "unknown device"],
)
def test_the_full_clock_is_that_of_the_peak_in_use(name, peak, full, lost, words):
    """Fails when MFU and clock assume two different clocks, so that the rest of compute is off."""
    found = steps_of([each_second(clock_hz=1464 * MHZ)], name=name, peak=peak, full=full)
    assert found.frame["clock_lost_frac"].tolist() == pytest.approx([lost] * 2)
    assert words in found.reference


def test_without_a_full_clock_a_loss_is_unknown():
    """Fails when a clock is held against a number that nobody stated."""
    found = steps_of([each_second()], full=None)
    assert found.frame["clock_hz"].notna().all()
    assert found.frame["clock_lost_frac"].isna().all()
    assert "no full clock" in str(found.clock_unknown)
    assert found.reference == ""


@pytest.mark.parametrize(
    ("dram", "tensor", "bound", "lost"),
    [(0.8, 0.3, 1.0, 0.5), (0.5, 0.1, 0.0, 0.0), (0.7, 0.75, 0.0, 0.0), (0.7, None, None, None)],
    ids=["bound", "below the line", "more arithmetic", "arithmetic unknown"],
)
def test_memory_bounds_where_it_does_most(dram, tensor, bound, lost):
    """Fails when a device that computes as hard as it can is said to wait for its memory."""
    rows = each_second(dram_active_frac=dram, tensor_active_frac=tensor, clock_hz=FULL * 0.8)
    found = steps_of([rows])
    known = found.frame["bound_frac"].dropna().tolist()
    assert known == ([] if bound is None else [bound] * 2)
    if lost is None:
        assert "do not count" in str(found.memory_unknown)
        assert found.frame["memory_lost_frac"].isna().all()
        return
    assert found.frame["memory_lost_frac"].tolist() == pytest.approx([lost] * 2)
    # What memory bounds takes as long at any clock.
    assert found.frame["clock_lost_frac"].tolist() == pytest.approx([0.0 if bound else 0.2] * 2)


def test_peers_are_others_of_the_same_model_in_the_same_step():
    """Fails when a clock is compared with that of another step or model, or with its own."""
    slow = [{**row, "clock_hz": FULL / 2 if at >= 10 else FULL}
            for at, row in enumerate(each_second())]  # fmt: skip
    peers = steps_of([slow, each_second(), each_second()], ranks=3).frame.pivot(
        index="rank", columns="step", values="peer_hz"
    )
    assert peers.loc[0].tolist() == pytest.approx([FULL, FULL])
    assert peers.loc[1].tolist() == pytest.approx([FULL, 0.75 * FULL])
    two = steps_of([slow, each_second()], ranks=2).frame
    assert two["peer_hz"].isna().all()


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"device_sample": []}, NO_AGENT),
        ({"device_sample": [], "host_sample": [{"host": "a", "time_ns": S}]}, NO_DEVICE),
        ({"rank_device": []}, "which of the sampled devices"),
        ({"rank_device": [{"rank": 0, "uuid": "GPU-9"}]}, "do not cover"),
    ],
    ids=["no agent", "no device", "nobody's devices", "another device"],
)
def test_what_is_missing_is_said(tables, words):
    """Fails when a class is left out without a reason."""
    found = steps_of([each_second()], **tables)
    assert str(words) in str(found.clock_unknown)
    assert str(words) in str(found.memory_unknown)
    assert found.frame["clock_hz"].isna().all()


@pytest.mark.parametrize(
    ("device_s", "is_known"), [(None, False), (4, True)], ids=["launches", "device time"]
)
def test_time_of_a_host_that_launches_is_not_the_device_s(device_s, is_known):
    """Fails when the time to launch kernels is said to depend on the clock of the device."""
    dur_ns = None if device_s is None else device_s * S
    span = {"step": 1, "kind": "forward", "start_ns": 10 * S, "dur_ns": 5 * S}
    spans = [{**span, "device_start_ns": 10 * S if dur_ns else None, "device_dur_ns": dur_ns}]
    found = steps_of(
        [each_second(30)],
        steps=3,
        span=spans,
        origin="meshscope",
        run={"device_name": "some device"},
    )
    assert found.frame["clock_hz"].notna().all() == is_known
    assert ("only launches" in str(found.clock_unknown)) != is_known


def test_odd_samples_are_survived():
    """Fails when samples of one moment, in disorder or without a clock end the analysis."""
    rows = [*each_second()[::-1], *each_second(clock_hz=None), {"time_ns": 3 * S, "clock_hz": 0.0}]
    found = steps_of([rows])
    assert found.frame["clock_lost_frac"].tolist() == pytest.approx([0.0] * 2)
