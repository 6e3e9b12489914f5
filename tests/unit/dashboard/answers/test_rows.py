"""Which rows the timeline shows, whom a clicked wait waited for, and what an address can ask of both."""

import pytest

from meshscope.analyze.output.timeline.slices import step_slices
from meshscope.dashboard.answers import rows as rows_of
from meshscope.dashboard.answers.rows import shown_rows
from meshscope.dashboard.answers.views import left_out, timeline
from meshscope.dashboard.answers.wait import wait_arrow
from meshscope.dashboard.callbacks.controls import chosen_view, zoomed_view
from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.figures.wait import NAME, wait_traces
from meshscope.dashboard.pages import timeline as page
from meshscope.dashboard.view.state import ViewState, parse_query

TWIN = "/api/v1/runs/job/timeline.json"
IN_A_WAIT_NS = 45_000_000
"""Ranks 0 to 2 wait then for rank 3, which computes up to 60 ms."""


def test_only_the_asked_rows_are_shown_and_pinned_ranks_stay(client):
    """Fails when rows of the address are others than those drawn, or hide a pinned rank."""
    part = client.get(f"{TWIN}?step=1&rows=1-2").json
    assert part["ranks"] == [1, 2]
    assert part["rows"] == {"shown": [1, 2], "count": 4}
    assert {one["rank"] for one in part["slices"]} == {1, 2}
    pinned = client.get(f"{TWIN}?step=1&rows=1-2&pin=3&pin=1").json
    assert pinned["ranks"] == [1, 3, 2]
    near = client.get(f"{TWIN}?step=1&rank=2&rows=3-3").json
    assert near["ranks"] == [3]


@pytest.mark.parametrize(
    ("asked", "ranks", "rejected"),
    [
        ("2-99999", [2, 3], []),
        ("0-999999999999999999", [0, 1, 2, 3], []),
        ("4-9", [0, 1, 2, 3], ["rows"]),
        ("3-1", [0, 1, 2, 3], ["rows"]),
        ("%00-<script>", [0, 1, 2, 3], ["rows"]),
    ],
)
def test_no_rows_of_an_address_break_the_page(client, store, asked, ranks, rejected):
    """Fails when rows out of range, or no rows at all, break the page, its twin or its picture."""
    query = f"?step=1&rows={asked}"
    twin = client.get(TWIN + query).json
    assert (twin["ranks"], twin["rejected"]) == (ranks, rejected)
    assert client.get(f"/api/v1/runs/job/tile.png{query}").status_code == 200
    text = str(page_of(store, "/run/job/timeline", query).to_plotly_json())
    assert ("begin after the last one" in text) == (asked == "4-9")
    assert ("Shown: 2 of 4 rows." in text) == (asked == "2-99999")


def test_rows_of_many_ranks_open_up(store, monkeypatch):
    """Fails when a row for several ranks cannot be looked into, or says that it stands for others."""
    monkeypatch.setattr(rows_of, "MOST_ROWS", 2)
    monkeypatch.setattr("meshscope.dashboard.runs.loaded_run.MOST_ROWS", 2)
    run = store.get("job")
    whole = shown_rows(run, timeline(run, ViewState(step=1))[0], ViewState(step=1))
    assert (whole.each, whole.spans, whole.is_part) == (2, ((0, 1), (2, 3)), False)
    view = ViewState(step=1, rows=(2, 3))
    drawn, _ = timeline(run, view)
    part = shown_rows(run, drawn, view)
    assert drawn.ranks == (2, 3)
    assert (part.each, part.spans, part.is_part) == (1, ((2, 2), (3, 3)), True)


@pytest.fixture
def many(store, monkeypatch):
    """The run as if a figure had pixels for fewer ranks than it has."""
    for module in ("runs.loaded_run", "timeline.drawn_steps", "answers.rows"):
        monkeypatch.setattr(f"meshscope.dashboard.{module}.MOST_ROWS", 2)
    return store.get("job")


@pytest.mark.parametrize(
    ("query", "drawn"),
    [
        ("", {0, 3}),
        ("rows=2-3", {2, 3}),
        ("pin=1", {0, 1, 3}),
        ("path=1", {0, 3}),
        (f"rows=2-3&pin=1&place=1-{IN_A_WAIT_NS}", {1, 2, 3}),
    ],
)
def test_only_the_shown_ranks_of_many_are_drawn(many, monkeypatch, query, drawn):
    """Fails when a run of more ranks than pixels has the slices of all of them made."""
    made = set()

    def watched(trace, step, wanted=None):
        made.update(trace.ranks if wanted is None else wanted)
        return step_slices(trace, step, wanted)

    monkeypatch.setattr("meshscope.dashboard.timeline.drawn_steps.step_slices", watched)
    state = parse_query(f"?step=1&{query}")
    text = str(page.layout(many, state))
    assert made == set(timeline(many, state)[0].ranks) == drawn
    assert "4 rows" in text or "rows=" not in query


def test_the_whole_step_is_all_rows(store):
    """Fails when Whole step, or a double click, leaves ranks out."""
    view = ViewState(step=1, t0=1, t1=9, rows=(1, 2))
    assert chosen_view(store.get("job"), view, "timeline-fit") == ViewState(step=1)
    assert zoomed_view(view, {"xaxis.autorange": True}) == ViewState(step=1)


def test_an_arrow_leads_from_who_came_last_to_who_waited(client, store):
    """Fails when a wait points to another rank, row or moment than the account has."""
    run = store.get("job")
    view = parse_query(f"?step=1&pin=3&place=1-{IN_A_WAIT_NS}")
    arrow = wait_arrow(run, view)
    ranks = timeline(run, view)[0].ranks
    assert (arrow.rank, arrow.waited_for) == (1, 3)
    assert (ranks[arrow.row], ranks[arrow.from_row]) == (1, 3)
    assert (arrow.came_ns, arrow.until_ns) == pytest.approx((60e6, 60e6), abs=1e3)
    edge, line = wait_traces(arrow)
    assert line.name == NAME
    assert list(line.y) == list(edge.y) == [arrow.from_row, arrow.row]
    assert list(line.x) == pytest.approx([60, 60], abs=1e-3)
    assert edge.line.width > line.line.width, "a light edge keeps it apart from the colours below"
    assert line.hovertext.startswith("Rank 3 came last, at 60 ms of the step<br>Rank 1 waited")
    reported = client.get(f"{TWIN}{view.query()}").json["wait"]
    assert (reported["rank"], reported["waited_for"]) == (1, 3)
    page = str(page_of(store, "/run/job/timeline", view.query()).to_plotly_json())
    assert "Arrow: rank 3 came last, and rank 1 waited for it." in page
    assert "Unpin" not in page
    assert "Pin rank 1 to the top" in page


def test_the_arrow_lies_over_a_picture_too(many, monkeypatch):
    """Fails when a wait among more slices than bars is reported in words alone, or hidden by the picture."""
    monkeypatch.setattr("meshscope.dashboard.figures.timeline.MAX_BARS", 0)
    view = parse_query(f"?step=1&rows=2-3&pin=1&place=1-{IN_A_WAIT_NS}")
    (figure,) = (
        parts["timeline-graph"]["figure"] for parts in [page.changes(many, view, view)] if parts
    )
    assert [image.layer for image in figure.layout.images] == ["below"]
    arrow = wait_arrow(many, view)
    (line,) = (trace for trace in figure.data if trace.name == NAME)
    assert list(line.y) == [arrow.from_row, arrow.row]
    assert timeline(many, view)[0].ranks == (1, 2, 3)


@pytest.mark.parametrize(
    ("before", "now", "stays"),
    [
        ("?step=1", "?step=1&t0=1&t1=60000000&rows=0-1&pin=3&hide=forward", True),
        ("?step=1", "?step=2", False),
        ("?step=1", "?step=1&rank=2", True),
        ("?step=1&path=1", "?step=1", True),
    ],
)
def test_a_figure_stays_in_its_place_within_a_step(store, before, now, stays):
    """Fails when a zoom draws a whole new figure, or the title of another step stays."""
    run = store.get("job")
    found = page.changes(run, parse_query(before), parse_query(now))
    assert bool(found) == stays
    whole = str(page.layout(run, parse_query(now)))
    assert all(f"id='{part}'" in whole or f"'id': '{part}'" in whole for part in found)


@pytest.mark.parametrize(
    "query",
    [
        "?step=1",
        f"?step=1&place=3-{IN_A_WAIT_NS}",
        "?step=1&place=1-5000000",
        f"?step=1&place=99-{IN_A_WAIT_NS}",
        "?step=1&place=1-999999999999999999",
        f"?step=1&rows=0-1&place=1-{IN_A_WAIT_NS}",
        f"?step=1&t0=0&t1=1000000&place=1-{IN_A_WAIT_NS}",
        f"?step=1&rows=2-3&place=1-{IN_A_WAIT_NS}",
    ],
)
def test_no_arrow_where_nobody_is_known_and_in_view(store, query):
    """Fails when an arrow begins or ends at a rank that is not shown, or was not waited for."""
    view = parse_query(query)
    assert not view.rejected
    assert wait_arrow(store.get("job"), view) is None
    assert "timeline-arrow" not in str(page_of(store, "/run/job/timeline", query).to_plotly_json())


def test_what_an_address_cannot_have_is_named(store):
    """Fails when rows that there are not are left out without a word."""
    run = store.get("job")
    assert left_out(run, ViewState(step=1, rows=(4, 4))) == ("rows",)
    assert left_out(run, ViewState(step=1, rank=2, rows=(4, 4))) == ("rows",)
    assert left_out(run, ViewState(step=1, rows=(3, 4))) == ()
