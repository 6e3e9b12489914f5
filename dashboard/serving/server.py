"""Serve the dashboard: where it listens, and that it never listens widely without a token."""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flask import Flask, Response

from meshscope.analyze.tables.unused_memory import release_unused
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import message

from ..runs.background import Background
from ..runs.kept_analysis import KeptAnalyses
from ..runs.object_memory import waste_little
from .app import create_app
from .proxy import PublicUrl, public_url
from .security import LOOPBACK_NAMES, Access, is_loopback

_THREADS = 32
"""Requests at the same time: those for a run that is being analysed wait, the others must not."""
_REST_S = 3.0
"""After the last request: memory is given back while nobody waits."""
_TOKEN_BYTES = 24
"""192 bits cannot be guessed."""
_LAST_PORT = 65535


def serve(  # noqa: PLR0913 - what the command line says, one argument each
    runs_dir: Path,
    host: str = "127.0.0.1",
    port: int = 8050,
    token: str | None = None,
    *,
    public: str | None = None,
    announce: Callable[[str], None] | None = None,
    are_gone: Callable[[Path], bool] | None = None,
    arm: Callable[[Path], str] | None = None,
) -> None:
    """Serve the runs of a folder until interrupted.

    Args:
        runs_dir: Folder whose entries are runs, or traces of other tools.
        host: Address to listen on.
        port: TCP port; 0 takes a free one.
        token: Secret that requests must carry. On an address that other
            machines can reach there is always one: it is made up if not given.
        public: URL under which a reverse proxy serves this address; such a dashboard has a token too.
        announce: Called once with the address to open, as soon as it can be
            opened; by default it is written to standard error.
        are_gone: Tells of a run whether the processes of all its ranks are known to be gone.
        arm: Has the ranks of a run record some steps in depth, and returns what was agreed; by default
            nobody can ask for that.

    Raises:
        ConfigError: ``runs_dir`` is no folder, the address cannot be
            listened on, or ``public`` is no URL of a page.
    """
    from waitress.server import create_server

    waste_little()
    behind = None if public is None else public_url(public)
    access = access_for(host, token, behind)
    app = create_app(
        runs_dir,
        access=access,
        are_gone=are_gone,
        analyses=KeptAnalyses(),
        background=Background(),
        arm=arm,
    )
    _give_back(app.server)
    listening = _listen(host, port)
    server = create_server(app.server, sockets=[listening], threads=_THREADS, ident="meshscope")
    port = listening.getsockname()[1]
    (announce or _to_stderr)(address(host, port, access.token, behind))
    try:
        server.run()
    finally:
        server.close()


def _give_back(server: Flask) -> None:
    """Give memory back to the system some seconds after answers: in pieces it adds up to another run."""
    rest = Background()

    @server.after_request
    def later(response: Response) -> Response:
        rest.later("unused", release_unused, _REST_S)
        return response


def access_for(host: str, token: str | None, behind: PublicUrl | None = None) -> Access:
    """Return who may ask a dashboard that listens on an address, perhaps behind a proxy."""
    if behind is not None:
        own = access_for(host, token or secrets.token_urlsafe(_TOKEN_BYTES))
        is_https = behind.origin.startswith("https:")
        hosts = own.hosts | {behind.host}
        return replace(own, hosts=hosts, prefix=behind.prefix, is_https=is_https)
    if is_loopback(host):
        return Access(hosts=LOOPBACK_NAMES | {host}, token=token or None)
    names = {host, socket.gethostname(), socket.getfqdn()}
    return Access(
        hosts=LOOPBACK_NAMES | {name.lower() for name in names},
        any_address=True,
        token=token or secrets.token_urlsafe(_TOKEN_BYTES),
    )


def address(host: str, port: int, token: str | None, behind: PublicUrl | None = None) -> str:
    """Return the address to open in a browser, with the token where there is one."""
    words = f"?token={token}" if token else ""
    if behind is not None:
        return f"{behind.origin}{behind.prefix}/{words}"
    shown = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        shown = socket.gethostname()
    return f"http://{shown}:{port}/{words}"


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: The address is not ours, is taken, or is no address.
    """
    if not 0 <= port <= _LAST_PORT:
        raise ConfigError(message("refused.no_port", last=_LAST_PORT), where=f"{host}:{port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            message("refused.no_listening", error=error),
            where=f"{host}:{port}",
            remedy=message("advice.other_address"),
        ) from error


def _to_stderr(url: str) -> None:
    sys.stderr.write(f"Dashboard: {url} (Ctrl-C ends it)\n")
    sys.stderr.flush()
