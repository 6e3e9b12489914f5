"""A large run whose slowest pages a process of its own still measures: what a reader sees meanwhile and after."""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.browser.conftest import TRAINED, watched

from meshscope.dashboard.runs.apart import LEAST_BYTES
from meshscope.dashboard.runs.kept_analysis import ANALYSIS
from meshscope.dashboard.runs.page_maker import making

pytestmark = [pytest.mark.browser, pytest.mark.distributed, pytest.mark.slow]
WAITS = "Still being measured"
STILL_MEASURED = 503


@pytest.fixture(scope="module")
def large(tmp_path_factory, recorded_run):
    """Return a folder with the recorded run, made as large as one that is analysed apart; analysed once."""
    runs = tmp_path_factory.mktemp("large")
    shutil.copytree(recorded_run, runs / TRAINED)
    (runs / TRAINED / "log.txt").write_bytes(bytes(LEAST_BYTES))
    return runs


@contextmanager
def _serving(runs: Path, caches: Path):
    """Run the dashboard as a user does; yield its address."""
    command = str(Path(sys.executable).with_name("meshscope"))
    with subprocess.Popen(
        [command, "dashboard", str(runs), "--port", "0"],
        env={**os.environ, "XDG_CACHE_HOME": str(caches)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            lines = iter(server.stderr.readline, "")
            found = next(filter(None, (re.search(r"http://[\d.:]+", line) for line in lines)))
            yield found.group()
        finally:
            server.terminate()


@pytest.fixture
def unmeasured(large, tmp_path):
    """Return the folder of an analysis that is kept, of whose pages none is."""
    analysis = large / TRAINED / ANALYSIS
    if not analysis.exists():
        with _serving(large, tmp_path) as address:
            urllib.request.urlopen(f"{address}/api/v1/runs/{TRAINED}/overview.json").close()
    with making(analysis):
        for place in analysis.glob("page-*"):
            place.unlink()
    return analysis


def test_a_page_fills_by_itself(browser, large, unmeasured, tmp_path):
    """Fails when a page of a large run stays empty, is drawn twice, or stops its reader from going elsewhere."""
    twin = f"/api/v1/runs/{TRAINED}/communication.json"
    with _serving(large, tmp_path) as address, watched(browser, address) as page:
        with making(unmeasured):
            page.goto(f"/run/{TRAINED}/communication")
            expect(page.get_by_role("status").get_by_text(WAITS)).to_be_visible()
            answer = page.request.get(twin)
            assert answer.status == STILL_MEASURED
            assert int(answer.headers["retry-after"]) > 0
            page.get_by_role("link", name="Overview").click()
            expect(page.locator("#waterfall-graph .plot-container")).to_be_visible()
            page.go_back()
            expect(page.get_by_text(WAITS)).to_be_visible()
        page.evaluate("window.isTheSame = true")
        drawn = []
        page.on("request", lambda sent: drawn.append(sent) if _draws(sent) else None)
        expect(page.locator("#bandwidth-graph .plot-container")).to_be_visible()
        expect(page.get_by_text(WAITS)).to_have_count(0)
        page.wait_for_timeout(1_500)
        assert len(drawn) == 1
        assert page.evaluate("window.isTheSame")
        answer = page.request.get(twin)
        assert answer.status == 200
        assert answer.json()["bandwidths"]


def test_a_page_keeps_its_view_when_its_last_part_comes(browser, large, unmeasured, tmp_path):
    """Fails when the part of a mesh that came last takes away the metric that was chosen meanwhile."""
    with _serving(large, tmp_path) as address, watched(browser, address) as page:
        with making(unmeasured):
            page.goto(f"/run/{TRAINED}/mesh")
            expect(page.get_by_text(WAITS)).to_be_visible()
            expect(page.locator("#rank-step-graph .plot-container")).to_be_visible()
            page.locator("#mesh-metric").get_by_text("Waiting").click()
            page.wait_for_url("**metric=wait**")
        expect(page.get_by_text(WAITS)).to_have_count(0)
        expect(page.get_by_role("heading", name="Mesh on the hosts")).to_be_visible()
        expect(page.locator("#mesh-metric input:checked")).to_have_attribute("value", "wait")
        expect(page.locator("#rank-step-graph .plot-container")).to_be_visible()
        expect(page.locator("#mesh-content")).to_contain_text("wait")
        assert "metric=wait" in page.url


def _draws(sent) -> bool:
    """Return whether a request asks for a page of which something was still measured."""
    return "_dash-update" in sent.url and "page.children@" in (sent.post_data or "")
