"""What each rank's manifest says of the levels it recorded at, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ..schema.manifest import RECORDING_KEY
from ..schema.summary_tables import RECORDING
from ..schema.terms import CaptureLevel

_NUMBERS = {
    "step": False,
    "one_in": True,
    "start_ns": True,
    "steps": False,
    "dur_ns": False,
    "cost_ns": True,
    "queued_ns": True,
}
"""Whole numbers of a stretch, and whether they may be unknown."""
_LEVELS = frozenset(level.value for level in CaptureLevel)


def recording_table(manifests: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """Return the ``recording`` table; a stretch that is malformed is left out."""
    rows = [
        {"rank": rank, **stretch}
        for rank, manifest in sorted(manifests.items())
        for stretch in _stretches(manifest)
    ]
    types = {
        "rank": pa.int32(),
        "level": pa.string(),
        "reason": pa.string(),
        **dict.fromkeys(_NUMBERS, pa.int64()),
    }
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
    return RECORDING.conform(pa.table(columns))


def _stretches(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    annotations = manifest.get("annotations")
    found = annotations.get(RECORDING_KEY) if isinstance(annotations, dict) else None
    if not isinstance(found, list):
        return []
    wanted = ("level", "reason", *_NUMBERS)
    return [{name: one.get(name) for name in wanted} for one in found if _is_stretch(one)]


def _is_stretch(one: object) -> bool:
    if not isinstance(one, dict) or one.get("level") not in _LEVELS:
        return False
    if not isinstance(one.get("reason"), str | None):
        return False
    return all(
        (value is None and optional) or (type(value) is int and -(1 << 63) <= value < 1 << 63)
        for name, optional in _NUMBERS.items()
        for value in [one.get(name)]
    )
