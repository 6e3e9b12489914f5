"""What a session of the probe records and how much it may hold on to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from .schema.errors import ConfigError

SOURCES = (
    "collectives",
    "compute",
    "pipeline",
    "steps",
    "data_load",
    "gc",
    "checkpoint",
    "memory",
)
"""The parts of the probe that can be left out one by one."""

_PREFIX = "MESHSCOPE_"


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
    memory_every_steps: int = 1
    """Memory is read in one of so many steps."""
    min_gc_ns: int = 100_000
    """Shorter garbage collections are not recorded."""

    def __post_init__(self) -> None:
        """Validate every field.

        Raises:
            ConfigError: A source is unknown or a number is below its least value.
        """
        unknown = [name for name in self.sources if name not in SOURCES]
        if unknown:
            raise ConfigError(
                f"unknown source {unknown[0]!r}",
                where="sources",
                remedy=f"Choose from {', '.join(SOURCES)}",
            )
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"must be at least {least}", where=name)

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
            try:
                values[field.name] = int(text)
            except ValueError as error:
                raise ConfigError(f"{text!r} is not a whole number", where=variable) from error
        return cls(**values)  # type: ignore[arg-type]


_LEAST = {
    "max_pending_works": 0,
    "max_pending_bytes": 0,
    "max_source_errors": 1,
    "memory_every_steps": 1,
    "min_gc_ns": 0,
}
