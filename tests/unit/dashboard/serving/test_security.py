"""Who may ask, and what an answer may do."""

import pytest

from meshscope.dashboard import create_app
from meshscope.dashboard.serving.security import Access, host_name, is_loopback
from meshscope.dashboard.serving.server import access_for, address

TOKEN = "s3cret-token"


@pytest.fixture
def guarded(runs_dir):
    """Return a client of a dashboard that asks for a token."""
    return create_app(runs_dir, access=Access(token=TOKEN)).server.test_client()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""])
def test_a_rebound_name_is_refused(runs_dir, host):
    """Fails when a foreign site can read runs through a DNS name that points here."""
    client = create_app(runs_dir).server.test_client()
    assert client.get("/api/v1/runs", headers={"Host": host}).status_code == 421
    assert client.get("/api/v1/runs", headers={"Host": "localhost:8050"}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/api/v1/runs", "/_dash-layout", "/_dash-dependencies", "/assets/style.css"]
)
def test_every_path_needs_the_token(guarded, path):
    """Fails when a part of the dashboard answers without the token."""
    for headers, status in [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
    ]:
        with guarded.get(path, headers=headers) as answer:
            assert answer.status_code == status


def test_a_token_in_the_address_becomes_a_cookie(guarded):
    """Fails when the secret stays in the address bar, or the cookie can leave for other sites."""
    answer = guarded.get(f"/run/job/timeline?token={TOKEN}&step=1")
    assert answer.status_code == 302
    assert answer.headers["Location"] == "/run/job/timeline?step=1"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert guarded.get("/api/v1/runs").status_code == 200


def test_the_redirect_stays_here(guarded):
    """Fails when a path of two slashes sends the visitor to another host."""
    raw = {"PATH_INFO": "//evil.example/x"}
    answer = guarded.get(f"/?token={TOKEN}", environ_overrides=raw)
    assert answer.headers["Location"] == "/evil.example/x"


def test_headers(runs_dir):
    """Fails when the browser may load or frame anything from elsewhere."""
    headers = create_app(runs_dir).server.test_client().get("/").headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in policy["script-src"]
    assert "'sha256-" in policy["script-src"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


def test_a_wide_address_always_has_a_token():
    """Fails when other machines can read runs without a secret."""
    assert access_for("127.0.0.1", None).token is None
    made_up = access_for("0.0.0.0", None)
    assert len(made_up.token) >= 20
    assert made_up.token != access_for("0.0.0.0", None).token
    assert access_for("0.0.0.0", TOKEN).token == TOKEN
    assert made_up.admits("192.0.2.7")
    assert not made_up.admits("evil.example")


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("gpu7", False)],
)
def test_loopback(host, local):
    """Fails when an address that others can reach counts as private."""
    assert is_loopback(host) is local


def test_host_headers_and_addresses():
    """Fails when a port or bracket makes our own name look foreign."""
    assert [host_name(header) for header in ("[::1]:80", "::1x", "a.b:9")] == ["::1", "", "a.b"]
    assert address("::1", 80, None) == "http://[::1]:80/"
    assert address("127.0.0.1", 8050, "t") == "http://127.0.0.1:8050/?token=t"


def test_what_another_site_asks_for_is_refused(runs_dir):
    """Fails when a page of another site can have runs analysed, or show their pictures."""
    client = create_app(runs_dir).server.test_client()
    for site, mode, path, status in [
        ("cross-site", "no-cors", "/api/v1/runs", 403),
        ("same-site", "cors", "/api/v1/runs", 403),
        ("cross-site", "navigate", "/api/v1/runs", 403),
        ("cross-site", "navigate", "/", 200),
        ("same-origin", "cors", "/api/v1/runs", 200),
        ("none", "navigate", "/api/v1/runs", 200),
    ]:
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
        answer = client.get(path, headers=headers)
        assert answer.status_code == status, (site, mode, path)
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"output": 1}',
        '{"output": "a", "inputs": 5}',
        '{"output": "a", "state": {}}',
    ],
)
def test_a_malformed_callback_is_a_bad_request(runs_dir, body):
    """Fails when nonsense ends in a traceback in the log, and in an error of the server."""
    client = create_app(runs_dir).server.test_client()
    answer = client.post("/_dash-update-component", data=body, content_type="application/json")
    assert answer.status_code == 400


TITLE = "..page.children...page-title.data.."


@pytest.mark.parametrize(
    "change",
    [
        {"output": "x.y"},
        {"outputs": 5},
        {"outputs": [{"id": "page", "property": "children"}]},
        {"inputs": []},
        {"inputs": [5]},
        {"inputs": [{"id": "url", "property": "pathname", "value": {"a": 1}}]},
        {"inputs": [{"id": "other", "property": "pathname", "value": "/"}]},
        {"state": [{"id": "url", "property": "search", "value": [1]}]},
        {"changedPropIds": [7]},
    ],
)
def test_a_callback_that_no_page_sends_is_a_bad_request(runs_dir, change, caplog):
    """Fails when a request that is almost one of a page ends in a traceback, or one of a page is refused."""
    client = create_app(runs_dir).server.test_client()
    body = {
        "output": TITLE,
        "outputs": [
            {"id": "page", "property": "children"},
            {"id": "page-title", "property": "data"},
        ],
        "inputs": [{"id": "url", "property": "pathname", "value": "/"}],
        "state": [{"id": "url", "property": "search", "value": ""}],
        "changedPropIds": ["url.pathname"],
    }
    assert client.post("/_dash-update-component", json=body).status_code == 200
    assert client.post("/_dash-update-component", json=body | change).status_code == 400
    assert "Traceback" not in caplog.text


def test_a_large_body_is_refused(runs_dir):
    """Fails when a request fills the memory of the server."""
    client = create_app(runs_dir).server.test_client()
    body = b"[" + b" " * (1 << 20) + b"]"
    answer = client.post("/_dash-update-component", data=body, content_type="application/json")
    assert answer.status_code in (400, 413)


def test_a_cookie_belongs_to_one_port_and_by_https_never_travels_in_the_clear(runs_dir):
    """Fails when two dashboards of a host log each other's visitors out, or a token leaks."""
    access = Access(token=TOKEN, is_https=True)
    client = create_app(runs_dir, access=access).server.test_client()
    cookies = [
        client.get(f"/?token={TOKEN}", environ_overrides={"SERVER_PORT": port}).headers[
            "Set-Cookie"
        ]
        for port in ("8050", "8051")
    ]
    assert len({cookie.split("=")[0] for cookie in cookies}) == 2
    assert all("Secure" in cookie for cookie in cookies)
