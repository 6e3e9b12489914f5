"""A private place for sockets, and servers that are stopped at the end."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meshscope.probe.control.directory import make_directory, socket_name
from meshscope.probe.control.server import ControlServer, RequestLog
from meshscope.probe.control.verbs import Verb, VerbRegistry


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Return an empty directory with a path that is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="ms-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def variables(short_dir: Path) -> dict[str, str]:
    """Return an environment whose runtime directory is empty and ours."""
    return {"XDG_RUNTIME_DIR": str(short_dir)}


@pytest.fixture
def serve(variables: dict[str, str]) -> Iterator[Callable[..., ControlServer]]:
    """Return a function that serves verbs on the socket of a rank."""
    servers = []

    def start(*verbs: Verb, rank: int = 0) -> ControlServer:
        registry = VerbRegistry()
        registry.add(*verbs)
        path = make_directory("run-1", variables) / socket_name(rank, os.getpid())
        servers.append(ControlServer(path, registry, RequestLog()))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
