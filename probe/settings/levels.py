"""Which parts of the probe belong to which level of a capture."""

from __future__ import annotations

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
