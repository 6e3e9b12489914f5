"""The functions that training code calls; at most one session is attached at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from .clock import now_ns, thread_cpu_ns
from .config import ProbeConfig
from .identity import DISABLE_VARIABLE
from .schema.errors import ConfigError
from .schema.layout import ParallelLayout
from .schema.terms import SpanKind
from .session import Session

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
    global _attached
    if _attached is not None:
        return _attached
    if os.environ.get(DISABLE_VARIABLE, "") not in ("", "0"):
        return None
    try:
        settings = config or _settings_of_environment()
        session = Session(None if run_dir is None else Path(run_dir), settings)
        session.start()
    except Exception as error:  # noqa: BLE001 - attaching must never end a training run
        sys.stderr.write(f"meshscope: not attached: {type(error).__name__}: {error}\n")
        return None
    _attached = session
    return session


def detach() -> None:
    """Stop to record, restore everything that was hooked, close the capture."""
    global _attached
    session, _attached = _attached, None
    if session is not None:
        session.close()


def step(tokens: int | None = None) -> None:
    """Mark the end of an optimizer step; from then on only these marks count.

    Args:
        tokens: Tokens that this replica trained on in the step, if known.
    """
    if _attached is not None:
        _attached.step(tokens)


def describe(  # noqa: PLR0913 - one keyword for each fact
    *,
    layout: ParallelLayout | Mapping[str, int | str] | None = None,
    model: Mapping[str, int] | None = None,
    schedule: str | None = None,
    microbatches: int | None = None,
    tokens_per_step: int | None = None,
    peak_flops: float | None = None,
    peak_source: str | None = None,
    device_name: str | None = None,
) -> None:
    """State facts about the job; rank 0 writes them into the run's manifest.

    Args:
        layout: The mesh, as ``ParallelLayout`` or its keywords.
        model: Keys num_layers, hidden_size, ffn_size, num_heads, seq_len,
            vocab_size, parameters, as far as they are known.
        schedule: A ``ScheduleKind``.
        microbatches: Microbatches of a step on one replica.
        tokens_per_step: Tokens of a step over all replicas.
        peak_flops: Peak of one device at the training dtype, in flop/s.
        peak_source: Where that peak comes from.
        device_name: Device model of the ranks.
    """
    if _attached is not None:
        _attached.describe(
            {
                "layout": layout,
                "model": model,
                "schedule": schedule,
                "microbatches": microbatches,
                "tokens_per_step": tokens_per_step,
                "peak_flops": peak_flops,
                "peak_source": peak_source,
                "device_name": device_name,
            }
        )


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
        if _attached is not None:
            _attached.record_span(self._kind, self._start_ns, self._start_cpu_ns)


_KINDS = {kind.value: kind for kind in SpanKind}


def _settings_of_environment() -> ProbeConfig:
    try:
        return ProbeConfig.from_environment()
    except ConfigError as error:
        sys.stderr.write(f"meshscope: {error}; the defaults are used\n")
        return ProbeConfig()


def _disarm_child() -> None:
    global _attached
    session, _attached = _attached, None
    if session is not None:
        session.disarm()


os.register_at_fork(after_in_child=_disarm_child)
