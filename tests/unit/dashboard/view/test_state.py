"""The query of an address and the view that it stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.dashboard.view.state import (
    METRICS,
    RUN_ID,
    ViewState,
    parse_path,
    parse_query,
    view_at,
    whole_view,
    with_changes,
    with_hidden,
    with_pin,
)

numbers = st.none() | st.integers(min_value=0, max_value=10**17)


@given(
    step=numbers,
    rank=numbers,
    t0=numbers,
    t1=numbers,
    metric=st.sampled_from(METRICS),
    path=st.booleans(),
    before=st.none() | st.from_regex(RUN_ID, fullmatch=True),
)
def test_round_trip(step, rank, t0, t1, metric, path, before):
    """Fails when a shared link opens another view than the one that it was made from."""
    if t0 is not None and t1 is not None and t0 >= t1:
        t0, t1 = None, None
    state = ViewState(step=step, rank=rank, t0=t0, t1=t1, metric=metric, path=path, before=before)
    assert parse_query(state.query()) == state


@pytest.mark.parametrize(
    ("query", "rejected"),
    [
        ("?step=-1", ("step",)),
        ("?step=1e9&t0=x", ("step", "t0")),
        ("?t0=9&t1=3", ("t0, t1",)),
        ("?metric=<script>", ("metric",)),
        ("?path=yes", ("path",)),
        ("?before=../x", ("before",)),
        ("?step=" + "9" * 40, ("step",)),
        ("?" + "&".join(["step=1"] * 99), ("all of it, which has more than 40 fields",)),
        ("?foo=1&" + "x" * 99 + "=", ("foo", "x" * 32)),
        ("?t0=", ("t0",)),
        (None, ()),
    ],
)
def test_nonsense_is_named_and_left_out(query, rejected):
    """Fails when a hostile query changes the view, raises, or is dropped silently."""
    assert parse_query(query) == ViewState(rejected=rejected)


@given(numbers, numbers, st.integers(min_value=0, max_value=10**12))
def test_the_window_lies_in_the_step(t0, t1, length):
    """Fails when a window of the address reaches out of the step or is empty."""
    start, end = ViewState(t0=t0, t1=t1).window(length)
    assert 0 <= start < end <= max(length, 1)


def test_changes_make_the_round_trip():
    """Fails when a link to a replay opens another one, or none."""
    state = with_changes(
        ViewState(step=2), ("rank=3", "link=0->4", "host=a & b"), ("layers=9,8->8,9",)
    )
    assert parse_query(state.query()) == state
    assert parse_query(state.query()).is_asked_by(state.query())


def test_changes_that_no_replay_takes_are_named():
    """Fails when a hostile or repeated change reaches the replay, or is dropped silently."""
    assert parse_query("?fix=rank%3D3&fix=rank%3D3").rejected == ("fix=rank=3",)
    assert parse_query("?set=a%00b").rejected == ("set=a\0b",)
    assert parse_query("?set=" + "9" * 600).settings == ()
    many = "&".join(f"fix=rank%3D{rank}" for rank in range(20))
    found = parse_query(f"?{many}")
    assert (len(found.fixes), len(found.rejected)) == (16, 4)


def test_of_two_values_the_second_is_named():
    """Fails when one of two contradicting values is taken without a word."""
    assert parse_query("?step=3&step=4") == ViewState(step=3, rejected=("a second step",))


def test_a_window_after_the_end_is_the_whole_step():
    """Fails when a window that the step does not reach becomes its last nanosecond."""
    assert ViewState(t0=100).window(100) == (0, 100)
    assert ViewState(t0=100).is_outside(100)
    assert ViewState(t0=99).window(100) == (99, 100)
    assert not ViewState(t0=99).is_outside(100)


def test_another_step_is_shown_whole():
    """Fails when the zoom of one step is carried into another."""
    assert ViewState(step=1, t0=5, t1=9).at_step(2) == ViewState(step=2)
    assert ViewState(path=True, t0=5, t1=9).at_step(2) == ViewState(step=2, path=True)
    rows = ViewState(rank=3, pins=(1, 2), path=True)
    assert view_at(-1, (0, 9), rows) == ViewState(t0=0, t1=9, rank=3, pins=(1, 2))


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/run/a/mesh", ("a", "mesh")),
        ("/run/a", ("a", "overview")),
        ("/", None),
        ("/run/a/b/c", None),
        (None, None),
    ],
)
def test_paths(path, place):
    """Fails when an address leads to another page than it names."""
    assert parse_path(path) == place


def test_pins_are_of_the_address_and_no_number_of_them_breaks_it():
    """Fails when a shared link loses a pinned rank, or takes a word for one."""
    view = with_pin(with_pin(ViewState(step=1), 7, pinned=True), 3, pinned=True)
    assert parse_query(view.query()) == view == ViewState(step=1, pins=(7, 3))
    assert with_pin(view, 7, pinned=False).pins == (3,)
    asked = parse_query("?pin=5&pin=x&pin=-1&pin=5")
    assert (asked.pins, len(asked.rejected)) == ((5,), 3)
    many = parse_query("?" + "&".join(f"pin={rank}" for rank in range(30)))
    assert len(many.pins) == 16


def test_what_is_left_out_is_of_the_address():
    """Fails when a shared link shows again what was left out, or a word of the address breaks the page."""
    view = with_hidden(ViewState(), "comm_pp", hidden=True)
    assert parse_query(view.query()) == view == ViewState(hidden=("comm_pp",))
    assert with_hidden(view, "comm_pp", hidden=False) == ViewState()
    assert parse_query("?hide=nothing") == ViewState(rejected=("hide=nothing",))


def test_rows_and_a_place_are_of_the_address():
    """Fails when a shared link loses the rows or the clicked place, or a hostile one breaks the page."""
    view = ViewState(step=1, rows=(3, 7), place=(9, 0))
    assert view.query() == "?step=1&rows=3-7&place=9-0"
    assert parse_query(view.query()) == view
    for text in ("7-3", "3", "-3", "3-", "a-b", "1-2-3", "-1-2", "1-" + "9" * 40, "%C2%B2-3", ""):
        assert parse_query(f"?rows={text}") == ViewState(rejected=("rows",))
    assert parse_query("?place=7-3").place == (7, 3)
    assert view.at_step(2) == ViewState(step=2, rows=(3, 7)), "a place is of one step"
    assert view.around(4).rows is None, "rows are counted among those of the rank"
    assert whole_view(view) == ViewState(step=1, place=(9, 0))
    assert view_at(1, (0, 9), view) == ViewState(step=1, t0=0, t1=9, rows=(3, 7))
