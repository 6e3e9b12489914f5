"""Ports for jobs of tests, which may run beside each other."""

import random
import socket
from contextlib import suppress

_PORTS = range(20_000, 32_000)
"""Below those that the system gives away: else one of the many sockets of another job may have
a port before the process that is told of it listens there."""


def free_port() -> int:
    """Return a port that is free now."""
    # Not drawn by the generator that is seeded alike for all who run tests.
    draw = random.SystemRandom()
    for _ in _PORTS:
        port = draw.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")
