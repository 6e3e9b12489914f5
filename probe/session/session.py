"""One session of the probe in one process: the only owner of hooks and recorder."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..hooks.base import Capture, Place
from ..hooks.sequences import Lengths, SequenceStatements
from ..job.claim import Claim, claim
from ..job.identity import (
    Identity,
    as_single_process,
    default_run_path,
    forget_single_process,
    identify,
    is_single_process,
    launch_name,
    local_rank_of,
    mark_owner,
    unmark_owner,
    working_directory,
)
from ..job.kill_switch import DisableWatch
from ..job.run_facts import RunFacts, software
from ..listeners import StepListeners
from ..recording.open_recorder import EarlyRecorder, NullRecorder, open_recorder
from ..recording.recorder import Recorder, StorageSettings
from ..recording.step_sums import FullRecords
from ..recording.unhandled import watch_unhandled
from ..safety.bounded import within
from ..safety.program_signals import is_the_programs, pass_on
from ..schema.errors import MeshscopeError
from ..schema.manifest import TRAINING_STEP_KEY
from ..schema.terms import SpanKind
from ..settings.config import MOST_OPEN_S, ProbeConfig
from ..watches.exceptions import ExceptionWatch
from ..watches.imports import ImportWatch
from .comparison import Comparison
from .hook_set import HookSet
from .last_operations import LastOperations
from .last_stack import LastStack
from .level_control import LevelControl
from .standstill import StandstillWatch

_TAKEN = "another process of the run records it, and no launcher has numbered them"


class _Opened(NamedTuple):
    """The files of a rank."""

    recorder: Recorder
    claim: Claim | None = None

    def close(self) -> None:
        """Close them: they came when nobody waited for them any more."""
        self.recorder.close()
        if self.claim is not None:
            self.claim.release()


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) or not isinstance(error, OSError) or not error.strerror:
        return getattr(error, "strerror", None) or str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


class Session:
    """Watches this process from ``start`` to ``close``.

    Nothing here raises into the training code: what goes wrong is counted in the capture, said once on stderr, and
    ends the part that it concerns.

    ``start`` and ``close`` are for the main thread. Each does two things that may be done apart: ``prepare`` and
    ``finish`` open and close files, on any thread; ``hook`` and ``unhook`` change what the training code calls.

    Attributes:
        run_path: The run directory; None until the rank is known.
        rank: Global rank; -1 until it is known.
        note_death: Notes where this rank is, and what it issued last if that is not recorded; any thread.
    """

    def __init__(
        self,
        run_path: Path | None,
        config: ProbeConfig,
        *,
        listeners: StepListeners | None = None,
        opened: Callable[[Session], None] | None = None,
        disabled: Callable[[], None] | None = None,
    ) -> None:
        """Prepare nothing yet.

        Args:
            run_path: The run directory; found out when the rank is known if None. A relative
                one is below the present directory, wherever the training code goes later.
            config: Settings.
            listeners: Told at the end of each step.
            opened: Called once the rank is known and its recorder open.
            disabled: Called when the run directory gets a file that forbids to record.
        """
        self._base = working_directory()
        self.run_path = None if run_path is None else self._base / run_path
        self.rank = -1
        self._listeners = listeners or StepListeners()
        self._tell_opened = opened or (lambda _: None)
        self._tell_disabled = disabled or self.mute
        self._early = EarlyRecorder()
        self._capture = Capture(self._early, config, self._open)
        self._source = self._capture.source("session")
        self._facts = RunFacts()
        self._watch = ImportWatch()
        self._pid = os.getpid()
        self._levels = LevelControl(self._capture)
        self._hooks = HookSet(self._capture, self._watch, self._facts, self._at_border)
        last = LastOperations(
            self._capture, self._hooks.ids_of_groups, self._hooks.operations_so_far
        )
        self._stack = LastStack(self._capture, last.note)
        self._note_operations: Callable[[], None] = last.note
        self.note_death: Callable[[], None] = self._stack.note
        self._exceptions = ExceptionWatch(self._stack.note, self._source)
        self._sequences = SequenceStatements(self._capture)
        self._comparison: Comparison | None = None
        self._claim: Claim | None = None
        self._opened = False
        self._closed = False
        self._unhooked = False

    @property
    def coverage(self) -> dict[str, str]:
        """Why a source does not record, by source; empty when all do that should."""
        return {name: str(reason) for name, reason in self._hooks.coverage.items()}

    @property
    def directory(self) -> Path | None:
        """Where this rank records now; None where it does not, or not yet."""
        return self._capture.recorder.directory

    def start(self) -> None:
        """Install the hooks, now if torch is there, else as soon as it is imported."""
        self.prepare()
        self.hook()

    def close(self) -> None:
        """Remove every hook, restore what they patched, close the recorder."""
        try:
            self.unhook()
        finally:
            self.finish()

    def prepare(self) -> None:
        """Open the recorder if the rank is known already."""
        atexit.register(self.close)
        watch_unhandled(self._stack.note)
        self._exceptions.start()
        if identify(os.environ) is not None:
            self._open()

    def hook(self) -> None:
        """Install the hooks, now if torch is there, else as soon as it is imported."""
        self._watch.start()
        self._watch.when_imported("torch", self._install, self._source)

    def unhook(self) -> None:
        """Remove every hook and restore what they patched; nothing is recorded from now on."""
        if self._unhooked or os.getpid() != self._pid:
            return
        self._closed = True
        try:
            self._take_out()
        finally:
            # The rest, where a signal handler of the program has raised in the middle.
            if not self._unhooked:
                self._take_out()

    def _take_out(self) -> None:
        self._watch.stop()
        self._exceptions.stop()
        self._listeners.hooks_gone(self._source.failed)
        if self._early.has_spans or self._facts.waiting:
            # Nobody ever said who we are, so this is a job of one process.
            self._open()
        self._hooks.remove_all()
        self._levels.close()
        self._unhooked = True

    def finish(self) -> None:
        """Close the recorder, after ``unhook`` or without ``hook``."""
        if os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        unmark_owner(os.environ)
        recorder, self._capture.recorder = self._capture.recorder, NullRecorder(self.rank)
        self._stack.close()
        recorder.close()
        forget_single_process()
        if self._claim is not None:
            self._claim.release()

    def step(self, tokens: int | None = None) -> None:
        """End the current optimizer step here; overrides the automatic boundary for good.

        Args:
            tokens: Tokens that this replica trained on in the step.
        """
        if self._closed:
            return
        try:
            self._hooks.steps.end_step(tokens)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)

    def sequences(self, lengths: Lengths, microbatch: int | None = None) -> None:
        """Record how long the sequences of a microbatch are; see ``meshscope.probe.sequences``."""
        if not self._closed:
            self._sequences.add(lengths, microbatch)

    def record_span(self, kind: SpanKind, start_ns: int, start_cpu_ns: int) -> None:
        """Record a span of the calling thread that ends now."""
        if not self._closed:
            self._source.record_span(Place(kind), start_ns, start_cpu_ns)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Put facts about the run into its manifest; see ``meshscope.probe.describe``."""
        try:
            known = dict(facts)
            number = known.pop(TRAINING_STEP_KEY, None)
            if number is not None:
                recorder = self._capture.recorder
                at = {"step": max(recorder.step, 0), "number": int(number)}
                recorder.annotate(TRAINING_STEP_KEY, at)
                recorder.publish()
            self._facts.add(known)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)

    def flush(self) -> None:
        """Write all that the ring holds to disk, also of steps kept as sums; any thread."""
        self._capture.recorder.keep_ring()

    def annotate(self, key: str, value: Any) -> None:
        """Put a fact about this rank into the capture; any thread."""
        self._capture.recorder.annotate(key, value)

    def give_sign_of_life(self, time_ns: int) -> None:
        """Note that the process runs, readable after it was killed; any thread."""
        self._capture.recorder.give_sign_of_life(time_ns)

    def mute(self) -> None:
        """Record nothing from now on, from any thread; ``close`` has to follow."""
        self._closed = True
        self._hooks.silence()
        self._capture.activity.listen = False

    def disarm(self) -> None:
        """Record nothing any more, in a forked child that shares the parent's files.

        The patches stay and only call on: a child of a process with threads must do as little as it can.
        """
        self._closed = True
        self._stack.close()
        self._watch.stop()
        self._exceptions.stop()
        self._hooks.silence()
        self._capture.activity.listen = False
        self._capture.recorder = NullRecorder(self.rank)
        forget_single_process()

    def set_level(self, level: str, from_step: int | None = None) -> str:
        """Record more or less from a step border on; may be called from any thread.

        Args:
            level: A ``CaptureLevel``: steps, stages, collectives or kernels.
            from_step: First step at that level; by default the next one. Ranks that
                change at different steps record messages that do not fit together.

        Returns:
            What will happen, in words.

        Raises:
            ConfigError: There is no such level, or it would harm the job.
        """
        return self._levels.request(level, from_step)

    def _install(self) -> None:
        if self._closed:
            return
        self._levels.start(self._hooks)
        if identify(os.environ) is not None:
            self._open()
        self._facts.learn({"capture_level": self._hooks.level.value, "software": software()})

    def _open(self) -> None:
        """Open the recorder of this rank, once it is known who that is."""
        if self._opened:
            return
        self._opened = True
        try:
            self._open_files()
        except BaseException as error:
            # Where a signal handler of the program has raised, whoever asks next opens them.
            self._opened = not is_the_programs(error)
            raise

    def _open_files(self) -> None:
        is_identified = identify(os.environ) is not None and not is_single_process()
        identity = as_single_process(os.environ)
        self.rank = identity.rank
        try:
            if self.run_path is None:
                self.run_path = default_run_path(os.environ, identity.world_size, self._base)
            path = self.run_path
            opened = within(
                MOST_OPEN_S,
                lambda: self._recorder(path, identity, is_identified=is_identified),
                _Opened.close,
            )
        except (MeshscopeError, OSError) as error:
            pass_on(error)
            self._facts.give_up()
            opened = _Opened(NullRecorder(identity.rank, reason=_reason(error)))
        recorder, self._claim = opened.recorder, opened.claim
        if isinstance(recorder, NullRecorder):
            self._capture.tell_once(f"rank {self.rank} records nothing: {recorder.reason}")
        else:
            mark_owner(os.environ)
        recorder.annotate("launch", launch_name(os.environ))
        self._facts.tell(recorder.annotate)
        self._early.release(recorder)
        self._capture.recorder = recorder
        # Once more, to be before the recorder's own: the account of the last steps goes into it.
        atexit.unregister(self.close)
        atexit.register(self.close)
        self._tell_opened(self)

    def _recorder(self, path: Path, identity: Identity, *, is_identified: bool) -> _Opened:
        """Open the files of the rank: what may wait for a disk.

        Raises:
            OSError: The run directory or its manifest cannot be written.
            MeshscopeError: An existing manifest is damaged or of another version.
        """
        self._facts.open(path, identity)
        lock = None if is_identified else claim(path, identity.rank)
        if lock is None and not is_identified:
            return _Opened(NullRecorder(identity.rank, reason=_TAKEN))
        local_rank = local_rank_of(identity.rank, os.environ)
        recorder = open_recorder(
            path,
            identity.rank,
            settings=self._storage(),
            place={"world_size": identity.world_size, "local_rank": local_rank},
        )
        self._stack.open(recorder.directory)
        return _Opened(recorder, lock)

    def _at_border(self) -> None:
        """Change what is recorded from the step on that now begins, where that is due."""
        step, meter = self._capture.recorder.step, self._capture.meter
        meter.leave_out(self._listeners.ended(step, self._source.failed))
        self._levels.at_border()
        window_steps = self._capture.config.compare_window_steps
        if not window_steps or self.run_path is None:
            return
        if self._comparison is None:
            self._comparison = Comparison(self._hooks, meter, self.run_path.name, window_steps)
        self._comparison.at_border(step)

    def _storage(self) -> StorageSettings:
        config = self._capture.config
        full = FullRecords(config.full_first_steps, config.full_every_steps)
        assert self.run_path is not None
        watch = DisableWatch(self.run_path, self._tell_disabled)
        standstill = StandstillWatch(
            self._capture, self._hooks.operations_so_far, self._note_operations
        )
        if config.cost_budget_ppm and not config.compare_window_steps:
            self._levels.order.open(self.run_path)

        def each_wake() -> None:
            if not self._closed:
                watch.look()
                self._levels.look_for_order()
                self._stack.look(standstill.look)
            self._write_facts()

        return StorageSettings(full_records=full, each_wake=each_wake)

    def _write_facts(self) -> None:
        try:
            self._facts.write_due()
        except (MeshscopeError, OSError) as error:
            self._source.failed(error)
