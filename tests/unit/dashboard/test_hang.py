"""The page of a job that hangs or died, and its tables for programs."""

import csv
import io
import json

import pytest
from plotly.utils import PlotlyJSONEncoder
from tests.unit.dashboard.conftest import write_synthetic

from meshscope.dashboard import create_app
from meshscope.dashboard.callbacks.navigation import page_of
from meshscope.dashboard.runs.store import RunStore

HUNG_RANK = 3


@pytest.fixture
def hung(tmp_path):
    """Return a folder and in it the id of a job of which one rank stands still."""
    run_id = write_synthetic(tmp_path, f"hang:rank={HUNG_RANK},first_step=2")
    return tmp_path, run_id


def _text(page) -> str:
    return json.dumps(page, cls=PlotlyJSONEncoder, ensure_ascii=False)


def test_the_page_names_who_is_missing(hung):
    """Fails when a reader on call does not see at once who others wait for."""
    folder, run_id = hung
    text = _text(page_of(RunStore(folder), f"/run/{run_id}/hang", ""))
    assert "Which rank hangs, in what, and who ended first?" in text
    assert f"Rank {HUNG_RANK} did not arrive" in text
    assert '"did not arrive"' in text
    assert text.count("ms-marked") == 1
    assert "Remedy" in text


def test_no_hang_is_one_sentence(runs_dir, tmp_path):
    """Fails when a healthy run shows tables, or a format that shows no end an all-clear."""
    healthy = write_synthetic(tmp_path / "other")
    text = _text(page_of(RunStore(tmp_path / "other"), f"/run/{healthy}/hang", ""))
    assert "No rank hung: every captured rank ended in order." in text
    assert "Who was where" not in text
    unknown = _text(page_of(RunStore(runs_dir), "/run/job/hang", ""))
    assert "No hang can be seen" in unknown
    assert "meshscope run -- COMMAND" in unknown


def test_programs_get_the_same(hung):
    """Fails when the JSON or CSV of a hang lacks a rank, or blames another one than the page."""
    folder, run_id = hung
    client = create_app(folder).server.test_client()
    answer = client.get(f"/api/v1/runs/{run_id}/hang.json").json
    assert answer["state"] == "hang"
    assert [row["rank"] for row in answer["ranks"] if row["is_culprit"]] == [HUNG_RANK]
    ranks = list(
        csv.DictReader(io.StringIO(client.get(f"/api/v1/runs/{run_id}/hang/ranks.csv").text))
    )
    assert [row["rank"] for row in ranks] == [str(row["rank"]) for row in answer["ranks"]]
    operations = client.get(f"/api/v1/runs/{run_id}/hang/operations.csv").text
    assert len(operations.splitlines()) == len(answer["operations"]) + 1
