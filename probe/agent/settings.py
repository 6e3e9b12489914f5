"""How the agent of a node samples and what it keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from ..recording.segment_series import SeriesBounds
from ..schema.errors import ConfigError
from ..schema.message import message
from .host import PROC
from .links import SYSFS


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of one agent; the defaults are meant for production runs."""

    interval_s: float = 1.0
    """Time between two samples."""
    burst_interval_s: float = 0.1
    """Time between two samples while a few steps are recorded in depth."""
    flush_s: float = 10.0
    """Time after which samples are written: what a killed agent can lose."""
    reader_timeout_s: float = 5.0
    """A reader that has not answered by then is replaced."""
    grace_s: float = 10.0
    """Without a launcher the agent ends when no rank has lived for this time."""
    bounds: SeriesBounds = field(
        default=SeriesBounds(
            segment_bytes=4 << 20, segment_s=600.0, max_bytes=128 << 20, free_floor_frac=0.05
        )
    )
    """What the segments of the host may take."""
    duration_s: float | None = None
    """The agent ends after this time."""
    port: int | None = None
    """Port of the metrics on loopback; none is opened where it is not given."""
    trace_steps: int = 3
    """Steps of a deep trace that the agent asks for by itself."""
    trace_on_suspicion: bool = False
    """Whether a rank that stays slower than the others of its stage is a reason for one."""
    launcher_pid: int | None = None
    """Parent process; while it lives the agent does not end by itself."""
    sysfs: Path = SYSFS
    """Where sysfs is mounted."""
    proc: Path = PROC
    """Where the proc file system is mounted."""

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            ConfigError: A number is too small, or a time is no number of seconds.
        """
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise ConfigError(
                    message("refused.no_number_from", least=least), where=name.removesuffix("_s")
                )


_LEAST = {
    "trace_steps": 1,
    "interval_s": 0.01,
    "burst_interval_s": 0.01,
    "flush_s": 0.0,
    "reader_timeout_s": 0.05,
    "grace_s": 0.0,
    "duration_s": 0.0,
}
