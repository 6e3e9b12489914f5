"""What a comparison reads from a run, with step times that are known."""

import pytest
from tests.unit.probe.conftest import ASLEEP

from meshscope.probe.doctor import overhead
from meshscope.probe.doctor.overhead import overhead_of, window_times
from meshscope.probe.reader.run import read_run
from meshscope.probe.recording.record_heads import collective_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.rundir import create_run
from meshscope.probe.session.comparison import is_watched

WINDOW = 5
BASE_NS = 1_000_000


@pytest.fixture
def record(tmp_path):
    """Return a function that records a comparison of two ranks; returns the capture."""

    def make(steps, effect_ns, first_ns=0, own_ns=0):
        path = create_run(tmp_path, "compared", {"world_size": 2})
        for rank in range(2):
            settings = StorageSettings(**ASLEEP | {"slot_count": 4096})
            recorder = Recorder(path, rank, settings=settings)
            group = recorder.register_group("g", [0, 1], "")
            recorder.annotate(
                "cost",
                {
                    "bare_border_ns": 5000 + rank,
                    "per_call_ns": {"communication": 7000, "wait": None},
                },
            )
            now_ns = 0
            cost_ns = 0
            for step in range(steps):
                recorder.step = step
                watched = is_watched("compared", step, WINDOW)
                dur_ns = BASE_NS + watched * effect_ns + (step % WINDOW == 0) * first_ns
                cost_ns += own_ns if watched else 5000 + rank
                if watched:
                    for seq in range(3):
                        recorder.issue_collective(collective_head(group, 0, -1), seq, 8, now_ns)
                recorder.record_step(step, now_ns, dur_ns)
                now_ns += dur_ns
            if own_ns:
                recorder.annotate("recording", [{"steps": steps, "cost_ns": cost_ns}])
            recorder.close()
        return read_run(path)

    return make


def test_the_effect_is_that_of_the_watched_windows(record):
    """Fails when windows are assigned to the wrong side, or their first steps count."""
    found = overhead_of(
        record(200, 40_000, first_ns=900_000), WINDOW, (0.1, 0.2), rss_bytes=None, kineto_ns=None
    )
    left_frac = 5001 / BASE_NS
    assert found.effect.median_frac == pytest.approx(0.04 + left_frac)
    assert found.effect.low_frac == pytest.approx(found.effect.high_frac)
    assert found.effect.pairs == 200 // (2 * WINDOW) - 1
    assert (found.ranks, found.step_time_ns) == (2, BASE_NS)
    assert found.communication_per_step == 3
    assert found.left_frac == pytest.approx(left_frac)
    assert set(found.left_ns.values()) == {5001, None}
    assert found.per_call_ns == {"communication": 7000}
    assert (found.threads_frac, found.agent_frac) == (None, None)
    assert (found.own_frac, found.one_in, found.sampled_frac) == (None, None, None)
    json = found.to_json()
    assert json["median_frac"] == found.effect.median_frac
    assert "effect" not in json


@pytest.mark.parametrize(
    ("own_ns", "one_in"), [(4000, 1), (12_000, 4), (80_000, 16), (90_000, None)]
)
def test_what_a_run_would_record_and_pay(record, own_ns, one_in):
    """Fails when a user is told a cost that no run would have."""
    capture = record(200, 40_000, own_ns=own_ns)
    found = overhead_of(capture, WINDOW, (0.0, 0.0), rss_bytes=None, kineto_ns=0)
    assert found.own_frac == pytest.approx(own_ns / BASE_NS)
    assert found.one_in == one_in
    expected = one_in and pytest.approx(5001 / BASE_NS + 0.04 / one_in)
    assert found.sampled_frac == expected


def test_windows_that_are_not_whole_are_left_out(record):
    """Fails when the rest of a job that ended in a window weighs as much as a whole one."""
    times = window_times(record(8 * WINDOW + 3, 0), WINDOW)
    assert len(times) == 3


def test_a_short_job_says_how_long_it_has_to_be(record):
    """Fails when a few windows end in a traceback, or in a figure."""
    with pytest.raises(ConfigError, match=r"too short for a comparison.*at least 70 steps"):
        overhead_of(record(30, 0), WINDOW, (0.0, 0.0), rss_bytes=None, kineto_ns=0)


def test_the_order_is_drawn_and_every_pair_has_both():
    """Fails when one side always comes first, so that a drift of the job looks like a cost."""
    first = [is_watched("run-7", 2 * WINDOW * pair, WINDOW) for pair in range(200)]
    assert 60 < sum(first) < 140
    assert first != [is_watched("run-8", 2 * WINDOW * pair, WINDOW) for pair in range(200)]
    for pair in range(20):
        sides = {
            is_watched("run-7", 2 * WINDOW * pair + step, WINDOW) for step in range(2 * WINDOW)
        }
        assert sides == {True, False}
        begin = 2 * WINDOW * pair
        assert len({is_watched("run-7", begin + step, WINDOW) for step in range(WINDOW)}) == 1


def test_what_stays_in_both_kinds_of_windows_is_part_of_the_cost(record):
    """Fails when a user is told less than he pays, as the comparison cannot see what stays."""
    capture = record(200, 0)
    least = overhead_of(capture, WINDOW, (0.0, 0.0), rss_bytes=None, kineto_ns=0).effect
    more = overhead_of(capture, WINDOW, (0.0, 0.0), rss_bytes=None, kineto_ns=20_000).effect
    for field in ("median_frac", "low_frac", "high_frac"):
        assert getattr(more, field) - getattr(least, field) == pytest.approx(0.02)
    assert more.detectable_frac == least.detectable_frac


def test_the_counter_of_kineto_is_measured_apart(monkeypatch):
    """Fails when what torch adds for Kineto's client is not known, or counted where it is there anyway."""
    monkeypatch.delenv("KINETO_USE_DAEMON", raising=False)
    assert 0 < overhead._kineto_ns() < 1_000_000
    monkeypatch.setenv("KINETO_USE_DAEMON", "1")
    assert overhead._kineto_ns() == 0
