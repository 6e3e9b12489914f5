"""What is read for a page before the page asks for it."""

import sys

import pytest

from meshscope.dashboard import create_app
from meshscope.dashboard.runs.background import Background
from meshscope.dashboard.runs.kept_analysis import KeptAnalyses
from meshscope.dashboard.runs.store import RunStore
from meshscope.dashboard.serving import ahead


class AtOnce(Background):
    """Does what was asked for at once, and notes it."""

    def __init__(self):
        """Note nothing yet."""
        super().__init__()
        self.done = []

    def later(self, key, work, after_s=0.0):
        """Do it now."""
        self.done.append(key)
        work()


@pytest.fixture
def asked(runs_dir, tmp_path, monkeypatch):
    """Return a client of a dashboard, its analyses, and a list of the runs that were read."""
    read = []
    get = RunStore.get
    monkeypatch.setattr(
        RunStore, "get", lambda store, run_id: read.append(run_id) or get(store, run_id)
    )
    monkeypatch.setattr("meshscope.dashboard.serving.app.Background", AtOnce)
    analyses = KeptAnalyses(tmp_path / "kept")
    app = create_app(runs_dir, analyses=analyses, background=AtOnce())
    return app.server.test_client(), analyses, read


def test_a_run_is_read_while_the_browser_reads_its_scripts(asked, runs_dir):
    """Fails when a page waits a second for its scripts, and only then has its run read."""
    client, _, read = asked
    client.get("/api/v1/runs/job/overview.json")
    read.clear()
    assert client.get("/run/job/timeline?step=1").status_code == 200
    assert read == ["job"]


def test_nothing_is_analysed_ahead(asked):
    """Fails when each link to a page of a run has that run analysed, also from another site."""
    client, _, read = asked
    client.get("/run/job/overview")
    client.get("/run/nowhere/overview")
    client.get("/")
    assert read == []
    client.get("/api/v1/runs/job/overview.json")
    read.clear()
    client.get(
        "/run/job/overview", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    )
    assert read == []


def test_parts_of_figures_are_loaded_before_the_first_page(asked):
    """Fails when the first figure of a server waits for what plotly loads at its first use."""
    ahead.draw_nothing()
    assert {"plotly.graph_objs.heatmap", "plotly.graph_objs.layout.xaxis"} <= sys.modules.keys()
