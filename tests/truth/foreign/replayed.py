"""Production-like jobs with exact answers: ``python -m tests.truth.foreign.replayed OUT --seed N --jobs K``.

Writes ``OUT/NAME/trace-NAME.parquet`` and ``meta-NAME.yaml`` for each job, and ``OUT/truth.json``. What a
repair returns is exact: the same simulation without the fault. No part of meshscope is used.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tests.truth.foreign.draw import KINDS, USUAL, WIDE, Drawn, Ranges, drawn
from tests.truth.foreign.job import Fault, HeavyStage, SlowRank, UnevenStages
from tests.truth.foreign.place import record
from tests.truth.foreign.published import published
from tests.truth.foreign.record import write

SEED = 517


def replayed(
    out: Path, seed: int, jobs: int, parquet: Path | None, ranges: Ranges = USUAL
) -> Iterator[dict[str, object]]:
    """Write jobs and yield the truth of each.

    Args:
        out: Folder for one folder a job.
        seed: Job number k is the same for a seed, however many there are.
        jobs: How many.
        parquet: A published record that every second job is made from; None makes all of them
            from a schedule.
        ranges: What jobs are drawn from.
    """
    origin = published(parquet) if parquet else None
    for number in range(jobs):
        rng = np.random.default_rng([seed, number])
        kind = KINDS[number // 2 % len(KINDS)]
        one = drawn(rng, kind, origin if number % 2 else None, ranges)
        name = f"{one.recipe['origin']}-{number:03d}"
        write(one.job, one.recording, out / name, rng)
        yield {"name": name, "seed": [seed, number], "recipe": one.recipe, **truth(one)}


def truth(one: Drawn) -> dict[str, object]:
    """Return the right answers, times in seconds and parts in per cent of the mean step."""
    job = one.job
    gains = {fault: job.gain(fault) for fault in job.faults}
    shares = job.shares()
    faults = []
    for fault in dict.fromkeys([*gains, *shares]):
        reported = {"gain": gains.get(fault), "share": shares.get(fault)}
        parts = {name: 100 * part for name, part in reported.items() if part is not None}
        faults.append({"what": _what(fault, one), **parts})
    return {
        "step_s": job.step_s(),
        "without_faults_s": job.step_s(job.faults),
        "faults": faults,
    }


def _what(fault: Fault, one: Drawn) -> dict[str, object]:
    """Return the cause and its place as the recorded ranks are numbered."""
    if isinstance(fault, SlowRank):
        slow = fault.by_step > 1
        return {
            "cause": "slow rank",
            "rank": one.recording.rank(one.job, fault.dp, fault.stage),
            "stage": fault.stage,
            "factor": float(fault.by_step.max()),
            "steps": int(slow.sum()),
        }
    if isinstance(fault, HeavyStage):
        return {"cause": "heavy stage", "stage": fault.stage}
    if isinstance(fault, UnevenStages):
        return {"cause": "uneven stages"}
    return {"cause": "unequal data", "cv": float(fault.work.std())}


def main() -> None:
    """Write the jobs and their truth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--wide", action="store_true", help="draw from wider ranges")
    options = parser.parse_args()
    ranges = WIDE if options.wide else USUAL
    options.out.mkdir(parents=True, exist_ok=True)
    if record() is None:
        print("The published record is absent: all jobs are made from a schedule.")
    answers = []
    for answer in replayed(options.out, options.seed, options.jobs, record(), ranges):
        answers.append(answer)
        gains = ", ".join(
            f"{_place(fault['what'])} {fault['gain']:.2f} %"
            for fault in answer["faults"]
            if "gain" in fault
        )
        print(f"{answer['name']}: {1000 * answer['step_s']:.1f} ms; {gains or 'no fault'}")
    text = json.dumps(answers, indent=1)
    (options.out / "truth.json").write_text(text + "\n", encoding="utf-8")


def _place(what: dict[str, object]) -> str:
    """Name a fault with its place."""
    return " ".join(str(what[key]) for key in ("cause", "rank") if key in what)


if __name__ == "__main__":
    main()
