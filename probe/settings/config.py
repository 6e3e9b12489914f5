"""What a session of the probe records, by level of a capture, and how much it may hold on to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from ..schema.errors import ConfigError
from ..schema.message import message
from ..schema.terms import CaptureLevel

_OWN_SOURCES = {
    CaptureLevel.STEPS: (
        "steps",
        "meshes",
        "data_load",
        "gc",
        "checkpoint",
        "memory",
        # They tell where steps end, too; below the level of stages their spans are left out.
        "deepspeed",
        "megatron",
    ),
    CaptureLevel.STAGES: ("compute", "pipeline", "device_times"),
    CaptureLevel.COLLECTIVES: ("collectives",),
    CaptureLevel.KERNELS: ("collective_times",),
}
SOURCES = tuple(source for sources in _OWN_SOURCES.values() for source in sources)
"""The parts of the probe that can be left out one by one, by level."""

_LEVELS = list(CaptureLevel)


def sources_of(level: CaptureLevel) -> tuple[str, ...]:
    """Return the sources of a level, which include those of the levels before it."""
    included = _LEVELS[: _LEVELS.index(level) + 1]
    return tuple(source for own in included for source in _OWN_SOURCES[own])


def level_below(level: CaptureLevel) -> CaptureLevel | None:
    """Return the level that records less; None below the least."""
    place = _LEVELS.index(level)
    return _LEVELS[place - 1] if place else None


def level_of(word: str) -> CaptureLevel:
    """Return the level of a name.

    Raises:
        ConfigError: There is none of that name.
    """
    try:
        return CaptureLevel(word)
    except ValueError:
        raise ConfigError(
            message("refused.no_level", word=word),
            where="level",
            remedy=message("advice.choose_from", known=list(CaptureLevel)),
        ) from None


_SPAN_SOURCES = frozenset({"compute", "pipeline", "deepspeed", "megatron"})


def level_reached(installed: set[str], wanted: CaptureLevel) -> CaptureLevel:
    """Return what is recorded in effect where a level is wanted."""
    if wanted is CaptureLevel.STEPS:
        return wanted
    if "collectives" in installed:
        return CaptureLevel.KERNELS if "collective_times" in installed else CaptureLevel.COLLECTIVES
    # Times of the device belong to spans, and say nothing without them.
    return CaptureLevel.STAGES if installed & _SPAN_SOURCES else CaptureLevel.STEPS


__all__ = [
    "BUDGET_PPM",
    "MOST_CLOSE_S",
    "MOST_FLUSH_S",
    "MOST_OPEN_S",
    "MOST_PUBLISH_S",
    "SOURCES",
    "ProbeConfig",
]

_PREFIX = "MESHSCOPE_"

BUDGET_PPM = 5_000
"""Share of the time that the hooks of a rank may take, unless told otherwise."""

MOST_CLOSE_S = 30.0
"""Longest time that a recorder takes to close on a file system that hangs."""
MOST_OPEN_S = 30.0
"""Longest time that it takes to open there, and that its notes beside it take at either end."""
MOST_FLUSH_S = 30.0
"""Longest time that who asks for a flush waits for it there; it is made all the same."""
MOST_PUBLISH_S = 2.0
"""Longest time that the training waits, once, for a new name to be on a disk that hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """Settings of one session; the defaults are meant for production runs."""

    sources: tuple[str, ...] = SOURCES
    """What is recorded, out of ``SOURCES``."""
    max_pending_works: int = 256
    """Operations whose end is still looked for; the oldest are given up first."""
    max_pending_bytes: int = 256 << 20
    """Bytes of messages that these may keep alive between them."""
    max_source_errors: int = 10
    """Errors of the probe itself after which the source that makes them is off."""
    memory_every_steps: int = 0
    """Memory is read in one of so many steps; 0 is each step without a device, and with one each of
    the first 16 and then one in 8."""
    min_gc_ns: int = 100_000
    """Shorter garbage collections are not recorded."""
    control: int = 1
    """0 for no control socket; then nothing can be asked of this process while it runs."""
    level: str = CaptureLevel.COLLECTIVES.value
    """What is recorded at the start (CaptureLevel); it can be changed while the job runs."""
    full_first_steps: int = 100
    """Of so many first steps every communication record goes to disk, of later ones sums …"""
    full_every_steps: int = 100
    """… but for each step whose number this divides; 1 keeps all in full, 0 none."""
    cost_budget_ppm: int = BUDGET_PPM
    """Share of the time that the hooks may take, in parts per million; 0 is no bound."""
    cost_window_steps: int = 50
    """Steps over which the cost is summed up; after three windows over budget less is recorded."""
    compare_window_steps: int = 0
    """Steps of the windows in which hooks record and do not, in turns; 0 records always."""
    max_pending_device_times: int = 4096
    """Device times that are still looked for; with more, the newest are dropped."""
    force_collective_times: int = 0
    """1 times collectives on the device also where that is known to harm the overlap."""

    def __post_init__(self) -> None:
        """Validate every field.

        Raises:
            ConfigError: A source is unknown or a number is below its least value.
        """
        unknown = [name for name in self.sources if name not in SOURCES]
        if unknown:
            raise ConfigError(
                message("refused.unknown_source", name=unknown[0]),
                where="sources",
                remedy=message("advice.choose_from", known=list(SOURCES)),
            )
        level_of(self.level)
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(message("refused.below_least", least=least), where=name)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> ProbeConfig:
        """Read ``MESHSCOPE_<FIELD>`` variables; ``sources`` is a comma-separated list.

        Raises:
            ConfigError: A variable does not hold a value of its field.
        """
        environment = os.environ if environment is None else environment
        values: dict[str, object] = {}
        for field in fields(cls):
            variable = _PREFIX + field.name.upper()
            text = environment.get(variable)
            if text is None:
                continue
            if field.name == "sources":
                values[field.name] = tuple(part.strip() for part in text.split(",") if part.strip())
                continue
            if field.name == "level":
                values[field.name] = text.strip()
                continue
            try:
                values[field.name] = int(text)
            except ValueError as error:
                raise ConfigError(
                    message("refused.no_whole_number", text=text), where=variable
                ) from error
        return cls(**values)  # type: ignore[arg-type]


_LEAST = {
    "max_pending_works": 0,
    "max_pending_bytes": 0,
    "max_source_errors": 1,
    "memory_every_steps": 0,
    "min_gc_ns": 0,
    "control": 0,
    "full_first_steps": 0,
    "full_every_steps": 0,
    "cost_budget_ppm": 0,
    "cost_window_steps": 1,
    "compare_window_steps": 0,
    "max_pending_device_times": 0,
    "force_collective_times": 0,
}
