"""The node agent as a child of ``meshscope run``.

It is started beside the job and ended with it. If it dies it is started again, a few
times; if the launcher is killed, it lives on until no rank is left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..clock import now_ns
from ..job.kill_switch import is_disabled
from ..safety.notices import tell

_RESTARTS = 5
_PAUSE_NS = 2_000_000_000
"""Time before the first restart, doubled for each further one."""
_END_S = 15.0
_FINAL = (0, 2)
"""Exit codes after which it is not started again: another agent samples the node, or it
cannot work here."""


class AgentChild:
    """At most one agent process at a time."""

    def __init__(
        self, run_path: Path, environment: Mapping[str, str], options: Sequence[str] = ()
    ) -> None:
        """Prepare; ``tend`` starts it.

        Args:
            run_path: The run.
            environment: Variables of the launcher; those that turn the probe off turn it off too.
            options: Further options of ``meshscope agent``.
        """
        self._command = [
            *(sys.executable, "-P", "-m", "meshscope", "agent"),
            *("--run", str(run_path), "--launcher", str(os.getpid()), *options),
        ]
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._starts_left = _RESTARTS + 1
        self._not_before_ns = 0
        self._pause_ns = _PAUSE_NS
        self._is_said = False
        if is_disabled(environment):
            self._starts_left = 0

    def tend(self) -> None:
        """Start the agent if there is none and it is time; does not wait for it."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            if self._process.returncode in _FINAL:
                self._starts_left = 0
            self._process = None
            self._not_before_ns = now_ns() + self._pause_ns
            self._pause_ns *= 2
        if self._starts_left <= 0 or now_ns() < self._not_before_ns:
            return
        self._starts_left -= 1
        # A session of its own: what the terminal or a scheduler sends to the job's group
        # must not end it before the job. A job goes on without an agent.
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            if not self._is_said:
                tell(f"the node agent cannot be started: {error.strerror}")
            self._is_said = True

    def stop(self) -> None:
        """Ask the agent to write what it has and end; kill it if it does not."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        self._process = None
