"""The notes that ranks made of a step that lasted for long, as far as it never ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.manifest import STANDSTILL_KEY

from .newest_attempt import newest_attempt

_FAR_NS = 1 << 62


def notes_of_last_step(
    steps: pa.Table, manifests: Mapping[int, Mapping[str, Any]], key: str = STANDSTILL_KEY
) -> dict[int, Mapping[str, Any]]:
    """Return the note of each rank that made one in the step that it never ended, in rank order.

    A note of an earlier step, or attempt, tells nothing: the rank or the job went on. Of what a note holds, ``time_ns`` is
    known to be a time; the rest may be anything.

    Args:
        steps: The ``step`` table.
        manifests: Manifests of the ranks.
        key: The annotation that holds the note.
    """
    frame: pd.DataFrame = steps.select(["rank", "start_ns", "dur_ns"]).to_pandas()
    ended_ns = (frame["start_ns"] + frame["dur_ns"]).groupby(frame["rank"]).max()
    found: dict[int, Mapping[str, Any]] = {}
    for rank, manifest in sorted(manifests.items()):
        annotations = manifest.get("annotations")
        note = annotations.get(key) if isinstance(annotations, dict) else None
        if not isinstance(note, dict) or type(time_ns := note.get("time_ns")) is not int:
            continue
        is_newest = newest_attempt(manifest).get("recorded", True)
        if is_newest and int(ended_ns.get(rank, 0)) < time_ns < _FAR_NS:
            found[rank] = note
    return found
