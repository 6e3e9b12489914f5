"""The sources of the probe by what they record, for a reader who has not read its code."""

from __future__ import annotations

from typing import Any

from ..schema.note import Note, note
from ..schema.printable import printable

SOURCES = (
    *("collectives", "collective_times", "compute", "pipeline", "steps", "memory", "sequences"),
    *("data_load", "checkpoint", "gc", "waits", "native_waits", "device_times", "deepspeed"),
    *(
        "megatron",
        "meshes",
        "group_making",
        "levels",
        "standstill",
        "hooks",
        "session",
        "uncompiled",
    ),
)
"""The catalogue says of each what it records (``source.``) and what is wrong without it (``effect.``)."""


def source_of(name: str) -> dict[str, Any]:
    """Return a source as values of a note: its ``name``, what it records and what is wrong without it.

    Args:
        name: As a manifest has it, which may be damaged or of another version.
    """
    if name not in SOURCES:
        return {"name": printable(name), "effect": note("effect.unknown")}
    return {
        "name": Note(f"source.{name}", {}),
        "effect": Note(f"effect.{name}", {}),
    }
