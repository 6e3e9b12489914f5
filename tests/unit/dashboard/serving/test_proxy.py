"""The dashboard below a path of a reverse proxy, in process."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.dashboard import create_app, serve
from meshscope.dashboard.serving.proxy import public_url
from meshscope.dashboard.serving.security import Access
from meshscope.dashboard.serving.server import access_for, address
from meshscope.dashboard.view.addresses import inner, page_address, public
from meshscope.dashboard.view.state import ViewState
from meshscope.probe.schema.errors import ConfigError

PREFIX = "/lab/meshscope"


@pytest.fixture
def app(runs_dir):
    """Return a dashboard that a proxy serves below a path."""
    return create_app(runs_dir, access=Access(prefix=PREFIX))


@pytest.mark.parametrize("path", ["/", "/run/job/mesh", "/api/v1/runs", "/assets/style.css"])
def test_a_proxy_may_take_the_path_off_or_pass_it_on(app, path):
    """Fails when the dashboard answers to one of the two ways only in which proxies pass a path."""
    client = app.server.test_client()
    for asked in (path, PREFIX + path):
        with client.get(asked) as answer:
            assert answer.status_code == 200
    with client.get("/run/nope/mesh") as answer:
        assert answer.status_code == 404
    with client.get(f"{PREFIX}x/run/job/mesh") as answer:
        assert answer.status_code == 404


def test_the_page_asks_below_the_path(app):
    """Fails when scripts or styles of the page are asked for beside the path."""
    text = app.server.test_client().get("/").text
    asked = re.findall(r'(?:src|href)="(/[^"]*)"', text)
    assert any("style.css" in path for path in asked)
    assert [path for path in asked if not path.startswith(f"{PREFIX}/")] == []


@given(st.sampled_from(["/", "/run/a/mesh", "/lab", "/run/lab/meshscope"]))
def test_an_address_leads_back_to_its_path(path):
    """Fails when a page below a path is taken for another one, or for none."""
    from flask import Flask

    with Flask("x").test_request_context("/", environ_overrides={"SCRIPT_NAME": PREFIX}):
        assert public(path) == PREFIX + path
        assert inner(public(path)) == path
        assert inner(PREFIX) == "/"
        assert page_address("a", "mesh", ViewState(rank=1)) == f"{PREFIX}/run/a/mesh?rank=1"
    assert inner(public(path)) == path


def test_the_token_stays_below_the_path(runs_dir):
    """Fails when opening the printed address leaves the path, or shows the token to its neighbours."""
    server = create_app(runs_dir, access=Access(prefix=PREFIX, token="secret")).server
    answer = server.test_client().get("/run/job/mesh?token=secret&rank=1")
    assert answer.headers["Location"] == f"{PREFIX}/run/job/mesh?rank=1"
    assert f"Path={PREFIX};" in answer.headers["Set-Cookie"]


def test_a_public_url():
    """Fails when the proxy's own name is refused, or a dashboard that others reach has no token."""
    behind = public_url("https://Login.example:8443/lab/meshscope/")
    access = access_for("127.0.0.1", None, behind)
    assert access.admits("login.example")
    assert access.admits("127.0.0.1")
    assert not access.admits("evil.example")
    assert access.prefix == PREFIX
    assert len(access.token) >= 20
    printed = address("127.0.0.1", 8050, "t", behind)
    assert printed == "https://Login.example:8443/lab/meshscope/?token=t"
    assert public_url("http://a").prefix == ""


@pytest.mark.parametrize(
    "url",
    [
        "/lab",
        "ftp://a/x",
        "http://",
        "http://a/x?y=1",
        "http://a/x#y",
        "http://a/a b",
        "http://a:x/",
    ],
)
def test_a_wrong_public_url_is_one_error(runs_dir, url):
    """Fails when a URL that no page can have ends in a traceback, or in a dashboard without pages."""
    with pytest.raises(ConfigError, match="not a URL"):
        serve(runs_dir, port=0, public=url)
