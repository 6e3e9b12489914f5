"""One session of the probe in one process: the only owner of hooks and recorder."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .compat import UnsupportedError
from .config import ProbeConfig
from .early import EarlyRecorder
from .hooks.base import Capture, Hook, Place
from .hooks.collectives import CollectiveHook
from .hooks.compute import ComputeHook
from .hooks.host import CheckpointHook, DataLoadHook, GarbageHook
from .hooks.memory import MemoryHook
from .hooks.pipeline import PipelineHook
from .hooks.steps import StepHook
from .hooks.tags import MessageTags
from .identity import Identity, default_run_path, identify
from .imports import ImportWatch
from .recorder import NullRecorder, open_recorder
from .run_facts import RunFacts, software
from .schema.errors import MeshscopeError
from .schema.terms import CaptureLevel, SpanKind


class Session:
    """Watches this process from ``start`` to ``close``.

    Nothing here raises into the training code: what goes wrong is counted in
    the capture, said once on stderr, and ends the part that it concerns.

    Attributes:
        run_path: The run directory; None until the rank is known.
        rank: Global rank; -1 until it is known.
        coverage: Why a source does not record, by source; empty when all do.
    """

    def __init__(self, run_path: Path | None, config: ProbeConfig) -> None:
        self.run_path = run_path
        self.rank = -1
        self.coverage: dict[str, str] = {}
        self._early = EarlyRecorder()
        self._capture = Capture(self._early, config, self._open)
        self._source = self._capture.source("session")
        self._facts = RunFacts()
        self._watch = ImportWatch()
        self._pid = os.getpid()
        self._installed: list[Hook] = []
        self._steps = StepHook(self._capture, None, ())
        self._opened = False
        self._closed = False

    def start(self) -> None:
        """Install the hooks, now if torch is there, else as soon as it is imported."""
        atexit.register(self.close)
        self._watch.start()
        if identify(os.environ) is not None:
            self._open()
        self._watch.when_imported("torch", self._install, self._source)

    def close(self) -> None:
        """Remove every hook, restore what they patched, close the recorder."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._watch.stop()
        if self._early.has_spans or self._facts.waiting:
            # Nobody ever said who we are, so this is a job of one process.
            self._open()
        for hook in reversed(self._installed):
            try:
                hook.remove()
            except Exception as error:  # noqa: BLE001 - the other hooks must still be removed
                self._source.failed(error)
        self._installed.clear()
        recorder, self._capture.recorder = self._capture.recorder, NullRecorder(self.rank)
        recorder.close()

    def step(self, tokens: int | None = None) -> None:
        """End the current optimizer step here; overrides the automatic boundary for good.

        Args:
            tokens: Tokens that this replica trained on in the step.
        """
        if self._closed:
            return
        try:
            self._steps.end_step(tokens)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)

    def record_span(self, kind: SpanKind, start_ns: int, start_cpu_ns: int) -> None:
        """Record a span of the calling thread that ends now."""
        if not self._closed:
            self._source.record_span(Place(kind), start_ns, start_cpu_ns)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Put facts about the run into its manifest; see ``meshscope.probe.describe``."""
        try:
            self._facts.add(facts)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)

    def _learn(self, facts: Mapping[str, Any]) -> None:
        try:
            self._facts.learn(facts)
        except (MeshscopeError, OSError) as error:
            self._source.failed(error)

    def disarm(self) -> None:
        """Record nothing any more, in a forked child that shares the parent's files.

        The patches stay and only call on: a child of a process with threads
        must do as little as it can.
        """
        self._closed = True
        self._watch.stop()
        for hook in self._installed:
            hook.source.on = False
        self._capture.activity.listen = False
        self._capture.recorder = NullRecorder(self.rank)

    def _install(self) -> None:
        if self._closed:
            return
        for name, hook in self._hooks():
            try:
                hook.install()
                self._installed.append(hook)
            except UnsupportedError as reason:
                self._without(name, str(reason), hook)
            except Exception as error:  # noqa: BLE001 - training must go on without this hook
                self._source.failed(error)
                self._without(name, f"{type(error).__name__}: {error}", hook)
        if identify(os.environ) is not None:
            self._open()
        collectives = "collectives" not in self.coverage
        level = CaptureLevel.COLLECTIVES if collectives else CaptureLevel.STAGES
        self._learn({"capture_level": level.value, "software": software()})

    def _hooks(self) -> list[tuple[str, Hook]]:
        """Return the hooks of the wanted sources, in the order of installation."""
        capture, tags = self._capture, MessageTags()
        wanted = capture.config.sources
        memory = MemoryHook(capture, self._facts) if "memory" in wanted else None
        collectives = CollectiveHook(capture, tags)
        self._steps = StepHook(capture, memory, (collectives.pending.step_ended,))
        found: dict[str, Hook] = {
            "collectives": collectives,
            "compute": ComputeHook(capture),
            "pipeline": PipelineHook(capture, tags, self._watch, self._facts),
            "steps": self._steps,
            "data_load": DataLoadHook(capture),
            "gc": GarbageHook(capture),
            "checkpoint": CheckpointHook(capture, self._watch),
        }
        if memory is not None:
            found["memory"] = memory
        for name in set(found) - set(wanted):
            self.coverage[name] = "not wanted"
        return [(name, hook) for name, hook in found.items() if name in wanted]

    def _without(self, name: str, reason: str, hook: Hook) -> None:
        try:
            hook.remove()
        except Exception as error:  # noqa: BLE001 - a half-installed hook must not stop the rest
            self._source.failed(error)
        self.coverage[name] = reason
        self._capture.recorder.annotate(f"{name}.missing", reason)
        self._capture.recorder.count(f"{name}_unseen")

    def _open(self) -> None:
        """Open the recorder of this rank, once it is known who that is."""
        if self._opened:
            return
        self._opened = True
        identity = identify(os.environ) or Identity(0, 1)
        self.rank = identity.rank
        try:
            if self.run_path is None:
                self.run_path = default_run_path(os.environ, identity.world_size)
            self._facts.open(self.run_path, identity)
            recorder = open_recorder(self.run_path, identity.rank)
        except (MeshscopeError, OSError) as error:
            recorder = NullRecorder(identity.rank, reason=str(error))
        if isinstance(recorder, NullRecorder):
            self._capture.tell_once(f"rank {self.rank} records nothing: {recorder.reason}")
        self._early.release(recorder)
        self._capture.recorder = recorder
