"""Behind a reverse proxy that serves the dashboard below a path of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import message

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_PATH = re.compile(r"(/[A-Za-z0-9._~@-]+)*/?")
"""What is the same in an address and in a path that a server has decoded."""


class PublicUrl(NamedTuple):
    """Where visitors find a dashboard behind a proxy."""

    origin: str
    """Scheme, host and port."""
    host: str
    """The host alone, in small letters."""
    prefix: str
    """Path, without the slash at its end; empty for the root."""


def public_url(url: str) -> PublicUrl:
    """Return the parts of a public URL.

    Raises:
        ConfigError: It is no URL of a page, or has more than scheme, host, port and plain path.
    """
    try:
        parts = urlsplit(url)
        is_page = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_page = False
    if not is_page or parts.query or parts.fragment or not _PATH.fullmatch(parts.path):
        raise ConfigError(
            message("refused.no_proxy_url"),
            where=url[:200],
            remedy=message("advice.proxy_url"),
        )
    origin = f"{parts.scheme}://{parts.netloc}"
    return PublicUrl(origin, str(parts.hostname).lower(), parts.path.rstrip("/"))


class Below:
    """An application below a path, whether the proxy takes the path off or passes it on."""

    def __init__(self, application: WSGIApplication, prefix: str) -> None:
        """Take an application.

        Args:
            application: It has its pages at the root.
            prefix: The path, without a slash at its end.
        """
        self._application = application
        self._prefix = prefix

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        path = environ.get("PATH_INFO", "")
        if path == self._prefix or path.startswith(f"{self._prefix}/"):
            path = path[len(self._prefix) :]
        below = {**environ, "SCRIPT_NAME": self._prefix, "PATH_INFO": path or "/"}
        return self._application(below, start_response)
