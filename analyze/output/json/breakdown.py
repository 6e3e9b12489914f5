"""The JSON form of the split of device time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from meshscope.probe.schema.errors import MeshscopeError

from ...account.kernels.breakdown import device_breakdown
from ...tables.trace import Trace
from ...wording.words import counted, sentence
from .kernels import NO_KERNELS, known_of_device


def breakdown_to_json(trace: Trace, step: int | None = None) -> dict[str, Any]:
    """Return where the device time of each rank went, over all device events or one step.

    Times are null on a rank of which no device event was recorded.

    Raises:
        MeshscopeError: The step is not in the capture.
    """
    seen = (trace.rank_frame("kernel", rank, ["step"])["step"].unique() for rank in trace.ranks)
    known = sorted({int(step) for steps in seen for step in steps} - {-1})
    if step is not None and step not in known:
        raise MeshscopeError(
            f"step {step} has no device events",
            where=str(trace.path),
            remedy=f"Steps with device events: {known[0]}..{known[-1]}"
            if known
            else sentence(NO_KERNELS),
        )
    table = device_breakdown(trace, step)
    limits = [*trace.limits, *_unknown(table)]
    if not trace.row_count("kernel"):
        limits.append(NO_KERNELS)
    records: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    rows = map(known_of_device, records)
    return {
        "version": 1,
        "ranks": {str(row.pop("rank")): row for row in rows},
        "limits": list(map(sentence, limits)),
    }


def _unknown(table: pd.DataFrame) -> Iterator[str]:
    """Yield how much device time is of unknown kind, and how to say what it is."""
    rows = table[table["unknown_events"] > 0]
    if rows.empty:
        return
    most = rows.sort_values("unknown_ns").iloc[-1]
    yield (
        f"{int(rows['unknown_events'].sum()):,} device activities on {counted(len(rows), 'rank')} "
        f"may be communication; most on rank {int(most['rank'])}: {most['unknown_ns'] / 1e6:.3f} ms, "
        f"of which {most['exposed_unknown_ns'] / 1e6:.3f} ms are neither computation nor known "
        "communication. A topology file can say what they are, under [kernels]."
    )
