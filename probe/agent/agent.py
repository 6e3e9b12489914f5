"""The loop of the node agent: ask the readers, keep what they give, end with the run."""

from __future__ import annotations

import os
import select
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..clock import now_ns
from ..job.kill_switch import has_disable_file
from .agent_sockets import Doors
from .host import HostReader
from .host_directory import HostDirectory
from .local_ranks import FlopsOfRun, LiveFigures, LocalRanks
from .metrics import Fault, fault_lines, fault_of, live_lines, sample_lines
from .node_traces import NodeTraces
from .readings import Reading, ReplayEnded, Row
from .recording import RecordingWriter, ReplayReader, recorded_sources
from .settings import AgentSettings
from .sources import ChildSource, DirectSource, Source
from .triggers import TraceTriggers

_NS = 1_000_000_000
_LOOK_NS = 2 * _NS
"""Time between two looks for ranks that have come or gone."""
_FRESH_INTERVALS = 10
"""A sample that is older than so many intervals is no longer shown as the present."""


class Agent:
    """One agent.

    Args:
        run_path: The run; None to only record or measure.
        settings: Intervals and bounds.
        flops_of_run: What a step computes, for MFU.
        record: File that readings are recorded to.
        replay: Recording that is read in place of this machine.

    Attributes:
        sockets: Where it can be asked, or why it cannot.

    Raises:
        AgentRunningError: Another agent samples this node for the run.
        MeshscopeError: The directory of the host, or a file, cannot be used.
        OSError: Something cannot be made or read.
    """

    def __init__(
        self,
        run_path: Path | None,
        settings: AgentSettings | None = None,
        *,
        flops_of_run: FlopsOfRun = lambda _: None,
        record: Path | None = None,
        replay: Path | None = None,
    ) -> None:
        self._run_path = run_path
        self._settings = settings = settings or AgentSettings()
        self._ended = False
        self._burst_until_ns = 0
        self._newest: dict[str, tuple[int, Sequence[Row]]] = {}
        self._faults: Counter[Fault] = Counter()
        self._live = LiveFigures(ranks={}, scores={}, mfu=None)
        self._readings = 0
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_replay = replay is not None
        self._is_asked_to_trace = False
        self._store: HostDirectory | None = None
        self._recording: RecordingWriter | None = None
        self._begun_ns = self._last_alive_ns = now_ns()
        with ExitStack() as opened:
            opened.callback(os.close, self._wake_in)
            opened.callback(os.close, self._wake_out)
            if run_path is not None:
                self._store = HostDirectory(run_path, settings.bounds)
                opened.callback(self._close_store, self._store)
            self._ranks = None if run_path is None else LocalRanks(run_path, flops_of_run)
            self._sources = self._own_sources() if replay is None else _replayed(replay)
            opened.callback(self._close_sources)
            if record is not None:
                self._recording = RecordingWriter(record)
                opened.callback(_closed, self._recording)
            self._traces = None if run_path is None else NodeTraces(run_path)
            self._triggers = None
            if run_path is not None and self._traces is not None:
                opened.callback(self._traces.close)
                self._triggers = TraceTriggers(
                    run_path,
                    settings.trace_steps,
                    self.burst,
                    on_suspicion=settings.trace_on_suspicion,
                )
            doors = Doors(
                run_path,
                settings.port,
                status=self.status,
                burst=self.burst,
                text=self.metrics,
                more=() if self._traces is None else self._traces.verbs(),
            )
            opened.callback(doors.close)
            self._opened = opened.pop_all()
        self.sockets = doors.facts
        if self._store is not None:
            store = self._store
            store.state(self.sockets)
            doors.log.tell(lambda log: store.state({"control_requests": log.to_json()}))

    def run(self) -> None:
        """Sample until the run ends, a signal comes, or the recording is at its end."""
        due_ns = look_ns = flush_ns = now_ns()
        with self._signals():
            while not self._ended:
                time_ns = now_ns()
                if time_ns < self._burst_until_ns:
                    due_ns = min(due_ns, time_ns + round(self._settings.burst_interval_s * _NS))
                if time_ns >= due_ns:
                    due_ns = self._next_due(due_ns, time_ns)
                    self._ask(time_ns)
                self._take(now_ns())
                self._ended |= self._is_over(time_ns)
                if time_ns >= look_ns:
                    look_ns = time_ns + _LOOK_NS
                    self._look(time_ns)
                if time_ns >= flush_ns and self._store is not None:
                    flush_ns = time_ns + round(self._settings.flush_s * _NS)
                    self._store.flush()
                self._wait(due_ns)

    def close(self) -> None:
        """Write what is left and let go of everything."""
        self._opened.close()

    def burst(self, seconds: float) -> None:
        """Sample faster for some time; from any thread."""
        self._burst_until_ns = now_ns() + round(seconds * _NS)
        self._wake()

    def status(self) -> dict[str, Any]:
        """Return what the agent is doing, as JSON; from any thread."""
        return {
            "pid": os.getpid(),
            "readings": self._readings,
            "sources": {name: now_ns() - at for name, (at, _) in list(self._newest.items())},
            "is_bursting": now_ns() < self._burst_until_ns,
            "local_ranks": 0 if self._ranks is None else self._ranks.count(),
            "directory": None if self._store is None else str(self._store.path),
            **({} if self._traces is None else self._traces.status()),
        }

    def metrics(self) -> str:
        """Return the newest samples and figures as Prometheus text; from any thread."""
        oldest_ns = now_ns() - round(_FRESH_INTERVALS * self._settings.interval_s * _NS)
        lines: list[str] = []
        for table, (time_ns, rows) in sorted(self._newest.items()):
            if time_ns >= oldest_ns:
                lines += sample_lines(table, rows)
        lines += fault_lines(dict(self._faults))
        lines += live_lines(self._live)
        return "\n".join([*lines, ""])

    def _own_sources(self) -> list[Source]:
        count = self._count
        timeout_ns = round(self._settings.reader_timeout_s * _NS)
        return [
            ChildSource("devices", count, timeout_ns=timeout_ns),
            ChildSource("links", count, root=self._settings.sysfs, timeout_ns=timeout_ns),
            DirectSource(HostReader(self._settings.proc)),
        ]

    def _close_sources(self) -> None:
        for source in self._sources:
            source.close()
        if self._ranks is not None:
            self._ranks.close()

    def _count(self, name: str, amount: int) -> None:
        if self._store is not None:
            self._store.count(name, amount)

    def _close_store(self, store: HostDirectory) -> None:
        """Close it, with the CPU time of this process and its readers, which have ended."""
        alive_s = (now_ns() - self._begun_ns) / _NS
        store.state({"cpu_s": round(sum(os.times()[:4]), 2), "alive_s": round(alive_s, 2)})
        store.close()

    def _ask(self, time_ns: int) -> None:
        """Ask every source; a recording ends the agent when all of its sources have ended."""
        for source in list(self._sources):
            try:
                source.ask(time_ns)
            except ReplayEnded:
                source.close()
                self._sources.remove(source)
        if not self._sources:
            self._ended = True

    def _take(self, time_ns: int) -> None:
        for source in self._sources:
            for reading in source.take(time_ns):
                self._keep(reading)

    def _keep(self, reading: Reading) -> None:
        self._readings += 1
        self._record(reading)
        for table, rows in reading.rows.items():
            self._newest[table] = (reading.time_ns, rows)
        self._faults.update(map(fault_of, reading.rows.get("device_event", ())))
        if self._store is not None:
            self._store.add(reading.rows)
            self._store.note_missing(reading.source, reading.missing)
            if reading.facts:
                self._store.state(_named(reading))

    def _record(self, reading: Reading) -> None:
        """Add to the recording; a disk that is full ends that, and nothing else."""
        if self._recording is None:
            return
        try:
            self._recording.add(reading)
        except OSError:
            self._count("recording_errors", 1)
            self._recording = None

    def _is_over(self, time_ns: int) -> bool:
        length_s = self._settings.duration_s
        return length_s is not None and time_ns - self._begun_ns >= length_s * _NS

    def _look(self, time_ns: int) -> None:
        """See which ranks there are and what they do; end if there is nothing left to watch."""
        settings = self._settings
        if self._ranks is None or self._run_path is None:
            return
        self._ended |= has_disable_file(self._run_path)
        self._ranks.look(time_ns)
        self._ranks.follow(time_ns)
        self._live = self._ranks.figures()
        if self._traces is not None:
            self._traces.tend(self._ranks.parts())
        if self._triggers is not None:
            self._triggers.consider(self._live.scores, time_ns)
            if self._is_asked_to_trace:
                self._is_asked_to_trace = False
                self._triggers.trace("asked for by a signal")
        has_launcher = settings.launcher_pid is not None and os.getppid() == settings.launcher_pid
        if has_launcher or self._ranks.alive(time_ns):
            self._last_alive_ns = time_ns
        # One that was started by hand waits for the first rank.
        waits = settings.launcher_pid is None and not self._ranks.count()
        if not waits and time_ns - self._last_alive_ns >= settings.grace_s * _NS:
            self._ended |= not self._is_replay

    def _next_due(self, due_ns: int, time_ns: int) -> int:
        """Return the next time to sample: a multiple of the interval, none made up for."""
        settings = self._settings
        if self._is_replay:
            return time_ns
        bursting = time_ns < self._burst_until_ns
        interval_ns = round((settings.burst_interval_s if bursting else settings.interval_s) * _NS)
        return due_ns + ((time_ns - due_ns) // interval_ns + 1) * interval_ns

    def _wait(self, due_ns: int) -> None:
        """Sleep until a reader answers, something wakes us, or the next sample is due."""
        poll = select.poll()
        poll.register(self._wake_in, select.POLLIN)
        for source in self._sources:
            descriptor = source.descriptor()
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        left_ms = max(0, -(-(due_ns - now_ns()) // 1_000_000))
        for descriptor, _ in poll.poll(left_ms):
            if descriptor == self._wake_in:
                os.read(self._wake_in, 4096)

    def _wake(self) -> None:
        try:
            os.write(self._wake_out, b"w")
        except OSError:
            return  # It is awake, or has ended.

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """End in order on the signals that ask for it."""

        def end(*_: object) -> None:
            self._ended = True
            self._wake()

        def trace(*_: object) -> None:
            self._is_asked_to_trace = True
            self._wake()

        # Blocked until now: by the launcher, whose children inherit that, or by the verb. One
        # that waits arrives when they are unblocked, so the handlers have to be there first.
        handlers = {signal.SIGTERM: end, signal.SIGINT: end, signal.SIGUSR2: trace}
        before = {number: signal.signal(number, act) for number, act in handlers.items()}
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for number, handler in before.items():
                signal.signal(number, handler)


def _closed(recording: RecordingWriter) -> None:
    """Close a recording; what the disk does not take then is lost."""
    with suppress(OSError):
        recording.close()


def _replayed(path: Path) -> list[Source]:
    return [DirectSource(ReplayReader(path, name)) for name in recorded_sources(path)]


def _named(reading: Reading) -> dict[str, Any]:
    """Return facts for the manifest; a reason for having none gets the name of its reader."""
    facts = dict(reading.facts)
    if "unavailable" in facts:
        facts[f"{reading.source}_unavailable"] = facts.pop("unavailable")
    return facts
