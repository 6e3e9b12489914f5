"""Where the program stood when an exception ended it, or when another rank died."""

import threading

import pytest

from meshscope import probe
from meshscope.probe.hooks.base import Capture
from meshscope.probe.schema.manifest import LAST_STACK_KEY, MANIFEST_NAME, read_json
from meshscope.probe.session.last_stack import LastStack, moment_of, stack_of_error


@pytest.fixture
def noted(make_recorder):
    """Return the notes of a capture, what reads the newest, and what else was noted."""
    recorder, errors = make_recorder(), []
    capture = Capture(recorder, probe.ProbeConfig(), lambda: None)
    capture.step_thread = threading.get_ident()

    def read():
        return read_json(recorder.directory / MANIFEST_NAME)["annotations"][LAST_STACK_KEY]

    return LastStack(capture, errors.append), read, errors


def load(name):
    """Fail as a library does."""
    raise RuntimeError(name)


def caught(name, *, wrapped=False):
    """Return the exception of a call that fails, raised anew by its caller where it is wrapped."""
    try:
        try:
            load(name)
        except RuntimeError as error:
            if wrapped:
                raise ValueError("step 7") from error
            raise
    except (RuntimeError, ValueError) as error:
        return error


def test_where_an_exception_came_from_is_noted_and_stays(noted):
    """Fails when the end of another rank takes the line of the error away."""
    notes, read, errors = noted
    error = caught("bad sample")
    notes.note(error)
    notes.note()
    assert read()["moment"] == "raised"
    assert [frame[0] for frame in read()["stack"]] == ["load", "caught"]
    assert errors == [error]


def test_ctrl_c_is_noted_but_not_what_was_issued_last(noted):
    """Fails when a rank that is interrupted at work is said to be an operation behind, or an error is forgotten for it."""
    notes, read, errors = noted
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        interrupt = error
    notes.note(interrupt)
    assert read()["moment"] == "interrupted"
    assert "test_ctrl_c_is_noted" in read()["stack"][0][0]
    assert errors == []
    notes.note(caught("bad sample"))
    notes.note(interrupt)
    assert read()["moment"] == "raised"


def test_where_a_rank_is_when_another_one_dies_is_noted(noted):
    """Fails when nobody knows what a rank did that the others gave up waiting for."""
    notes, read, errors = noted
    notes.note()
    assert read()["moment"] == "other_died"
    assert any("test_where_a_rank_is" in frame[0] for frame in read()["stack"])
    assert errors == [None]


def test_an_error_that_is_wrapped_is_the_first_one(noted):
    """Fails when whose wait timed out is said to have raised an error of its own, because its trainer wraps it."""
    notes, read, _ = noted
    notes.note(caught("Timed out waiting 10000ms for recv operation to complete", wrapped=True))
    assert (read()["moment"], read()["stack"][0][0]) == ("timed_out", "load")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", "peer_lost"),
        ("[Rank 0]: Rank 2 failed to pass monitoredBarrier in 5000 ms", "timed_out"),
        ("Rank 1 reached monitoredBarrier, but received errors while waiting for rank 0", "peer_lost"),
        ("NCCL error: remote process exited or there was a network error", "peer_lost"),
        ("Socket Timeout", "timed_out"),
        ("CUDA out of memory", "raised"),
    ],
)  # fmt: skip
def test_what_an_error_tells_of_others(text, moment):
    """Fails when a victim passes for the rank that it waited for."""
    assert moment_of(RuntimeError(text)) == moment
    assert moment_of(OSError(text)) == "raised"
    assert stack_of_error(caught(text))[-1].function == "load"


def test_nobody_looks_where_a_program_stands_that_an_exception_has_ended(noted):
    """Fails when the exit of a program, which waits for a thread of its own, is said to be where it hung."""
    notes, _, _ = noted
    looks = []
    for error in (None, caught("bad sample")):
        notes.note(error)
        notes.look(lambda: looks.append(1))
    assert len(looks) == 1
