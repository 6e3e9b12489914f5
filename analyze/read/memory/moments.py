"""What files about memory are reduced to: a few moments, with the bytes by category."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...wording.limits import Limit

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "other")
"""Categories of the memory table, without their ending ``_bytes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The allocator of one device at one time; None is not known."""

    time_ns: int
    allocated_bytes: int
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    """Highest allocated until then."""
    by_category: Mapping[str, int] | None = None
    """Bytes by category; what is missing to the allocated bytes was allocated without a stack."""
    capacity_bytes: int | None = None
    """What the device has for this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One allocation that failed for want of memory."""

    time_ns: int
    size_bytes: int
    free_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    place: str | None
    """Functions that asked, innermost first."""


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """What one file gave."""

    moments: list[Moment]
    """Begin, peak and end, as far as they differ and are known."""
    notes: list[Limit] = field(default_factory=list)
    """What is missing or assumed."""
    failures: list[Failure] = field(default_factory=list)
