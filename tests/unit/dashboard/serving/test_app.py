"""What a browser gets before the first page: which scripts early, and what it may keep."""

import gzip
import re

import pytest
from plotly.offline import get_plotlyjs_version

from meshscope.dashboard.serving.chart_library import ADDRESS


def test_the_library_of_charts_comes_with_the_first_answer(client):
    """Fails when a browser asks for the largest script only once it has a chart, or again for each page."""
    (address,) = re.findall(
        r'<link rel="prefetch" as="script" href="([^"]+)">', client.get("/").text
    )
    with client.get(address) as answer:
        assert answer.status_code == 200
        assert answer.content_type.startswith(("text/javascript", "application/javascript"))
        assert answer.cache_control.max_age == 600
        assert answer.cache_control.private
        tag = answer.headers["ETag"]
    assert client.get(address, headers={"If-None-Match": tag}).status_code == 304


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_the_library_of_charts_is_a_bundle_of_what_pages_draw(client, encoding):
    """Fails when a browser reads three times as much as bars, points and heatmaps need, or another version."""
    with client.get(f"/{ADDRESS}", headers={"Accept-Encoding": encoding}) as answer:
        sent = answer.data
    assert answer.headers.get("Content-Encoding", "identity") == encoding
    text = (gzip.decompress(sent) if encoding == "gzip" else sent).decode()
    assert f"plotly.js (cartesian - minified) v{get_plotlyjs_version()}" in text[:100]
    assert len(text) < 2_000_000


@pytest.mark.parametrize(
    ("path", "has_chart"),
    [
        ("/run/job/overview", True),
        ("/run/job/timeline", True),
        ("/run/job/trust", False),
        ("/", False),
        ("/nowhere", False),
    ],
)
def test_it_is_read_while_a_page_with_a_chart_is_made(client, path, has_chart):
    """Fails when a browser waits idly for a chart, or reads a large library for a page without one."""
    asked = {
        "output": "charts.children",
        "outputs": {"id": "charts", "property": "children"},
        "inputs": [{"id": "url", "property": "pathname", "value": path}],
        "changedPropIds": ["url.pathname"],
        "state": [],
    }
    answer = client.post("/_dash-update-component", json=asked)
    assert ("dash_core_components" in answer.text) is has_chart
