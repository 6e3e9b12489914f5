"""Notes of where a rank stands: the functions it is in, and what a process group of one rank counts."""

import threading

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from meshscope import probe
from meshscope.probe.hooks.base import Capture
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.manifest import MANIFEST_NAME, STANDSTILL_KEY, read_json
from meshscope.probe.schema.records import LEVEL_CODES
from meshscope.probe.schema.terms import CaptureLevel
from meshscope.probe.session import standstill
from meshscope.probe.session.standstill import (
    LATEST_NS,
    LONG_STEPS,
    LOOK_NS,
    Frame,
    StandstillWatch,
    in_both,
    stack_of,
)

STAGES, COLLECTIVES = (
    LEVEL_CODES[level] for level in (CaptureLevel.STAGES, CaptureLevel.COLLECTIVES)
)


class Training:
    """A thread in the place of the training's, which stands where it is told to."""

    def __init__(self):
        self._go_on = threading.Event()
        self._stands = threading.Event()
        self.thread = threading.Thread(target=self.train, daemon=True)
        self.thread.start()
        self._stands.wait(10)

    def train(self):
        """Stand in one function, then in another."""
        self.load()
        self.compute()

    def load(self):
        """Stand here first."""
        self._stand()

    def compute(self):
        """Stand here then."""
        self._stand()

    def _stand(self):
        self._stands.set()
        self._go_on.wait(30)
        self._go_on.clear()

    def go_on(self):
        """Let it stand in the next function, or end."""
        self._stands.clear()
        self._go_on.set()
        if not self._stands.wait(0.5):
            self.thread.join(10)


@pytest.fixture
def training():
    """Return a thread that trains."""
    found = Training()
    yield found
    while found.thread.is_alive():
        found.go_on()


@pytest.fixture
def noted():
    """Return a list that is longer by one for each time that operations were noted."""
    return []


@pytest.fixture
def watched(monkeypatch, make_recorder, training, noted):
    """Return what looks after so many ns, the capture, and the counts of backends."""
    time_ns, counts, recorder = [0], {"g": 4}, make_recorder()
    recorder.step = 0
    monkeypatch.setattr(standstill, "now_ns", lambda: time_ns[0])
    capture = Capture(recorder, probe.ProbeConfig(), lambda: None)
    capture.level = STAGES
    capture.step_thread = training.thread.ident
    watch = StandstillWatch(
        capture,
        lambda: {name: int(count) for name, count in counts.items()},
        lambda: noted.append(time_ns[0]),
    )

    def after(ns):
        time_ns[0] += ns
        watch.look()
        recorder.publish()
        return read_json(recorder.directory / MANIFEST_NAME)

    return after, capture, counts


def functions(manifest):
    """Return the functions of this file in a note, the innermost first, and whether it goes on."""
    note = manifest["annotations"][STANDSTILL_KEY]
    own = [name for name, file, line in note["stack"] if file == __file__ and line > 0]
    return own, note["goes_on"]


def note_of(manifest):
    """Return when the note of a manifest was made, and its counts; None without one."""
    note = manifest["annotations"].get(STANDSTILL_KEY)
    return note and (note["time_ns"], note["collectives"])


def test_what_two_looks_saw_alike_is_noted(watched):
    """Of ranks that go on one would look as if it was behind another that was read later."""
    after, _, counts = watched
    assert note_of(after(0)) is note_of(after(LOOK_NS - 1)) is note_of(after(1)) is None
    assert note_of(after(LOOK_NS - 1)) is None
    assert note_of(after(1)) == note_of(after(2 * LOOK_NS)) == (2 * LOOK_NS, {"g": 4})
    counts["g"] = 5
    assert note_of(after(4 * LOOK_NS - 1)) == (2 * LOOK_NS, {"g": 4})
    assert note_of(after(1)) == (8 * LOOK_NS, {})
    assert note_of(after(8 * LOOK_NS)) == (16 * LOOK_NS, {"g": 5})


def test_a_new_step_is_looked_at_from_its_beginning(watched):
    """A step would be taken for a standstill by what was seen in the one before."""
    after, capture, _ = watched
    after(0)
    assert note_of(after(LOOK_NS)) is None
    capture.recorder.step = 1
    # The step before took two looks.
    for _ in range(1 + 2 * LONG_STEPS):
        assert note_of(after(LOOK_NS)) is None
    assert note_of(after(LOOK_NS)) == (13 * LOOK_NS, {"g": 4})


def test_how_long_is_long_depends_on_how_long_steps_are(watched):
    """Every step of a job whose steps take a minute would be looked at, and noted."""
    after, capture, _ = watched
    after(0)
    for step in range(1, 12):
        capture.recorder.step = step
        assert note_of(after(2 * LOOK_NS)) is None
    assert note_of(after(LONG_STEPS * 2 * LOOK_NS - 1)) is note_of(after(1)) is None
    assert note_of(after(LOOK_NS)) is not None


def test_after_a_very_long_step_a_standstill_is_noted_in_time(watched):
    """Of a job that hangs after its compilation nothing would be known when a watchdog ends it."""
    after, capture, _ = watched
    after(0)
    capture.recorder.step = 1
    assert note_of(after(100 * LOOK_NS)) is note_of(after(LATEST_NS)) is None
    assert note_of(after(LOOK_NS)) is not None


def test_the_same_standstill_in_a_later_step_is_noted_again(watched):
    """Where a job hangs for good that had stalled there before, the old note would tell nothing."""
    after, capture, _ = watched
    for ns in (0, LOOK_NS, LOOK_NS):
        first = note_of(after(ns))
    capture.recorder.step = 1
    for ns in (0, LATEST_NS, LOOK_NS):
        second = note_of(after(ns))
    assert second[0] > first[0]
    assert second[1] == first[1]


def test_where_the_training_thread_stands_is_noted(watched, training):
    """Nobody would know what a rank does instead of what the others wait for."""
    after, capture, _ = watched
    capture.level = COLLECTIVES
    after(0)
    after(LOOK_NS)
    stood = ["Training._stand", "Training.load", "Training.train"]
    assert functions(after(LOOK_NS)) == (stood, False)
    training.go_on()
    assert functions(after(2 * LOOK_NS)) == (["Training.train"], True)
    assert functions(after(4 * LOOK_NS)) == (
        ["Training._stand", "Training.compute", "Training.train"],
        False,
    )
    training.go_on()
    assert functions(after(8 * LOOK_NS)) == ([], True)


def test_a_loop_that_is_seen_in_one_call_by_chance_goes_on(watched, training, monkeypatch):
    """Fails when an evaluation that goes on is said to hang in the call that both looks happened to see."""
    after, capture, _ = watched
    capture.level = COLLECTIVES
    within = {"at": 0}

    def loop(thread):
        within["at"] += 1
        own = (Frame("main", __file__, 3), Frame("evaluate", __file__, 9))
        return (*own, Frame("linear", __file__, 5)) if within["at"] % standstill._GLANCES else own

    monkeypatch.setattr(standstill, "stack_of", loop)
    after(0)
    after(LOOK_NS)
    assert functions(after(LOOK_NS)) == (["evaluate", "main"], True)


def test_nothing_is_noted_while_steps_end(watched):
    """Every rank of a healthy run would write into its manifest time and again."""
    after, capture, _ = watched
    after(0)
    for step in range(9):
        capture.recorder.step = step + 1
        assert note_of(after(2 * LOOK_NS)) is None


def test_backends_are_not_asked_while_communication_is_recorded(watched):
    """Counts would be held against the numbers of records, which are others."""
    after, capture, _ = watched
    capture.level = COLLECTIVES
    for _ in range(3):
        manifest = after(2 * LOOK_NS)
    assert note_of(manifest)[1] == {}


def test_operations_are_noted_once_where_the_thread_stands(watched, training, noted):
    """A long evaluation would pay for it at each look, or a hang that follows one not be told."""
    after, _, counts = watched
    after(0)
    after(LOOK_NS)
    training.go_on()
    after(LOOK_NS)
    assert noted == []
    after(2 * LOOK_NS)
    after(4 * LOOK_NS)
    assert noted == [4 * LOOK_NS]
    counts["g"] = 5
    after(8 * LOOK_NS)
    assert len(noted) == 1
    after(16 * LOOK_NS)
    assert len(noted) == 2


def test_what_goes_wrong_is_counted(watched):
    """The thread that writes would end with the training still running."""
    after, _, counts = watched
    after(0)
    counts["g"] = "none"
    manifest = after(LOOK_NS)
    assert note_of(manifest) is None
    assert manifest["counters"]["standstill_errors"] == 1


def test_backends_count_while_the_hooks_are_out(tmp_path, monkeypatch):
    """The counts would be those of when communication was last recorded."""
    monkeypatch.setattr(standstill, "LOOK_NS", 0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        session = probe.attach(tmp_path / "run")
        dist.all_reduce(torch.ones(1))
        probe.step()
        session.set_level("steps")
        probe.step()
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
        (count,) = session._hooks.operations_so_far().values()
        watch = StandstillWatch(
            session._capture, session._hooks.operations_so_far, session._note_operations
        )
        watch.look()
        watch.look()
        probe.detach()
    finally:
        dist.destroy_process_group()
    assert count == 4
    annotations = read_run(tmp_path / "run").rank_manifests[0]["annotations"]
    assert list(annotations["standstill"]["collectives"].values()) == [4]


FRAMES = st.lists(
    st.builds(Frame, st.sampled_from("fgh"), st.just("a.py"), st.integers(1, 3)), max_size=6
).map(tuple)


def test_a_thread_that_has_ended_is_in_nothing():
    """A rank whose training thread died would end the watch of the others."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert stack_of(thread.ident) == ()


def test_a_deep_recursion_is_read_from_its_inner_end():
    """A program that recurses without end would hold up its own writer."""

    def deep(depth):
        return deep(depth - 1) if depth else stack_of(threading.get_ident())

    stack = deep(700)
    assert len(stack) == 500
    assert stack[-2].function.endswith("deep")


@given(FRAMES, FRAMES)
def test_what_was_not_left_is_a_beginning_of_both(before, now):
    """A function would be told that a rank had left, or had not come to."""
    same = in_both(before, now)
    assert same == now[: len(same)]
    assert [frame[:2] for frame in same] == [frame[:2] for frame in before[: len(same)]]
    assert same[:-1] == before[: len(same)][:-1]
    assert in_both(now, now) == now


def test_a_function_that_went_on_to_another_line_was_not_left():
    """A rank at work would be reported in the caller of what it is at work in."""
    main, load = Frame("main", "a.py", 3), Frame("load", "b.py", 7)
    moved = load._replace(line=8)
    assert in_both((main, load), (main, moved)) == (main, moved)
    assert in_both((main, load), (main, moved, load)) == (main, moved)
    assert in_both((main, load), (main, main._replace(function="f"))) == (main,)
