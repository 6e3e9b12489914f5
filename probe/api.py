"""The functions that training code calls; at most one session is attached at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from .clock import now_ns, thread_cpu_ns
from .compat.interpreter import no_interpreter_lock
from .control.rank_control import RankControl
from .control.switch import RecordingSwitch
from .hooks.sequences import Lengths
from .job.identity import default_run_path, identify, owner_of
from .job.kill_switch import is_disabled, why_disabled
from .listeners import StepListeners
from .safety.bounded import within
from .safety.notices import tell
from .safety.program_signals import pass_on
from .safety.room import too_few_threads, too_little_address_space
from .schema.errors import ConfigError, MeshscopeError
from .schema.layout import ParallelLayout
from .schema.terms import SpanKind
from .session.session import Session
from .session.verbs import VERB_MAKERS
from .settings.config import MOST_OPEN_S, ProbeConfig

_attached: Session | None = None


def attach(
    run_dir: str | os.PathLike[str] | None = None, config: ProbeConfig | None = None
) -> Session | None:
    """Start to record this process; return the session.

    May be called before or after ``torch.distributed`` is initialised, and
    without it (rank 0 of 1). A second call returns the session that is there.

    Args:
        run_dir: The run directory, the same on all ranks. By default that of
            ``MESHSCOPE_RUN_DIR``, else a new one under ``meshscope_runs``.
        config: Settings; by default those of the ``MESHSCOPE_*`` variables.

    Returns:
        The session; None where ``MESHSCOPE_DISABLE`` is set or it could not be
        started, which is said on stderr.
    """
    if _attached is not None:
        return _attached
    if is_disabled(os.environ):
        return None
    try:
        settings = config or _settings_of_environment()
        path = None if run_dir is None else Path(run_dir)
        if reason := _why_not(path):
            tell(f"not attached: {reason}")
            return None
        session = _started(path, settings)
    except Exception as error:  # noqa: BLE001 - attaching must never end a training run
        pass_on(error)
        tell(f"not attached: {type(error).__name__}: {error}")
        return None
    _switch.adopt(session)
    _hooked(session)
    return session


def attached() -> Session | None:
    """Return the session that records this process; None where none does."""
    return _attached


def detach() -> None:
    """Stop to record, restore everything that was hooked, close capture and socket."""
    session = _switch.take()
    _hooked(None)
    if session is not None:
        try:
            session.close()
        finally:
            _switch.adopt(None)
    _control.close()


def stand_by() -> str:
    """Open the control socket of this rank without recording; never raises.

    Nothing happens where the probe is disabled or it is not known which rank this is.

    Returns:
        Why this process has no room for it, one clause; empty where it has.
    """
    identity = identify(os.environ)
    if identity is None or is_disabled(os.environ):
        return ""
    if not _settings_of_environment().control:
        return ""
    if reason := _no_room():
        return reason
    try:
        run_path = default_run_path(os.environ, identity.world_size)
        _control.open(run_path, identity.rank, VERB_MAKERS, os.environ)
    except MeshscopeError as error:
        tell(f"no control socket: {error}")
    return ""


def after_the_first_step(act: Callable[[], None]) -> None:
    """Call a function once, at the end of the first step that is recorded from now on."""

    def ended(_step: int) -> None:
        remove()
        act()

    remove = _listeners.add(ended)


def record_when_possible() -> str:
    """Begin to record when the main thread next runs Python; from any thread.

    Returns:
        Why nothing is to be recorded, one clause; empty where it is.

    Raises:
        ConfigError: The ranks have no run directory on which all agree.
    """
    reason = _why_not(_control.run_path)
    if not reason:
        _switch.turn_on(0.0)
    return reason


def step(tokens: int | None = None) -> None:
    """Mark the end of an optimizer step; from then on only these marks count.

    Args:
        tokens: Tokens that this replica trained on in the step, if known.
    """
    if (session := _attached) is not None:
        session.step(tokens)


def sequences(lengths: Lengths, microbatch: int | None = None) -> None:
    """Tell how long the sequences of a microbatch of this step are.

    A microbatch with longer sequences takes longer, by their tokens and, in attention, by the sum
    of their squared lengths. Where both are known, a slow rank is distinguished from one with more work.
    Call it for each microbatch in their order, anywhere in the step, on any rank of a replica or
    on all of them.

    Args:
        lengths: Tokens of each sequence that attends to itself alone: of each document where
            several are packed, without padding that is not computed. In host memory.
        microbatch: Which one, from 0 on; by default the one after that of the last call.
    """
    if (session := _attached) is not None:
        session.sequences(lengths, microbatch)


def describe(  # noqa: PLR0913 - one keyword for each fact
    *,
    layout: ParallelLayout | Mapping[str, int | str] | None = None,
    model: object = None,
    schedule: str | None = None,
    microbatches: int | None = None,
    tokens_per_step: int | None = None,
    flops_per_token: float | None = None,
    peak_flops: float | None = None,
    peak_source: str | None = None,
    device_name: str | None = None,
    training_step: int | None = None,
) -> None:
    """State facts about the job; rank 0 writes them into the run's manifest.

    What is stated while nothing is recorded is written once recording begins, except
    ``training_step``: it belongs to the step at hand.

    Args:
        layout: The mesh, as ``ParallelLayout`` or its keywords.
        model: Fields of ``schema.model.ModelDescription`` by name, as far as they are known; or a
            Hugging Face config, or Megatron's arguments, and in another call ``{"seq_len": ...}``,
            which a config does not tell. MFU counts what is described.
        schedule: A ``ScheduleKind``.
        microbatches: Microbatches of a step on one replica.
        tokens_per_step: Tokens of a step over all replicas.
        flops_per_token: FLOPs of training on one token, forward and backward, of a model that no
            field describes: MFU then counts these.
        peak_flops: Peak of one device at the training dtype, in flop/s.
        peak_source: Where that peak comes from.
        device_name: Device model of the ranks.
        training_step: Number that the training gives to the optimizer step at hand, such as
            the one that it resumes at; the steps of attempts are known from it.
    """
    facts = {
        "layout": layout,
        "model": model,
        "schedule": schedule,
        "microbatches": microbatches,
        "tokens_per_step": tokens_per_step,
        "flops_per_token": flops_per_token,
        "peak_flops": peak_flops,
        "peak_source": peak_source,
        "device_name": device_name,
    }
    if (session := _attached) is not None:
        session.describe({**facts, "training_step": training_step})
    elif any(fact is not None for fact in facts.values()) and not is_disabled(os.environ):
        _described.append(facts)


class span:  # noqa: N801 - used as a function
    """Record the body of a ``with`` statement as a host or compute span.

    Args:
        kind: A ``SpanKind``, such as ``"data_load"``; any other word counts as
            ``other``.
    """

    __slots__ = ("_kind", "_start_cpu_ns", "_start_ns")

    def __init__(self, kind: str) -> None:
        self._kind = _KINDS.get(kind, SpanKind.OTHER)

    def __enter__(self) -> None:
        """Start the span."""
        self._start_cpu_ns = thread_cpu_ns()
        self._start_ns = now_ns()

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """End and record the span, also when the body raised."""
        if (session := _attached) is not None:
            session.record_span(self._kind, self._start_ns, self._start_cpu_ns)


_KINDS = {kind.value: kind for kind in SpanKind}


def _settings_of_environment() -> ProbeConfig:
    try:
        return ProbeConfig.from_environment()
    except ConfigError as error:
        tell(f"{error}; the defaults are used")
        return ProbeConfig()


def _why_not(run_path: Path | None) -> str:
    owner = owner_of(os.environ)
    if owner is not None:
        return (
            f"process {owner}, which has started this one, is recorded as a rank "
            "(unset MESHSCOPE_OWNER_PID to record this one too)"
        )
    if reason := _no_room() or no_interpreter_lock():
        return reason
    identity = identify(os.environ)
    if run_path is None and identity is not None:
        run_path = default_run_path(os.environ, identity.world_size)
    return within(MOST_OPEN_S, lambda: why_disabled(os.environ, run_path))


def _no_room() -> str:
    """Return what this process has too little of, one clause; empty where it has enough."""
    # Where the socket is open already, there was room for its thread and those to come.
    return too_little_address_space() or ("" if _control.is_open else too_few_threads())


def _new_session(run_path: Path | None, settings: ProbeConfig) -> Session:
    def opened(session: Session) -> None:
        if settings.control and session.run_path is not None:
            _control.open(session.run_path, session.rank, VERB_MAKERS, os.environ)

    return Session(
        run_path,
        settings,
        listeners=_listeners,
        opened=opened,
        disabled=_turn_off,
    )


def _started(run_path: Path | None, settings: ProbeConfig) -> Session:
    session = _new_session(run_path, settings)
    try:
        session.start()
    except BaseException:
        session.close()
        raise
    return session


def _turn_off() -> None:
    _switch.turn_off(0.0)


def _session_on_request() -> Session:
    """Return the session that the control socket was asked to begin."""
    session = _new_session(_control.run_path, _settings_of_environment())
    session.annotate("attached_while_running", value=True)
    return session


def _hooked(session: Session | None) -> None:
    global _attached
    _attached = session
    _listeners.reset()
    if session is None:
        _control.log.tell(None)
        return
    while _described:
        session.describe(_described.popleft())
    if _control.log.count:
        session.annotate("control.requests", _control.log.to_json())
    _control.log.tell(lambda log: session.annotate("control.requests", log.to_json()))


_MOST_DESCRIBED = 64
_described: deque[dict[str, object]] = deque(maxlen=_MOST_DESCRIBED)
"""Facts that were stated while nothing was recorded, the oldest first."""
_listeners = StepListeners()
_switch: RecordingSwitch[Session] = RecordingSwitch(_session_on_request, _hooked)
_control = RankControl(_switch, _listeners)


def _disarm_child() -> None:
    global _attached, _listeners, _switch, _control
    session, _attached = _switch.recording, None
    if session is not None:
        session.disarm()
    _listeners = StepListeners()
    _switch = RecordingSwitch(_session_on_request, _hooked)
    _control = RankControl(_switch, _listeners)


os.register_at_fork(after_in_child=_disarm_child)
