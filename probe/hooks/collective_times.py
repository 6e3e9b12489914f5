"""How long each collective took on the device, where the backend can time it.

Off by default. The backend then records timing events around every collective on its
own stream; where the job lets the device run one connection only
(``CUDA_DEVICE_MAX_CONNECTIONS=1``, which tensor parallelism of some frameworks
needs), these events stop communication from running beside compute. Handles keep
the tensors of their operation alive, so few are kept, and none beyond the step after.

From torch 2.7 on NCCL runs an operation that the host asked for without ``async_op`` on
the stream of the caller, and gives no handle for it: a pair of our own events around the
call times it, as one times a stage. Between the begin and the end of a group of
operations nothing runs where it is called, so none is timed there.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from typing import Any

from ..compat.torch_names import UnsupportedError
from ..compat.works import (
    device_duration_ns,
    device_work_timing,
    enable_device_timing,
    groups_of_operations,
    work_class,
)
from ..safety.program_signals import pass_on
from ..settings.config import ProbeConfig
from .base import Capture
from .groups import GroupTable

_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def refusal(config: ProbeConfig, environment: Mapping[str, str]) -> str | None:
    """Return why collectives should not be timed on the device here; None if they may."""
    if environment.get(_CONNECTIONS) == "1" and not config.force_collective_times:
        return (
            f"{_CONNECTIONS}=1: timing collectives on the device would keep them from running "
            "beside compute; MESHSCOPE_FORCE_COLLECTIVE_TIMES=1 does it all the same"
        )
    return None


class CollectiveTimes:
    """Keeps the handles of operations until the device is done with them."""

    def __init__(self, capture: Capture, groups: GroupTable | None) -> None:
        """Prepare.

        Args:
            capture: Where records go.
            groups: The process groups of the collective hook; None where that is off.
        """
        self.source = capture.source("collective_times")
        self._capture = capture
        self._groups = groups
        self._pending: deque[tuple[Any, int, int]] = deque()

    def install(self) -> None:
        """Have all process groups time what they run from now on.

        Raises:
            UnsupportedError: It would harm the job, or this torch cannot do it.
        """
        reason = refusal(self._capture.config, os.environ)
        if reason is not None:
            raise UnsupportedError(reason)
        device_work_timing()
        if self._groups is None:
            raise UnsupportedError("collectives are not recorded")
        self._unbox = work_class().unbox
        self._are_grouped = groups_of_operations()
        self._groups.watch(self._enable)
        self._capture.device_works = self

    def remove(self) -> None:
        """Let go of all handles. The backend goes on timing: torch cannot turn that off."""
        self.source.on = False
        self._capture.device_works = None
        if self._groups is not None:
            self._groups.watch(None)
        if self._pending:
            self._capture.recorder.count("collective_times_dropped", len(self._pending))
        self._pending.clear()

    def step_ended(self) -> None:
        """Record what is complete; give up what is older than a step."""
        oldest = self._capture.recorder.step - 1
        try:
            for _ in range(len(self._pending)):
                work, event_id, step = self._pending.popleft()
                dur_ns = device_duration_ns(work)
                if dur_ns is not None:
                    self._capture.recorder.record_device_time(event_id, -1, dur_ns)
                elif step >= oldest:
                    self._pending.append((work, event_id, step))
                else:
                    self._capture.recorder.count("collective_times_dropped")
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)

    def _enable(self, process_group: Any) -> None:
        try:
            enable_device_timing(process_group)
        except Exception as error:  # noqa: BLE001 - a backend without timing (gloo) is left alone
            pass_on(error)
            self._capture.recorder.annotate("collective_times.partly", f"{error}")

    def begin(self, args: tuple[Any, ...], async_at: int | None) -> Any:
        """Note the begin of an operation that may run on the current stream; return what its end needs."""
        stream_times = self._capture.device_times
        is_async = async_at is None or len(args) <= async_at or args[async_at]
        if stream_times is None or is_async or not self.source.on or self._are_grouped():
            return None
        return stream_times.begin()

    def end(self, begin: Any, boxed: Any, event_id: int) -> None:
        """Note the end of an operation: keep its handle, or end the pair of events."""
        if not self.source.on:
            return
        work = None if boxed is None else self._unbox(boxed)
        if work is None:
            if begin is not None and self._capture.device_times is not None:
                self._capture.device_times.end(begin, event_id)
            return
        if len(self._pending) >= self._capture.config.max_pending_works:
            self._capture.recorder.count("collective_times_dropped")
            return
        self._pending.append((work, event_id, self._capture.recorder.step))
