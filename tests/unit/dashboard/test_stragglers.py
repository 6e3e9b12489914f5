"""The page of slow ranks: suspects, what a replay returns, and both as JSON and CSV."""

import csv
import io
import json

import pytest
from plotly.utils import PlotlyJSONEncoder
from tests.unit.dashboard.conftest import SLOW_RANK, write_job, write_synthetic

from meshscope.analyze.synthetic import SyntheticJob, generate, write_run
from meshscope.dashboard.answers.suspects import found_choices, knobs, place_choices, suspects
from meshscope.dashboard.answers.trend import trend
from meshscope.dashboard.answers.views import repaired_pair
from meshscope.dashboard.callbacks.controls import changed_view
from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.figures.trend import MAX_POINTS, thinned, trend_figure
from meshscope.dashboard.pages.stragglers import result
from meshscope.dashboard.plain.units import duration
from meshscope.dashboard.runs.store import RunStore
from meshscope.dashboard.view.state import ViewState, parse_query
from meshscope.probe.schema.layout import ParallelLayout

ADDRESS = "/run/job/stragglers"
FIXED = f"?fix=rank%3D{SLOW_RANK}"
IDEAL_NS = 36_000_000
"""Forward and backward of a healthy rank, the reduction and the optimizer."""


def _text(page) -> str:
    return json.dumps(page, cls=PlotlyJSONEncoder, ensure_ascii=False)


def test_the_page_names_the_slow_rank(store):
    """Fails when the page does not answer its question before anything is clicked."""
    text = _text(page_of(store, ADDRESS, ""))
    assert "Which rank is slow, and what would fixing it return?" in text
    assert f"Rank {SLOW_RANK}" in text
    assert "1.88 x" in text
    assert "Step time then" not in text


def test_a_repair_is_replayed(store):
    """Fails when the replay of a healthy rank returns another step than one without a slow rank."""
    run = store.get("job")
    state = parse_query(FIXED)
    predicted = run.replays.prediction((state.fixes, state.settings))
    assert predicted["predicted_step_time_ns"] == pytest.approx(IDEAL_NS)
    recorded, then = repaired_pair(run, state)
    assert recorded.length_ns == 66_000_000
    assert then.length_ns == pytest.approx(IDEAL_NS, abs=2)
    assert set(then.slices["rank"]) == {0, 1, 2, 3}
    text = _text(page_of(store, ADDRESS, FIXED)) + _text(result(run, state))
    assert f"meshscope whatif {store.root / 'job'} --fix rank=3" in text
    assert "With these changes: 4 ranks, 36 ms" in text


def test_the_page_does_not_wait_for_its_replay(store, monkeypatch):
    """Fails when a page is not shown before a replay that takes long, or replays again what it has."""
    run = store.get("job")
    with monkeypatch.context() as patched:
        patched.setattr(type(run.replays), "prediction", None)
        text = _text(page_of(store, ADDRESS, FIXED))
    assert "Replaying with these changes" in text
    assert f"Rank {SLOW_RANK}" in text
    result(run, parse_query(FIXED))
    again = _text(page_of(store, ADDRESS, FIXED))
    assert "Step time then" in again
    assert "Replaying with" not in again


def test_a_simulated_change_has_no_timeline(tmp_path):
    """Fails when a timeline is drawn of passes that were not recorded."""
    run_id = write_synthetic(tmp_path)
    text = _text(result(RunStore(tmp_path).get(run_id), parse_query("?set=microbatches%3D16")))
    assert "Step time then" in text
    assert "No timeline: changes of schedule" in text


def test_what_cannot_be_replayed_is_explained(store):
    """Fails when a change that does not fit the run ends in an error or in no words."""
    run = store.get("job")
    absent = _text(result(run, parse_query("?fix=rank%3D99")))
    assert "rank 99 is not in the capture" in absent
    assert "cannot fix" in _text(result(run, parse_query("?fix=nonsense")))


def test_an_unseen_wait_says_what_to_record(runs_dir, store):
    """Fails when a run without communication offers repairs without a word."""
    write_job(runs_dir / "silent", communicates=False)
    text = _text(page_of(store, "/run/silent/stragglers", ""))
    assert "Repairs cannot be replayed" in text
    assert "MESHSCOPE_LEVEL=collectives" in text


def test_two_steps_are_no_all_clear(tmp_path):
    """Fails when the page says that no rank is slow after steps that cannot tell."""
    job = SyntheticJob(layout=ParallelLayout(dp=8), steps=2, jitter_cv=0.2)
    run_id = write_run(job, *generate(job), tmp_path).name
    text = _text(page_of(RunStore(tmp_path), f"/run/{run_id}/stragglers", ""))
    assert "these cannot tell chance from a slow rank" in text
    assert "No rank is slow" not in text


def test_suspects_carry_what_repairs_them(store):
    """Fails when the link of a suspect replays something else than its repair."""
    (suspect,) = suspects(store.get("job").diagnosis)
    assert suspect["fixes"] == [f"rank={SLOW_RANK}"]
    assert suspect["slowdown"] == pytest.approx(64 / 34)
    assert suspect["steps"] == 3


def test_choices_begin_with_what_was_found(store):
    """Fails when a reader has to search the cause that the run has among all places."""
    run = store.get("job")
    assert found_choices(run.diagnosis)[0].fix == f"rank={SLOW_RANK}"
    places = place_choices(run.diagnosis, run.trace)
    assert [choice.fix for choice in places["Ranks"]] == [f"rank={rank}" for rank in range(4)]
    names = {knob.name for knob in knobs(run.diagnosis)}
    assert {"compute", "link.dp", "dtype.dp"} <= names
    assert "link.tp" not in names


def test_controls_become_an_address():
    """Fails when a setting is lost on the way to the address, or an empty one is asked for."""
    chosen = changed_view(
        ViewState(step=1), ["rank=3"], {"compute": " 2x ", "chunks": "", "x": None}
    )
    assert chosen == ViewState(step=1, fixes=("rank=3",), settings=("compute=2x",))
    assert changed_view(ViewState(), None, {}) == ViewState()


def test_the_twin_has_the_replay(client):
    """Fails when a program gets another prediction than the page, or none."""
    answer = client.get(f"/api/v1/runs/job/stragglers.json{FIXED}").json
    assert answer["suspects"][0]["ranks"] == [SLOW_RANK]
    assert answer["what_if"]["predicted_step_time_ns"] == pytest.approx(IDEAL_NS)
    assert answer["asked"] == {"fix": ["rank=3"], "set": []}
    assert client.get("/api/v1/runs/job/stragglers.json").json["what_if"] is None
    assert "rank 99" in client.get("/api/v1/runs/job/stragglers.json?fix=rank%3D99").json["error"]


def test_tables_are_csv(client):
    """Fails when a table cannot be opened in a spreadsheet, or has other numbers than the page."""
    answer = client.get("/api/v1/runs/job/stragglers/suspects.csv")
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert (row["kind"], row["ranks"]) == ("straggler_rank", str(SLOW_RANK))
    assert answer.mimetype == "text/csv"
    (replay,) = csv.DictReader(
        io.StringIO(client.get(f"/api/v1/runs/job/stragglers/replay.csv{FIXED}").text)
    )
    assert float(replay["predicted_step_time_ns"]) == pytest.approx(IDEAL_NS)
    assert client.get("/api/v1/runs/job/stragglers/nope.csv").status_code == 404
    assert client.get("/api/v1/runs/nope/stragglers/suspects.csv").status_code == 404


def test_a_rank_that_stops_is_a_suspect(tmp_path):
    """Fails when a rank that pauses is missing among the slow ones, or another step is shown than a paused one."""
    fault = "gc_pause:rank=1,extra_ms=40,first_step=5,last_step=7"
    run = RunStore(tmp_path).get(write_synthetic(tmp_path, fault, steps=9))
    (pause,) = (row for row in suspects(run.diagnosis) if row["kind"] == "gc_pause")
    assert (pause["ranks"], pause["fixes"]) == ([1], ["gc_pause"])
    assert (pause["slowdown"], pause["first_step"], pause["last_step"]) == (None, 5, 7)
    recorded, then = repaired_pair(run, parse_query("?fix=gc_pause"))
    assert 5 <= recorded.step <= 7
    assert then.length_ns < recorded.length_ns


@pytest.mark.parametrize("fix", ["stragglers", "rank=3"])
def test_the_step_shown_is_one_in_which_the_rank_was_slow(tmp_path, fix):
    """Fails when a step looks the same with a rank repaired that is slow in other steps."""
    faults = [f"slow_rank:rank=3,factor=1.6,first_step={at},last_step={at + 3}" for at in (5, 13)]
    run = RunStore(tmp_path).get(write_synthetic(tmp_path, *faults, steps=24))
    recorded, then = repaired_pair(run, parse_query(f"?fix={fix.replace('=', '%3D')}"))
    assert recorded.step in {5, 6, 7, 8, 13, 14, 15, 16}
    assert then.length_ns < 0.9 * recorded.length_ns


def test_the_trend_has_every_analysed_step(client):
    """Fails when a step is missing from the trend, or its MFU is made up."""
    rows = client.get("/api/v1/runs/job/overview.json").json["trend"]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert {row["step_ns"] for row in rows} == {66_000_000}
    assert {row["mfu"] for row in rows} == {None}
    assert len(client.get("/api/v1/runs/job/overview/trend.csv").text.splitlines()) == 4


def test_the_median_in_words_is_the_one_drawn(tmp_path):
    """Fails when a caption names another median than the line shows, as where half of the steps are slow."""
    fault = "slow_rank:rank=1,factor=2,first_step=3,last_step=4"
    run = RunStore(tmp_path).get(write_synthetic(tmp_path, fault, steps=6))
    lengths = sorted(row["step_ns"] for row in trend(run))
    assert len(lengths) % 2 == 0
    middle = len(lengths) // 2
    drawn_ns = trend_figure(trend(run)).layout.shapes[0].y0 * 1e6
    assert drawn_ns == pytest.approx((lengths[middle - 1] + lengths[middle]) / 2)
    text = _text(page_of(RunStore(tmp_path), f"/run/{run.run_id}/overview", ""))
    assert f"Median {duration(drawn_ns)} (dashed)" in text


def test_a_slow_step_is_not_thinned_out():
    """Fails when a long run hides the one step that took ten times as long."""
    rows = [{"step": at, "step_ns": 10.0 if at == 4321 else 1.0, "mfu": None} for at in range(9000)]
    shown = thinned(rows)
    assert len(shown) <= MAX_POINTS
    assert max(row["step_ns"] for row in shown) == 10.0
    assert thinned(rows[:5]) == rows[:5]
