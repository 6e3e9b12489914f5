"""What a browser gets before the first page: which scripts early, and what it may keep."""

import re

import pytest


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
