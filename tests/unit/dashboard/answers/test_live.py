"""What the live and trust pages say of a run, and the sums of a window."""

import os
import time

import pandas as pd
import pytest
from tests.tables import trace_of
from tests.unit.dashboard.conftest import write_synthetic

from meshscope.analyze.output.timeline.slices import in_window
from meshscope.analyze.wording.message import message
from meshscope.dashboard.answers.live import live
from meshscope.dashboard.answers.trust import trust
from meshscope.dashboard.pages import live as page
from meshscope.dashboard.pages import shell
from meshscope.dashboard.plain.units import is_unknown
from meshscope.dashboard.runs.loaded_run import RECENT_NS, is_running
from meshscope.dashboard.runs.store import News, RunStore
from meshscope.dashboard.serving.app import create_app
from meshscope.dashboard.timeline.window_sums import ALL, sum_rows, window_sums
from meshscope.dashboard.view.state import ViewState


def test_the_score_is_that_of_the_straggler_table(store):
    """Fails when the live page ranks other ranks first, or by other numbers, than the findings."""
    run = store.get("job")
    found = live(run)
    table = run.diagnosis.stragglers.set_index("rank")["slowdown"]
    assert found["ranks"][0]["rank"] == 3
    assert {row["rank"]: row["slowdown"] for row in found["ranks"]} == table.to_dict()
    assert found["step_time_ns"] == found["steps"][-1]["step_ns"]
    assert found["state"] != "running"


def test_a_silent_job_whose_processes_are_gone_does_not_run(tmp_path):
    """Fails when a job that was killed a moment ago is called running."""
    name = write_synthetic(tmp_path, "hang:rank=3,first_step=2")
    run = RunStore(tmp_path).get(name)
    assert is_running(run)
    assert not is_running(RunStore(tmp_path, are_gone=lambda _: True).get(name))
    old = run.times._replace(written_ns=0)
    object.__setattr__(run, "times", old)
    assert not is_running(run)


def test_a_job_that_ended_is_read_once_more_at_once(tmp_path):
    """Fails when the end of a job is seen only after the rest that a running one gets."""
    name = write_synthetic(tmp_path, "hang:rank=3,first_step=2")
    gone: list[bool] = []
    store = RunStore(tmp_path, patience=1e6, are_gone=lambda _: bool(gone))
    first = store.get(name)
    assert store.get(name) is first
    gone.append(True)
    second = store.get(name)
    assert second is not first
    assert not is_running(second)
    assert store.get(name) is second


def test_a_run_that_goes_on_is_news_and_its_analysis_is_none(tmp_path):
    """Fails when an open page never hears of new steps, or hears of its own analysis."""
    name = write_synthetic(tmp_path, "hang:rank=3,first_step=2")
    gone: list[bool] = []
    store = RunStore(tmp_path, patience=0, are_gone=lambda _: bool(gone))
    run = store.get(name)
    assert store.news(name, run.times.written_ns) is News.NONE
    assert store.news(name, run.times.written_ns - 1) is News.MORE
    assert store.news("no-such-run", 0) is News.NONE
    (tmp_path / name / "analysis").mkdir(exist_ok=True)
    (tmp_path / name / "analysis" / "analysis.json").write_text("{}")
    assert store.news(name, run.times.written_ns) is News.NONE
    gone.append(True)
    assert store.news(name, run.times.written_ns) is News.OVER
    store.get(name)
    assert store.news(name, run.times.written_ns) is News.NONE


def test_there_is_news_only_where_a_view_would_show_it(tmp_path):
    """Fails when a link to what is new leads to what the page has already, or nothing tells of another reading."""
    name = write_synthetic(tmp_path, "hang:rank=3,first_step=2")
    gone: list[bool] = []
    store = RunStore(tmp_path, patience=1e6, are_gone=lambda _: bool(gone))
    first = store.get(name)
    store._looks.clear()  # The files are looked at again; the analysis still stands for what is new.
    written = tmp_path / name / "manifest.json"
    os.utime(written, ns=(time.time_ns(), first.times.written_ns + 10**9))
    assert store.news(name, first.times.written_ns) is News.NONE
    assert store.get(name) is first
    store._entries[name] = store._entries[name]._replace(until_s=0.0)
    assert store.news(name, first.times.written_ns) is News.MORE
    second = store.get(name)
    assert second.times.written_ns > first.times.written_ns
    assert store.news(name, first.times.written_ns) is News.MORE, "somebody else had it read anew"
    assert store.news(name, second.times.written_ns) is News.NONE


def _at(monkeypatch, now_ns):
    for module in ("runs.store", "runs.loaded_run", "answers.live"):
        monkeypatch.setattr(f"meshscope.dashboard.{module}.unix_ns", lambda: now_ns)


def test_silence_of_a_running_job_is_news(tmp_path, monkeypatch):
    """Fails when an open page goes on to call a job running that hangs and records nothing more."""
    name = write_synthetic(tmp_path, "hang:rank=3,first_step=2")
    store = RunStore(tmp_path, patience=1e6)
    run = store.get(name)
    written_ns = run.times.written_ns
    _at(monkeypatch, written_ns + RECENT_NS - 1)
    assert is_running(run)
    assert store.news(name, written_ns) is News.NONE
    _at(monkeypatch, written_ns + RECENT_NS)
    assert not is_running(run)
    assert store.news(name, written_ns) is News.SILENT
    assert store.news(name, written_ns - 1) is News.MORE


def test_who_was_silent_is_asked_again(tmp_path, monkeypatch):
    """Fails when a page that says a job may hang never hears that it has gone on."""
    name = write_synthetic(tmp_path, "hang:rank=3,first_step=2")
    written_ns = RunStore(tmp_path).get(name).times.written_ns
    client = create_app(tmp_path).server.test_client()
    _at(monkeypatch, written_ns + RECENT_NS)
    state = {"news-since.data": str(written_ns), "url.pathname": f"/run/{name}/mesh"}
    asked = {
        "output": "..news.children...news-poll.disabled..",
        "outputs": [_prop("news.children"), _prop("news-poll.disabled")],
        "inputs": [{**_prop("news-poll.n_intervals"), "value": 1}],
        "state": [
            {**_prop(key), "value": value} for key, value in {**state, "url.search": ""}.items()
        ],
        "changedPropIds": ["news-poll.n_intervals"],
    }
    answer = client.post("/_dash-update-component", json=asked).json["response"]
    assert "the job may hang" in str(answer["news"]["children"])
    assert answer["news-poll"]["disabled"] is False


def _prop(key):
    return dict(zip(("id", "property"), key.split("."), strict=True))


def test_a_sign_of_life_without_new_steps_is_news(tmp_path):
    """Fails when a job that stands still, and is found to, is kept from an open page for lack of steps."""
    name = write_synthetic(tmp_path, "hang:rank=3,first_step=2")
    store = RunStore(tmp_path, patience=0)
    first = store.get(name)
    os.utime(tmp_path / name / "manifest.json", ns=(time.time_ns(), first.times.written_ns + 10**9))
    assert store.news(name, first.times.written_ns) is News.MORE
    second = store.get(name)
    assert second.steps == first.steps
    assert store.news(name, second.times.written_ns) is News.NONE


@pytest.mark.parametrize("found", [News.MORE, News.OVER, News.SILENT])
def test_news_leads_to_the_same_view_of_now(found):
    """Fails when a page has no words for what happened, or no way to it."""
    text = str(shell.news("/run/job/timeline?step=2", found).to_plotly_json())
    assert "/run/job/timeline?step=2" in text
    assert ("5 minutes without a record: the job may hang." in text) == (found is News.SILENT)


def test_who_looks_again_while_a_run_is_analysed_does_not_wait(store):
    """Fails when the polls of a live page pile up behind the analysis of a large run."""
    kept = store.get("job")
    with store._loading["job"]:
        assert store.latest("job") is kept
    assert store.latest("job") is kept


def test_limits_about_losses_and_clocks_are_found_among_all(store):
    """Fails when a drop, or a doubt about clocks, is only one of many limits of the trust page."""
    run = store.get("job")
    limits = (
        message("missing.records_lost", records=12, ranks=1),
        message("unknown.replay_of_wrong_clocks"),
        message("doubt.no_communication"),
    )
    object.__setattr__(run.diagnosis, "limits", limits)
    facts = trust(run)
    assert facts["losses"] == ["The probe lost 12 records on 1 rank."]
    assert facts["clock_limits"] == [f"{limits[1]}."]
    assert set(facts["limits"]) == {f"{one}." for one in limits}


def test_a_level_has_its_reason_as_sentence_and_as_code(store):
    """Fails when the trust page shows a code, or its JSON only a sentence."""
    run = store.get("job")
    cost = {"steps": 25, "dur_ns": 100, "cost_ns": 1}
    reason = 'level.sampled {"one_in": 4}'
    row = {"rank": 0, "step": 70, "level": "stages", "reason": reason, "one_in": 4} | cost
    tables = {"recording": trace_of(recording=[row]).tables["recording"]}
    object.__setattr__(run, "trace", run.trace.with_tables(tables))
    (found,) = trust(run)["overhead"]["ranks"]
    assert found["reason"] == "over budget: one window in 4"
    assert found["messages"]["reason"] == {"code": "level.sampled", "values": {"one_in": 4}}


def test_missing_ranks_are_named(store):
    """Fails when a job of which only a part was captured looks whole."""
    run = store.get("job")
    run.trace.run["world_size"] = 6
    coverage = trust(run)["coverage"]
    assert (coverage["missing_ranks"], coverage["ranks_captured"]) == ([4, 5], 4)


def test_the_sums_of_a_window_are_those_of_its_slices(store):
    """Fails when a slice that reaches over a border of the window counts whole."""
    step = store.get("job").step(1)
    window = (step.length_ns // 4, step.length_ns // 2)
    seen = in_window(step.slices, window)
    inside = seen["end_ns"].clip(upper=window[1]) - seen["start_ns"].clip(lower=window[0])
    sums = window_sums(step, window)
    assert sums["dur_ns"].sum() == inside.sum()
    assert sums.groupby("rank")["frac"].sum().max() <= 1 + 1e-9
    rows = sum_rows(step, window)
    mean_ms = sum(row[2] for row in rows if row[0] == ALL)
    assert mean_ms == pytest.approx(inside.sum() / len(step.ranks) / 1e6)


@pytest.mark.parametrize(
    ("value", "unknown"), [(None, True), (float("nan"), True), (pd.NA, True), (0, False)]
)
def test_what_is_unknown_is_recognised(value, unknown):
    """Fails when zero is called unknown, or a missing value is printed as nan."""
    assert is_unknown(value) is unknown


def test_a_deep_trace_is_offered_of_a_running_job_alone(tmp_path):
    """Fails when a finished job has a button that records it, or one is there that nobody answers."""
    name = write_synthetic(tmp_path, "hang:rank=3,first_step=2")
    run = RunStore(tmp_path).get(name)
    running = live(run)["state"] == "running"
    offered = [
        "live-arm" in str(page.layout(run, ViewState(), can_arm=can)) for can in (True, False)
    ]
    assert offered == [running, False]


@pytest.mark.parametrize(("confirmed", "armed"), [(None, 0), (1, 1)])
def test_nothing_is_armed_without_a_yes(tmp_path, confirmed, armed):
    """Fails when a request of the page records a job that nobody confirmed, or one that has ended."""
    name, asked = write_synthetic(tmp_path, "hang:rank=3,first_step=2"), []
    app = create_app(tmp_path, arm=lambda path: asked.append(path.name) or "2 ranks record steps 3")
    body = {
        "output": "live-arm-said.children",
        "outputs": {"id": "live-arm-said", "property": "children"},
        "inputs": [{"id": "live-arm-confirm", "property": "submit_n_clicks", "value": confirmed}],
        "state": [{"id": "url", "property": "pathname", "value": f"/run/{name}/live"}],
        "changedPropIds": ["live-arm-confirm.submit_n_clicks"],
    }
    client = app.server.test_client()
    answer = client.post("/_dash-update-component", json=body)
    assert asked == [name] * armed
    assert ("record steps 3" in answer.text) == bool(armed)
    foreign = client.post(
        "/_dash-update-component", json=body, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert foreign.status_code == 403
    assert asked == [name] * armed
