"""What all hooks share: the capture they write to, error counting, patching.

A hook never lets an error of its own out into the training code. It counts the
error under its source, and a source with too many of them is switched off; the
wrappers then only call on. Removing a hook puts the very objects back that it
found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from threading import get_ident
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from ..clock import now_ns, thread_cpu_ns
from ..compat.absent import error_reason
from ..cost import ONE_IN, CostMeter
from ..recording.record_heads import span_head
from ..recording.recorder import Recorder
from ..safety.notices import tell
from ..safety.program_signals import pass_on
from ..schema.message import message, message_to_json
from ..schema.records import LEVEL_CODES, NO_WORD, SPAN_CODES
from ..schema.terms import CaptureLevel, SpanKind
from ..settings.config import ProbeConfig
from .timers import SpanTimer, WorkTimer

NO_SPANS = LEVEL_CODES[CaptureLevel.STEPS]
"""The level at which nothing is recorded between the borders of steps."""
_FORGOTTEN_NS = 60_000_000_000
"""After so long without an error of a source its earlier ones no longer count: what fails that
seldom costs nothing, what fails at each step fails oftener unless a step takes a minute."""


class Hook(Protocol):
    """One place where the probe listens."""

    source: Source

    def install(self) -> None:
        """Start to listen.

        Raises:
            UnsupportedError: This torch lacks what the hook needs.
        """

    def remove(self) -> None:
        """Stop, and restore exactly what was there before."""


class Capture:
    """What the hooks of one session write to.

    Attributes:
        recorder: Takes the records. It holds them back until the rank is known
            and drops them once the session is over.
        config: The settings of the session.
        activity: What the training thread is computing now.
        aside: Threads that write a checkpoint behind the training: what they exchange and
            write holds up nobody, and its order among the training's events is no order.
        sources: All sources that were made and are still in use.
        meter: What the hooks take.
        level: Position in CaptureLevel of what is recorded now.
        states_sequences: Whether the training code says how long its sequences are.
        device_times: Times compute spans on the device; None where that is off.
        device_works: Times operations whose end only the device sees; None where that is off.
        native_waits: Makes a call in which C++ code may wait for communication of its own, with its
            arguments; None where that is not recorded.
        open: Makes sure that the rank is known and its recorder open. Called
            where a rank must exist: at the first operation of a process group
            and at the end of a step.
        step_thread: The thread that ended the last step; None before.
    """

    def __init__(
        self, recorder: Recorder, config: ProbeConfig, open_recorder: Callable[[], None]
    ) -> None:
        self.recorder = recorder
        self.config = config
        self.activity = Activity()
        self.aside: set[int] = set()
        self.sources: WeakSet[Source] = WeakSet()
        self.meter = CostMeter()
        self.level = NO_WORD
        self.states_sequences = False
        self.device_times: SpanTimer | None = None
        self.device_works: WorkTimer | None = None
        self.native_waits: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None
        self.open = open_recorder
        self.step_thread: int | None = None
        self._noted: set[str] = set()

    def source(self, name: str) -> Source:
        """Return a new source of records that is on."""
        found = Source(name, self)
        self.sources.add(found)
        return found

    def tell_once(self, message: str) -> None:
        """Print one line to stderr, the first time that it is said."""
        if message not in self._noted:
            self._noted.add(message)
            tell(message)


class Source:
    """One kind of hook as the capture sees it: on or off, and its errors.

    Attributes:
        on: False once it failed too often, was removed or is not wanted at this
            level; wrappers then only call on to what they wrap.
    """

    __slots__ = ("__weakref__", "_errors", "_failed_ns", "_noted", "capture", "name", "on")

    def __init__(self, name: str, capture: Capture) -> None:
        self.name = name
        self.capture = capture
        self.on = True
        self._errors = 0
        self._failed_ns = 0
        self._noted = 0

    def failed(self, error: BaseException) -> None:
        """Count an error of the probe; switch this source off when there are many of late.

        Raises:
            Exception: The error itself, if a signal handler of the program raised it.
        """
        pass_on(error)
        try:
            time_ns, most = now_ns(), self.capture.config.max_source_errors
            if time_ns - self._failed_ns > _FORGOTTEN_NS:
                self._errors = 0
            self._errors += 1
            self._failed_ns = time_ns
            kind = type(error).__name__
            if self._noted < most:
                self._noted += 1
                self.capture.tell_once(f"{self.name}: {kind}: {error} (counted; training goes on)")
            if self._errors >= most:
                self.on = False
                self.capture.tell_once(f"{self.name}: off after {self._errors} errors")
                self.capture.recorder.annotate(
                    f"{self.name}.off", message_to_json(error_reason(error))
                )
            self.capture.recorder.count(f"{self.name}_errors")
        except Exception as broken:  # noqa: BLE001 - a recorder or stderr: training goes on
            pass_on(broken)
            self.on = False

    def record_span(
        self, place: Place, start_ns: int, start_cpu_ns: int, entered_ns: int | None = None
    ) -> int:
        """Record a span of this thread that ends now; return its event id, -1 if not stored.

        Args:
            place: What it is, and where.
            start_ns: When it began.
            start_cpu_ns: CPU time of the thread then.
            entered_ns: When the hook was entered, for the measure of its cost.
        """
        try:
            kind, stage, chunk, microbatch = place
            end_ns = now_ns()
            event_id = self.capture.recorder.record_span(
                span_head(SPAN_CODES[kind], stage, chunk),
                start_ns,
                end_ns - start_ns,
                thread_cpu_ns() - start_cpu_ns,
                microbatch,
            )
            if not event_id % ONE_IN:
                before_ns = 0 if entered_ns is None else start_ns - entered_ns
                self.capture.meter.add("span", before_ns + now_ns() - end_ns)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.failed(error)
            return -1
        return event_id


class Place(NamedTuple):
    """What a compute span is, and where in the pipeline."""

    kind: SpanKind
    stage: int = -1
    chunk: int = -1
    microbatch: int = -1


_MOST_THREADS = 64
"""More have run backwards only where each step has threads of its own."""
BACKWARD_KINDS = (SpanKind.BACKWARD, SpanKind.BACKWARD_INPUT, SpanKind.BACKWARD_WEIGHT)


class Activity:
    """What the training is computing now, so that nested calls are separated.

    One for all threads, as autograd recomputes in threads of its own. A program may also
    have threads that run modules for something else, such as the transforms of a prefetch:
    what they do is not the training's (``trains_here``), and a span that ends after one that
    it began in does not bring that back.

    Attributes:
        place: The compute span in progress, None between spans.
        listen: True where a module call may start a span of its own: outside any
            span, and inside a backward span (recomputation). Everywhere while calls are observed.
        microbatch: Backward passes that this step has finished, outside a pipeline.
        stages: Pipeline stages that ran on this rank.
        tokens: Token ids that the forward calls of this step were given; of a pipeline only its first stage is.
        observer: Is told each module call of this step; None in nearly all steps.
    """

    __slots__ = (
        "_over",
        "_threads",
        "listen",
        "microbatch",
        "observer",
        "place",
        "stages",
        "tokens",
    )

    def __init__(self) -> None:
        self.place: Place | None = None
        self._over: dict[int, tuple[Place, Place | None]] = {}
        self._threads: frozenset[int] = frozenset()
        self.listen = True
        self.observer: Any = None
        self.microbatch = 0
        self.stages: set[int] = set()
        self.tokens = 0

    def enter(self, place: Place | None) -> Place | None:
        """Make this the span in progress and return the one before."""
        before = self.place
        self.place = place
        self.listen = place is None or place.kind in BACKWARD_KINDS or self.observer is not None
        return before

    def leave(self, place: Place, before: Place | None) -> None:
        """End a span that ``enter`` began, where ``before`` was in progress.

        With one thread spans end in the reverse order of their begins. If a span of another
        thread began inside this one and goes on, that one finds here what to go back to.
        """
        if self.place is not place:
            self._over[id(place)] = (place, before)
            return
        while before is not None and (ended := self._over.pop(id(before), None)) is not None:
            before = ended[1]
        self.enter(before)

    def trains_here(self) -> bool:
        """Tell whether this thread may compute forwards: it runs backwards, or none did so far."""
        return not self._threads or get_ident() in self._threads

    def backward_begins(self) -> None:
        """Note that this thread trains."""
        own = get_ident()
        if own not in self._threads:
            # Thread after thread, each with a step of its own, must not gather here.
            known = self._threads if len(self._threads) < _MOST_THREADS else frozenset()
            self._threads = known | {own}

    def step_ends(self) -> None:
        """Count the microbatches of the next step.

        An update in a hook of the backward ends the step inside that pass, which the next step
        must not count when it is over.
        """
        place = self.place
        inside = place is not None and place.kind is SpanKind.BACKWARD and place.stage < 0
        self.microbatch = -1 if inside else 0
        self.tokens = 0

    def stage_of_rank(self) -> int:
        """Return the stage of this rank, -1 when it has none or several."""
        return next(iter(self.stages)) if len(self.stages) == 1 else -1


def compute_span(
    source: Source,
    place: Place,
    call: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    entered_ns: int | None = None,
) -> Any:
    """Call something and record it as a compute span; what it calls belongs to it.

    Where no spans are recorded it is in progress all the same: torch.compile would see a change.
    ``entered_ns`` is when the hook was entered, if it has done something before.
    """
    if entered_ns is None:
        entered_ns = now_ns()
    activity, device = source.capture.activity, source.capture.device_times
    before = activity.enter(place)
    if source.capture.level == NO_SPANS:
        try:
            return call(*args, **kwargs)
        finally:
            activity.leave(place, before)
    begin = None if device is None else device.begin()
    start_ns = now_ns()
    start_cpu_ns = thread_cpu_ns()
    try:
        return call(*args, **kwargs)
    finally:
        event_id = source.record_span(place, start_ns, start_cpu_ns, entered_ns)
        if device is not None:
            device.end(begin, event_id)
        activity.leave(place, before)


class Patches:
    """Attributes replaced on classes and modules for one source, to be put back exactly."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._done: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace an attribute that ``owner`` itself holds by ``wrap`` of it.

        Raises:
            KeyError: The owner holds no such attribute.
        """
        self.replace_alike((owner,), name, wrap)

    def replace_alike(self, owners: Sequence[Any], name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace a function in all modules that offer it, by the same object where it is the same.

        ``pickle`` writes a function as its name in the module that it is from, and refuses one
        that is not what is found there.

        Raises:
            KeyError: An owner holds no such attribute.
        """
        made: dict[int, Any] = {}
        for owner in owners:
            original = vars(owner)[name]
            if id(original) not in made:
                made[id(original)] = wrap(original)
            replacement = made[id(original)]
            # In this order: a signal handler of the program may raise in between.
            self._done.append((owner, name, original, replacement))
            setattr(owner, name, replacement)

    def restore(self) -> None:
        """Put the originals back.

        What another tool has patched over since is left alone and noted:
        putting the original back would silently remove the other patch. Our
        wrapper below it only calls on, because its source is off.
        """
        left = []
        while self._done:
            owner, name, original, replacement = self._done[-1]
            if (found := vars(owner).get(name)) is replacement:
                setattr(owner, name, original)
            elif found is not original:
                left.append(f"{getattr(owner, '__name__', owner)}.{name}")
            self._done.pop()
        if left:
            self._source.capture.recorder.annotate(
                f"{self._source.name}.patched_over",
                message_to_json(message("absent.restored", names=left)),
            )


def timed(source: Source, kind: SpanKind) -> Callable[[Any], Any]:
    """Return a decorator that records each outermost call as a host span of a kind.

    A call inside another one under the same decorator is part of it.
    """
    place = Place(kind)
    inside = False

    def decorate(original: Any) -> Any:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside or not source.on:
                return original(*args, **kwargs)
            inside = True
            start_ns = now_ns()
            start_cpu_ns = thread_cpu_ns()
            try:
                return original(*args, **kwargs)
            finally:
                inside = False
                source.record_span(place, start_ns, start_cpu_ns)

        return call

    return decorate
