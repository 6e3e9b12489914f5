"""The JSON twins, in process: no port, no browser."""

import struct

import pytest
from tests.unit.dashboard.conftest import write_job

HOSTILE = ["..%2f..%2fetc", "%2e%2e", ".", "a%00b", "nope", "x" * 300, "job%2f..%2f"]


def test_runs(client):
    """Fails when a program cannot list the runs, or does not see the unreadable one."""
    runs = {run["run_id"]: run for run in client.get("/api/v1/runs").json["runs"]}
    assert runs["job"]["state"] == "ready"
    assert runs["notes.txt"]["state"] == "unreadable"


def test_overview(client):
    """Fails when the account does not sum to the whole, or an unknown number is no null."""
    overview = client.get("/api/v1/runs/job/overview.json").json
    assert sum(bar["frac"] for bar in overview["waterfall"]) == pytest.approx(1.0)
    assert overview["utilization"]["mfu"] is None
    assert overview["utilization"]["unknown_because"]
    assert overview["trust"]["ranks_captured"] == 4


def test_findings(client):
    """Fails when the findings of the program differ from those of the page."""
    findings = client.get("/api/v1/runs/job/findings.json").json["findings"]
    straggler = next(item for item in findings if item["kind"] == "straggler_rank")
    assert straggler["where"]["rank"] == 3
    assert straggler["evidence"]


def test_timeline(client):
    """Fails when the slices of a step or of a window are not the recorded ones."""
    whole = client.get("/api/v1/runs/job/timeline.json?step=1").json
    assert (whole["step"], whole["steps"]) == (1, [0, 1, 2])
    assert {piece["category"] for piece in whole["slices"]} == {
        "forward",
        "backward",
        "optimizer",
        "exposed DP communication",
    }
    part = client.get("/api/v1/runs/job/timeline.json?step=1&t0=0&t1=5000000").json
    assert part["window_ns"] == [0, 5_000_000]
    assert part["slices_in_window"] == 4
    assert client.get("/api/v1/runs/job/timeline.json?step=x").json["rejected"] == ["step"]


def test_what_a_row_shows_at_an_instant(client):
    """Fails when a row or an instant is told to be another's, or an odd address breaks the server."""
    place = "/api/v1/runs/job/timeline/at.json?step=1"
    slow = client.get(f"{place}&row=3&at=1000").json
    assert (slow["rank"], slow["category"], slow["microbatch"]) == (3, "forward", 0)
    assert slow["dur_ns"] == pytest.approx(20e6)
    waiting = client.get(f"{place}&row=0&at=45000000").json
    assert waiting["operation"]["waited_for"] == 3
    assert waiting["operation"]["waited_ns"] == pytest.approx(30e6)
    assert waiting["operation"]["wire_ns"] == pytest.approx(2e6)
    assert waiting["sentences"][-1] == "Rank 3 came last."
    assert client.get(f"{place}&row=0&at=45000000&operation=0").json["operation"] is None
    assert waiting["operation_unknown_because"] is None
    # Fails when what the legend leaves out is said not to be recorded.
    assert client.get(f"{place}&hide=forward&row=3&at=1000").json == slow
    for odd in (f"row=0&at={10**30}", f"row=0&at=-{10**30}", f"row={10**30}&at=0", "row=-1&at=0"):
        shown = client.get(f"{place}&{odd}").json
        assert shown["text"] is None
        assert set(shown) == set(waiting)
    for odd in ("", "&row=0", "&row=x&at=0", "&row=0&at=1.5"):
        assert client.get(place + odd).status_code == 400


def test_a_window_as_a_trace_for_perfetto(client):
    """Fails when the file of a window has other slices or times than the page, or ranks without names."""
    query = "step=1&t0=0&t1=5000000"
    seen = client.get(f"/api/v1/runs/job/timeline.json?{query}").json
    answer = client.get(f"/api/v1/runs/job/timeline/perfetto.json?{query}")
    assert "job-step-1.json" in answer.headers["Content-Disposition"]
    events = answer.json["traceEvents"]
    spans = [one for one in events if one["ph"] == "X"]
    assert len(spans) == seen["slices_in_window"]
    assert [(one["pid"], one["ts"], one["cat"]) for one in spans] == [
        (one["rank"], one["start_ns"] / 1e3, one["category"]) for one in seen["slices"]
    ]
    named = {one["pid"] for one in events if one["name"] == "process_name"}
    assert named == {one["pid"] for one in spans}


def test_answers_have_a_limit(client, monkeypatch):
    """Fails when the matrix of a run of many ranks and steps is sent whole, or cut without a word."""
    whole = client.get("/api/v1/runs/job/mesh.json").json
    assert whole["steps_in_run"] == len(whole["steps"]) > 1
    monkeypatch.setattr("meshscope.dashboard.answers.views.MAX_JSON_CELLS", len(whole["ranks"]))
    part = client.get("/api/v1/runs/job/mesh.json").json
    assert (part["steps"], part["steps_in_run"]) == (whole["steps"][-1:], len(whole["steps"]))
    assert part["values"] == [row[-1:] for row in whole["values"]]


def test_what_is_not_there_is_rejected_by_name(client):
    """Fails when a program gets another step or window than it asked for without a word."""
    other = client.get("/api/v1/runs/job/timeline.json?step=999&t0=99999999999999&foo=1").json
    assert other["rejected"] == ["foo", "step", "t0, t1"]
    assert other["window_ns"] == [0, other["length_ns"]]
    assert client.get("/api/v1/runs/job/mesh.json?metric=x").json["rejected"] == ["metric"]


def test_critical_path(client):
    """Fails when a program gets no path, one that does not sum, or one that it did not ask for."""
    step = "/api/v1/runs/job/timeline.json?step=1"
    assert client.get(step).json["critical_path"] is None
    path = client.get(f"{step}&path=1").json["critical_path"]
    length = path["end_ns"] - path["start_ns"]
    assert length == 66_000_000
    assert sum(piece["dur_ns"] for piece in path["pieces"]) == length
    assert sum(row["dur_ns"] for row in path["by_rank"]) == length


def test_mesh(client):
    """Fails when the slow rank does not stand out against its peer."""
    mesh = client.get("/api/v1/runs/job/mesh.json").json
    assert (mesh["ranks"], mesh["steps"]) == ([0, 1, 2, 3], [0, 1, 2])
    assert mesh["values"][3] == pytest.approx([2 * 30 / 34 + 4 / 34] * 3)
    assert mesh["facets"][0]["rank"] == [[0], [1], [2], [3]]
    waits = client.get("/api/v1/runs/job/mesh.json?metric=wait").json["values"]
    assert waits[2][0] == pytest.approx(30 / 66)


def test_comparison(client, runs_dir):
    """Fails when a program cannot compare two runs, or the changes do not sum to that of the step."""
    write_job(runs_dir / "silent", communicates=False)
    answer = client.get("/api/v1/runs/job/compare.json?before=silent").json
    assert (answer["run_id"], answer["before_id"]) == ("job", "silent")
    assert sum(row["change_ns"] for row in answer["classes"]) == pytest.approx(answer["change_ns"])
    nothing = client.get("/api/v1/runs/job/compare.json")
    assert nothing.status_code == 404
    assert "?before=RUN" in nothing.json["error"]


def test_tile(client):
    """Fails when the picture of a window is no PNG of the asked width."""
    answer = client.get("/api/v1/runs/job/tile.png?step=1&w=300")
    assert answer.mimetype == "image/png"
    assert struct.unpack_from(">I", answer.data, 16) == (300,)
    assert client.get("/api/v1/runs/job/tile.png?w=999999").status_code == 400


@pytest.mark.parametrize("run_id", HOSTILE)
@pytest.mark.parametrize("page", ["overview.json", "tile.png"])
def test_hostile_ids_find_nothing(client, run_id, page):
    """Fails when a crafted run id gives anything but 404."""
    assert client.get(f"/api/v1/runs/{run_id}/{page}").status_code == 404


def test_errors_say_what_is_wrong(client):
    """Fails when a program gets an error without words."""
    assert "notes.txt" in client.get("/api/v1/runs/notes.txt/mesh.json").json["error"]
    assert "known: overview" in client.get("/api/v1/runs/job/nope.json").json["error"]
    for address in ("nope", "runs/..%2f..%2fetc/overview.json", "runs/job/nope.png"):
        answer = client.get(f"/api/v1/{address}")
        assert answer.status_code == 404
        assert "there is nothing at" in answer.json["error"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/run/job", 200),
        ("/run/job/mesh", 200),
        ("/run/nope/mesh", 404),
        ("/run/job/nope", 404),
        ("/run/%2e%2e/mesh", 404),
        ("/other", 404),
    ],
)
def test_pages_answer_with_their_status(client, path, status):
    """Fails when a page that is not there pretends to be."""
    assert client.get(path).status_code == status
