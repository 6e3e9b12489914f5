"""A device whose clock is ahead or behind: its times are moved where waits and idle times prove it."""

import pytest
from tests.kineto_files import call, launched, step, write
from tests.texts import texts

from meshscope.analyze.read import import_trace

MS = 1000
"""In the microseconds of a file."""


def read(tmp_path, events):
    """Return the first start of device work, ms, and what is said of its clock."""
    trace = import_trace(write(tmp_path / "rank0.json", [step(0, 0, 900 * MS), *events]))
    said = [text for text in texts(trace.limits) if "times are moved" in text]
    return trace.frame("kernel")["start_ns"].min() / 1e6, said


def kernels(delay_us, every_us=10 * MS, count=40):
    """Return launches at an even pace whose kernels take 1 ms and begin so much later each."""
    delays = delay_us if callable(delay_us) else lambda place: delay_us
    found = []
    for place in range(count):
        at = 100 * MS + place * every_us
        found += launched("gemm", at, at + delays(place), 1 * MS, place + 1)
    return found


def wait(name, begin, end):
    """Return a call of the launching thread that waits for the device."""
    return call(name, begin, end - begin, correlation=9_000)


@pytest.mark.parametrize("ahead_ms", [2, 300, 20_000])
def test_launches_to_an_idle_device_show_the_offset(tmp_path, ahead_ms):
    """Fails when idle time is explained, or steps are measured, by a clock that is ahead."""
    first, said = read(tmp_path, kernels(ahead_ms * MS + 10))
    assert first == pytest.approx(100.0, abs=0.02)
    assert len(said) == 1


@pytest.mark.parametrize(
    "name", ["cudaDeviceSynchronize", "cudaStreamSynchronize", "hipDeviceSynchronize"]
)
def test_calls_that_wait_show_the_offset(tmp_path, name):
    """Fails when work that ends after the call that waited for it is believed: every launch finds the device busy."""
    busy = kernels(lambda place: 5 * MS + place * 900, every_us=100)
    done = 100 * MS + 39 * 100 + 39 * 900 + 1 * MS
    first, said = read(tmp_path, [*busy, wait(name, 110 * MS, done)])
    assert first == pytest.approx(100.0, abs=0.01)
    assert len(said) == 1


@pytest.mark.parametrize(
    "events",
    [
        kernels(20),
        kernels(lambda place: 3 * MS + place * 950, every_us=50),
        kernels(lambda place: 3 * MS + place * 950 + (place > 20) * 2 * MS, every_us=50),
        [*kernels(lambda place: 3 * MS + place * 950, every_us=50), wait("cudaStreamSynchronize", 110 * MS, 200 * MS)],
        [*kernels(lambda place: 3 * MS + place * 950, every_us=50), wait("cudaEventSynchronize", 110 * MS, 111 * MS)],
        kernels(lambda place: 2 * MS + place % 7 * MS),
    ],
    ids=["usual", "long queue", "a gap in the queue", "a wait that ends late", "an event", "waits that differ"],
)  # fmt: skip
def test_queues_and_waits_are_no_offset(tmp_path, events):
    """Fails when a host that runs ahead of its device has the device's times moved."""
    assert read(tmp_path, events)[1] == []


def test_a_wait_for_another_stream_proves_nothing(tmp_path):
    """Fails when a call that waited for an idle stream is held against work of a busy one."""
    busy = kernels(lambda place: 5 * MS + place * 900, every_us=100)
    other = launched("gemm", 90 * MS, 95 * MS, 10, 900, stream=20)
    assert (
        read(tmp_path, [*other, *busy, wait("cudaStreamSynchronize", 110 * MS, 111 * MS)])[1] == []
    )


@pytest.mark.parametrize("behind_ms", [0.5, 3, 2_000])
def test_launches_to_an_idle_device_show_a_clock_that_is_behind(tmp_path, behind_ms):
    """Fails when work that cannot begin before its launch is left there, in the step before or in none."""
    first, said = read(tmp_path, kernels(10 - behind_ms * MS))
    assert first == pytest.approx(100.0, abs=0.02)
    assert len(said) == 1


@pytest.mark.parametrize("every_us", [100, 600])
def test_a_wait_shows_the_same_of_the_work_behind_a_queue(tmp_path, every_us):
    """Fails when the first of a hundred kernels must begin before its launch, and the others look late, without a word."""
    true = [100 * MS + 10 + place * 1 * MS for place in range(40)]
    busy = []
    for place, begin in enumerate(true):
        busy += launched("gemm", 100 * MS + place * every_us, begin - 3 * MS, 1 * MS, place + 1)
    first, said = read(
        tmp_path, [*busy, wait("cudaDeviceSynchronize", 130 * MS, true[-1] + 1 * MS + 20)]
    )
    assert first == pytest.approx(100.0, abs=0.03)
    assert len(said) == 1


@pytest.mark.parametrize(
    "events",
    [
        kernels(lambda place: 10 - place * 200),
        kernels(lambda place: 10 - (place == 7) * 3 * MS),
        [*kernels(lambda place: 10 - (place % 4 == 0) * place * MS), wait("cudaDeviceSynchronize", 480 * MS, 500 * MS)],
        [*kernels(lambda place: 10 - (place == 7) * 3 * MS), wait("cudaDeviceSynchronize", 480 * MS, 500 * MS)],
    ],
    ids=["a clock that drifts", "one odd event", "many odd events", "one odd event and a wait"],
)  # fmt: skip
def test_events_that_contradict_themselves_move_nothing(tmp_path, events):
    """Fails when a drift, or a launch of other work, moves all work by its worst case."""
    assert read(tmp_path, events)[1] == []
