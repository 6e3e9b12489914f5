"""Who may ask, and what an answer may do: host allow-list, token, response headers.

The dashboard changes nothing but that it arms deep traces. It shows names from a training job to a
browser that has other sites open, so a request must carry a host name that we
serve (a rebound DNS name does not), and an answer may load nothing from
elsewhere.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dash.exceptions import CallbackException
from flask import Flask, Response, abort, redirect, request

from .callback_requests import is_of_a_page

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_COOKIE = "meshscope_token"
"""The port is part of the name: cookies of one host are shared by all its ports."""
_MOST_BODY_BYTES = 1 << 20
"""A callback of a page sends a few names and numbers."""
_CALLBACK = "/_dash-update-component"
_NO_REQUEST = "This request does not come from a page of the dashboard."


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may ask."""

    hosts: frozenset[str] = LOOPBACK_NAMES
    """Host names, without port, under which the dashboard answers."""
    any_address: bool = False
    """Also answer under every literal IP address; a rebound name is never one."""
    token: str | None = None
    """Secret that every request must carry, or None on a loopback address."""
    is_https: bool = False
    """Whether browsers come by HTTPS, through a proxy: the cookie then never travels in the clear."""
    prefix: str = ""
    """Path below which a reverse proxy serves us, as ``/meshscope``; empty for its root."""

    def admits(self, host: str) -> bool:
        """Return whether a host name, without port, is one of ours."""
        return host.lower() in self.hosts or (self.any_address and is_address(host))


def is_address(host: str) -> bool:
    """Return whether a name is a literal IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def host_name(header: str) -> str:
    """Return the name of a Host header without its port or brackets.

    >>> host_name("[::1]:8050")
    '::1'
    """
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def guard(
    server: Flask,
    access: Access,
    script_hashes: list[str],
    callbacks: Callable[[], Mapping[str, Any]],
) -> None:
    """Check every request, and limit what the browser may do with every answer.

    Args:
        server: The application to guard.
        access: Who may ask.
        script_hashes: Content-security-policy hashes of the inline scripts.
        callbacks: Returns those of the dashboard, by output.
    """
    policy = content_policy(script_hashes)
    server.config["MAX_CONTENT_LENGTH"] = _MOST_BODY_BYTES

    @server.before_request
    def check() -> Response | None:
        if not access.admits(host_name(request.host)):
            abort(421, "This host name is not served; open the address that the command printed.")
        _check_origin()
        answer = None if access.token is None else _check_token(access.token, access)
        if answer is None and request.method == "POST" and request.path.endswith(_CALLBACK):
            _check_callback(callbacks())
        return answer

    @server.errorhandler(CallbackException)
    def refuse(_error: CallbackException) -> tuple[str, int]:
        return _NO_REQUEST, 400

    @server.after_request
    def limit(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        # Other sites may not show what they cannot read: pictures of a timeline, for instance.
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        return response


def content_policy(script_hashes: list[str]) -> str:
    """Return the policy: everything from here, and only the known inline scripts."""
    scripts = " ".join(["'self'", *script_hashes])
    return "; ".join(
        [
            "default-src 'self'",
            f"script-src {scripts}",
            # Dash components and plotly set style attributes.
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ]
    )


def _check_origin() -> None:
    """Refuse what another site asks for behind a visitor's back: it could have runs analysed.

    Browsers say so in Sec-Fetch-Site (W3C, "Fetch Metadata Request Headers"). A link may be followed.
    """
    site, mode = (request.headers.get(f"Sec-Fetch-{name}", "") for name in ("Site", "Mode"))
    is_page = not request.path.startswith(("/api/", "/_dash"))
    if site in ("cross-site", "same-site") and not (mode == "navigate" and is_page):
        abort(403, "Another site asked for this; open it from the dashboard.")


def _check_callback(callbacks: Mapping[str, Any]) -> None:
    """Refuse a request of a page that no page of ours sends, before Dash fails at it."""
    if not is_of_a_page(request.get_json(silent=True), callbacks):
        abort(400, _NO_REQUEST)


def _check_token(token: str, access: Access) -> Response | None:
    """Let a request with the token pass; move a token in the URL into a cookie."""
    given = request.args.get("token")
    if given is not None and _equal(given, token):
        kept = "&".join(
            part
            for part in request.query_string.decode("latin-1").split("&")
            if not part.startswith("token=")
        )
        # One slash: a path that begins with two would name another host.
        path = f"{request.script_root}/{request.path.lstrip('/')}"
        answer = redirect(path + (f"?{kept}" if kept else ""))
        # Other paths of a proxy belong to others.
        below = request.script_root or "/"
        answer.set_cookie(
            _cookie(),
            token,
            path=below,
            httponly=True,
            samesite="Strict",
            secure=access.is_https,
        )
        return answer  # type: ignore[return-value]
    header = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not (_equal(request.cookies.get(_cookie(), ""), token) or _equal(header, token)):
        abort(401, "Open the address with the token that the command printed.")
    return None


def _cookie() -> str:
    return f"{_COOKIE}_{request.environ.get('SERVER_PORT', '')}"


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
