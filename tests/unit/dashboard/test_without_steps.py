"""A dump of a hang has no steps and no ledger: every page says so and shows the finding."""

import json
import pickle

import pytest

from meshscope.analyze.align.steps.whole_capture import WHOLE_CAPTURE
from meshscope.dashboard import create_app
from meshscope.dashboard.answers.views import trust
from meshscope.dashboard.pages import findings, mesh, overview, timeline
from meshscope.dashboard.plain.units import UNKNOWN
from meshscope.dashboard.runs.store import RunStore
from meshscope.dashboard.view.state import ViewState


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the dumps of two ranks, of which the second did not come."""
    (tmp_path / "hung").mkdir()
    pending = {
        "record_id": 4,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 4,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
    }
    for rank, (last, entries) in enumerate([(4, [pending]), (3, [])]):
        status = {"last_enqueued_collective": last, "last_completed_collective": 3}
        dump = {
            "entries": entries,
            "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}},
            "pg_status": {"0": status},
        }
        (tmp_path / "hung" / f"_dump_{rank}").write_bytes(pickle.dumps(dump, 2))
    return tmp_path


def test_pages_open_and_name_the_rank(folder):
    """The page of the run that matters most would be an error."""
    run = RunStore(folder).get("hung")
    for page in (overview.layout(run, ViewState()), findings.layout(run, ViewState())):
        assert "Rank 1 did not arrive" in str(page)
    assert mesh.layout(run, ViewState()) is not None
    assert timeline.layout(run, ViewState()) is not None
    assert "The capture has no steps." in str(timeline.layout(run, ViewState(path=True)))


def test_the_overview_draws_no_account_of_nothing(folder):
    """Fails when a run without steps shows bars of 0 %, a number of steps, or a cost."""
    run = RunStore(folder).get("hung")
    page = str(overview.layout(run, ViewState()))
    assert "No step was recorded" in page
    assert "waterfall-graph" not in page
    assert "The bars sum" not in page
    assert "costs not known" not in page
    assert trust(run)["steps_recorded"] == 0


def test_each_unknown_number_has_its_reason(folder):
    """Fails when a number that is not known stands beside what it would mean, not beside why it is unknown."""
    numbers = overview.key_numbers_of(RunStore(folder).get("hung"))
    notes = {name: note for name, value, note in numbers if value == UNKNOWN}
    assert notes["Throughput"] == "no steps were recorded"
    assert notes["Exposed communication"] == "no steps were recorded"


def test_what_was_open_is_drawn(folder):
    """Fails when the timeline of a hang is empty, or shows the absent rank as waiting."""
    drawn = RunStore(folder).get("hung").step(WHOLE_CAPTURE)
    assert drawn.undrawn == 0
    assert set(drawn.slices["rank"]) <= {0}


@pytest.mark.parametrize("page", ["overview", "findings", "timeline", "mesh"])
def test_twins_are_json_without_a_made_up_step_time(folder, page):
    """Programs would read a step time of zero, or no JSON at all."""
    answer = create_app(folder).server.test_client().get(f"/api/v1/runs/hung/{page}.json")
    assert answer.status_code == 200
    content = json.loads(answer.data)
    assert content.get("step_time_ns") is None
    assert not content.get("waterfall")
