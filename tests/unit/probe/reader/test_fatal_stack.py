"""The note of a rank that a signal ended, from what the interpreter wrote."""

from signal import SIGABRT, SIGSEGV, SIGTERM

import pytest

from meshscope.probe.reader.fatal_stack import add_fatal_stack
from meshscope.probe.schema.manifest import FATAL_STACK_NAME, LAST_STACK_KEY

OLDEST = """Thread 0x00007f51097e2b80 (most recent call first):
  File "/venv/meshscope/probe/hooks/collectives.py", line 7 in all_reduce
  File "/job/train.py", line 90 in main
"""
CURRENT = """Current thread 0x00007f50dbfff6c0 (most recent call first):
  File "/job/data.py", line 33 in load
"""
BEGIN = "Fatal Python error: Aborted\n\n"


def noted(tmp_path, text, *, status=SIGABRT, **manifest):
    """Return the note of a rank whose file holds a text; None without one."""
    (tmp_path / FATAL_STACK_NAME).write_text(text)
    add_fatal_stack(tmp_path, manifest, 50, status)
    return (manifest.get("annotations") or {}).get(LAST_STACK_KEY)


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        (CURRENT + "\n" + OLDEST, [["load", "/job/data.py", 33]]),
        (CURRENT.replace("Current t", "T") + "\n" + OLDEST, [["main", "/job/train.py", 90]]),
        ("Current thread 0x1 (most recent call first):\n  <no Python frame>\n" + OLDEST,
         [["main", "/job/train.py", 90]]),
        (OLDEST + BEGIN + CURRENT, [["load", "/job/data.py", 33]]),
    ],
)  # fmt: skip
def test_the_thread_of_the_signal_counts_else_the_first_one(tmp_path, text, stack):
    """Fails when a thread of the probe, or a loader that waits, is shown as the place of a crash."""
    assert noted(tmp_path, BEGIN + text) == {
        "time_ns": 50, "moment": "fatal_signal", "stack": stack
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "known"),
    [(SIGSEGV | 0x80, True), (None, True), (0, False), (256, False), (SIGTERM, False)],
)
def test_only_who_was_ended_by_such_a_signal_has_a_note(tmp_path, status, known):
    """Fails when a signal that a library caught long ago is said to have ended a rank."""
    assert (noted(tmp_path, BEGIN + OLDEST, status=status) is not None) is known


def test_an_exception_that_was_noted_stays(tmp_path):
    """Fails when the abort of a library at exit hides the error that ended the program."""
    error = {"time_ns": 40, "moment": "raised", "stack": []}
    assert noted(tmp_path, BEGIN + OLDEST, annotations={LAST_STACK_KEY: error}) == error
    other = {**error, "moment": "other_died"}
    found = noted(tmp_path, BEGIN + OLDEST, annotations={LAST_STACK_KEY: other})
    assert found["moment"] == "fatal_signal"


@pytest.mark.parametrize(
    "text", ["", "\0\x80", BEGIN, BEGIN + "Thread 0x1 (most recent call first):"]
)
def test_what_is_no_stack_tells_nothing(tmp_path, text):
    """Fails when an empty or damaged file ends the diagnosis."""
    assert noted(tmp_path, text) is None
    add_fatal_stack(tmp_path / "none", {}, 50, SIGABRT)
    add_fatal_stack(tmp_path, None, 50, SIGABRT)
