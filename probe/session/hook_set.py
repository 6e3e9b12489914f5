"""The hooks of one session: made, installed and removed as the level wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..clock import now_ns
from ..compat.absent import NotApplicableError, UnsupportedError, error_reason
from ..compat.cuda_events import cuda_events
from ..compat.torch_names import has_compiled
from ..compat.uncompiled import leave_uncompiled
from ..hooks.base import Capture, Hook
from ..hooks.collective_times import CollectiveTimes
from ..hooks.collectives import CollectiveHook
from ..hooks.compute import ComputeHook
from ..hooks.deepspeed import DeepSpeedHook
from ..hooks.device_times import DeviceTimes
from ..hooks.host import CheckpointHook, DataLoadHook, GarbageHook
from ..hooks.megatron import MegatronHook
from ..hooks.memory import MemoryHook
from ..hooks.meshes import MeshHook
from ..hooks.pipeline import PipelineHook
from ..hooks.steps import StepHook
from ..hooks.tags import MessageTags
from ..job.run_facts import RunFacts
from ..schema.message import Message, message, message_to_json
from ..schema.records import LEVEL_CODES
from ..schema.terms import CaptureLevel
from ..settings.config import level_reached, sources_of
from ..watches.imports import ImportWatch

_PROBE = "meshscope.probe"
"""All of it: what a hook calls is a candidate for the compiler as well. 1,400 functions take 8 ms, once."""
_MOST_RESTING_FRAC = 0.0005
"""Share of the time, a tenth of the default budget, that a hook may take which records nothing."""
_NEVER_PAUSED = frozenset({"steps", "memory", "meshes", "checkpoint", "deepspeed", "megatron"})
"""What tells where steps end, which is bare then, and what no step calls."""


class HookSet:
    """All hooks of a session.

    Attributes:
        steps: Ends steps, also where it is not installed and the training code says when.
        level: What is recorded in effect.
        coverage: Why a source does not record, by source; empty when all do that should.
    """

    def __init__(
        self,
        capture: Capture,
        watch: ImportWatch,
        facts: RunFacts,
        at_border: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            capture: Where records go.
            watch: Tells of imports.
            facts: What is known of the job.
            at_border: Called in the training thread after the end of each step.
        """
        self._capture = capture
        self._watch = watch
        self._facts = facts
        self._source = capture.source("hooks")
        self._tags = MessageTags()
        self._installed: dict[str, Hook] = {}
        self._collectives: CollectiveHook | None = None
        self._compute: ComputeHook | None = None
        self._memory = MemoryHook(capture, facts) if "memory" in capture.config.sources else None
        self._at_border = at_border
        self.steps = StepHook(
            capture, self._memory, (self._step_ended, at_border), (self._step_ends,)
        )
        self.level = CaptureLevel.STEPS
        self.coverage: dict[str, Message] = {}
        self._paused: list[str] | None = None
        self._resting: set[str] = set()
        self._is_left_uncompiled = False
        self._start_ns = now_ns()
        self._first_seq = 0

    def apply(self, level: CaptureLevel) -> None:
        """Install what a level needs and is not there, remove what it does not."""
        if not self._is_left_uncompiled:
            self._leave_uncompiled()
        self.resume()
        wanted = self._capture.config.sources
        chosen = [name for name in sources_of(level) if name in wanted]
        for name in reversed([name for name in self._installed if name not in chosen]):
            self._put_aside(name)
        for name in chosen:
            if name not in self._recording:
                self._install(name)
        missing = [name for name in sources_of(level) if name not in wanted]
        self.coverage |= dict.fromkeys(missing, message("absent.not_wanted"))
        self.level = level_reached(self._recording, level)
        self._capture.level = LEVEL_CODES[self.level]

    def pause(self) -> None:
        """Take all hooks out that steps can do without, until ``resume``; at a border only."""
        if self._paused is not None:
            return
        self._capture.level = LEVEL_CODES[CaptureLevel.STEPS]
        self._paused = [name for name in self._installed if name in self._recording - _NEVER_PAUSED]
        for name in reversed(self._paused):
            self._put_aside(name)
        self.steps.is_bare = True

    def resume(self, first_seq: int = 0) -> None:
        """Put the hooks in again that ``pause`` has taken out; at a border only.

        Args:
            first_seq: Number of the next operation on each group and channel, larger than any so
                far: ranks that were paused in other steps agree on it. 0 to count on.
        """
        if self._paused is None:
            return
        self._first_seq = first_seq
        paused, self._paused = self._paused, None
        for name in paused:
            self._install(name)
        self.steps.is_bare = False
        self._capture.level = LEVEL_CODES[self.level]

    def remove_all(self) -> None:
        """Restore everything that was hooked, last hook first."""
        for name in reversed(list(self._installed)):
            self._remove(name)

    def operations_so_far(self) -> dict[str, int]:
        """Return how many collectives were issued on each group that was seen, by its id; any thread."""
        groups = None if self._collectives is None else self._collectives.groups
        return {} if groups is None else groups.operations_so_far()

    def ids_of_groups(self, names: Iterable[str]) -> dict[str, str]:
        """Return the ids of process groups by the names that torch gives them; any thread."""
        groups = None if self._collectives is None else self._collectives.groups
        return {} if groups is None else groups.ids_of(names)

    def silence(self) -> None:
        """Leave every patch in place, and have none of them record any more; any thread."""
        for hook in list(self._installed.values()):
            hook.source.on = False

    def _step_ends(self) -> None:
        hook = self._installed.get("gc")
        if isinstance(hook, GarbageHook):
            hook.record()

    def _step_ended(self) -> None:
        for name in ("collectives", "compute", "device_times", "collective_times"):
            hook = self._installed.get(name)
            if isinstance(hook, CollectiveHook | ComputeHook | DeviceTimes | CollectiveTimes):
                try:
                    hook.step_ended()
                except Exception as error:  # noqa: BLE001 - counted; the others still act
                    hook.source.failed(error)

    def _make(self, name: str) -> Hook:
        capture, watch = self._capture, self._watch
        if name == "memory" and self._memory is not None:
            return self._memory
        if name == "collectives":
            self._collectives = CollectiveHook(
                capture, self._tags, self._collectives, self._first_seq
            )
            return self._collectives
        makers: dict[str, Callable[[], Hook]] = {
            "steps": lambda: self.steps,
            "compute": self._make_compute,
            "pipeline": lambda: PipelineHook(capture, self._tags, watch, self._facts),
            "data_load": lambda: DataLoadHook(capture),
            "gc": lambda: GarbageHook(capture),
            "checkpoint": lambda: CheckpointHook(capture, watch),
            "meshes": lambda: MeshHook(capture, watch, self._facts),
            "deepspeed": lambda: DeepSpeedHook(capture, watch, self._facts, self.steps),
            "megatron": lambda: MegatronHook(capture, watch, self._facts, self.steps),
            "device_times": lambda: DeviceTimes(capture, cuda_events),
            "collective_times": lambda: CollectiveTimes(
                capture, None if self._collectives is None else self._collectives.groups
            ),
        }
        return makers[name]()

    def _make_compute(self) -> Hook:
        self._compute = ComputeHook(self._capture, self._facts, self._compute)
        return self._compute

    @property
    def _recording(self) -> set[str]:
        return self._installed.keys() - self._resting

    def _put_aside(self, name: str) -> None:
        """Take a hook out until it is installed again.

        One that torch.compile may have gone through stays, and records nothing at the level of
        steps, if that costs little: where most modules are not compiled it would not.
        """
        frames_frac = self._capture.meter.frames_ns() / max(now_ns() - self._start_ns, 1)
        if name == "compute" and has_compiled() and frames_frac < _MOST_RESTING_FRAC:
            self._resting.add(name)
        else:
            self._remove(name)

    def _install(self, name: str) -> None:
        if name in self._resting:
            self._resting.discard(name)
            if self._installed[name].source.on:
                return
            # As many errors as switch it off are forgotten with the hook that made them.
            self._remove(name)
        # First, so that a hook in which a signal handler of the program raises is removed too.
        hook = self._installed[name] = self._make(name)
        try:
            hook.install()
        except NotApplicableError as error:
            self._remove(name)
            self._capture.recorder.annotate(f"{name}.not_applicable", message_to_json(error.reason))
        except UnsupportedError as error:
            self._without(name, error.reason)
        except Exception as error:  # noqa: BLE001 - training must go on without this hook
            self._source.failed(error)
            self._without(name, error_reason(error))
        else:
            self.coverage.pop(name, None)

    def _leave_uncompiled(self) -> None:
        self._is_left_uncompiled = True
        try:
            leave_uncompiled(_PROBE)
        except UnsupportedError as error:
            self._capture.recorder.annotate("uncompiled.missing", message_to_json(error.reason))
        except Exception as error:  # noqa: BLE001 - counted; the hooks work without it
            self._source.failed(error)

    def _without(self, name: str, reason: Message) -> None:
        self._remove(name)
        self.coverage[name] = reason
        self._capture.recorder.annotate(f"{name}.missing", message_to_json(reason))
        self._capture.recorder.count(f"{name}_unseen")

    def _remove(self, name: str) -> None:
        try:
            self._installed[name].remove()
        except Exception as error:  # noqa: BLE001 - the other hooks must still be removed
            self._source.failed(error)
        self._resting.discard(name)
        del self._installed[name]
