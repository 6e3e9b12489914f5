"""Event pairs around spans, on a device that is a queue: events happen when it gets to them."""

import pytest
from tests.device_queue import BOOT_NS, Queue

from meshscope.probe.compat.absent import NotApplicableError
from meshscope.probe.compat.cuda_events import cuda_events
from meshscope.probe.cost import COST_OVER_SEEN
from meshscope.probe.hooks import device_times as module
from meshscope.probe.hooks.base import Capture, Place, compute_span
from meshscope.probe.hooks.device_times import ANCHOR_EVERY_NS, DRIFT_ONE_IN, DeviceTimes
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.terms import SpanKind
from meshscope.probe.settings.config import ProbeConfig


@pytest.fixture
def queue(monkeypatch):
    """Return a device whose host clock is ours to move."""
    found = Queue()
    monkeypatch.setattr(module, "now_ns", found.host_ns)
    return found


@pytest.fixture
def timed(make_recorder, queue):
    """Return capture and device times that are installed."""

    def make(**settings):
        capture = Capture(make_recorder(slot_count=8192), ProbeConfig(**settings), lambda: None)
        capture.recorder.step = 0
        times = DeviceTimes(capture, lambda: queue)
        times.install()
        times.step_ended()
        return capture, times

    return make


def span(capture, queue, dur_ns):
    """Run a forward pass that launches work; the host goes on at once."""
    source = capture.source("compute")
    compute_span(source, Place(SpanKind.FORWARD), lambda: queue.launch(dur_ns), (), {})


def test_spans_get_the_times_of_the_device(timed, queue, run_path):
    """Fails when a span says how long the host launched, or is joined to another's time."""
    capture, times = timed()
    expected = []
    for step in range(5):
        for dur_ns in (1000, 2000 + step):
            start_ns = max(queue.free_at_ns, queue.now_ns)
            span(capture, queue, dur_ns)
            expected.append((start_ns + BOOT_NS, dur_ns))
        queue.now_ns += 10_000
        times.step_ended()
    times.step_ended()
    capture.recorder.close()
    rows = read_run(run_path).tables["span"].to_pandas()
    found = list(zip(rows["device_start_ns"], rows["device_dur_ns"], strict=True))
    assert found == expected
    assert queue.returned == queue.recorded - 1


def test_nothing_waits_for_a_device_that_is_behind(timed, queue, run_path):
    """Fails when the probe asks for the time of an event that has not happened."""
    capture, times = timed()
    span(capture, queue, 50_000)
    span(capture, queue, 1_000)
    queue.now_ns = 20_000
    times.step_ended()
    assert times._count == 2
    queue.now_ns = 50_500
    times.step_ended()
    assert times._count == 1
    times.remove()
    capture.recorder.close()
    run = read_run(run_path)
    assert run.tables["span"]["device_dur_ns"].to_pylist() == [50_000, None]
    assert run.rank_manifests[0]["counters"]["device_times_dropped"] == 1


def test_the_offset_is_bounded_from_both_sides(timed, queue, run_path):
    """Fails when the manifest claims to know the device's clock better than it can."""
    capture, times = timed()
    for _ in range(20):
        span(capture, queue, 3_000)
        queue.now_ns += 2_000
        times.step_ended()
    capture.recorder.close()
    clock = read_run(run_path).rank_manifests[0]["annotations"]["device_clock"]
    assert clock["least_ns"] <= BOOT_NS <= clock["most_ns"]


def test_too_many_pairs_are_dropped_and_counted(timed, queue, run_path):
    """Fails when a device that hangs fills the memory of the host with events."""
    capture, times = timed(max_pending_device_times=4)
    for _ in range(10):
        span(capture, queue, 1_000_000)
    assert times._count == 4
    queue.now_ns = 20_000_000
    times.step_ended()
    capture.recorder.close()
    run = read_run(run_path)
    known = run.tables["span"].to_pandas()["device_dur_ns"].notna()
    assert list(known) == [True] * 4 + [False] * 6
    assert run.rank_manifests[0]["counters"]["device_times_dropped"] == 6


def test_no_event_goes_into_a_graph(timed, queue):
    """Fails when a capture into a CUDA graph gets an event, which breaks it."""
    capture, times = timed()
    recorded = queue.recorded
    queue.capturing = True
    span(capture, queue, 1_000)
    times.step_ended()
    assert queue.recorded == recorded


def test_a_span_that_changes_the_stream_is_not_timed(timed, queue):
    """Fails when the time between events of two streams is taken for that of a span."""
    capture, times = timed()

    def change():
        queue.current = 2

    compute_span(capture.source("compute"), Place(SpanKind.FORWARD), change, (), {})
    assert times._count == 0


def test_the_anchor_is_renewed(timed, queue, run_path):
    """Fails when device times lose their precision over hours, or a new anchor shifts them."""
    capture, times = timed()
    for _ in range(6):
        span(capture, queue, 5_000)
        queue.now_ns += ANCHOR_EVERY_NS // 2
        times.step_ended()
    assert times._anchor.recorded_ns > BOOT_NS + ANCHOR_EVERY_NS
    capture.recorder.close()
    rows = read_run(run_path).tables["span"].to_pandas()
    at = [BOOT_NS + step * (ANCHOR_EVERY_NS // 2) for step in range(6)]
    assert list(rows["device_start_ns"]) == at


def test_a_torch_without_cuda_is_left_alone():
    """Fails when a job on CPUs looks as if something of it was not recorded."""
    import torch

    if torch.version.cuda is None:
        with pytest.raises(NotApplicableError, match="without CUDA"):
            cuda_events()
    else:
        assert torch.cuda.is_initialized() or cuda_events() is None


MS = 1_000_000


def launch_and_spend(capture, queue, dur_ns, spent_ns):
    """Run a span, and have the hooks take some time after its begin."""
    span(capture, queue, dur_ns)
    capture.meter.add_border(spent_ns)


def test_what_the_hooks_take_behind_a_busy_device_costs_nothing(timed, queue):
    """Fails when a job that runs ahead of its device is thinned out for hooks that delay no step."""
    capture, times = timed()
    for _ in range(4):
        launch_and_spend(capture, queue, 10 * MS, 50_000)
    queue.now_ns = 100 * MS
    times.step_ended()
    # The device began the first span at once; in front of the others it had 10 ms of work or more.
    assert capture.meter.hidden_ns == 2 * 50_000
    assert capture.meter.total_ns() == COST_OVER_SEEN * 2 * 50_000


def test_what_the_hooks_take_before_an_idle_device_is_lost(timed, queue):
    """Fails when a host that its device waits for is said to lose nothing to the hooks."""
    capture, times = timed()
    for _ in range(4):
        launch_and_spend(capture, queue, 10 * MS, 50_000)
        queue.now_ns += 10 * MS
    times.step_ended()
    assert capture.meter.hidden_ns == 0
    for _ in range(4):
        launch_and_spend(capture, queue, 2 * MS, 5 * MS)
    queue.now_ns += 100 * MS
    times.step_ended()
    # More than what was queued: the device ran out of work meanwhile.
    assert capture.meter.hidden_ns == 0


def test_a_span_inside_of_another_is_counted_once(timed, queue):
    """Fails when recomputation has its backward's hooks taken out twice."""
    capture, times = timed()
    source = capture.source("compute")
    span(capture, queue, 50 * MS)
    span(capture, queue, 50 * MS)

    def backward():
        capture.meter.add_border(1000)
        compute_span(source, Place(SpanKind.RECOMPUTE), lambda: queue.launch(MS), (), {})
        capture.meter.add_border(1000)

    compute_span(source, Place(SpanKind.BACKWARD), backward, (), {})
    span(capture, queue, MS)
    queue.now_ns = 200 * MS
    times.step_ended()
    assert capture.meter.hidden_ns == 2000


def test_events_are_read_together_after_the_first_steps(timed, queue, run_path):
    """Fails when each step pays for cold calls of the driver, or a removal loses what is complete."""
    capture, times = timed()
    pending = []
    for _ in range(30):
        span(capture, queue, 1000)
        queue.now_ns += 10_000
        times.step_ended()
        pending.append(times._count)
    assert set(pending[:15]) <= {0, 1}
    assert max(pending[15:]) == 7
    times.remove()
    capture.recorder.close()
    rows = read_run(run_path).tables["span"].to_pandas()
    assert rows["device_dur_ns"].notna().all()


def test_a_new_anchor_keeps_what_the_old_one_has_shown(timed, queue):
    """Fails when all times of a device jump each minute, by as much as its host is ahead."""
    capture, times = timed()
    for _ in range(4):
        queue.now_ns += 10 * MS
        span(capture, queue, 1000)  # an idle device: the offset is known exactly
        times.step_ended()
    queue.free_at_ns = queue.now_ns + 50 * MS
    queue.now_ns += ANCHOR_EVERY_NS
    queue.free_at_ns = queue.now_ns + 50 * MS
    times.step_ended()  # the new anchor is 50 ms behind its record, as is all that follows
    queue.now_ns += 100 * MS
    times.step_ended()
    off_ns = times._anchor.event + BOOT_NS - times._anchor.least_ns
    assert 0 <= off_ns <= 2 * ANCHOR_EVERY_NS // DRIFT_ONE_IN
