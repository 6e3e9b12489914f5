"""A reverse proxy of a few lines: it serves another server below a path, and nothing beside it."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from meshscope.dashboard.screenshot import answering

_OF_ONE_CONNECTION = {"connection", "transfer-encoding", "keep-alive", "date", "server"}


@contextmanager
def proxied(address: str, prefix: str, *, takes_path_off: bool) -> Iterator[str]:
    """Serve an address below a path of a free port; yield the address of the proxy.

    Args:
        address: Of the server behind.
        prefix: Path without a slash at its end; what is asked for outside of it is not found.
        takes_path_off: Whether the server behind sees the rest of the path only.
    """
    behind = urlsplit(address).netloc

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            size = int(self.headers.get("Content-Length", 0))
            headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
            path = self.path[len(prefix) :] if takes_path_off else self.path
            connection = http.client.HTTPConnection(behind)
            connection.request(self.command, path, self.rfile.read(size), headers)
            answer = connection.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_ONE_CONNECTION:
                    self.send_header(name, value)
            self.end_headers()
            # A browser that goes on to another page takes no answers for this one.
            with suppress(ConnectionError):
                self.wfile.write(body)
            connection.close()

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as front:
        yield front
