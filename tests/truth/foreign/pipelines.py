"""Cases of production jobs: what repairing each fault returns, its share, and who is blamed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.truth.foreign.case import Answer, Case, Check, Reply
from tests.truth.foreign.draw import USUAL, Ranges
from tests.truth.foreign.job import Job, SlowRank, UnequalData
from tests.truth.foreign.place import record
from tests.truth.foreign.published import published
from tests.truth.foreign.readers import NOTHING, SLOW, STAGE, cause, largest_healthy, names, step_ms
from tests.truth.foreign.replayed import SEED, replayed

PRODUCTION = "production variants"
HELD_OUT = "held-out jobs"
GAIN, SHARE, HEALTHY, NAMED = "gain, %", "share, %", "healthy rank, %", "culprit"
"""How the checks of a job begin: what the summary is counted by."""
NEAR_GAIN, NEAR_SHARE, MOST_HEALTHY = 1.5, 2.0, 2.0
"""The goal, in points of the step."""
SEEN_FROM = 1.0
"""A fault that returns less, in per cent, need not be named."""

_HALF = tuple(range(0, 32, 2))
_ONE = ((0, 1, 2.0, None),)
_FAULTS = {
    "ST-r2x1.3": ((0, 1, 1.3, None),),
    "ST-r0x3-half": ((0, 0, 3.0, _HALF),),
    "ST-two-r1x1.5-r2x2": ((1, 0, 1.5, None), *_ONE),
}
"""Replica, stage, factor and steps of the slow ranks of a variant; the rest have one of 2 x."""


def production(shared: Path, scratch: Path) -> list[Case]:
    """Return the variants of the published job that its own script makes."""
    script = shared / "cases" / "production" / "variants.py"
    parquet = record()
    if parquet is None or not script.is_file():
        return []
    out = scratch / "variants"
    if not (out / "truth.json").is_file():
        out.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, str(script), str(out)], check=True, capture_output=True, timeout=300
        )
    origin = published(parquet)
    truths = json.loads((out / "truth.json").read_text(encoding="utf-8"))
    return [_variant(truth, origin, out) for truth in truths]


def _variant(truth: dict[str, Any], origin: Job, out: Path) -> Case:
    name = truth["name"]
    ranks = [(int(rank), gain) for rank, gain in truth["by_rank"].items()]
    if "seq" in name:
        shape = origin.shape
        rng = np.random.default_rng(5)
        work = rng.lognormal(-0.045, 0.3, (shape.microbatches, shape.dp, shape.steps))
        # The script's own answer also takes away what these draws are shorter by on average (1.6 %),
        # which nobody can know: evened out, every microbatch takes as long as the mean one.
        data = UnequalData(work / work.mean())
        job = replace(origin, faults=(data,))
        checks = _data(100 * job.gain(data), 100 * job.shares()[data])
    else:
        faults = [_slow(origin, *f) for f in _FAULTS.get(name, _ONE)] if ranks else []
        shares = replace(origin, faults=tuple(faults)).shares()
        pairs = zip(ranks, faults, strict=True)
        checks = [check for (r, gain), f in pairs for check in _rank(r, gain, 100 * shares[f])]
    slow = {rank for rank, _ in ranks}
    culprit = f"straggler_rank rank {max(ranks, key=lambda r: r[1])[0]}" if ranks else ""
    if "seq" in name:
        culprit = "sequence_imbalance"
    tail = _blamed(slow, culprit)
    # Where the first operation of a step is left out of the file, so is its time.
    if not name.endswith("no-dp"):
        tail.append(step_ms(1000 * truth["T"], 0.5))
    return Case(name, PRODUCTION, _diagnose(out / name), (*checks, *tail))


def _slow(origin: Job, dp: int, stage: int, factor: float, steps: Collection[int] | None):
    by_step = np.ones(origin.shape.steps)
    by_step[list(steps) if steps is not None else slice(None)] = factor
    return SlowRank(dp, stage, by_step)


def held_out(scratch: Path, jobs: int, seed: int = SEED, ranges: Ranges = USUAL) -> list[Case]:
    """Return jobs that meshscope's authors have not looked at, made from a seed."""
    out = scratch / f"held-out-{seed}"
    return [_job(truth, out) for truth in replayed(out, seed, jobs, record(), ranges)]


def _job(truth: dict[str, Any], out: Path) -> Case:
    checks: list[Check] = []
    slow = set()
    best, culprit = SEEN_FROM, ""
    for fault in truth["faults"]:
        what, gain, share = fault["what"], fault.get("gain", 0.0), fault.get("share", 0.0)
        if what["cause"] == "uneven stages":
            checks.append(Check(f"{SHARE} stages", share, _share_of_stages, NEAR_SHARE))
            continue
        if what["cause"] == "slow rank":
            slow.add(what["rank"])
            checks += _rank(what["rank"], gain, share)
            name = f"straggler_rank rank {what['rank']}"
        elif what["cause"] == "unequal data":
            checks += _data(gain, share)
            name = "sequence_imbalance"
        else:
            checks.append(_stage(what["stage"], gain))
            name = f"stage_imbalance stage {what['stage']}"
        if gain > best:
            best, culprit = gain, name
    tail = _blamed(slow, culprit)
    if truth["recipe"]["without"] != "dp":
        # Stamps scatter, and so does the mean of steps that begin and end with them.
        within = max(0.5, 3e-3 * truth["recipe"]["noise_us"])
        tail.append(step_ms(1000 * truth["step_s"], within))
    name = f"{truth['name']}-{truth['recipe']['kind'].replace(' ', '-')}"
    return Case(name, HELD_OUT, _diagnose(out / truth["name"]), (*checks, *tail))


def _diagnose(folder: Path) -> tuple[str, ...]:
    return ("diagnose", str(folder), "--format", "json")


def _rank(rank: int, gain: float, share: float) -> list[Check]:
    def reported(key: str):
        return lambda reply: cause(reply, SLOW, key, rank=rank)

    return [
        Check(f"{GAIN} rank {rank}", gain, reported("removal_gain_frac"), NEAR_GAIN),
        Check(f"{SHARE} rank {rank}", share, reported("share_frac"), NEAR_SHARE),
    ]


def _data(gain: float, share: float) -> list[Check]:
    def reported(key: str):
        return lambda reply: cause(reply, {"sequence_imbalance"}, key)

    return [
        Check(f"{GAIN} data", gain, reported("removal_gain_frac"), NEAR_GAIN),
        Check(f"{SHARE} data", share, reported("share_frac"), NEAR_SHARE),
    ]


def _stage(stage: int, gain: float) -> Check:
    def reported(reply: Reply) -> Answer:
        return cause(reply, STAGE, "removal_gain_frac", stage=stage)

    return Check(f"{GAIN} stage {stage}", gain, reported, NEAR_GAIN)


def _share_of_stages(reply: Reply) -> Answer:
    """Return what all stages together have, per cent; None where there are no causes."""
    causes = reply.data["causes"]
    shares = [100 * one["share_frac"] for one in causes if one["kind"] in STAGE]
    return float(sum(shares)) if causes else None


def _blamed(slow: Collection[int], culprit: str) -> list[Check]:
    """Return who must be named, and that nobody else is."""

    def healthy(reply: Reply) -> Answer:
        return largest_healthy(reply, slow)

    checks = [Check(HEALTHY, 0.0, healthy, MOST_HEALTHY)]
    if culprit:
        checks.append(Check(NAMED, culprit, lambda reply: _found(reply, culprit)))
    return checks


def _found(reply: Reply, culprit: str) -> str:
    """Return the culprit if it is a finding, or the first finding that is a fault."""
    reported = names(reply)
    return culprit if culprit in reported else (reported[0] if reported else NOTHING)
