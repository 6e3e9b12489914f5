"""Whether a plan fits into the memory of a device, and which settings would."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from meshscope.probe.schema.errors import ConfigError

from ...wording.message import message
from .job import PlannedJob, Recompute
from .memory import stage_memory
from .plan import JobPlan, reserved_bytes

_UNITS = {
    "": 1, "b": 1, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9, "t": 1e12,
    "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_bytes(text: str, where: str = "--memory") -> float:
    """Return a size such as ``80e9``, ``80GB`` or ``80 GiB`` in bytes.

    Raises:
        ConfigError: It is none.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:[eE]\+?\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    size = float(match[1]) * unit if match and unit else 0.0
    if not 0.0 < size < 1e18:
        raise ConfigError(
            message("refused.no_size", text=text), where=where, remedy=message("advice.bytes")
        )
    return size


def needed_bytes(job: PlannedJob) -> tuple[float, int]:
    """Return what the fullest stage is expected to reserve, and that stage."""
    fullest = max(stage_memory(job), key=lambda one: one.allocated_bytes)
    return reserved_bytes(fullest.allocated_bytes)[1], fullest.stage


def check_cap(plan: JobPlan, text: str) -> dict[str, Any]:
    """Return whether the plan fits under a cap, and what leaner settings need.

    Raises:
        ConfigError: Not even the leanest settings fit; the error says what they need.
    """
    cap = parse_bytes(text)
    needed, stage = needed_bytes(plan.job)
    result: dict[str, Any] = {
        "cap_bytes": round(cap),
        "needed_bytes": round(needed),
        "stage": stage,
        "fits": needed <= cap,
        "alternatives": [],
    }
    if needed <= cap:
        return result
    for change, job in leaner_jobs(plan.job):
        size = needed_bytes(job)[0]
        row = {"change": change, "needed_bytes": round(size), "fits": size <= cap}
        result["alternatives"].append(row)
        if size <= cap:
            return result
    tried = result["alternatives"]
    least = min(tried, key=lambda row: row["needed_bytes"]) if tried else None
    if least is None or least["needed_bytes"] > needed:
        least = {"change": "these settings", "needed_bytes": round(needed)}
    raise ConfigError(
        message(
            "refused.cap",
            cap_bytes=cap,
            stage=stage,
            needed_bytes=needed,
            least_bytes=least["needed_bytes"],
            change=least["change"],
        ),
        where="--memory",
        remedy=message("advice.cap", least_bytes=least["needed_bytes"]),
    )


def leaner_jobs(job: PlannedJob) -> Iterator[tuple[str, PlannedJob]]:
    """Yield the job with settings that need less memory, one after the other, cheapest first."""
    now, said = job, dict[str, str]()
    for name, change in (
        ("zero 1", {"zero": max(1, job.zero)}),
        ("sequence parallel", {"sequence_parallel": job.layout.tp > 1}),
        (
            "microbatch size 1",
            {"microbatch_size": 1, "microbatches": job.microbatches * job.microbatch_size},
        ),
        ("recompute full", {"recompute": Recompute.FULL}),
        ("zero 2", {"zero": max(2, job.zero)}),
        ("zero 3", {"zero": 3}),
    ):
        after = replace(now, **change)
        if after != now:
            now = after
            # A later stage of ZeRO takes the place of an earlier one.
            said.pop(next(iter(change)), None)
            said[next(iter(change))] = name
            yield ", ".join(said.values()), now
