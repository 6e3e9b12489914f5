"""The sources of the probe by what they record, for a reader who has not read its code."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ..schema.note import Note, note
from ..schema.printable import printable
from ..schema.sentences import error_sentence

_REASON = "absent."
"""Part of the catalogue that holds such reasons."""

SOURCES = (
    *("collectives", "collective_times", "compute", "pipeline", "steps", "memory", "sequences"),
    *("data_load", "checkpoint", "gc", "waits", "native_waits", "device_times", "deepspeed"),
    *(
        "megatron",
        "meshes",
        "group_making",
        "levels",
        "standstill",
        "last_operations",
        "last_stack",
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


def reason_of(found: object) -> Note | str:
    """Return why a source recorded nothing, or not all, as a value of a note.

    Args:
        found: As a manifest has it: a code with values; older probes wrote a text. Either may be damaged.
    """
    if not isinstance(found, Mapping):
        return printable(str(found))
    code, values = found.get("code"), found.get("values")
    if isinstance(code, str) and code.startswith(_REASON) and isinstance(values, Mapping):
        plain = {str(name): _plain(value) for name, value in values.items()}
        with suppress(KeyError, TypeError, ValueError):
            error_sentence(code, plain)
            return Note(code, plain)
    return printable(str(dict(found)))


def _plain(value: object) -> object:
    return [_plain(one) for one in value] if isinstance(value, list) else printable(str(value))
