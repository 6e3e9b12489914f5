"""The functions that a thread is in, read from another one."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from meshscope.probe.session.stacks import Frame, in_both, stack_of

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
