"""The sockets of an agent: its control verbs and its metrics."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..control.directory import make_directory, run_name
from ..control.server import ControlServer, RequestLog
from ..control.verbs import Verb, VerbRegistry, Whole
from ..schema.errors import MeshscopeError
from .metrics_server import MetricsServer, loopback_listener, unix_listener

MOST_BURST_S = 600
CONTROL_VARIABLE = "MESHSCOPE_CONTROL"
"""With 0 nothing opens a socket by itself; a port that is asked for is opened."""


class Doors:
    """Opens what can be opened; what cannot is reported in ``facts``.

    Attributes:
        facts: For the host manifest: where the sockets are, or why there is none.
        log: The requests so far.
    """

    def __init__(
        self,
        run_path: Path | None,
        port: int | None,
        *,
        status: Callable[[], Mapping[str, Any]],
        burst: Callable[[float], None],
        text: Callable[[], str],
        more: Sequence[Verb] = (),
    ) -> None:
        """Open the sockets.

        Args:
            run_path: The run; without one there are no sockets but that of a port.
            port: Port on loopback for the metrics, if wanted.
            status: Returns the result of the verb ``status``.
            burst: Told the seconds of the verb ``burst``.
            text: Returns the text of the metrics.
            more: Further verbs.

        Raises:
            ConfigError: The port cannot be had.
        """
        self.facts: dict[str, Any] = {}
        self._metrics: list[MetricsServer] = []
        self._control: ControlServer | None = None
        self.log = RequestLog()
        if port is not None:
            listening = loopback_listener(port)
            self.facts["metrics_port"] = listening.getsockname()[1]
            self._metrics.append(MetricsServer(listening, text))
        if run_path is None:
            return
        if os.environ.get(CONTROL_VARIABLE) == "0":
            self.facts["sockets_missing"] = f"{CONTROL_VARIABLE} is 0"
            return
        registry = VerbRegistry()
        registry.add(*_verbs(status, burst), *more)
        try:
            folder = make_directory(run_name(run_path), os.environ)
            control = ControlServer(folder / f"agent.{os.getpid()}.sock", registry, self.log)
            control.start()
            self._control = control
            self.facts["control_socket"] = str(control.path)
            metrics = folder / f"metrics.{os.getpid()}.sock"
            self._metrics.append(MetricsServer(unix_listener(metrics), text))
            self.facts["metrics_socket"] = str(metrics)
        except (MeshscopeError, OSError, RuntimeError) as error:
            self.facts["sockets_missing"] = str(error)

    def close(self) -> None:
        """Close all sockets."""
        for server in self._metrics:
            server.stop()
        if self._control is not None:
            self._control.stop()


def _verbs(
    status: Callable[[], Mapping[str, Any]], burst: Callable[[float], None]
) -> tuple[Verb, ...]:
    def begin(values: Mapping[str, Any]) -> Mapping[str, Any]:
        burst(float(values["seconds"]))
        return {"seconds": values["seconds"]}

    return (
        Verb("status", "What the agent reads and has read.", lambda _: status()),
        Verb(
            "burst",
            "Sample ten times as often for some seconds.",
            begin,
            {"seconds": Whole(1, MOST_BURST_S)},
        ),
    )
