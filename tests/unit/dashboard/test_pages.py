"""What stands on the pages of a small job, and what a control changes."""

import json
import os
import re
import time
from dataclasses import replace

import pytest
from dash import html
from dash.development.base_component import Component
from plotly.utils import PlotlyJSONEncoder
from tests.deep_run import make_run
from tests.unit.dashboard.conftest import write_job, write_synthetic

from meshscope.analyze import Finding
from meshscope.analyze.wording.words import place_words
from meshscope.dashboard.answers.views import comparison, shown_step
from meshscope.dashboard.callbacks.controls import (
    chosen_view,
    marked_view,
    stepped_view,
    zoomed_view,
)
from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.pages import findings, mesh, overview, runs, shell, timeline
from meshscope.dashboard.pages.page_list import PAGES
from meshscope.dashboard.plain import units
from meshscope.dashboard.runs.run_entry import RunEntry
from meshscope.dashboard.runs.store import RunStore
from meshscope.dashboard.view.state import ViewState
from meshscope.probe.schema.terms import FindingKind, Severity


def _text(page: Component | list[Component]) -> str:
    """Return everything that is sent to the browser for a page."""
    return json.dumps(page, cls=PlotlyJSONEncoder)


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("overview", ["The bars sum to 100.0 %", "Where the step time went", "4 of 4", "88.2 %"]),
        ("findings", ["straggler rank", "Remedy", "Fixing it returns"]),
        ("timeline", ["exposed DP communication", "4 ranks, 66 ms of 66 ms", "rank 3"]),
        ("live", ["What the job does now", "1.88 x", "Step time over steps", "rank 3"]),
        ("trust", ["4 of 4", "Overhead unknown", "No clock was moved", "Conventions of FLOPs"]),
        ("mesh", ["Slowest is rank 3", "Highest: 1.88 x on rank 3"]),
    ],
)
def test_a_page_says_what_was_found(store, page, shown):
    """Fails when a page lost the content that it is there for."""
    text = _text(page_of(store, f"/run/job/{page}", ""))
    assert not [words for words in shown if words not in text]


def test_every_page_has_a_tab(store):
    """Fails when a page can be opened by its address alone, or its tab is not where the list has it."""
    links = page_of(store, "/run/job/findings", "")["run-tabs"].children
    assert [one.href for one in links] == [f"/run/job/{name}" for name in PAGES]


def test_every_page_has_a_main_landmark(store):
    """Fails when a screen reader cannot jump to the content of a page."""
    paths = ["/", "/nope", *(f"/run/job/{page}" for page in PAGES)]
    assert all('"type": "Main"' in _text(page_of(store, path, "")) for path in paths)


@pytest.mark.parametrize("path", ["/run/notes.txt/overview", "/run/../x", "/run/nope/mesh", "/x"])
def test_a_wrong_address_is_explained(store, path):
    """Fails when a run that is absent or unreadable ends in a blank page."""
    assert "Nothing to show here" in _text(page_of(store, path, ""))


def test_the_nearest_step_is_shown_for_one_that_was_not_read(tmp_path, monkeypatch):
    """Fails when a link to a step of a large run ends in an empty page, or at another end of it."""
    make_run(tmp_path, steps=40)
    monkeypatch.setenv("MESHSCOPE_MOST_ROWS", "20")
    text = _text(page_of(RunStore(tmp_path), "/run/run/timeline", "?step=18"))
    assert (
        "Only the length of step 18 was recorded, or read for lack of memory. Step 16 is shown."
        in text
    )


def test_a_wrong_query_is_explained(store):
    """Fails when an address that asks for what is not there shows something else silently."""
    text = _text(page_of(store, "/run/job/timeline", "?step=99&t0=x&rank=7"))
    assert "Step 99 is not in this run" in text
    assert "Rank 7 is not in this run" in text
    assert "address: t0" in text


def test_unreadable_runs_are_rows(store):
    """Fails when a bad entry is not in the list with its error, or is a link to nowhere."""
    rows = {row["id"]: row for row in runs.rows(store.entries(max_new=9))}
    assert rows["job"]["run"] == "[job](/run/job/overview)"
    assert "notes.txt" in rows["notes.txt"]["finding_text"]
    assert "](" not in rows["notes.txt"]["run"]


def test_a_name_cannot_be_markdown():
    """Fails when a file name draws a link or markup into the run list."""
    entry = RunEntry(run_id="[x](javascript:1)<b>", modified_ns=0, state="unreadable", error="e")
    assert not set("[]()<>:") & set(runs.rows([entry])[0]["run"])


def test_an_empty_folder_says_what_to_do(tmp_path):
    """Fails when a newcomer sees an empty table and no next step."""
    page = page_of(RunStore(tmp_path), "/", "")
    assert "meshscope run" in _text(page)
    assert page["runs-wait"].interval == runs.IDLE_POLL_MS


def test_the_path_follows_the_query(store):
    """Fails when the path is drawn unasked, or an asked one is not drawn or not accounted for."""
    shown = _text(page_of(store, "/run/job/timeline", "?step=1&path=1"))
    assert "Critical path: " in shown
    assert "of it. Its " in shown
    assert "pieces sum to 66 ms" in shown
    assert "pieces sum to" not in _text(page_of(store, "/run/job/timeline", "?step=1"))


def test_a_path_that_is_not_there_is_explained(runs_dir, store):
    """Fails when a run without a path, or without a step, has a switch that does nothing."""
    write_job(runs_dir / "silent", communicates=False)
    page = page_of(store, "/run/silent/timeline", "?path=1")
    assert "No critical path is drawn. Unseen communication" in _text(page)
    assert page["timeline-path"].disabled
    assert "nothing was recorded along dp" in page["timeline-path-why"].label
    assert not page_of(store, "/run/job/timeline", "?path=1")["timeline-path"].disabled
    assert store.get("job").path_unknown_because(1) == ""
    reason = store.get("job").path_unknown_because(9)
    assert reason == "Step 9 is not among the analysed steps, 0 to 2."


def test_the_waiting_is_accounted_for(store):
    """Fails when the overview does not say where the waiting comes from, or its parts do not sum."""
    text = _text(page_of(store, "/run/job/overview", ""))
    sentence = re.search(r"Waiting ([\d.]+) % of the step = ([^\"]*)replay", text)
    # JSON writes the minus sign as its code.
    words = sentence[2].replace("\\u2212", "-").replace("\u2212", "-")
    parts = [float(number) for number in re.findall(r"([-+]?[\d.]+) %", words)]
    assert len(parts) == 3
    assert sum(parts) == pytest.approx(float(sentence[1]), abs=0.16)


def test_the_timeline_says_why_a_step_is_longer_than_its_ranks(store, monkeypatch):
    """Fails when a step whose ranks begin apart has two lengths without a word."""
    run = store.get("job")
    drawn = run.step(1)
    assert "no rank takes longer" not in _text(timeline.layout(run, ViewState(step=1)))
    skewed = replace(drawn, length_ns=2 * drawn.length_ns)
    monkeypatch.setattr(run.drawn, "whole", lambda _: skewed)
    assert "The longest rank takes 66 ms" in _text(timeline.layout(run, ViewState(step=1)))


def test_a_window_beside_the_step_is_explained(store):
    """Fails when an address with a window after the end shows the whole step silently."""
    text = _text(page_of(store, "/run/job/timeline", "?step=1&t0=999999999999"))
    assert "begins after the end of the step, 66 ms after its start" in text
    assert "66 ms of 66 ms" in text


@pytest.mark.parametrize("page", PAGES)
def test_every_page_names_what_it_leaves_out(store, page):
    """Fails when a page drops a part of the address silently."""
    assert "address: foo." in _text(page_of(store, f"/run/job/{page}", "?foo=1"))


@pytest.mark.parametrize(
    ("page", "query"), [("timeline", "?step=1&t0=5&t1=9&path=1"), ("mesh", "?metric=wait")]
)
def test_the_json_link_is_of_the_same_view(store, page, query):
    """Fails when the link gives a program another step, window or metric than is seen."""
    link = page_of(store, f"/run/job/{page}", query)["json-link"].href
    assert link == f"/api/v1/runs/job/{page}.json{query}"


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/", "Runs · meshscope"),
        ("/run/job", "Overview · job · meshscope"),
        ("/run/job/mesh", "Mesh · job · meshscope"),
        ("/nope", "meshscope"),
    ],
)
def test_titles(path, title):
    """Fails when the tabs of two pages or runs cannot be separated."""
    assert shell.title_of(path) == title


def test_a_rank_without_a_cause_has_no_gain(store):
    """Fails when a rank that costs nothing is shown as one whose cost is not known."""
    text = _text(mesh.layout(store.get("job"), ViewState()))
    assert units.UNKNOWN not in text
    assert "no removal gain (\\u2013)" in text
    run = store.get("job")
    unknown = replace(run, diagnosis=replace(run.diagnosis, waiting=None))
    stragglers = run.diagnosis.stragglers.assign(removal_gain_frac=float("nan"))
    unknown = replace(unknown, diagnosis=replace(unknown.diagnosis, stragglers=stragglers))
    assert units.UNKNOWN in _text(mesh.layout(unknown, ViewState()))


def test_a_negative_share_is_explained(store):
    """Fails when a cause with a gain below zero stands in the table without a word."""
    run = store.get("job")
    assert "Negative: the step" not in _text(overview.layout(run, ViewState()))
    (first, *rest) = run.diagnosis.causes
    causes = (replace(first, share_frac=-0.01), *rest)
    less = replace(run, diagnosis=replace(run.diagnosis, causes=causes))
    assert "Negative: the step" in _text(overview.layout(less, ViewState()))


def test_a_hang_leads_to_its_step(store):
    """Fails when the link of a hang opens a step in which all was well."""
    run = store.get("job")
    hang = Finding(
        kind=FindingKind.HANG, severity=Severity.CRITICAL, where={"ranks": [3]}, claim="c",
        cost_frac=None, removal_gain_frac=None, confidence=0.9, evidence=(), remedy="r",
    )  # fmt: skip
    hung = replace(run, stood_still_in=2, diagnosis=replace(run.diagnosis, findings=(hang,)))
    page = _text(findings.layout(hung, ViewState()))
    assert "/run/job/timeline?step=2" in page
    assert '"rank 3"' in page
    assert shown_step(hung, ViewState()) == 2
    assert shown_step(hung, ViewState(step=1)) == 1


def _finding(**place) -> Finding:
    return Finding(
        kind=FindingKind.STRAGGLER_RANK, severity=Severity.WARNING, claim="c", cost_frac=None,
        removal_gain_frac=None, confidence=0.9, evidence=(), remedy="r", **place,
    )  # fmt: skip


def test_no_page_says_that_a_repair_costs_time(store):
    """Fails when an error of the replay is reported as a loss here, and as nothing in the terminal."""
    run = store.get("job")
    found = replace(
        _finding(where={"rank": 3}), removal_gain_frac=-0.039, removal_gain_interval=(-0.05, 0.001)
    )
    run = replace(run, diagnosis=replace(run.diagnosis, findings=(found,)))
    page = _text(findings.layout(run, ViewState()))
    assert "between 0.0 % and 0.1 %" in page
    assert "-3.9 %" not in page
    assert "fixing it returns 0.0 %" in _text(overview.layout(run, ViewState()))


def _links(run, state, **place) -> list[str]:
    """Return where the links of a finding lead."""
    found = replace(run, diagnosis=replace(run.diagnosis, findings=(_finding(**place),)))
    components = html.Div(findings.layout(found, state))._traverse()
    return [c.href for c in components if getattr(c, "className", "") == "ms-link"]


def test_a_finding_leads_to_its_rank_and_step(store):
    """Fails when the link of a finding opens another rank, or a step in which it is not so."""
    run, unselected = store.get("job"), ViewState()
    here = {"where": {"rank": 3, "steps": [0, 2]}, "steps": (2,)}
    assert _links(run, unselected, **here) == [
        "/run/job/timeline?step=2&rank=3&path=1",
        "/run/job/mesh?step=2&rank=3",
    ]
    ranged = {"where": {"ranks": [1, 3], "steps": [1, 2]}}
    timelines = [f"/run/job/timeline?step={step}&path=1" for step in (1, 2)]
    assert _links(run, ViewState(step=1, rank=0), **ranged)[0] == timelines[0].replace(
        "&path", "&rank=0&path"
    )
    assert _links(run, ViewState(step=0), **ranged)[0] in timelines
    assert _links(run, unselected, where={"stage": 0})[0] == "/run/job/timeline?path=1"
    assert (
        _links(run, ViewState(step=2, t0=5, t1=9), where={})[0]
        == "/run/job/timeline?step=2&t0=5&t1=9&path=1"
    )


def test_a_heavy_stage_leads_to_the_metric_that_shows_it(store):
    """Fails when "the slowest is 1.01 x" stands where a finding of a heavy stage leads: its peers are as heavy."""
    run = store.get("job")
    heavy = replace(_finding(where={"stage": 0}), kind=FindingKind.STAGE_IMBALANCE)
    found = replace(run, diagnosis=replace(run.diagnosis, findings=(heavy,)))
    links = [
        one.href
        for one in html.Div(findings.layout(found, ViewState()))._traverse()
        if getattr(one, "className", "") == "ms-link"
    ]
    assert links[1] == "/run/job/mesh?metric=compute"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("page", PAGES)
def test_tabs_take_the_selection_along(store, page):
    """Fails when going to another page of a run loses the selected step, rank, window or metric."""
    query = "?step=1&rank=3&t0=5&t1=9&metric=wait&path=1"
    sent = _text(page_of(store, f"/run/job/{page}", query))
    assert [tab for tab in PAGES if f'"/run/job/{tab}{query}"' not in sent] == []


def test_the_mesh_marks_the_selection(store):
    """Fails when the selected rank or step is not marked, or one that is not there goes unsaid."""
    run = store.get("job")
    marked = _text(mesh.layout(run, ViewState(rank=3, step=1)))
    assert "Selected: rank 3 and step 1." in marked
    assert marked.count('"type": "rect"') == 2
    absent = _text(mesh.layout(run, ViewState(rank=9, step=1)))
    assert "Selected: step 1. Rank 9 is not in this figure." in absent
    assert absent.count('"type": "rect"') == 1


def test_a_click_selects_rank_and_step():
    """Fails when a cell of the mesh selects another one, or loses the metric or the other run."""
    state = ViewState(metric="wait", before="a", t0=1, t1=2)
    click = {"points": [{"customdata": {"0": 3, "1": 7}}]}
    assert marked_view(state, click) == ViewState(metric="wait", before="a", rank=3, step=7)
    whole = {"points": [{"customdata": {"0": 3, "1": -1}}]}
    assert marked_view(ViewState(), whole) == ViewState(rank=3)
    assert [marked_view(state, wrong) for wrong in (None, {}, {"points": []})] == [None] * 3


def test_a_list_without_pending_runs_is_asked_for_less_often(store):
    """Fails when a list that is complete never notices another run, or asks all the time."""
    assert runs.poll_ms(store.entries(max_new=0)) == runs.POLL_MS
    assert runs.poll_ms(store.entries(max_new=9)) == runs.IDLE_POLL_MS


def test_zoom():
    """Fails when dragging over the figure does not become a window in the address."""
    state = ViewState(step=1)
    zoomed = {"xaxis.range[0]": 1.5, "xaxis.range[1]": 3.25}
    assert zoomed_view(state, zoomed) == ViewState(step=1, t0=1_500_000, t1=3_250_000)
    assert zoomed_view(zoomed_view(state, zoomed), zoomed) is None
    assert zoomed_view(ViewState(t0=1, t1=2), {"xaxis.autorange": True}) == ViewState()
    assert zoomed_view(state, {"autosize": True}) is None
    assert zoomed_view(state, {"xaxis.range[0]": "x", "xaxis.range[1]": 1}) is None


def test_controls(store):
    """Fails when a control of the timeline leads to another step than it says."""
    run, state = store.get("job"), ViewState(step=1, t0=3, t1=9)
    assert chosen_view(run, state, "timeline-next") == ViewState(step=2)
    assert chosen_view(run, ViewState(step=2), "timeline-next") == ViewState(step=2)
    assert chosen_view(run, state, "timeline-previous") == ViewState(step=0)
    assert chosen_view(run, state, "timeline-fit") == ViewState(step=1)
    assert stepped_view(run, state, state, "1") is None
    assert stepped_view(run, state, state, "0") == ViewState(step=0)
    typed = ["5", " Rank 5 ", "rank", "-1", "x", ""]
    assert [timeline.rank_in(text) for text in typed] == [5, 5, None, None, None, None]


def test_going_back_is_not_undone_by_the_selector(store):
    """Fails when the page sends a visitor forth again who went back before it was drawn."""
    run = store.get("job")
    assert stepped_view(run, ViewState(step=0), ViewState(step=1), "1") is None


def test_places_in_words():
    """Fails when a finding about many ranks floods its card, or names no place."""
    assert place_words({"rank": 5, "stage": 1, "group_id": "g"}) == "rank 5, stage 1, group g"
    assert place_words({"ranks": list(range(12))}).endswith("7 and 4 more")
    assert place_words({"steps": []}) == ""
    assert place_words({"host": "n1", "ranks": [4, 5]}) == "host n1, ranks 4 and 5"
    assert place_words({"ranks": [3]}) == "rank 3"
    assert place_words({"axis": "tp", "ranks": [0, 1]}) == "TP group, ranks 0 and 1"
    assert place_words({"axis": "pp", "link": "0<->4"}) == "PP axis, link 0<->4"


def _compared(runs_dir, store, query: str) -> Component:
    """Return the page that compares ``job``, with another run in the folder that never reduces."""
    write_job(runs_dir / "silent", communicates=False)
    store.entries(max_new=9)
    return page_of(store, "/run/job/compare", query)


def test_a_run_is_compared_with_another(runs_dir, store):
    """Fails when the page of two runs does not say what the comparison says, or does not add up."""
    page = _compared(runs_dir, store, "?before=silent")
    result = comparison(store, store.get("job"), ViewState(before="silent"))
    drawn = page["change-graph"].figure.data[0]
    assert sum(drawn.x[:-1]) == pytest.approx(result["change_ns"] / 1e6)
    assert drawn.x[-1] == pytest.approx(result["change_ns"] / 1e6)
    ends = [base + length for base, length in zip(drawn.base, drawn.x, strict=True)]
    assert list(drawn.base[1:-1]) == pytest.approx(ends[:-2])
    text = _text(page)
    assert all(json.dumps(finding["claim"]) in text for finding in result["findings"])
    assert "DP communication: waiting" in text
    assert page["compare-before"].data == ["silent"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "No earlier run has this mesh: choose one"),
        ("?before=nope", "cannot be compared: nope: there is no such run"),
        ("?before=notes.txt", "cannot be compared: "),
        ("?before=../job", "address: before"),
    ],
)
def test_a_comparison_that_cannot_be_is_explained(runs_dir, store, query, words):
    """Fails when a run that is not there, or none, ends in a blank or broken page."""
    assert words in _text(_compared(runs_dir, store, query))


def test_a_run_is_compared_with_the_last_like_it(runs_dir, store):
    """Fails when a reader has to search the run before among all, or gets one of another mesh or of later."""
    for name, hours in (("older", 3), ("like", 2), ("later", -1)):
        write_job(runs_dir / name)
        then = time.time() - 3600 * hours
        for place in (runs_dir / name).rglob("*"):
            os.utime(place, (then, then))
    write_synthetic(runs_dir, "slow_rank:rank=3,factor=1.5")
    store.entries(max_new=9)
    page = page_of(store, "/run/job/compare", "?rank=1&metric=nonsense")
    assert page["compare-before"].value == "like"
    assert page["compare-drawn"].data == "?rank=1&before=like"
    text = _text(page)
    assert "address: metric" in text
    result = comparison(store, store.get("job"), ViewState())
    assert result["before_id"] == "like"
    assert result["gate"]["verdict"] in {"pass", "inconclusive"}
    assert json.dumps(result["gate"]["why"]) in text


def test_a_gate_fails_a_run_with_more_work(runs_dir, store):
    """Fails when the page of two runs shows more passes as a change of the time alone, without a verdict."""
    other = write_synthetic(runs_dir, "slow_rank:rank=3,factor=1.5")
    store.entries(max_new=9)
    gate = comparison(store, store.get("job"), ViewState(before=other))["gate"]
    assert gate["verdict"] in {"fail", "incomparable"}
    text = _text(page_of(store, "/run/job/compare", f"?before={other}"))
    assert json.dumps(gate["verdict"]) in text


def test_large_runs_are_measured_after_the_page(runs_dir, store, monkeypatch):
    """Fails when the tab of the comparison does not open until two large runs are measured."""
    monkeypatch.setattr("meshscope.dashboard.runs.loaded_run._MANY_RECORDS", 0)
    page = _compared(runs_dir, store, "?before=silent")
    assert page["compare-wait"].max_intervals == 1
    assert "Comparing with silent" in _text(page)
    comparison(store, store.get("job"), ViewState(before="silent"))
    assert "change-graph" in _text(page_of(store, "/run/job/compare", "?before=silent"))


def test_a_folder_of_one_run_has_nothing_to_compare_with(store):
    """Fails when a visitor is asked to choose among no runs."""
    store.entries(max_new=9)
    page = page_of(store, "/run/job/compare", "")
    assert page["compare-before"].disabled
    assert "There is no other run" in _text(page)


def test_a_run_without_kernels_says_how_to_get_them(store):
    """Fails when the page of kernels of a run without any is empty, or shows zeros."""
    text = _text(page_of(store, "/run/job/kernels", "?rank=3"))
    assert "No kernels were recorded" in text
    assert text.lower().count("there are no kernels in this capture") == 1
    assert "Starved" not in text
